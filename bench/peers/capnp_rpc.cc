// Cap'n Proto as a contestant: two-party RPC over TCP, and capabilities as references.
//
//     capnp_rpc CLIENT_CPU SERVER_CPU
//
// References, as well as its API can: create_drop has windows of 256, like Tether's: of 256 that
// are made, each is waited for and dropped ("create_drop"), or all are dropped without waiting and
// one more call makes sure that the server has seen them ("create_drop_unawaited", for which the
// server's count shows that they were really made). create_fetch_drop calls the new object through
// its promise, which takes one round trip ("create_fetch_drop"), or waits for it first, which takes
// two ("create_fetch_drop_awaited").
#include <capnp/rpc-twoparty.h>
#include <kj/async-io.h>
#include <kj/vector.h>

#include "capnp_peer.capnp.h"
#include "contestant.hpp"

namespace {

constexpr size_t kWindow = 256, kOutstanding = 64;
uint64_t n_made;

class ObjectServer final : public Object::Server {
    kj::Promise<void> get(GetContext context) override {
        context.getResults().setValue(kj::StringPtr("eightby").asBytes());
        return kj::READY_NOW;
    }
};

class BenchServer final : public Bench::Server {
    kj::Promise<void> echo(EchoContext context) override {
        context.getResults().setData(context.getParams().getData());
        return kj::READY_NOW;
    }
    kj::Promise<void> make(MakeContext context) override {
        n_made++;
        context.getResults().setObject(kj::heap<ObjectServer>());
        return kj::READY_NOW;
    }
    kj::Promise<void> made(MadeContext context) override {
        context.getResults().setN(n_made);
        return kj::READY_NOW;
    }
};

void Serve(const std::function<void(int)> &ready) {
    auto io = kj::setupAsyncIo();
    auto address = io.provider->getNetwork().parseAddress("127.0.0.1:0").wait(io.waitScope);
    auto listener = address->listen();
    capnp::TwoPartyServer server(kj::heap<BenchServer>());
    ready(static_cast<int>(listener->getPort()));
    server.listen(*listener).wait(io.waitScope);
}

class Client {
  public:
    explicit Client(int port)
        : io_(kj::setupAsyncIo()),
          connection_(io_.provider->getNetwork()
                          .parseAddress(kj::str("127.0.0.1:", port))
                          .wait(io_.waitScope)
                          ->connect()
                          .wait(io_.waitScope)),
          client_(*connection_),
          bench_(client_.bootstrap().castAs<Bench>()) {}

    double MedianUs(size_t size, double seconds) {
        return bench::MedianUs(seconds, [&] { CallOnce(size); });
    }

    double PerSecond(size_t size, double seconds) {
        return bench::Rate(seconds, [&] {
            CallOnce(size);
            return 1;
        });
    }

    // 64 outstanding: each that is done starts the next.
    double Outstanding(double seconds) {
        size_t done = 0;
        double begin = bench::Now(), until = begin + seconds;
        kj::Function<kj::Promise<void>()> chain = [&]() -> kj::Promise<void> {
            return Echo(64).then([&](auto) -> kj::Promise<void> {
                done++;
                if (bench::Now() > until) return kj::READY_NOW;
                return chain();
            });
        };
        kj::Vector<kj::Promise<void>> all;
        for (size_t i = 0; i < kOutstanding; i++) all.add(chain());
        kj::joinPromises(all.releaseAsArray()).wait(io_.waitScope);
        return static_cast<double>(done) / (bench::Now() - begin);
    }

    double CreateDrop(double seconds) {
        return bench::Rate(seconds, [&] {
            kj::Vector<kj::Promise<void>> all;
            for (size_t i = 0; i < kWindow; i++)
                all.add(bench_.makeRequest().send().then([](auto made) { made.getObject(); }));
            kj::joinPromises(all.releaseAsArray()).wait(io_.waitScope);
            return kWindow;
        });
    }

    double CreateDropUnawaited(double seconds) {
        uint64_t before = Made();
        size_t made = 0;
        double rate = bench::Rate(seconds, [&] {
            for (size_t i = 0; i < kWindow; i++) bench_.makeRequest().send().getObject();
            Made();
            return made += kWindow, kWindow;
        });
        if (Made() - before != made) bench::Die("objects were not made");
        return rate;
    }

    double CreateFetchDrop(double seconds) {
        return bench::Rate(seconds, [&] {
            auto object = bench_.makeRequest().send().getObject();
            if (object.getRequest().send().wait(io_.waitScope).getValue().size() != 7)
                bench::Die("no object");
            return 1;
        });
    }

    double CreateFetchDropAwaited(double seconds) {
        return bench::Rate(seconds, [&] {
            auto object = bench_.makeRequest().send().wait(io_.waitScope).getObject();
            if (object.getRequest().send().wait(io_.waitScope).getValue().size() != 7)
                bench::Die("no object");
            return 1;
        });
    }

  private:
    capnp::RemotePromise<Bench::EchoResults> Echo(size_t size) {
        auto request = bench_.echoRequest();
        request.setData(kj::arrayPtr(blob_, size));
        return request.send();
    }

    void CallOnce(size_t size) {
        if (Echo(size).wait(io_.waitScope).getData().size() != size) bench::Die("no echo");
    }

    uint64_t Made() { return bench_.madeRequest().send().wait(io_.waitScope).getN(); }

    kj::byte blob_[1 << 20] = {0};
    kj::AsyncIoContext io_;
    kj::Own<kj::AsyncIoStream> connection_;
    capnp::TwoPartyClient client_;
    Bench::Client bench_;
};

}  // namespace

int main(int argc, char **argv) {
    if (argc != 3) bench::Die("usage: capnp_rpc CLIENT_CPU SERVER_CPU");
    auto server = bench::Serve(Serve, std::atoi(argv[1]), std::atoi(argv[2]));
    auto client = kj::heap<Client>(server.port);
    bench::Answer(
        {{"sync_64", [&](double s) { return client->MedianUs(64, s); }},
         {"sync_null", [&](double s) { return client->MedianUs(0, s); }},
         {"sync_64k", [&](double s) { return client->MedianUs(64 << 10, s); }},
         {"sync_1m", [&](double s) { return client->MedianUs(1 << 20, s); }},
         {"rate_64", [&](double s) { return client->PerSecond(64, s); }},
         {"async_64", [&](double s) { return client->Outstanding(s); }},
         {"create_drop", [&](double s) { return client->CreateDrop(s); }},
         {"create_drop_unawaited", [&](double s) { return client->CreateDropUnawaited(s); }},
         {"create_fetch_drop", [&](double s) { return client->CreateFetchDrop(s); }},
         {"create_fetch_drop_awaited", [&](double s) { return client->CreateFetchDropAwaited(s); }}},
        server);
}
