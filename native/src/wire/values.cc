#include "wire/values.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <set>

#include "wire/bundle.h"
#include "wire/crc32c.h"
#include "wire/failure.h"
#include "wire/frames.h"

namespace meshnet {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr std::ptrdiff_t kMaxNameLength = 1024;
constexpr uint32_t kMaxChunkTokens = 128;
constexpr uint32_t kMaxTopLogprobs = 20;
constexpr size_t kMaxGrammarBytes = 256 << 10;
constexpr size_t kMinReturnKeyBytes = 16;
constexpr size_t kMaxReturnKeyBytes = 64;

void check_number(const char* field, double value, double low, double high) {
  // Written so that a value that isn't a number fails, too.
  if (!(value >= low && value <= high) || std::isinf(value)) {
    throw malformed(field, std::to_string(value) + " is out of bounds");
  }
}

void check_biases(const pb::SamplingParams& sampling) {
  std::set<uint32_t> tokens;
  for (const pb::LogitBias& bias : sampling.logit_biases()) tokens.insert(bias.token_id());
  if (tokens.size() != static_cast<size_t>(sampling.logit_biases_size())) {
    throw malformed("logit_biases", "a token occurs twice");
  }
  for (const pb::LogitBias& bias : sampling.logit_biases()) {
    if (std::isnan(bias.bias()) || bias.bias() == kInfinity) {
      throw malformed("logit_bias", std::to_string(bias.bias()) + " can't be added");
    }
  }
}

void check_first_hop(const pb::Envelope& envelope, const pb::LayerRange& used) {
  const pb::LayerRange& stated = envelope.layers();
  const uint32_t start = envelope.has_effective_start_layer() ? envelope.effective_start_layer()
                                                              : stated.start();
  if (start < stated.start() || start != used.start() || stated.end() != used.end()) {
    throw malformed("layers", "the envelope and the first hop name different ones");
  }
}

}  // namespace

void check_name(const std::string& value, const std::string& field) {
  // Characters, not bytes: those that go on a character begin with the bits 10.
  const auto length = std::count_if(value.begin(), value.end(),
                                    [](char c) { return (c & 0xC0) != 0x80; });
  if (length < 1 || length > kMaxNameLength) {
    throw malformed(field, "it must have 1 to " + std::to_string(kMaxNameLength) + " characters");
  }
}

void check_schema(const pb::SchemaVersion& version) {
  if (version.number() > kSchemaVersion) {
    throw malformed("schema_version", "the peer speaks version " +
                                          std::to_string(version.number()) + ", this node up to " +
                                          std::to_string(kSchemaVersion));
  }
}

void check_layers(const pb::LayerRange& layers) {
  if (layers.start() >= layers.end()) throw malformed("layers", "the range is empty");
}

void check_terms(const pb::Envelope& envelope,
                 const google::protobuf::RepeatedPtrField<pb::Hop>& hops) {
  if (!envelope.has_fingerprint()) throw malformed("fingerprint", "it is absent");
  check_schema(envelope.schema_version());
  check_name(envelope.route_session_id(), "route_session_id");
  for (const pb::Hop& hop : hops) {
    check_name(hop.node_id(), "hops.node_id");
    check_name(hop.address(), "hops.address");
    check_layers(hop.layers());
  }
  if (hops.empty()) throw malformed("hops", "a route names at least the receiver itself");
  if (envelope.deadline_unix_nanos() < 0) throw malformed("deadline_unix_nanos", "it is negative");
  if (envelope.has_layers()) check_first_hop(envelope, hops[0].layers());
}

void check_return_key(const std::string& key) {
  if (key.size() < kMinReturnKeyBytes || key.size() > kMaxReturnKeyBytes) {
    throw malformed("return_path.key", std::to_string(key.size()) + " bytes are no such key");
  }
}

