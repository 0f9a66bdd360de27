// The client as a gateway: generations at the head, along the whole chain.

#include "client/checks.h"
#include "client/reference.h"

namespace meshnet {
namespace {

constexpr uint32_t kPromptLength = 20;
constexpr uint32_t kNewTokens = 12;
constexpr uint32_t kFirstCredits = 3;

pb::SessionRequest generation(const Chain& chain, uint32_t handle, const std::string& session,
                              const Tokens& prompt) {
  pb::SessionRequest request;
  pb::Generate* generate = request.mutable_generate();
  generate->set_handle(handle);
  *generate->mutable_envelope() = opening(chain, 0, session);
  for (const Node& node : chain) *generate->add_hops() = node.hop();
  generate->mutable_spec()->mutable_prompt()->Add(prompt.begin(), prompt.end());
  generate->mutable_spec()->mutable_sampling()->set_temperature(0.0);
  generate->mutable_spec()->set_max_new_tokens(kNewTokens);
  generate->set_token_credits(kFirstCredits);
  return request;
}

void grant(Stream* stream, uint32_t handle, uint32_t tokens) {
  pb::SessionRequest request;
  request.mutable_grant()->set_handle(handle);
  request.mutable_grant()->set_tokens(tokens);
  stream->send(request);
}

void check_opened(Stream* stream, const Chain& chain, uint32_t handle, Checks* checks) {
  pb::SessionOpened expected;
  expected.set_handle(handle);
  *expected.mutable_flow() = chain[0].capability.flow();
  checks->same(stream->opened(), expected, "the generation's opening");
}

// Takes tokens [from, to) of the answer; the prompt was computed in `chunks` steps.
void check_tokens(Stream* stream, uint32_t handle, const Tokens& answer, size_t from, size_t to,
                  uint64_t* last_step, Checks* checks) {
  for (size_t i = from; i < to; ++i) {
    const pb::TokenReply reply = stream->token();
    const std::string what = "token " + std::to_string(i);
    checks->equal(reply.handle(), handle, what + "'s handle");
    checks->equal(reply.token().token_id(), answer[i], what);
    checks->equal(reply.token().position(), kPromptLength + i, what + "'s position");
    checks->that(!reply.token().has_logprob(), what + " has no log-probability");
    // Steps count on by one a token, from wherever the prompt's chunks left them.
    if (i > 0) checks->equal(reply.idempotency_step(), *last_step + 1, what + "'s step");
    *last_step = reply.idempotency_step();
  }
}

void check_timings(const pb::GenerationDone& done, const Chain& chain, uint32_t decode_steps,
                   Checks* checks) {
  checks->equal(done.timings_size(), static_cast<int>(chain.size()), "hops that were timed");
  for (int i = 0; i < done.timings_size() && i < static_cast<int>(chain.size()); ++i) {
    const pb::HopTimings& timing = done.timings(i);
    const Node& node = chain[static_cast<size_t>(i)];
    checks->equal(timing.node_id(), node.capability.node_id(), "a timed node");
    checks->same(timing.layers(), node.capability.layers(), "its layers");
    checks->equal(timing.prefill_tokens(), kPromptLength, "its prompt tokens");
    checks->equal(timing.decode_steps(), decode_steps, "its decode steps");
    checks->that(timing.prefill_engine_nanos() > 0, "its engine was timed");
    // Tokens may come straight from the tail, past the nodes between, which then wait for nobody.
    if (i == 0 || node.is_tail()) {
      checks->equal(timing.decode_downstream_nanos() > 0, !node.is_tail(), "it waited for others");
    }
  }
}

void check_whole(Stream* stream, const Chain& chain, const Tokens& prompt, const Tokens& answer,
                 Checks* checks) {
  stream->send(generation(chain, 1, unique("whole"), prompt));
  check_opened(stream, chain, 1, checks);
  uint64_t last_step = 0;
  check_tokens(stream, 1, answer, 0, kFirstCredits, &last_step, checks);
  for (const Node& node : chain) {
    checks->equal(health_of(node).open_sessions(), 1U, "sessions open while it waits");
  }
  grant(stream, 1, 1000);
  check_tokens(stream, 1, answer, kFirstCredits, kNewTokens, &last_step, checks);
  const pb::GenerationDone done = stream->done();
  checks->equal(done.handle(), 1U, "the end's handle");
  checks->equal(done.finish_reason(), pb::FINISH_REASON_LENGTH, "why it ended");
  check_timings(done, chain, kNewTokens - 1, checks);
}

// An end token ends the generation and isn't reported.
void check_stop(Stream* stream, const Chain& chain, const Tokens& prompt, const Tokens& answer,
                Checks* checks) {
  size_t stop = 1;
  while (answer[stop] == answer[0]) ++stop;
  pb::SessionRequest request = generation(chain, 2, unique("stop"), prompt);
  request.mutable_generate()->mutable_spec()->add_end_ids(answer[stop]);
  request.mutable_generate()->set_token_credits(1000);
  stream->send(request);
  check_opened(stream, chain, 2, checks);
  uint64_t last_step = 0;
  check_tokens(stream, 2, answer, 0, stop, &last_step, checks);
  const pb::GenerationDone done = stream->done();
  checks->equal(done.finish_reason(), pb::FINISH_REASON_STOP, "why it stopped");
  check_timings(done, chain, static_cast<uint32_t>(stop), checks);
}

void check_cancel(Stream* stream, const Chain& chain, const Tokens& prompt, const Tokens& answer,
                  Checks* checks) {
  stream->send(generation(chain, 3, unique("cancel"), prompt));
  check_opened(stream, chain, 3, checks);
  uint64_t last_step = 0;
  check_tokens(stream, 3, answer, 0, kFirstCredits, &last_step, checks);
  cancel(chain[0], unique("cancel"), "the client tries it");
  const pb::SessionFailed failed = stream->failed();
  checks->equal(failed.handle(), 3U, "the cancelled handle");
  checks->equal(failed.error().code(), pb::ERROR_CODE_CANCELLED, "how a cancelled one ends");
  checks->that(failed.error().message().find("the client tries it") != std::string::npos,
               "the reason is in the error");
}

// A cancel on the stream is answered with nothing, and the stream goes on.
void check_cancel_signal(Stream* stream, const Chain& chain, const Tokens& prompt,
                         const Tokens& answer, Checks* checks) {
  stream->send(generation(chain, 4, unique("signal"), prompt));
  check_opened(stream, chain, 4, checks);
  uint64_t last_step = 0;
  check_tokens(stream, 4, answer, 0, kFirstCredits, &last_step, checks);
  pb::SessionRequest signal;
  signal.mutable_cancel()->set_handle(4);
  stream->send(signal);
}

}  // namespace

void check_as_gateway(const Chain& chain, Checks* checks) {
  const Tokens prompt = prompt_of(kPromptLength, 1);
  const Tokens answer = answer_of(prompt, chain[0].capability.total_layers(), kNewTokens);
  Stream stream(chain[0]);
  check_whole(&stream, chain, prompt, answer, checks);
  check_stop(&stream, chain, prompt, answer, checks);
  check_cancel(&stream, chain, prompt, answer, checks);
  check_cancel_signal(&stream, chain, prompt, answer, checks);
  const auto [left, status] = stream.close();
  checks->equal(left, 0, "replies after the last one that was due");
  checks->that(status.ok(), "the stream ends well");
}

}  // namespace meshnet
