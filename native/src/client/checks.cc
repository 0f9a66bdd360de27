#include "client/checks.h"

#include <google/protobuf/util/message_differencer.h>

#include <chrono>
#include <iostream>
#include <random>
#include <stdexcept>

namespace meshnet {
namespace {

constexpr std::chrono::seconds kPatience{20};

void require_ok(const grpc::Status& status, const std::string& what) {
  if (!status.ok()) throw std::runtime_error(what + ": " + status.error_message());
}

}  // namespace

void Checks::same(const google::protobuf::Message& found,
                  const google::protobuf::Message& expected, const std::string& what) {
  ++done_;
  std::string report;
  google::protobuf::util::MessageDifferencer differencer;
  differencer.ReportDifferencesToString(&report);
  if (!differencer.Compare(expected, found)) differ(what + ":\n" + report);
}

void Checks::differ(const std::string& line) {
  ++differences_;
  std::cerr << "DIFFERENT: " << line << '\n';
}

pb::Hop Node::hop() const {
  pb::Hop hop;
  hop.set_node_id(capability.node_id());
  hop.set_address(address);
  *hop.mutable_layers() = capability.layers();
  return hop;
}

std::string unique(const std::string& name) {
  static const std::string kRun = std::to_string(std::random_device()());
  return name + "-" + kRun;
}

std::unique_ptr<grpc::ClientContext> bounded() {
  auto context = std::make_unique<grpc::ClientContext>();
  context->set_deadline(std::chrono::system_clock::now() + kPatience);
  return context;
}

pb::HealthResponse health_of(const Node& node) {
  pb::HealthResponse report;
  require_ok(node.stub->Health(bounded().get(), {}, &report), "Health");
  return read_health(report.SerializeAsString());
}

void cancel(const Node& node, const std::string& session, const std::string& reason) {
  pb::CancelRequest request;
  request.set_route_session_id(session);
  request.set_reason(reason);
  pb::CancelResponse answer;
  require_ok(node.stub->Cancel(bounded().get(), request, &answer), "Cancel");
}

void release(const Node& node, const std::string& session) {
  pb::ReleaseRequest request;
  request.set_route_session_id(session);
  pb::ReleaseResponse answer;
  require_ok(node.stub->Release(bounded().get(), request, &answer), "Release");
}

pb::Envelope opening(const Chain& chain, size_t first, const std::string& session) {
  const pb::Capability& receiver = chain[first].capability;
  const auto deadline = std::chrono::system_clock::now() + kPatience;
  pb::Envelope envelope;
  envelope.mutable_schema_version()->set_number(kSchemaVersion);
  envelope.set_route_session_id(session);
  *envelope.mutable_fingerprint() = receiver.fingerprint();
  *envelope.mutable_layers() = receiver.layers();
  envelope.set_effective_start_layer(receiver.layers().start());
  envelope.set_deadline_unix_nanos(
      std::chrono::duration_cast<std::chrono::nanoseconds>(deadline.time_since_epoch()).count());
  return envelope;
}

Stream::Stream(const Node& node)
    : context_(bounded()), stream_(node.stub->Session(context_.get())) {}

void Stream::send(const pb::SessionRequest& request) {
  if (!stream_->Write(request)) throw std::runtime_error("the stream takes no more requests");
}

pb::SessionResponse Stream::next() {
  if (waiting_.empty()) {
    pb::SessionResponse frame;
    if (!stream_->Read(&frame)) {
      throw std::runtime_error("the stream ended: " + stream_->Finish().error_message());
    }
    frame = read_reply(frame.SerializeAsString());
    if (!frame.has_tokens()) return frame;
    for (int i = frame.tokens().replies_size() - 1; i >= 0; --i) {
      pb::SessionResponse single;
      *single.mutable_tokens()->add_replies() = frame.tokens().replies(i);
      waiting_.push_back(single);
    }
  }
  pb::SessionResponse reply = waiting_.back();
  waiting_.pop_back();
  return reply;
}

pb::SessionResponse Stream::due(pb::SessionResponse::ResponseCase kind) {
  pb::SessionResponse reply = next();
  if (reply.response_case() != kind) {
    throw std::runtime_error("another reply was due: " + reply.ShortDebugString());
  }
  return reply;
}

pb::SessionOpened Stream::opened() { return due(pb::SessionResponse::kOpened).opened(); }
pb::Ack Stream::ack() { return due(pb::SessionResponse::kAck).ack(); }
pb::TokenReply Stream::token() { return due(pb::SessionResponse::kTokens).tokens().replies(0); }
pb::SessionFailed Stream::failed() { return due(pb::SessionResponse::kFailed).failed(); }
pb::SessionReleased Stream::released() { return due(pb::SessionResponse::kReleased).released(); }
pb::GenerationDone Stream::done() { return due(pb::SessionResponse::kDone).done(); }

std::pair<int, grpc::Status> Stream::close() {
  stream_->WritesDone();
  int left = static_cast<int>(waiting_.size());
  pb::SessionResponse reply;
  while (stream_->Read(&reply)) ++left;
  return {left, stream_->Finish()};
}

}  // namespace meshnet
