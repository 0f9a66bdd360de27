// What the client compares, and a node as it sees it.
#pragma once

#include <grpcpp/grpcpp.h>

#include <memory>
#include <string>
#include <vector>

#include "meshnet/wire/v1/shard_runtime.grpc.pb.h"
#include "wire/failure.h"
#include "wire/frames.h"

namespace meshnet {

// Counts comparisons and says on standard error what differs.
class Checks {
 public:
  template <typename Found, typename Expected>
  void equal(const Found& found, const Expected& expected, const std::string& what) {
    ++done_;
    if (!(found == expected)) differ(what + ": " + text(found) + ", not " + text(expected));
  }
  void that(bool holds, const std::string& what) { equal(holds, true, what); }
  // Two messages, field by field.
  void same(const google::protobuf::Message& found, const google::protobuf::Message& expected,
            const std::string& what);

  int done() const { return done_; }
  int differences() const { return differences_; }
  void differ(const std::string& line);

 private:
  static std::string text(const std::string& value) { return value; }
  static std::string text(const char* value) { return value; }
  static std::string text(bool value) { return value ? "true" : "false"; }
  template <typename Number>
  static std::string text(const Number& value) {
    return std::to_string(value);
  }

  int done_ = 0;
  int differences_ = 0;
};

// A node of the chain: how to reach it, and what it says of itself.
struct Node {
  std::string address;
  std::unique_ptr<pb::ShardRuntime::Stub> stub;
  pb::Capability capability;

  pb::Hop hop() const;
  bool is_head() const { return capability.layers().start() == 0; }
  bool is_tail() const { return capability.layers().end() == capability.total_layers(); }
};

using Chain = std::vector<Node>;

// A session's name that no other run of the client has used.
std::string unique(const std::string& name);

// The context of a call that ends within some seconds, come what may.
std::unique_ptr<grpc::ClientContext> bounded();

pb::HealthResponse health_of(const Node& node);
void cancel(const Node& node, const std::string& session, const std::string& reason);
void release(const Node& node, const std::string& session);

// An envelope that opens a session at the first of `chain`.
pb::Envelope opening(const Chain& chain, size_t first, const std::string& session);

// One stream to a node. Replies are checked against the contract; what isn't due throws.
class Stream {
 public:
  explicit Stream(const Node& node);

  void send(const pb::SessionRequest& request);
  // The next reply; of a frame of tokens, one token at a time.
  pb::SessionResponse next();
  pb::SessionOpened opened();
  pb::Ack ack();
  pb::TokenReply token();
  pb::SessionFailed failed();
  pb::SessionReleased released();
  pb::GenerationDone done();
  // Says that nothing more comes and takes what is left; how many replies that were, and how the
  // stream ended.
  std::pair<int, grpc::Status> close();

 private:
  pb::SessionResponse due(pb::SessionResponse::ResponseCase kind);

  std::unique_ptr<grpc::ClientContext> context_;
  std::unique_ptr<grpc::ClientReaderWriter<pb::SessionRequest, pb::SessionResponse>> stream_;
  std::vector<pb::SessionResponse> waiting_;  // the next one last
};

// Each drives the chain's node `first` and adds to the checks.
void check_capability_and_health(const Chain& chain, size_t first, Checks* checks);
void check_as_gateway(const Chain& chain, Checks* checks);
void check_as_upstream(const Chain& chain, size_t first, Checks* checks);
void check_calls(const Chain& chain, size_t first, Checks* checks);

}  // namespace meshnet
