/* Helpers of the tests of the URL rendezvous. */
#ifndef TETHER_TESTS_RENDEZVOUS_URL_FIXTURE_H
#define TETHER_TESTS_RENDEZVOUS_URL_FIXTURE_H

#include "rendezvous/rendezvous.h"

#define LIMIT_MS 60000
#define SHORT_MS 300

int url_clear_environment(void **state); /* the setup of a test */

/* Returns a port that was free a moment ago. Another process may take it, so url_host_at() tries
 * several. */
int url_free_port(void);

/* Joins as rank 0 at a free port; `format` takes the port. */
struct tether_world url_host_at(const char *format, int timeout_ms) TETHER_PRINTF(1, 0);

void url_put(tether_store *store, const char *key, const char *value);

/* Asserts that the value at `key` is `value`. */
void url_expect(tether_store *store, const char *key, const char *value);

/* Asserts that joining fails with this status, and with an error that has the words `says`. */
void url_refused(const char *url, int rank, int size, tether_status status, const char *says);

#endif
