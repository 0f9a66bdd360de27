// Whole messages: parsed, checked against the contract, and with what an older peer left out.
//
// Whatever doesn't obey the contract throws `malformed` with the name of the field. Fields that
// aren't known are kept, so that a message that is handed on still has them.
#pragma once

#include <cstdint>
#include <string>

#include "wire/bundle.h"
#include "wire/failure.h"
#include "wire/schema.h"

namespace meshnet {

inline constexpr uint32_t kSchemaVersion = 1;

// The message in `data`.
template <typename Message>
Message parse(const std::string& data) {
  Message message;
  if (!message.ParseFromString(data)) {
    throw malformed("frame", "the bytes aren't a " + Message::descriptor()->name());
  }
  return message;
}

// A request from down the stream; `boundary` holds the tensors of a prefill chunk.
struct Request {
  pb::SessionRequest message;
  Bundle boundary;
};

Request read_request(const std::string& data, uint64_t max_bytes);
pb::SessionResponse read_reply(const std::string& data);
pb::GetCapabilityResponse read_capability(const std::string& data);
pb::HealthResponse read_health(const std::string& data);
pb::ReleaseRequest read_release(const std::string& data);
pb::CancelRequest read_cancel(const std::string& data);
pb::ShardError read_error(const std::string& data);

// The bounds with a default in place of each that isn't stated.
pb::FlowControl with_defaults(pb::FlowControl flow);

}  // namespace meshnet
