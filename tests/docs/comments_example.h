/* An input for comments.awk: the name of each function says what its comment lacks, or that it is
 * complete.
 *
 * Nothing here is compiled.
 */

/* Gives nothing away. */
TETHER_API tether_thing *tether_lacks_ownership_threads_errors(void);

/* A thing that is yours, from any thread. TETHER_ENOMEM. */
TETHER_API tether_status tether_lacks_nothing(tether_thing **ret_thing, tether_error *reterr);
TETHER_API tether_status tether_lacks_nothing_as_one_of_a_group(tether_thing **ret_thing,
                                                                tether_error *reterr);

TETHER_API int tether_lacks_threads(const tether_thing *thing);

TETHER_API int tether_lacks_nothing_by_its_own_line(void); /* any thread */

/* Blocks. TETHER_ETIMEOUT. */
TETHER_API tether_status tether_lacks_ownership(tether_thing **ret_thing, tether_error *reterr);

/* LENDS. Any thread. */
TETHER_API const char *tether_lacks_errors(const tether_thing *thing);

/* ---- A section ----
 *
 * Threads: any thread.
 *
 * Errors common to all: TETHER_EINVAL.
 */

TETHER_API tether_status tether_lacks_nothing_by_its_section(tether_thing *thing);
TETHER_API tether_status tether_lacks_ownership_by_its_section(tether_thing **ret_thing);

/* ---- Another, which says nothing ---- */

TETHER_API void tether_lacks_threads_again(tether_thing *thing);
