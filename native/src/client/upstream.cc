// The client as the node before a middle or tail: boundaries, step by step.

#include <algorithm>
#include <optional>
#include <stdexcept>

#include "client/checks.h"
#include "client/reference.h"
#include "wire/crc32c.h"

namespace meshnet {
namespace {

constexpr uint32_t kChunk = 6;
constexpr size_t kFragmentBytes = 25;  // cuts through values, and a chunk into four
constexpr size_t kDecodes = 5;

// One session from the client's side.
struct Session {
  uint32_t handle;
  std::string name;
  Tokens prompt;
  Tokens answer;
  pb::Compression compression;
  Border border;
  uint64_t step = 0;
};

pb::SessionRequest open_request(const Chain& chain, size_t first, const Session& session) {
  pb::SessionRequest request;
  pb::OpenSession* open = request.mutable_open();
  open->set_handle(session.handle);
  *open->mutable_envelope() = opening(chain, first, session.name);
  for (size_t i = first; i < chain.size(); ++i) *open->add_hops() = chain[i].hop();
  open->mutable_sampling()->set_temperature(0.0);
  return request;
}

// The next chunk of the prompt.
pb::SessionRequest chunk_request(Session* session) {
  const uint32_t position = session->border.position();
  const auto total = static_cast<uint32_t>(session->prompt.size());
  const auto first = session->prompt.begin() + position;
  const Tokens tokens(first, first + std::min(kChunk, total - position));
  const std::vector<Row> rows = session->border.next(tokens);
  pb::SessionRequest request;
  pb::PrefillChunk* prefill = request.mutable_prefill();
  prefill->set_handle(session->handle);
  prefill->mutable_chunk()->set_index(position / kChunk);
  prefill->mutable_chunk()->set_count((total + kChunk - 1) / kChunk);
  prefill->mutable_chunk()->set_token_count(static_cast<uint32_t>(rows.size()));
  prefill->mutable_chunk()->set_total_tokens(total);
  Tensor residual;
  residual.name = kResidual;
  residual.shape = {static_cast<int64_t>(rows.size()), static_cast<int64_t>(kWidth)};
  residual.data = to_bytes(rows);
  pb::Envelope* envelope = prefill->mutable_envelope();
  envelope->set_checksum(write_bundle({{residual}, {}}, session->compression, kFragmentBytes,
                                      prefill->mutable_bundle()));
  envelope->mutable_schema_version()->set_number(kSchemaVersion);
  envelope->set_route_session_id(session->name);
  envelope->set_phase(pb::PHASE_PREFILL);
  envelope->set_position(position);
  envelope->set_idempotency_step(session->step++);
  envelope->mutable_cache_expectation()->set_mode(position == 0 ? pb::CACHE_MODE_FRESH
                                                                : pb::CACHE_MODE_EXACT);
  envelope->mutable_cache_expectation()->set_expected_past_len(position);
  envelope->set_compression(session->compression);
  return request;
}

pb::DecodeStep decode_step(Session* session, uint32_t token) {
  pb::DecodeStep step;
  step.set_handle(session->handle);
  step.set_position(session->border.position());
  step.set_expected_past_len(session->border.position());
  step.set_idempotency_step(session->step++);
  step.set_data(to_bytes(session->border.next({token})));
  step.set_checksum(crc32c(step.data()));
  return step;
}

pb::SessionRequest frame_of(const std::vector<pb::DecodeStep>& steps) {
  pb::SessionRequest request;
  for (const pb::DecodeStep& step : steps) *request.mutable_decode()->add_steps() = step;
  return request;
}

class UpstreamChecks {
 public:
  UpstreamChecks(const Chain& chain, size_t first, Checks* checks)
      : chain_(chain), first_(first), checks_(checks), stream_(chain[first]) {}