void check_sampling(const pb::SamplingParams& sampling) {
  constexpr double kLeast = std::numeric_limits<double>::denorm_min();
  check_biases(sampling);
  check_number("temperature", sampling.temperature(), 0.0, kInfinity);
  if (sampling.has_top_p()) check_number("top_p", sampling.top_p(), kLeast, 1.0);
  check_number("min_p", sampling.min_p(), 0.0, 1.0);
  if (sampling.has_repeat_penalty()) {
    check_number("repeat_penalty", sampling.repeat_penalty(), kLeast, kInfinity);
  }
  check_number("presence_penalty", sampling.presence_penalty(), -2.0, 2.0);
  check_number("frequency_penalty", sampling.frequency_penalty(), -2.0, 2.0);
  if (sampling.penalty_last_n() < -1) throw malformed("penalty_last_n", "it is less than -1");
  if (sampling.top_logprobs() > kMaxTopLogprobs) throw malformed("top_logprobs", "over 20");
  if (sampling.grammar().size() > kMaxGrammarBytes) throw malformed("grammar", "over 256 KiB");
}

void check_chunk(const pb::ChunkInfo& chunk) {
  if (chunk.index() >= chunk.count()) throw malformed("chunk.index", "not below the count");
  if (chunk.token_count() < 1 || chunk.token_count() > kMaxChunkTokens) {
    throw malformed("chunk.token_count", std::to_string(chunk.token_count()) + " isn't 1 to 128");
  }
  if (chunk.total_tokens() < chunk.token_count()) {
    throw malformed("chunk.total_tokens", "fewer than the chunk's tokens");
  }
}

void check_decode_step(const pb::DecodeStep& step) {
  if (crc32c(step.data()) != step.checksum()) {
    throw malformed("decode.checksum", "the data has another sum");
  }
  const bool stated = step.dtype() != pb::TENSOR_DTYPE_UNSPECIFIED;
  const std::optional<Block> block = block_of(stated ? step.dtype() : pb::TENSOR_DTYPE_FLOAT32);
  if (!block) throw malformed("decode.dtype", "no known element type");
  const size_t rows = 1 + static_cast<size_t>(step.proposed_size());
  if (step.data().empty() || step.data().size() % (rows * block->bytes) != 0) {
    throw malformed("decode.data", std::to_string(step.data().size()) + " bytes are no " +
                                       std::to_string(rows) + " row(s)");
  }
}

void check_token(const pb::GeneratedToken& token) {
  if (!token.has_logprob()) return;
  bool nan = std::isnan(token.logprob());
  for (const pb::TokenLogprob& top : token.top_logprobs()) nan |= std::isnan(top.logprob());
  if (nan) throw malformed("logprob", "it is not a number");
}

void check_timings(const google::protobuf::RepeatedPtrField<pb::HopTimings>& timings) {
  for (const pb::HopTimings& timing : timings) {
    check_name(timing.node_id(), "timings.node_id");
    check_layers(timing.layers());
  }
}

void check_error(const pb::ShardError& error) {
  std::set<std::string> keys;
  for (const pb::ErrorDetail& each : error.details()) keys.insert(each.key());
  if (keys.size() != static_cast<size_t>(error.details_size())) {
    throw malformed("error.details", "a key occurs twice");
  }
}

void check_capability(const pb::Capability& capability) {
  check_schema(capability.schema_version());
  if (!capability.has_layers()) throw malformed("layers", "it is absent");
  if (!capability.has_fingerprint()) throw malformed("fingerprint", "it is absent");
  if (capability.context_length() == 0) throw malformed("context_length", "it is 0");
  check_name(capability.node_id(), "node_id");
  check_layers(capability.layers());
  if (capability.layers().end() > capability.total_layers()) {
    throw malformed("layers", "the model has fewer");
  }
  for (const int dtype : capability.dtypes()) {
    if (!block_of(static_cast<pb::TensorDtype>(dtype))) throw malformed("dtypes", "unknown type");
  }
}

}  // namespace meshnet
