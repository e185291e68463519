/* A locale with a decimal comma, for tests of text that must not depend on it. */
#ifndef TETHER_TESTS_LIB_LOCALE_H
#define TETHER_TESTS_LIB_LOCALE_H

#include <stdbool.h>

/* Makes such a locale in the test's directory and sets LC_NUMERIC to it. False when this system
 * can't make it. setlocale(LC_NUMERIC, "C") restores the default. */
bool tether_test_use_decimal_comma(void);

#endif
