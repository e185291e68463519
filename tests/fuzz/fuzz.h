/* The functions that a fuzz test defines (fuzz.bzl). */
#ifndef TETHER_TESTS_FUZZ_FUZZ_H
#define TETHER_TESTS_FUZZ_FUZZ_H

#include <stddef.h>
#include <stdint.h>

/* Feeds one input to the code under test. Aborts when something is wrong, else returns 0 and
 * leaves nothing behind. */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* Like assert(), but also active in release builds. */
#define fuzz_check(condition) ((condition) ? (void)0 : __builtin_trap())

#endif
