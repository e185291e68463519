/* Addresses as text: "host", "host:port", "[IPv6]" and "[IPv6]:port". */
#ifndef TETHER_NET_ADDRESS_H
#define TETHER_NET_ADDRESS_H

#include <stdbool.h>
#include <stddef.h>

#define TETHER__ADDRESS_NO_PORT (-1)

struct tether__address {
    const char *host; /* without brackets; LENT by the text */
    size_t host_len;
    bool is_ipv6; /* the host was in brackets */
    int port;     /* TETHER__ADDRESS_NO_PORT: none was given */
};

/* Splits `len` characters. Returns false for an empty host, several colons without brackets, text
 * around the brackets, or a port that is not a number from 0 to 65535. Does not look up the host.
 */
bool tether__address_split(const char *text, size_t len, struct tether__address *ret_address);

/* Whether the host is "localhost" or a numeric loopback address. Does not look up other names. */
bool tether__address_is_loopback(const struct tether__address *address);

#endif