  void run() {
    std::vector<Session> sessions = {session(1, "plain", 15, pb::COMPRESSION_NONE),
                                     session(2, "packed", 6, pb::COMPRESSION_ZSTD)};
    for (Session& each : sessions) {
      open(each);
      prefill(&each);
    }
    for (size_t i = 1; i < kDecodes; ++i) decode_together(&sessions, i);
    decode_again(&sessions[0]);
    for (const Session& each : sessions) release(each);
    miss();
    other_fingerprint();
    unknown_handle();
    const auto [left, status] = stream_.close();
    checks_->equal(left, 0, "replies after the last one that was due");
    checks_->that(status.ok(), "the stream ends well");
  }

 private:
  const pb::Capability& receiver() const { return chain_[first_].capability; }

  Session session(uint32_t handle, const std::string& name, uint32_t length,
                  pb::Compression compression) const {
    const Tokens prompt = prompt_of(length, handle);
    return {handle,
            unique(name + "-" + std::to_string(first_)),
            prompt,
            answer_of(prompt, receiver().total_layers(), kDecodes + 1),
            compression,
            Border(receiver().layers().start())};
  }

  void open(const Session& session) {
    stream_.send(open_request(chain_, first_, session));
    pb::SessionOpened expected;
    expected.set_handle(session.handle);
    *expected.mutable_flow() = receiver().flow();
    pb::SessionOpened opened = stream_.opened();
    // What of a step's rows is exact on the nodes behind is for a head that guesses or cuts chunks.
    opened.clear_step_tokens();
    opened.clear_least_piece();
    opened.clear_most_piece();
    checks_->same(opened, expected, "the session's opening");
  }

  // All chunks of the prompt, the first one twice.
  void prefill(Session* session) {
    const pb::SessionRequest first = chunk_request(session);
    for (const bool duplicate : {false, true}) {
      stream_.send(first);
      chunk_answered(first.prefill(), duplicate, session);
    }
    while (session->border.position() < session->prompt.size()) {
      const pb::SessionRequest chunk = chunk_request(session);
      stream_.send(chunk);
      chunk_answered(chunk.prefill(), false, session);
    }
  }

  void chunk_answered(const pb::PrefillChunk& chunk, bool duplicate, Session* session) {
    const bool last = chunk.chunk().index() + 1 == chunk.chunk().count();
    answered(chunk.envelope().idempotency_step(),
             chunk.envelope().position() + chunk.chunk().token_count(), duplicate,
             last ? std::optional<size_t>(0) : std::nullopt, session);
  }

  // An acknowledgement, and a token if one is due, in whichever order the chain gives them.
  void answered(uint64_t step, uint32_t past_len, bool duplicate, std::optional<size_t> token,
                Session* session) {
    bool acked = false;
    while (!acked || token) {
      const pb::SessionResponse reply = stream_.next();
      if (reply.has_ack() && !acked) {
        acked = true;
        pb::Ack expected;
        expected.set_handle(session->handle);
        expected.set_idempotency_step(step);
        expected.set_duplicate(duplicate);
        expected.mutable_cache_result()->set_hit(true);
        expected.mutable_cache_result()->set_past_len(past_len);
        checks_->same(reply.ack(), expected, "a step's acknowledgement");
      } else if (reply.has_tokens() && token) {
        check_token(reply.tokens().replies(0), *session, step, *token);
        token.reset();
      } else {
        throw std::runtime_error("not due: " + reply.ShortDebugString());
      }
    }
  }

  void check_token(const pb::TokenReply& reply, const Session& session, uint64_t step,
                   size_t index) {
    pb::TokenReply expected;
    expected.set_handle(session.handle);
    expected.set_idempotency_step(step);
    expected.mutable_token()->set_position(static_cast<uint32_t>(session.prompt.size() + index));
    expected.mutable_token()->set_token_id(session.answer[index]);
    checks_->same(reply, expected, session.name + "'s token " + std::to_string(index));
  }

