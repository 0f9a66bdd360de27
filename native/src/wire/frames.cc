#include "wire/frames.h"

#include "wire/crc32c.h"
#include "wire/packing.h"
#include "wire/values.h"

namespace meshnet {
namespace {

// Of a key and of a signature: those of P-256 take about 91 and 72.
constexpr size_t kMaxSignatureBytes = 256;

// Messages name their optional parts; a part that must be there is asked for by its name.
template <typename Message>
void require(const Message& message, const std::string& field) {
  const auto* descriptor = Message::descriptor()->FindFieldByName(field);
  if (!message.GetReflection()->HasField(message, descriptor)) {
    throw malformed(field, "it is absent");
  }
}

void fill_sampling(pb::SamplingParams* sampling) {
  if (!sampling->has_temperature()) sampling->set_temperature(1.0);
  if (!sampling->has_top_p()) sampling->set_top_p(1.0);
  if (!sampling->has_repeat_penalty()) sampling->set_repeat_penalty(1.0);
  if (!sampling->has_penalty_last_n()) sampling->set_penalty_last_n(64);
}

void fill_terms(pb::Envelope* envelope, const pb::Hop& receiver) {
  envelope->mutable_schema_version()->set_number(kSchemaVersion);
  envelope->mutable_layers()->set_start(receiver.layers().start());
  envelope->mutable_layers()->set_end(receiver.layers().end());
  envelope->set_effective_start_layer(receiver.layers().start());
}

template <typename Message>
void check_opener(const Message& message) {
  if (!message.has_opener()) return;
  check_name(message.opener().node_id(), "opener.node_id");
  if (message.opener().has_layers()) check_layers(message.opener().layers());
}

void check_generated(uint32_t generated, int tokens) {
  if (generated > static_cast<uint32_t>(tokens)) throw malformed("generated", "over the tokens");
}

void read_generate(pb::Generate* message) {
  require(*message, "envelope");
  require(*message, "spec");
  check_terms(message->envelope(), message->hops());
  check_sampling(message->spec().sampling());
  if (message->spec().prompt().empty()) throw malformed("prompt", "it has no tokens");
  check_generated(message->spec().generated(), message->spec().prompt_size());
  check_opener(*message);
  fill_terms(message->mutable_envelope(), message->hops(0));
  fill_sampling(message->mutable_spec()->mutable_sampling());
}

void check_expectation(const pb::CacheExpectation& expectation) {
  const bool fork = expectation.mode() == pb::CACHE_MODE_FORK;
  if (!fork && expectation.mode() != pb::CACHE_MODE_FRESH &&
      expectation.mode() != pb::CACHE_MODE_EXACT && expectation.mode() != pb::CACHE_MODE_TRUNCATE) {
    throw malformed("cache_expectation.mode", "it is none of the known values");
  }
  if (fork == expectation.source_session_id().empty()) {
    throw malformed("cache_expectation.source_session_id",
                    "a fork names its source, and nothing else does");
  }
  if (!fork) return;
  check_name(expectation.source_session_id(), "cache_expectation.source_session_id");
  if (expectation.expected_past_len() == 0) {
    throw malformed("cache_expectation.expected_past_len", "a fork takes at least one position");
  }
}

void read_open(pb::OpenSession* message) {
  require(*message, "envelope");
  check_terms(message->envelope(), message->hops());
  check_sampling(message->sampling());
  fill_terms(message->mutable_envelope(), message->hops(0));
  if (message->has_return_path()) {
    check_name(message->return_path().address(), "return_path.address");
    check_return_key(message->return_path().key());
    if (!message->return_path().node_id().empty()) {
      check_name(message->return_path().node_id(), "return_path.node_id");
    }
  }
  if (message->has_begin()) check_expectation(message->begin());
  check_generated(message->generated(), message->history_size());
  check_opener(*message);
  fill_sampling(message->mutable_sampling());
  *message->mutable_flow() = with_defaults(message->flow());
}

void check_attach(const pb::AttachReturn& message) {
  check_name(message.route_session_id(), "route_session_id");
  check_return_key(message.key());
}

Bundle read_prefill(const pb::PrefillChunk& message, uint64_t max_bytes) {
  for (const char* field : {"envelope", "chunk", "bundle"}) require(message, field);
  const pb::Envelope& envelope = message.envelope();
  require(envelope, "cache_expectation");
  if (envelope.phase() != pb::PHASE_PREFILL) {
    throw malformed("envelope.phase", "a prefill chunk must say prefill");
  }
  check_chunk(message.chunk());
  require_known_packing(envelope.compression());
  Bundle bundle = read_bundle(message.bundle(), envelope.compression(), max_bytes);
  uint32_t sum = 0;
  for (const Tensor& tensor : bundle.tensors) sum = crc32c(tensor.data, sum);
  if (sum != envelope.checksum()) {
    throw malformed("envelope.checksum", "the tensors have another sum");
  }
  if (bundle.rows() != message.chunk().token_count()) {
    throw malformed("chunk.token_count", "the boundary has another number of rows");
  }
  check_schema(envelope.schema_version());
  check_name(envelope.route_session_id(), "route_session_id");
  check_expectation(envelope.cache_expectation());
  return bundle;
}

void read_decode(const pb::DecodeFrame& message) {
  if (message.steps().empty()) throw malformed("decode.steps", "none are there");
  for (const pb::DecodeStep& step : message.steps()) check_decode_step(step);
}

void check_tokens(const pb::TokenFrame& message) {
  if (message.replies().empty()) throw malformed("tokens.replies", "none are there");
  for (const pb::TokenReply& reply : message.replies()) {
    require(reply, "token");
    check_token(reply.token());
  }
}

void check_failed(const pb::SessionFailed& message) {
  check_error(message.error());
  if (message.error().code() == pb::ERROR_CODE_UNSPECIFIED) {
    throw malformed("failed.error", "a failure without an error code");
  }
}

void check_done(const pb::GenerationDone& message) {
  if (message.finish_reason() != pb::FINISH_REASON_STOP &&
      message.finish_reason() != pb::FINISH_REASON_LENGTH) {
    throw malformed("finish_reason", "it is none of the known values");
  }
  check_timings(message.timings());
}

void check_signed_size(const std::string& value, const std::string& field) {
  if (value.empty() || value.size() > kMaxSignatureBytes) {
    throw malformed(field, "it must have 1 to " + std::to_string(kMaxSignatureBytes) + " bytes");
  }
}

void check_receipt(const pb::SignedWork& message) {
  require(message, "work");
  check_signed_size(message.public_key(), "receipt.public_key");
  check_signed_size(message.signature(), "receipt.signature");
  const pb::SeamWork& work = message.work();
  const auto* descriptor = pb::SeamWork::descriptor();
  for (int i = 0; i < descriptor->field_count(); ++i) {
    const auto* field = descriptor->field(i);
    if (work.GetReflection()->GetUInt64(work, field) >> 63 != 0) {
      throw malformed(std::string(field->name()), "it is 2^63 or more");
    }
  }
  if (work.end_position() < work.first_position()) {
    throw malformed("end_position", "it is before the first position");
  }
  if (work.ended_unix_nanos() < work.began_unix_nanos()) {
    throw malformed("ended_unix_nanos", "it is before the beginning");
  }
  if (work.engine_nanos() > work.ended_unix_nanos() - work.began_unix_nanos()) {
    throw malformed("engine_nanos", "it is longer than the session");
  }
}

}  // namespace

Request read_request(const std::string& data, uint64_t max_bytes) {
  Request request;
  request.message = parse<pb::SessionRequest>(data);
  switch (request.message.request_case()) {
    case pb::SessionRequest::kGenerate:
      read_generate(request.message.mutable_generate());
      break;
    case pb::SessionRequest::kOpen:
      read_open(request.message.mutable_open());
      break;
    case pb::SessionRequest::kPrefill:
      request.boundary = read_prefill(request.message.prefill(), max_bytes);
      break;
    case pb::SessionRequest::kDecode:
      read_decode(request.message.decode());
      break;
    case pb::SessionRequest::kAttachReturn:
      check_attach(request.message.attach_return());
      break;
    case pb::SessionRequest::kReturned:
      check_tokens(request.message.returned());
      break;
    case pb::SessionRequest::kReceipt:
      check_receipt(request.message.receipt());
      break;
    case pb::SessionRequest::kGrant:
    case pb::SessionRequest::kCancel:
    case pb::SessionRequest::kRelease:
      break;
    case pb::SessionRequest::REQUEST_NOT_SET:
      throw malformed("request", "none that is known is set");
  }
  return request;
}

pb::SessionResponse read_reply(const std::string& data) {
  auto message = parse<pb::SessionResponse>(data);
  switch (message.response_case()) {
    case pb::SessionResponse::kOpened:
      *message.mutable_opened()->mutable_flow() = with_defaults(message.opened().flow());
      break;
    case pb::SessionResponse::kAck:
      require(message.ack(), "cache_result");
      break;
    case pb::SessionResponse::kTokens:
      check_tokens(message.tokens());
      break;
    case pb::SessionResponse::kFailed:
      check_failed(message.failed());
      break;
    case pb::SessionResponse::kReleased:
      check_timings(message.released().timings());
      break;
    case pb::SessionResponse::kDone:
      check_done(message.done());
      break;
    case pb::SessionResponse::kReceipt:
      check_receipt(message.receipt());
      break;
    case pb::SessionResponse::RESPONSE_NOT_SET:
      throw malformed("response", "none that is known is set");
  }
  return message;
}

pb::GetCapabilityResponse read_capability(const std::string& data) {
  auto message = parse<pb::GetCapabilityResponse>(data);
  require(message, "capability");
  pb::Capability* capability = message.mutable_capability();
  check_capability(*capability);
  capability->mutable_schema_version()->set_number(kSchemaVersion);
  *capability->mutable_flow() = with_defaults(capability->flow());
  if (capability->dtypes().empty()) capability->add_dtypes(pb::TENSOR_DTYPE_FLOAT32);
  return message;
}

pb::HealthResponse read_health(const std::string& data) {
  auto message = parse<pb::HealthResponse>(data);
  if (message.state() < pb::LIFECYCLE_STATE_LOADING ||
      message.state() > pb::LIFECYCLE_STATE_FAILED) {
    throw malformed("state", "it is none of the known values");
  }
  check_error(message.error());
  return message;
}

pb::ReleaseRequest read_release(const std::string& data) {
  auto message = parse<pb::ReleaseRequest>(data);
  check_name(message.route_session_id(), "route_session_id");
  return message;
}

pb::CancelRequest read_cancel(const std::string& data) {
  auto message = parse<pb::CancelRequest>(data);
  check_name(message.route_session_id(), "route_session_id");
  return message;
}

pb::ShardError read_error(const std::string& data) {
  auto message = parse<pb::ShardError>(data);
  check_error(message);
  return message;
}

pb::FlowControl with_defaults(pb::FlowControl flow) {
  if (flow.credits() == 0) flow.set_credits(4);
  if (flow.max_chunk_bytes() == 0) flow.set_max_chunk_bytes(64ULL << 20);
  if (flow.max_queued_work() == 0) flow.set_max_queued_work(256);
  if (flow.max_sessions() == 0) flow.set_max_sessions(8);
  return flow;
}

}  // namespace meshnet
