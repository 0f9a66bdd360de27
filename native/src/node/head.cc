#include "node/head.h"

#include <algorithm>
#include <utility>

namespace meshnet {
namespace {

// Of the prompt's last tokens, those that a grammar has begun with.
uint32_t generated(const pb::GenerationSpec& spec) {
  return spec.sampling().grammar().empty() ? 0 : spec.generated();
}

// The prompt's last tokens, as many as the penalties and the grammar look at.
std::vector<uint32_t> recent(const pb::GenerationSpec& spec) {
  const pb::SamplingParams& sampling = spec.sampling();
  int wanted = static_cast<int>(generated(spec));
  if (has_penalties(sampling)) {
    const int last = sampling.penalty_last_n();
    wanted = last < 0 ? spec.prompt_size() : std::max(wanted, last);
  }
  return {spec.prompt().end() - std::min(wanted, spec.prompt_size()), spec.prompt().end()};
}

// The generation as the head would be told of it by a node before it.
pb::OpenSession terms_of(const pb::Generate& request) {
  pb::OpenSession terms;
  terms.set_handle(request.handle());
  *terms.mutable_envelope() = request.envelope();
  *terms.mutable_hops() = request.hops();
  *terms.mutable_sampling() = request.spec().sampling();
  const std::vector<uint32_t> history = recent(request.spec());
  terms.mutable_history()->Add(history.begin(), history.end());
  terms.set_generated(generated(request.spec()));
  return terms;
}

Step step_at(const SessionKey& key, uint32_t position, uint64_t number) {
  Step step{key, position, {}, number, {}};
  step.expectation.set_mode(position == 0 ? pb::CACHE_MODE_FRESH : pb::CACHE_MODE_EXACT);
  step.expectation.set_expected_past_len(position);
  return step;
}

Row row_of(uint32_t token) {
  if (token >= kVocabulary) throw invalid_argument("token_ids", "the vocabulary has no such token");
  return embed(token);
}

}  // namespace

HeadSession::HeadSession(NodeParts* parts, const pb::Generate& request,
                         std::shared_ptr<Seam> upstream)
    : Session(parts, terms_of(request), std::move(upstream)),
      spec_(request.spec()),
      token_credits_(request.token_credits()) {
  if (!has_downstream()) require_greedy(spec_.sampling());
}

void HeadSession::opened() {
  send_opened();
  work_soon();
}

void HeadSession::push(Request request) {
  if (!request.message.has_grant()) {
    fail(invalid_argument("frame", "it has no place here"));
    return;
  }
  token_credits_ += request.message.grant().tokens();
  work_soon();
}

void HeadSession::push_decode(const pb::DecodeStep&) {
  fail(invalid_argument("frame", "a decode step has no place here"));
}

void HeadSession::work() {
  if (position_ < static_cast<uint32_t>(spec_.prompt_size())) {
    if (may_send_chunk()) prefill_chunk();
  } else if (token_) {
    decide();
  }
}

void HeadSession::prefill_chunk() {
  const auto total = static_cast<uint32_t>(spec_.prompt_size());
  const uint32_t size = parts_->chunk_tokens;
  pb::PrefillChunk chunk;
  chunk.mutable_chunk()->set_index(position_ / size);
  chunk.mutable_chunk()->set_count((total + size - 1) / size);
  chunk.mutable_chunk()->set_token_count(std::min(size, total - position_));
  chunk.mutable_chunk()->set_total_tokens(total);
  Step step = step_at(key(), position_, next_step_++);
  for (uint32_t i = 0; i < chunk.chunk().token_count(); ++i) {
    step.rows.push_back(row_of(spec_.prompt(static_cast<int>(position_ + i))));
  }
  const StepResult result = compute(step, true);
  position_ = result.past_len;
  if (has_downstream()) {
    pb::Envelope* envelope = chunk.mutable_envelope();
    envelope->mutable_schema_version()->set_number(kSchemaVersion);
    envelope->set_route_session_id(key().session);
    envelope->set_route_epoch(key().epoch);
    envelope->set_phase(pb::PHASE_PREFILL);
    envelope->set_position(step.position);
    envelope->set_idempotency_step(step.number);
    *envelope->mutable_cache_expectation() = step.expectation;
    Tensor residual;
    residual.name = kResidual;
    residual.shape = {static_cast<int64_t>(result.rows.size()), static_cast<int64_t>(kWidth)};
    residual.data = to_bytes(result.rows);
    hand_on(std::move(chunk), Bundle{{std::move(residual)}, {}});
  } else if (position_ == total) {
    take_own(result);
  }
  work_soon();
}

void HeadSession::decide() {
  reason_ = verdict(*token_);
  if (reason_ != pb::FINISH_REASON_STOP) {
    if (token_credits_ == 0) return;
    --token_credits_;
    ++reported_;
    pb::SessionResponse message;
    pb::TokenReply* added = message.mutable_tokens()->add_replies();
    added->set_handle(handle());
    added->set_idempotency_step(next_step_ - 1);
    *added->mutable_token() = *token_;
    reply(message);
  }
  const pb::GeneratedToken token = *std::exchange(token_, std::nullopt);
  if (reason_ == pb::FINISH_REASON_UNSPECIFIED) {
    decode(token);
  } else if (has_downstream()) {
    release_downstream();
  } else {
    released({});
  }
}

void HeadSession::decode(const pb::GeneratedToken& token) {
  Step step = step_at(key(), token.position(), next_step_++);
  step.rows.push_back(row_of(token.token_id()));
  const StepResult result = compute(step, false);
  if (!has_downstream()) {
    take_own(result);
    return;
  }
  pb::DecodeStep frame;
  frame.set_position(step.position);
  frame.set_idempotency_step(step.number);
  frame.set_expected_past_len(step.position);
  hand_on(std::move(frame), result);
}

void HeadSession::on_token(const pb::TokenReply& reply) {
  if (reply.idempotency_step() + 1 != next_step_) {
    fail({pb::ERROR_CODE_INTERNAL, "a token of step " + std::to_string(reply.idempotency_step()) +
                                       " came back at step " + std::to_string(next_step_ - 1)});
    return;
  }
  time_return();
  take_token(reply.token());
}

void HeadSession::take_own(const StepResult& result) {
  pb::GeneratedToken token;
  token.set_position(result.past_len);
  token.set_token_id(*result.token);
  take_token(std::move(token));
}

void HeadSession::take_token(pb::GeneratedToken token) {
  token_ = std::move(token);
  // Not at once, so that other sessions and a cancel have their turn between two tokens.
  work_soon();
}

pb::FinishReason HeadSession::verdict(const pb::GeneratedToken& token) const {
  const auto& ends = spec_.end_ids();
  if (std::find(ends.begin(), ends.end(), token.token_id()) != ends.end()) {
    return pb::FINISH_REASON_STOP;
  }
  const bool limit = spec_.max_new_tokens() != 0 && reported_ + 1 >= spec_.max_new_tokens();
  const bool full = token.position() + 1 >= parts_->capability.context_length();
  return limit || full ? pb::FINISH_REASON_LENGTH : pb::FINISH_REASON_UNSPECIFIED;
}

void HeadSession::released(const pb::SessionReleased& behind) {
  pb::SessionResponse message;
  pb::GenerationDone* done = message.mutable_done();
  done->set_handle(handle());
  done->set_finish_reason(reason_);
  *done->add_timings() = timings();
  done->mutable_timings()->MergeFrom(behind.timings());
  reply(message);
  end(false, "");
}

}  // namespace meshnet
