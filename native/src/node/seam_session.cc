// A session on a middle or tail.

#include <utility>

#include "node/session.h"

namespace meshnet {
namespace {

std::vector<Row> rows_of(const Bundle& boundary) {
  const Tensor& tensor = boundary.tensors[0];
  const bool shaped = tensor.shape.size() == 2 && tensor.shape[1] == kWidth;
  if (boundary.tensors.size() != 1 || tensor.name != kResidual) {
    throw invalid_argument("tensors", "one tensor named residual is expected");
  }
  if (tensor.dtype != pb::TENSOR_DTYPE_FLOAT32 || !shaped) {
    throw invalid_argument("shape", "float32 rows of 4 values are expected");
  }
  return from_bytes(tensor.data);
}

}  // namespace

SeamSession::SeamSession(NodeParts* parts, pb::OpenSession terms, std::shared_ptr<Seam> upstream)
    : Session(parts, std::move(terms), std::move(upstream)) {
  if (!has_downstream()) require_greedy(terms_.sampling());
}

void SeamSession::opened() {
  working_ = true;
  send_opened();
  work();
}

void SeamSession::push(Request request) {
  const bool prefill = request.message.has_prefill();
  if (prefill && key_of(request.message.prefill().envelope()) != key()) {
    fail({pb::ERROR_CODE_STALE_EPOCH, "a chunk of another session or epoch came for session " +
                                          key().text()});
  } else if (prefill || request.message.has_release()) {
    queue({std::move(request), {}});
  } else {
    fail(invalid_argument("frame", "it has no place here"));
  }
}

void SeamSession::push_decode(const pb::DecodeStep& step) { queue({{}, step}); }

void SeamSession::queue(Frame frame) {
  const uint32_t credits = parts_->capability.flow().credits();
  if (inbox_.size() > credits) {
    fail({pb::ERROR_CODE_RESOURCE_EXHAUSTED, "session " + key().text() +
                                                 " sent more than its " + std::to_string(credits) +
                                                 " unanswered chunks"});
    return;
  }
  inbox_.push_back(std::move(frame));
  guarded([this] { work(); });
}

void SeamSession::work() {
  while (working_ && !inbox_.empty()) {
    const bool is_prefill = inbox_.front().request.message.has_prefill();
    if (is_prefill && !may_send_chunk()) return;
    const Frame frame = std::move(inbox_.front());
    inbox_.pop_front();
    if (is_prefill) {
      prefill(frame.request);
    } else if (!frame.request.message.has_release()) {
      decode(frame.decode);
    } else {
      working_ = false;
      has_downstream() ? release_downstream() : released({});
    }
  }
}

void SeamSession::prefill(const Request& request) {
  const pb::PrefillChunk& chunk = request.message.prefill();
  const pb::Envelope& envelope = chunk.envelope();
  const Step step{key(), envelope.position(), envelope.cache_expectation(),
                  envelope.idempotency_step(), rows_of(request.boundary)};
  const StepResult result = compute(step, true);
  if (has_downstream()) {
    Bundle boundary = request.boundary;
    boundary.tensors[0].data = to_bytes(result.rows);
    hand_on(chunk, boundary);
  } else if (chunk.chunk().index() + 1 == chunk.chunk().count()) {
    send_token(step.number, result.past_len, *result.token);
  }
  acknowledge(step, result);
}

void SeamSession::decode(const pb::DecodeStep& frame) {
  if (frame.expected_past_len() != frame.position()) {
    throw ShardFailure(pb::ERROR_CODE_CACHE_MISS,
                       "a step at position " + std::to_string(frame.position()) +
                           " can't go on from a cache of " +
                           std::to_string(frame.expected_past_len()));
  }
  if (frame.dtype() != pb::TENSOR_DTYPE_UNSPECIFIED &&
      frame.dtype() != pb::TENSOR_DTYPE_FLOAT32) {
    throw invalid_argument("dtype", "this node takes float32 alone");
  }
  Step step{key(), frame.position(), {}, frame.idempotency_step(), from_bytes(frame.data())};
  if (step.rows.size() != 1) throw invalid_argument("shape", "one row is expected");
  step.expectation.set_mode(pb::CACHE_MODE_EXACT);
  step.expectation.set_expected_past_len(frame.position());
  const StepResult result = compute(step, false);
  if (has_downstream()) {
    hand_on(frame, result);
  } else {
    send_token(step.number, result.past_len, *result.token);
  }
  // A step is acknowledged by its token, which doesn't say that it came twice.
  if (result.duplicate) acknowledge(step, result);
}

void SeamSession::acknowledge(const Step& step, const StepResult& result) {
  pb::SessionResponse message;
  pb::Ack* ack = message.mutable_ack();
  ack->set_handle(handle());
  ack->set_idempotency_step(step.number);
  ack->set_duplicate(result.duplicate);
  ack->mutable_cache_result()->set_hit(true);
  ack->mutable_cache_result()->set_past_len(result.past_len);
  reply(message);
}

void SeamSession::send_token(uint64_t step, uint32_t position, uint32_t token) {
  pb::SessionResponse message;
  pb::TokenReply* added = message.mutable_tokens()->add_replies();
  added->set_handle(handle());
  added->set_idempotency_step(step);
  added->mutable_token()->set_position(position);
  added->mutable_token()->set_token_id(token);
  reply(message);
}

void SeamSession::on_token(const pb::TokenReply& token) {
  time_return();
  pb::SessionResponse message;
  pb::TokenReply* added = message.mutable_tokens()->add_replies();
  *added = token;
  added->set_handle(handle());
  reply(message);
}

void SeamSession::released(const pb::SessionReleased& behind) {
  pb::SessionResponse message;
  pb::SessionReleased* answer = message.mutable_released();
  *answer = behind;
  answer->set_handle(handle());
  // The answering node comes first.
  answer->clear_timings();
  *answer->add_timings() = timings();
  answer->mutable_timings()->MergeFrom(behind.timings());
  reply(message);
  end(false, "");
}

}  // namespace meshnet
