/* Compiler helpers for all our headers. */
#ifndef TETHER_BASE_MACROS_H
#define TETHER_BASE_MACROS_H

#include <stddef.h>

/* The version of the headers that a program was compiled with. */
#define TETHER_VERSION "0.1.0"

#ifdef __cplusplus
#define TETHER_BEGIN_DECLS extern "C" {
#define TETHER_END_DECLS }
#else
#define TETHER_BEGIN_DECLS
#define TETHER_END_DECLS
#endif

/* Marks the symbols of the ABI; the library is compiled with -fvisibility=hidden. */
#define TETHER_API __attribute__((visibility("default")))
#define TETHER_PRINTF(fmt_arg, first_arg) __attribute__((format(printf, fmt_arg, first_arg)))
#define TETHER_MUST_CHECK __attribute__((warn_unused_result))

/* Makes options in place for the _OPTS() macros: a pointer to a struct `name` that lives until the
 * end of the statement (C++) or of the enclosing block (C). In C++ the fields must be given in
 * their order. */
#ifdef __cplusplus
#define TETHER__OPTS(name, ...) \
    (&static_cast<const name &>(name{.size = sizeof(name), __VA_ARGS__}))
#else
#define TETHER__OPTS(name, ...) (&(const struct name){.size = sizeof(struct name), __VA_ARGS__})
#endif

/* The struct that contains `*member_ptr` as its field `member`. */
#define tether__container_of(member_ptr, type, member) \
    ((type *)(void *)((char *)(member_ptr)-offsetof(type, member)))

#define TETHER__ARRAY_LEN(a) (sizeof(a) / sizeof((a)[0]))

#endif
