// gRPC C++ as a contestant: the callback API with generated stubs and the library's defaults, over
// TCP, as its own examples have it.
//
//     grpc_cpp CLIENT_CPU SERVER_CPU
#include <grpcpp/grpcpp.h>

#include <condition_variable>
#include <mutex>

#include "contestant.hpp"
#include "echo.grpc.pb.h"

namespace {

class EchoService final : public peer::Echo::CallbackService {
    grpc::ServerUnaryReactor *Call(grpc::CallbackServerContext *context,
                                   const peer::Blob *in,
                                   peer::Blob *out) override {
        out->set_data(in->data());
        auto *reactor = context->DefaultReactor();
        reactor->Finish(grpc::Status::OK);
        return reactor;
    }
};

void Serve(const std::function<void(int)> &ready) {
    EchoService service;
    int port = 0;
    grpc::ServerBuilder builder;
    builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port);
    builder.RegisterService(&service);
    auto server = builder.BuildAndStart();
    ready(port);
    server->Wait();
}

struct Call {
    grpc::ClientContext context;
    peer::Blob in, out;
};

class Client {
  public:
    explicit Client(int port) {
        grpc::ChannelArguments arguments;
        arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
        arguments.SetMaxReceiveMessageSize(-1);
        stub_ = peer::Echo::NewStub(
            grpc::CreateCustomChannel("127.0.0.1:" + std::to_string(port),
                                      grpc::InsecureChannelCredentials(), arguments));
    }

    // One call after the other.
    double MedianUs(size_t size, double seconds) {
        std::string data(size, 'x');
        return bench::MedianUs(seconds, [&] { CallOnce(data); });
    }

    double PerSecond(size_t size, double seconds) {
        std::string data(size, 'x');
        return bench::Rate(seconds, [&] {
            CallOnce(data);
            return 1;
        });
    }

    // 64 outstanding: each that is done starts the next.
    double Outstanding(double seconds) {
        double begin = bench::Now();
        until_ = begin + seconds;
        done_ = 0;
        active_ = 64;
        for (int i = 0; i < 64; i++) Chain();
        std::unique_lock<std::mutex> lock(mu_);
        idle_.wait(lock, [&] { return active_ == 0; });
        return static_cast<double>(done_) / (bench::Now() - begin);
    }

  private:
    void CallOnce(const std::string &data) {
        std::mutex mu;
        std::condition_variable cond;
        bool done = false;
        Call call;
        call.in.set_data(data);
        stub_->async()->Call(&call.context, &call.in, &call.out, [&](grpc::Status status) {
            if (!status.ok()) bench::Die(status.error_message());
            std::lock_guard<std::mutex> lock(mu);
            done = true;
            cond.notify_one();
        });
        std::unique_lock<std::mutex> lock(mu);
        cond.wait(lock, [&] { return done; });
    }

    void Chain() {
        auto *call = new Call;
        call->in.set_data(std::string(64, 'x'));
        stub_->async()->Call(&call->context, &call->in, &call->out,
                             [this, call](grpc::Status status) {
                                 if (!status.ok()) bench::Die(status.error_message());
                                 delete call;
                                 bool more = bench::Now() < until_;
                                 {
                                     std::lock_guard<std::mutex> lock(mu_);
                                     done_++;
                                     if (!more && --active_ == 0) idle_.notify_one();
                                 }
                                 if (more) Chain();
                             });
    }

    std::unique_ptr<peer::Echo::Stub> stub_;
    std::mutex mu_;
    std::condition_variable idle_;
    size_t done_ = 0, active_ = 0;
    double until_ = 0;
};

}  // namespace

int main(int argc, char **argv) {
    if (argc != 3) bench::Die("usage: grpc_cpp CLIENT_CPU SERVER_CPU");
    auto server = bench::Serve(Serve, std::atoi(argv[1]), std::atoi(argv[2]));
    Client client(server.port);
    bench::Answer({{"sync_64", [&](double s) { return client.MedianUs(64, s); }},
                   {"sync_null", [&](double s) { return client.MedianUs(0, s); }},
                   {"sync_64k", [&](double s) { return client.MedianUs(64 << 10, s); }},
                   {"sync_1m", [&](double s) { return client.MedianUs(1 << 20, s); }},
                   {"rate_64", [&](double s) { return client.PerSecond(64, s); }},
                   {"async_64", [&](double s) { return client.Outstanding(s); }}},
                  server);
}
