// Checks of the values that messages are made of; each throws `malformed` with the field's name.
#pragma once

#include <string>

#include "wire/schema.h"

namespace meshnet {

// 1 to 1024 characters.
void check_name(const std::string& value, const std::string& field);

// Refuses a message that this version would misread.
void check_schema(const pb::SchemaVersion& version);

// A range that isn't empty.
void check_layers(const pb::LayerRange& layers);

// The terms that open a session: whose, by which chain, until when.
void check_terms(const pb::Envelope& envelope,
                 const google::protobuf::RepeatedPtrField<pb::Hop>& hops);

// A return path's key: 16 to 64 bytes.
void check_return_key(const std::string& key);

void check_sampling(const pb::SamplingParams& sampling);
void check_chunk(const pb::ChunkInfo& chunk);
void check_decode_step(const pb::DecodeStep& step);
void check_token(const pb::GeneratedToken& token);
void check_timings(const google::protobuf::RepeatedPtrField<pb::HopTimings>& timings);
void check_error(const pb::ShardError& error);
void check_capability(const pb::Capability& capability);

}  // namespace meshnet
