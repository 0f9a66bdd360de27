// node_client HOST:PORT [HOST:PORT ...]: drives live nodes of the fixture model, the head or a
// later node first and then the rest of its chain, and compares all they say with arithmetic of its
// own. Exits with 1 if anything differs.

#include <chrono>
#include <iostream>
#include <stdexcept>
#include <thread>

#include "client/checks.h"

namespace meshnet {
namespace {

constexpr std::chrono::seconds kIdleWithin{5};

Node connect(const std::string& address) {
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  const auto channel =
      grpc::CreateCustomChannel(address, grpc::InsecureChannelCredentials(), arguments);
  Node node{address, pb::ShardRuntime::NewStub(channel), {}};
  pb::GetCapabilityResponse answer;
  const grpc::Status status = node.stub->GetCapability(bounded().get(), {}, &answer);
  if (!status.ok()) throw std::runtime_error(address + ": " + status.error_message());
  node.capability = read_capability(answer.SerializeAsString()).capability();
  return node;
}

// After the streams have ended, the nodes hold nothing.
void check_idle(const Chain& chain, Checks* checks) {
  const auto end = std::chrono::steady_clock::now() + kIdleWithin;
  for (const Node& node : chain) {
    while (health_of(node).open_sessions() != 0 && std::chrono::steady_clock::now() < end) {
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
    const pb::HealthResponse health = health_of(node);
    checks->equal(health.open_sessions(), 0U, "sessions left open");
    checks->that(health.steps_done() > 0, "steps are counted");
  }
}

int run(const std::vector<std::string>& addresses) {
  Checks checks;
  Chain chain;
  for (const std::string& address : addresses) chain.push_back(connect(address));
  for (size_t i = 0; i < chain.size(); ++i) {
    check_capability_and_health(chain, i, &checks);
    check_calls(chain, i, &checks);
  }
  checks.that(chain.back().is_tail(), "the chain ends with the model");
  if (chain[0].is_head()) check_as_gateway(chain, &checks);
  for (size_t i = chain[0].is_head() ? 1 : 0; i < chain.size(); ++i) {
    check_as_upstream(chain, i, &checks);
  }
  check_idle(chain, &checks);
  std::cout << checks.done() << " comparisons, " << checks.differences() << " differences\n";
  return checks.differences() == 0 ? 0 : 1;
}

}  // namespace

void check_capability_and_health(const Chain& chain, size_t first, Checks* checks) {
  const pb::Capability& held = chain[first].capability;
  checks->equal(held.schema_version().number(), kSchemaVersion, "the schema's version");
  checks->equal(held.architecture(), "fixture", "the architecture");
  checks->equal(held.dtypes_size() > 0 && held.dtypes(0) == pb::TENSOR_DTYPE_FLOAT32, true,
                "float32 is taken");
  checks->equal(held.compressions_size(), 2, "packings that are read");
  checks->that(!held.fingerprint().recipe_id().empty(), "the recipe has a name");
  if (first > 0) {
    const pb::Capability& before = chain[first - 1].capability;
    checks->same(held.fingerprint(), before.fingerprint(), "the fingerprint along the chain");
    checks->equal(held.total_layers(), before.total_layers(), "the model's layers");
    checks->equal(held.layers().start(), before.layers().end(), "where the layers join");
  }
  const pb::HealthResponse health = health_of(chain[first]);
  checks->equal(health.state(), pb::LIFECYCLE_STATE_READY, "the node's state");
  checks->that(!health.has_error(), "it has no error");
  checks->equal(health.open_sessions(), 0U, "sessions before any was opened");
}

void check_calls(const Chain& chain, size_t first, Checks* checks) {
  const Node& node = chain[first];
  // Of a session that isn't there, and twice.
  for (int i = 0; i < 2; ++i) {
    release(node, unique("never-opened"));
    cancel(node, unique("never-opened"), "");
  }
  const auto context = bounded();
  pb::ReleaseResponse answer;
  const grpc::Status status = node.stub->Release(context.get(), {}, &answer);
  checks->equal(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT, "a call without session");
  const auto& trailers = context->GetServerTrailingMetadata();
  const auto trailer = trailers.find("meshnet-error-bin");
  if (trailer == trailers.end()) {
    checks->differ("the error isn't in the trailing metadata");
    return;
  }
  const pb::ShardError error = read_error({trailer->second.data(), trailer->second.size()});
  checks->equal(error.code(), pb::ERROR_CODE_MALFORMED_FRAME, "its code");
  checks->equal(detail(error, "field"), "route_session_id", "the field it names");
}

}  // namespace meshnet

int main(int argc, char** argv) {
  if (argc < 2) {
    std::cerr << "usage: node_client HOST:PORT [HOST:PORT ...]\n";
    return 2;
  }
  try {
    return meshnet::run({argv + 1, argv + argc});
  } catch (const std::exception& error) {
    std::cerr << error.what() << '\n';
    return 1;
  }
}