  // One step of each session in one frame; the replies may come in any order.
  void decode_together(std::vector<Session>* sessions, size_t index) {
    std::vector<pb::DecodeStep> steps;
    for (Session& each : *sessions) steps.push_back(decode_step(&each, each.answer[index - 1]));
    stream_.send(frame_of(steps));
    for (size_t i = 0; i < sessions->size(); ++i) {
      const pb::TokenReply reply = stream_.token();
      for (const Session& each : *sessions) {
        if (each.handle == reply.handle()) check_token(reply, each, each.step - 1, index);
      }
    }
  }

  // A step that comes twice gives the token twice, is acknowledged as a duplicate, and the step
  // behind it finds the cache it needs.
  void decode_again(Session* session) {
    const pb::DecodeStep step = decode_step(session, session->answer[kDecodes - 1]);
    stream_.send(frame_of({step}));
    check_token(stream_.token(), *session, step.idempotency_step(), kDecodes);
    stream_.send(frame_of({step}));
    answered(step.idempotency_step(), session->border.position(), true, kDecodes, session);
    const pb::DecodeStep next = decode_step(session, session->answer[kDecodes]);
    stream_.send(frame_of({next}));
    checks_->equal(stream_.token().idempotency_step(), next.idempotency_step(), "the next step");
  }

  void release(const Session& session) {
    pb::SessionRequest request;
    request.mutable_release()->set_handle(session.handle);
    stream_.send(request);
    const pb::SessionReleased released = stream_.released();
    checks_->equal(released.handle(), session.handle, "the released handle");
    const size_t hops = chain_.size() - first_;
    checks_->equal(static_cast<size_t>(released.timings_size()), hops, "hops that were timed");
    for (size_t i = 0; i < hops && released.timings_size() == static_cast<int>(hops); ++i) {
      const pb::HopTimings& timing = released.timings(static_cast<int>(i));
      checks_->equal(timing.node_id(), chain_[first_ + i].capability.node_id(), "a timed node");
      checks_->that(timing.prefill_tokens() >= session.prompt.size(), "its prompt tokens");
      checks_->that(timing.decode_steps() >= kDecodes - 1, "its decode steps");
    }
  }

  // A step for another cache than the one that is there misses and ends the session.
  void miss() {
    Session lost = session(3, "miss", 4, pb::COMPRESSION_NONE);
    open(lost);
    const pb::SessionRequest chunk = chunk_request(&lost);
    stream_.send(chunk);
    chunk_answered(chunk.prefill(), false, &lost);
    lost.border.next({1});
    stream_.send(frame_of({decode_step(&lost, 2)}));
    refused(3, pb::ERROR_CODE_CACHE_MISS, true);
  }

  void other_fingerprint() {
    pb::SessionRequest request =
        open_request(chain_, first_, session(4, "other", 4, pb::COMPRESSION_NONE));
    request.mutable_open()->mutable_envelope()->mutable_fingerprint()->set_runtime_recipe_digest(
        "sha256:another");
    stream_.send(request);
    refused(4, pb::ERROR_CODE_FINGERPRINT_MISMATCH, false);
  }

  void unknown_handle() {
    pb::SessionRequest request;
    request.mutable_release()->set_handle(99);
    stream_.send(request);
    refused(99, pb::ERROR_CODE_SESSION_NOT_FOUND, false);
  }

  void refused(uint32_t handle, pb::ErrorCode code, bool retryable) {
    const pb::SessionFailed failed = stream_.failed();
    checks_->equal(failed.handle(), handle, "the refused handle");
    checks_->equal(failed.error().code(), code, "why it was refused");
    checks_->equal(failed.error().retryable(), retryable, "whether a retry helps");
    checks_->that(!failed.error().message().empty(), "the error has a text");
  }

  const Chain& chain_;
  const size_t first_;
  Checks* const checks_;
  Stream stream_;
};

}  // namespace

void check_as_upstream(const Chain& chain, size_t first, Checks* checks) {
  UpstreamChecks(chain, first, checks).run();
}

}  // namespace meshnet
