/* Splits addresses. */
#include "net/address.h"

#include <arpa/inet.h>
#include <string.h>

static bool parse_port(const char *text, size_t len, int *ret_port)
{
    int port = 0;
    for (size_t i = 0; i < len; i++) {
        if (text[i] < '0' || text[i] > '9')
            return false;
        port = port * 10 + (text[i] - '0');
        if (port > 65535)
            return false;
    }
    *ret_port = port;
    return len > 0;
}

bool tether__address_split(const char *text, size_t len, struct tether__address *ret_address)
{
    struct tether__address address = {.port = TETHER__ADDRESS_NO_PORT};
    address.is_ipv6 = len > 0 && text[0] == '[';
    address.host = text + address.is_ipv6;
    const char *limit = text + len;
    const char *end =
        memchr(address.host, address.is_ipv6 ? ']' : ':', (size_t)(limit - address.host));
    if (address.is_ipv6 && !end)
        return false;
    address.host_len = (size_t)((end ? end : limit) - address.host);
    const char *rest = address.host + address.host_len + address.is_ipv6;
    if (address.host_len == 0 ||
        (rest < limit &&
         (*rest != ':' || !parse_port(rest + 1, (size_t)(limit - rest - 1), &address.port))))
        return false;
    *ret_address = address;
    return true;
}

bool tether__address_is_loopback(const struct tether__address *address)
{
    static const char name[] = "localhost";
    char host[INET6_ADDRSTRLEN];
    struct in_addr v4;
    struct in6_addr v6;
    if (address->host_len == sizeof name - 1 && memcmp(address->host, name, sizeof name - 1) == 0)
        return !address->is_ipv6;
    if (address->host_len >= sizeof host)
        return false;
    memcpy(host, address->host, address->host_len);
    host[address->host_len] = '\0';
    if (address->is_ipv6)
        return inet_pton(AF_INET6, host, &v6) == 1 && IN6_IS_ADDR_LOOPBACK(&v6);
    return inet_pton(AF_INET, host, &v4) == 1 && ntohl(v4.s_addr) >> 24 == 127;
}
