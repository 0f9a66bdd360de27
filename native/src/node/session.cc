#include "node/session.h"

#include <algorithm>
#include <utility>

#include "wire/crc32c.h"

namespace meshnet {
namespace {

using std::chrono::duration_cast;
using std::chrono::nanoseconds;

// How long opening, or releasing, a session on the nodes behind may take.
constexpr std::chrono::seconds kHopTimeout{10};
constexpr size_t kFragmentBytes = 4 << 20;

uint64_t nanos_since(std::chrono::steady_clock::time_point then) {
  const auto passed = std::chrono::steady_clock::now() - then;
  return static_cast<uint64_t>(duration_cast<nanoseconds>(passed).count());
}

// Time left until a moment in Unix time; none if it has passed.
nanoseconds left_until(int64_t unix_nanos) {
  const auto now = duration_cast<nanoseconds>(std::chrono::system_clock::now().time_since_epoch());
  return std::max(nanoseconds(0), nanoseconds(unix_nanos) - now);
}

}  // namespace

bool has_penalties(const pb::SamplingParams& sampling) {
  return sampling.repeat_penalty() != 1.0 || sampling.presence_penalty() != 0.0 ||
         sampling.frequency_penalty() != 0.0;
}

void require_greedy(const pb::SamplingParams& sampling) {
  if (!sampling.grammar().empty()) {
    throw invalid_argument("grammar", "this node can't keep the tokens it chooses to a grammar");
  }
  if (sampling.temperature() != 0.0 || has_penalties(sampling) ||
      sampling.logit_biases_size() > 0 || sampling.logprobs() || sampling.top_logprobs() > 0) {
    throw invalid_argument("sampling",
                           "this node takes the largest logit and does nothing else; ask for "
                           "temperature 0 without penalties, biases and log-probabilities");
  }
}

SessionKey key_of(const pb::Envelope& envelope) {
  return {envelope.route_session_id(), envelope.route_epoch()};
}

Session::Session(NodeParts* parts, pb::OpenSession terms, std::shared_ptr<Seam> upstream)
    : parts_(parts),
      terms_(std::move(terms)),
      key_(key_of(terms_.envelope())),
      upstream_(std::move(upstream)) {
  timings_.set_node_id(parts_->capability.node_id());
  *timings_.mutable_layers() = parts_->capability.layers();
}

void Session::start(std::function<void(Session&)> ended) {
  ended_ = std::move(ended);
  if (terms_.envelope().deadline_unix_nanos() != 0) {
    parts_->loop->call_later(
        left_until(terms_.envelope().deadline_unix_nanos()), [weak = weak_from_this()] {
          const auto self = weak.lock();
          if (!self) return;
          self->fail({pb::ERROR_CODE_DEADLINE_EXCEEDED,
                      "session " + self->key_.text() + " ran past its deadline"});
        });
  }
  if (has_downstream()) {
    open_downstream();
  } else {
    opened();
  }
}

void Session::fail(const ShardFailure& failure, bool cancelled) {
  if (!ended_) return;
  pb::SessionResponse message;
  message.mutable_failed()->set_handle(handle());
  *message.mutable_failed()->mutable_error() = failure.error();
  reply(message);
  end(cancelled, failure.what());
}

void Session::cancel(const std::string& reason) {
  if (ended_) end(true, reason);
}

void Session::end(bool cancelled, const std::string& reason) {
  const auto ended = std::exchange(ended_, nullptr);
  if (channel_) {
    channel_->detach(downstream_handle_);
    if (!downstream_released_) {
      pb::SessionRequest request;
      request.mutable_cancel()->set_handle(downstream_handle_);
      request.mutable_cancel()->set_reason(reason);
      channel_->send(request);
    }
  }
  if (cancelled) {
    parts_->engine->cancel(key_);
  } else {
    parts_->engine->release(key_);
  }
  ended(*this);
}

void Session::work_soon() {
  parts_->loop->post([weak = weak_from_this()] {
    const auto self = weak.lock();
    if (self && self->ended_) self->guarded([&] { self->work(); });
  });
}

void Session::guarded(const std::function<void()>& action) {
  try {
    action();
  } catch (const ShardFailure& failure) {
    fail(failure);
  }
}

StepResult Session::compute(const Step& step, bool prefill) {
  StepResult result = parts_->engine->run(step);
  if (prefill) {
    timings_.set_prefill_tokens(timings_.prefill_tokens() +
                                static_cast<uint32_t>(step.rows.size()));
    timings_.set_prefill_engine_nanos(timings_.prefill_engine_nanos() + result.nanos);
  } else {
    timings_.set_decode_steps(timings_.decode_steps() + 1);
    timings_.set_decode_engine_nanos(timings_.decode_engine_nanos() + result.nanos);
  }
  parts_->step_done();
  return result;
}

void Session::hand_on(pb::PrefillChunk chunk, const Bundle& boundary) {
  pb::SessionRequest request;
  chunk.set_handle(downstream_handle_);
  pb::Envelope* envelope = chunk.mutable_envelope();
  // These were about this node; the next one knows its own from the session's opening.
  envelope->clear_layers();
  envelope->clear_effective_start_layer();
  envelope->set_compression(pb::COMPRESSION_NONE);
  chunk.mutable_bundle()->clear_tensors();
  chunk.mutable_bundle()->clear_token_id_sideband();
  envelope->set_checksum(write_bundle(boundary, pb::COMPRESSION_NONE, kFragmentBytes,
                                      chunk.mutable_bundle()));
  last_chunk_step_ = std::max(last_chunk_step_, envelope->idempotency_step());
  *request.mutable_prefill() = std::move(chunk);
  --chunk_credits_;
  send_downstream(request);
}

void Session::hand_on(pb::DecodeStep step, const StepResult& result) {
  pb::SessionRequest request;
  step.set_handle(downstream_handle_);
  step.set_data(to_bytes(result.rows));
  step.set_checksum(crc32c(step.data()));
  step.clear_dtype();
  *request.mutable_decode()->add_steps() = std::move(step);
  send_downstream(request);
}

void Session::send_downstream(const pb::SessionRequest& request) {
  handed_on_ = std::chrono::steady_clock::now();
  channel_->send(request);
}

void Session::time_return() {
  if (timings_.decode_steps() == 0 || !channel_) return;
  timings_.set_decode_downstream_nanos(timings_.decode_downstream_nanos() +
                                       nanos_since(handed_on_));
}

void Session::send_opened() {
  pb::SessionResponse message;
  message.mutable_opened()->set_handle(handle());
  *message.mutable_opened()->mutable_flow() = parts_->capability.flow();
  reply(message);
}

void Session::open_downstream() {
  const pb::Hop& next = terms_.hops(1);
  channel_ = parts_->channels->channel(next.address());
  downstream_handle_ = channel_->attach(weak_from_this());
  pb::SessionRequest request;
  // A copy, so that what a newer peer said beyond this schema reaches the next node.
  pb::OpenSession* open = request.mutable_open();
  *open = terms_;
  open->set_handle(downstream_handle_);
  open->clear_opener();
  open->mutable_hops()->erase(open->mutable_hops()->begin());
  *open->mutable_envelope()->mutable_layers() = next.layers();
  open->mutable_envelope()->set_effective_start_layer(next.layers().start());
  *open->mutable_flow() = parts_->capability.flow();
  channel_->send(request);
  expect_within("accept the session", &Session::downstream_opened_);
}

void Session::release_downstream() {
  pb::SessionRequest request;
  request.mutable_release()->set_handle(downstream_handle_);
  channel_->send(request);
  expect_within("release the session", &Session::downstream_released_);
}

void Session::expect_within(const char* what, bool Session::*arrived) {
  parts_->loop->call_later(kHopTimeout, [weak = weak_from_this(), what, arrived] {
    const auto self = weak.lock();
    if (!self || (*self).*arrived) return;
    self->fail(self->hop_failure(pb::ERROR_CODE_NODE_LOST,
                                 std::string("it didn't ") + what + " in time"));
  });
}

ShardFailure Session::hop_failure(pb::ErrorCode code, const std::string& why) const {
  const pb::Hop& hop = terms_.hops(1);
  const std::string layers = "[" + std::to_string(hop.layers().start()) + ", " +
                             std::to_string(hop.layers().end()) + ")";
  const std::string what = code == pb::ERROR_CODE_NODE_LOST ? "lost node " : "can't reach node ";
  return {code,
          what + hop.node_id() + " (layers " + layers + ", " + hop.address() + "): " + why,
          {{"node", hop.node_id()}, {"layers", layers}}};
}

void Session::on_reply(const pb::SessionResponse& message) {
  if (!ended_) return;
  if (message.has_opened() && !downstream_opened_) {
    downstream_opened_ = true;
    chunk_credits_ = std::min(message.opened().flow().credits(),
                              parts_->capability.flow().credits());
    guarded([this] { opened(); });
  } else if (message.has_ack()) {
    // A decode step that came twice is acknowledged as well, and took no credit.
    if (message.ack().idempotency_step() <= last_chunk_step_) ++chunk_credits_;
    guarded([this] { work(); });
  } else if (message.has_released() && !downstream_released_) {
    downstream_released_ = true;
    released(message.released());
  } else if (message.has_failed()) {
    fail(ShardFailure(message.failed().error()));
  } else {
    fail(hop_failure(pb::ERROR_CODE_NODE_LOST, "it sent an unexpected reply"));
  }
}

void Session::on_lost(const std::string& why, bool connected) {
  fail(hop_failure(connected ? pb::ERROR_CODE_NODE_LOST : pb::ERROR_CODE_NODE_UNREACHABLE, why));
}

}  // namespace meshnet
