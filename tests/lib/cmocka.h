/* cmocka and the headers that it needs before it. */
#ifndef TETHER_TESTS_LIB_CMOCKA_H
#define TETHER_TESTS_LIB_CMOCKA_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#endif
