/* The URL parser on any text: it never reads outside, refuses with a reason, and what it accepts
 * keeps its promises. */
#include <string.h>

#include "rendezvous/url/url.h"
#include "tests/fuzz/fuzz.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char text[TETHER__URL_MAX + 64];
    if (size >= sizeof text)
        return 0;
    memcpy(text, data, size);
    text[size] = '\0';
    struct tether__url *url = NULL;
    tether_error err = {0};
    if (tether__url_parse(text, &url, &err) != TETHER_OK) {
        fuzz_check(!url && err.code && err.message[0]);
        return 0;
    }
    size_t len = strlen(text);
    fuzz_check(url->scheme[0] && strlen(url->scheme) == tether__url_scheme_len(text));
    fuzz_check(url->port >= TETHER__URL_NO_PORT && url->port <= 65535);
    fuzz_check(strlen(url->host) <= len && strlen(url->path) <= len);
    for (size_t i = 0; i < url->n_params; i++) {
        fuzz_check(url->params[i].key[0] && url->params[i].value[0]);
        fuzz_check(tether__url_param(url, url->params[i].key) == url->params[i].value);
    }
    tether__url_free(url);
    return 0;
}
