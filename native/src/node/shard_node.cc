#include "node/shard_node.h"

#include <utility>

namespace meshnet {
namespace {

constexpr std::chrono::seconds kReadyFor{30};

std::string text(const pb::LayerRange& layers) {
  return "[" + std::to_string(layers.start()) + ", " + std::to_string(layers.end()) + ")";
}

bool same(const pb::LayerRange& a, const pb::LayerRange& b) {
  return a.start() == b.start() && a.end() == b.end();
}

bool same(const pb::Fingerprint& a, const pb::Fingerprint& b) {
  return a.model_artifact_digest() == b.model_artifact_digest() &&
         a.runtime_recipe_digest() == b.runtime_recipe_digest() &&
         a.recipe_id() == b.recipe_id() && a.recipe_version() == b.recipe_version() &&
         a.catalogue_version() == b.catalogue_version();
}

const pb::Envelope& envelope_of(const Request& request) {
  return request.message.has_generate() ? request.message.generate().envelope()
                                        : request.message.open().envelope();
}

// The session's number on its stream, of any request but a decode frame.
uint32_t handle_of(const pb::SessionRequest& request) {
  switch (request.request_case()) {
    case pb::SessionRequest::kGenerate:
      return request.generate().handle();
    case pb::SessionRequest::kOpen:
      return request.open().handle();
    case pb::SessionRequest::kPrefill:
      return request.prefill().handle();
    case pb::SessionRequest::kGrant:
      return request.grant().handle();
    case pb::SessionRequest::kCancel:
      return request.cancel().handle();
    default:
      return request.release().handle();
  }
}

void send_failure(Seam& seam, uint32_t handle, const ShardFailure& failure) {
  pb::SessionResponse message;
  message.mutable_failed()->set_handle(handle);
  *message.mutable_failed()->mutable_error() = failure.error();
  seam.send(message);
}

}  // namespace

ShardNode::ShardNode(EventLoop* loop, const pb::Capability& capability, uint32_t chunk_tokens)
    : engine_({capability.layers().start(), capability.layers().end()},
              capability.total_layers(), capability.context_length(),
              capability.flow().max_sessions()),
      channels_(loop),
      parts_{loop, &engine_, &channels_, capability, chunk_tokens, [this] {
               ++steps_done_;
               last_success_ = std::chrono::steady_clock::now();
             }} {}

pb::HealthResponse ShardNode::health() {
  pb::HealthResponse report;
  report.set_state(pb::LIFECYCLE_STATE_READY);
  try {
    const auto now = std::chrono::steady_clock::now();
    if (!last_success_ || now - *last_success_ > kReadyFor) probe();
  } catch (const ShardFailure& failure) {
    // A node whose sessions are all in use works.
    if (failure.code() != pb::ERROR_CODE_RESOURCE_EXHAUSTED) {
      report.set_state(pb::LIFECYCLE_STATE_FAILED);
      *report.mutable_error() = failure.error();
    }
  }
  report.set_open_sessions(static_cast<uint32_t>(sessions_.size()));
  report.set_steps_done(steps_done_);
  return report;
}

void ShardNode::probe() {
  Step step{{"probe", 0}, 0, {}, 0, {Row{}}};
  step.expectation.set_mode(pb::CACHE_MODE_FRESH);
  engine_.run(step);
  engine_.release(step.key);
  last_success_ = std::chrono::steady_clock::now();
}

void ShardNode::release(const SessionKey& key) {
  const auto found = sessions_.find(key);
  if (found == sessions_.end()) return;
  const std::shared_ptr<Session> session = found->second;
  session->fail({pb::ERROR_CODE_CANCELLED, "session " + key.text() + " was released from outside"});
}

void ShardNode::cancel(const SessionKey& key, const std::string& reason) {
  const auto found = sessions_.find(key);
  if (found == sessions_.end()) {
    engine_.cancel(key);
    return;
  }
  const std::shared_ptr<Session> session = found->second;
  session->fail({pb::ERROR_CODE_CANCELLED, "session " + key.text() + " was cancelled: " + reason},
                true);
}

std::vector<std::shared_ptr<Channel>> ShardNode::close() {
  const auto sessions = sessions_;
  for (const auto& [key, session] : sessions) session->cancel("the node is shutting down");
  return channels_.close();
}

void ShardNode::on_request(const std::shared_ptr<Seam>& seam, Request request) {
  const pb::SessionRequest& message = request.message;
  if (message.has_generate() || message.has_open()) {
    accept(seam, request);
  } else if (message.has_decode()) {
    for (const pb::DecodeStep& step : message.decode().steps()) {
      route(*seam, step.handle(), [&](Session& session) { session.push_decode(step); });
    }
  } else if (message.has_attach_return()) {
    // This head names no return path, so that nobody has a key to bring tokens with.
    send_failure(*seam, message.attach_return().handle(),
                 {pb::ERROR_CODE_SESSION_NOT_FOUND, "no session awaits tokens from here"});
  } else if (message.has_returned()) {
    return;
  } else if (message.has_cancel()) {
    route(*seam, message.cancel().handle(),
          [&](Session& session) { session.cancel(message.cancel().reason()); });
  } else {
    route(*seam, handle_of(message),
          [&](Session& session) { session.push(std::move(request)); });
  }
}

void ShardNode::on_end(Seam& seam) {
  const auto found = streams_.find(&seam);
  if (found == streams_.end()) return;
  const auto sessions = found->second.sessions;
  for (const auto& [handle, session] : sessions) session->cancel("the opener is gone");
  streams_.erase(&seam);
}

void ShardNode::accept(const std::shared_ptr<Seam>& seam, const Request& request) {
  Stream& stream = streams_[seam.get()];
  const uint32_t handle = handle_of(request.message);
  stream.highest = std::max(stream.highest, handle);
  if (const auto twin = stream.sessions.find(handle); twin != stream.sessions.end()) {
    // A failure names the handle alone, so the opener takes it for both.
    const std::shared_ptr<Session> session = twin->second;
    session->fail(invalid_argument("handle", std::to_string(handle) + " is in use on this stream"));
    return;
  }
  std::shared_ptr<Session> session;
  try {
    session = make_session(seam, request);
    admit(session->key());
  } catch (const ShardFailure& failure) {
    send_failure(*seam, handle, failure);
    return;
  }
  stream.sessions[handle] = session;
  sessions_[session->key()] = session;
  session->start([this, stream_key = seam.get()](Session& over) {
    sessions_.erase(over.key());
    streams_[stream_key].sessions.erase(over.handle());
  });
}

std::shared_ptr<Session> ShardNode::make_session(const std::shared_ptr<Seam>& seam,
                                                 const Request& request) {
  const bool generation = request.message.has_generate();
  const auto& hops = generation ? request.message.generate().hops() : request.message.open().hops();
  check_terms(envelope_of(request), hops);
  if (generation) {
    check_generation(request.message.generate());
    return std::make_shared<HeadSession>(&parts_, request.message.generate(), seam);
  }
  if (is_head()) {
    throw ShardFailure(pb::ERROR_CODE_LAYER_RANGE_INVALID,
                       "this node holds layer 0; it takes generations, no boundary");
  }
  return std::make_shared<SeamSession>(&parts_, request.message.open(), seam);
}

void ShardNode::check_terms(const pb::Envelope& envelope,
                            const google::protobuf::RepeatedPtrField<pb::Hop>& hops) const {
  const pb::Capability& own = capability();
  if (!same(own.fingerprint(), envelope.fingerprint())) {
    throw ShardFailure(pb::ERROR_CODE_FINGERPRINT_MISMATCH,
                       "the opener of the session computes other numbers",
                       {{"here", own.fingerprint().runtime_recipe_digest()},
                        {"there", envelope.fingerprint().runtime_recipe_digest()}});
  }
  if (!same(own.layers(), hops[0].layers())) {
    throw ShardFailure(pb::ERROR_CODE_LAYER_RANGE_INVALID,
                       "the route wants layers " + text(hops[0].layers()) + " here, but node " +
                           own.node_id() + " holds " + text(own.layers()));
  }
  if ((hops.size() == 1) != is_tail()) {
    throw ShardFailure(pb::ERROR_CODE_LAYER_RANGE_INVALID,
                       "a route ends with the node that holds the last layer");
  }
  const SessionKey key = key_of(envelope);
  const auto newest = epochs_.find(key.session);
  if (newest != epochs_.end() && key.epoch < newest->second) {
    throw ShardFailure(pb::ERROR_CODE_STALE_EPOCH, "session " + key.session + " is at epoch " +
                                                       std::to_string(newest->second) +
                                                       " already");
  }
  if (sessions_.count(key) != 0) {
    throw invalid_argument("route_epoch", "session " + key.text() + " is open");
  }
}

void ShardNode::check_generation(const pb::Generate& request) const {
  const pb::Capability& own = capability();
  if (!is_head()) {
    throw ShardFailure(pb::ERROR_CODE_LAYER_RANGE_INVALID,
                       "a generation starts at the head, but this node holds layers " +
                           text(own.layers()));
  }
  uint32_t expected = 0;
  for (const pb::Hop& hop : request.hops()) {
    if (hop.layers().start() != expected) {
      throw ShardFailure(pb::ERROR_CODE_LAYER_RANGE_INVALID,
                         "the chain breaks at layer " + std::to_string(expected));
    }
    expected = hop.layers().end();
  }
  if (expected != own.total_layers()) {
    throw ShardFailure(pb::ERROR_CODE_LAYER_RANGE_INVALID,
                       "the chain ends before the model does");
  }
  if (static_cast<uint32_t>(request.spec().prompt_size()) >= own.context_length()) {
    throw ShardFailure(pb::ERROR_CODE_CONTEXT_LENGTH_EXCEEDED,
                       "with room for an answer, the prompt doesn't fit into the context of " +
                           std::to_string(own.context_length()));
  }
}

void ShardNode::admit(const SessionKey& key) {
  const auto sessions = sessions_;
  for (const auto& [held, session] : sessions) {
    if (held.session == key.session) {
      session->fail({pb::ERROR_CODE_STALE_EPOCH, "session " + key.session + " went on at epoch " +
                                                     std::to_string(key.epoch)});
    }
  }
  if (sessions_.size() >= capability().flow().max_sessions()) {
    throw ShardFailure(pb::ERROR_CODE_RESOURCE_EXHAUSTED,
                       "node " + capability().node_id() + " serves as many sessions as it may",
                       {{"lacking", "room"}});
  }
  epochs_[key.session] = key.epoch;
}

void ShardNode::route(Seam& seam, uint32_t handle,
                      const std::function<void(Session&)>& deliver) {
  const Stream& stream = streams_[&seam];
  const auto found = stream.sessions.find(handle);
  if (found != stream.sessions.end()) {
    const std::shared_ptr<Session> session = found->second;
    deliver(*session);
  } else if (handle > stream.highest) {
    send_failure(seam, handle,
                 {pb::ERROR_CODE_SESSION_NOT_FOUND,
                  "no session with handle " + std::to_string(handle) + " on this stream"});
  }
}

}  // namespace meshnet
