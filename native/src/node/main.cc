// fixture_node: serves a range of layers of the fixture model, by itself or in a chain with Python
// nodes. Writes the address it serves at as one line. Ends when its standard input ends, which is
// when whoever started it is gone, or on SIGTERM or SIGINT.

#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <future>
#include <iostream>
#include <map>
#include <memory>
#include <set>
#include <stdexcept>
#include <string>
#include <thread>

#include "node/service.h"

namespace meshnet {
namespace {

constexpr const char* kUsage =
    "usage: fixture_node --node-id NAME --layers A:B --total-layers N\n"
    "  [--listen HOST:PORT]  port 0 takes a free one; default 127.0.0.1:0\n"
    "  [--model-digest TEXT] [--recipe-digest TEXT] [--recipe-id TEXT] [--recipe-version N]\n"
    "  [--chunk-tokens N] [--context N] [--max-sessions N] [--credits N]\n"
    "  [--max-chunk-bytes N] [--next HOST:PORT]\n";

// What a frame may hold besides its tensors.
constexpr uint64_t kFrameSlack = 1 << 20;
// How long what is still going on may take when the node is told to end.
constexpr std::chrono::milliseconds kGrace{200};

class Options {
 public:
  Options(int argc, char** argv) {
    static const std::set<std::string> kNames = {
        "--node-id", "--layers",       "--total-layers", "--listen",  "--model-digest",
        "--context", "--recipe-digest", "--recipe-id",   "--credits", "--chunk-tokens",
        "--next",    "--max-sessions", "--max-chunk-bytes", "--recipe-version"};
    for (int i = 1; i < argc; i += 2) {
      const std::string name = argv[i];
      if (kNames.count(name) == 0) throw std::invalid_argument(name + " is no option");
      if (i + 1 == argc) throw std::invalid_argument(name + " needs a value");
      values_[name] = argv[i + 1];
    }
  }

  std::string text(const std::string& name, const std::string& otherwise) const {
    const auto found = values_.find(name);
    return found == values_.end() ? otherwise : found->second;
  }

  std::string text(const std::string& name) const {
    const auto found = values_.find(name);
    if (found == values_.end()) throw std::invalid_argument(name + " is missing");
    return found->second;
  }

  uint64_t number(const std::string& name, uint64_t otherwise) const {
    return values_.count(name) == 0 ? otherwise : to_number(name, text(name));
  }

  uint32_t small_number(const std::string& name, uint32_t otherwise) const {
    const uint64_t value = number(name, otherwise);
    if (value == 0 || value > UINT32_MAX) throw std::invalid_argument(name + " is out of range");
    return static_cast<uint32_t>(value);
  }

  pb::LayerRange layers(const std::string& name) const {
    const std::string value = text(name);
    const size_t colon = value.find(':');
    if (colon == std::string::npos) throw std::invalid_argument(name + " has the form A:B");
    pb::LayerRange range;
    range.set_start(static_cast<uint32_t>(to_number(name, value.substr(0, colon))));
    range.set_end(static_cast<uint32_t>(to_number(name, value.substr(colon + 1))));
    return range;
  }

 private:
  static uint64_t to_number(const std::string& name, const std::string& value) {
    if (value.empty() || value.find_first_not_of("0123456789") != std::string::npos) {
      throw std::invalid_argument(name + " is a number, not " + value);
    }
    return std::stoull(value);
  }

  std::map<std::string, std::string> values_;
};

pb::Capability capability_of(const Options& options) {
  pb::Capability capability;
  capability.mutable_schema_version()->set_number(kSchemaVersion);
  capability.set_node_id(options.text("--node-id"));
  *capability.mutable_layers() = options.layers("--layers");
  capability.set_total_layers(options.small_number("--total-layers", 0));
  pb::Fingerprint* fingerprint = capability.mutable_fingerprint();
  fingerprint->set_model_artifact_digest(options.text("--model-digest", ""));
  fingerprint->set_runtime_recipe_digest(options.text("--recipe-digest", ""));
  fingerprint->set_recipe_id(options.text("--recipe-id", "fixture"));
  fingerprint->set_recipe_version(options.small_number("--recipe-version", 1));
  fingerprint->set_catalogue_version(1);
  capability.set_slice_digest(options.text("--model-digest", ""));
  capability.set_architecture("fixture");
  capability.set_context_length(options.small_number("--context", 4096));
  pb::FlowControl flow;
  flow.set_credits(options.small_number("--credits", 4));
  flow.set_max_sessions(options.small_number("--max-sessions", 8));
  flow.set_max_chunk_bytes(options.number("--max-chunk-bytes", 0));
  *capability.mutable_flow() = with_defaults(flow);
  capability.add_dtypes(pb::TENSOR_DTYPE_FLOAT32);
  capability.add_compressions(pb::COMPRESSION_NONE);
  capability.add_compressions(pb::COMPRESSION_ZSTD);
  capability.set_next_address(options.text("--next", ""));
  const pb::LayerRange& layers = capability.layers();
  if (layers.start() >= layers.end() || layers.end() > capability.total_layers()) {
    throw std::invalid_argument("--layers must be a range of the model's layers");
  }
  return capability;
}

// Waits until the node is to end. The signals must be blocked in every thread.
void wait_for_end(const sigset_t& signals) {
  std::thread([] {
    char byte = 0;
    while (read(STDIN_FILENO, &byte, 1) > 0) continue;
    kill(getpid(), SIGTERM);
  }).detach();
  int signal = 0;
  sigwait(&signals, &signal);
}

void serve(const Options& options, const sigset_t& signals) {
  const pb::Capability capability = capability_of(options);
  EventLoop loop;
  ShardNode node(&loop, capability, options.small_number("--chunk-tokens", 128));
  NodeService service(&loop, &node);

  const std::string listen = options.text("--listen", "127.0.0.1:0");
  int port = 0;
  grpc::ServerBuilder builder;
  builder.AddListeningPort(listen, grpc::InsecureServerCredentials(), &port);
  builder.RegisterService(&service);
  const uint64_t largest = capability.flow().max_chunk_bytes() + kFrameSlack;
  builder.SetMaxReceiveMessageSize(static_cast<int>(std::min<uint64_t>(INT32_MAX, largest)));
  // A port that another process listens at is an error and not to be shared.
  builder.AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);
  // Peers ask often whether this node lives, also while nothing is going on.
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1);
  builder.AddChannelArgument(GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS, 10);
  const std::unique_ptr<grpc::Server> server = builder.BuildAndStart();
  if (!server || port == 0) throw std::runtime_error("can't listen at " + listen);
  std::cout << listen.substr(0, listen.rfind(':')) << ':' << port << std::endl;

  wait_for_end(signals);
  std::promise<std::vector<std::shared_ptr<Channel>>> closed;
  loop.post([&] { closed.set_value(node.close()); });
  for (const auto& channel : closed.get_future().get()) channel->wait_until_done();
  server->Shutdown(std::chrono::system_clock::now() + kGrace);
}

}  // namespace
}  // namespace meshnet

int main(int argc, char** argv) {
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGTERM);
  sigaddset(&signals, SIGINT);
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  try {
    meshnet::serve(meshnet::Options(argc, argv), signals);
  } catch (const std::invalid_argument& error) {
    std::cerr << error.what() << '\n' << meshnet::kUsage;
    return 2;
  } catch (const std::exception& error) {
    std::cerr << error.what() << '\n';
    return 1;
  }
  return 0;
}
