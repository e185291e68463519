/* Handing accepted connections to a gRPC server that has TLS.
 *
 * gRPC's public function for this, grpc_server_add_channel_from_fd(), takes plain text only. But
 * gRPC has a kind of port without a socket, "external:NAME", on which its C++ library builds
 * AddExternalConnectionAcceptor(): the channel argument "external:NAME" points to a place where
 * gRPC puts an object of this class, to which accepted descriptors can be given:
 *
 *     class TcpServerFdHandler {
 *      public:
 *       virtual ~TcpServerFdHandler() = default;
 *       virtual void Handle(int listener_fd, int fd, grpc_byte_buffer *pending_read) = 0;
 *     };
 *
 * In the C++ ABI of every system that Tether runs on, an object of such a class begins with a
 * pointer to a table of functions, which take the object first: two forms of the destructor, then
 * Handle(). This file relies on that, and on nothing else of gRPC's insides.
 *
 * Tether uses it only with the version of gRPC that it is built and tested with (CHECKED_VERSION).
 * With any other one gRPC listens by itself. The class is the same in gRPC 1.70, the newest source
 * that was read. After an upgrade read src/core/lib/iomgr/tcp_server.h and CreateWithAcceptor() in
 * chttp2_server.cc, run the tests with TLS, then change CHECKED_VERSION.
 *
 * The server deletes the handler when it is shut down: nothing is handed over after that.
 */
#include <string.h>

#include "rpc/transport/grpc/accept.h"

#define CHECKED_VERSION "29." /* the version of gRPC core that is in gRPC 1.51 */
#define PORT_NAME "external:tether"

struct handler {
    const struct {
        void (*destroy)(struct handler *handler);
        void (*destroy_and_free)(struct handler *handler);
        void (*handle)(struct handler *handler,
                       int listener_fd,
                       int fd,
                       grpc_byte_buffer *pending_read);
    } * functions;
};

atomic_bool tether__grpc_external_is_off;

static void *same(void *place)
{
    return place;
}

static void nothing(void *place)
{
    (void)place;
}

static int compare(void *a, void *b)
{
    return (a > b) - (a < b);
}

grpc_arg tether__grpc_external_arg(struct tether__grpc_external *external)
{
    static const grpc_arg_pointer_vtable by_address = {same, nothing, compare};
    return (grpc_arg){GRPC_ARG_POINTER,
                      (char *)PORT_NAME,
                      {.pointer = {(void *)&external->handler, &by_address}}};
}

bool tether__grpc_external_works(void)
{
    return strncmp(grpc_version_string(), CHECKED_VERSION, strlen(CHECKED_VERSION)) == 0 &&
           !atomic_load(&tether__grpc_external_is_off);
}

bool tether__grpc_external_add(struct tether__grpc_external *external,
                               grpc_server *server,
                               grpc_server_credentials *credentials)
{
    grpc_server_add_http2_port(server, PORT_NAME,
                               credentials); /* returns 0 in any case, so the result says nothing */
    return external->handler;
}

void tether__grpc_external_take(const struct tether__grpc_external *external, int fd)
{
    struct handler *handler = external->handler;
    handler->functions->handle(handler, -1, fd, NULL);
}
