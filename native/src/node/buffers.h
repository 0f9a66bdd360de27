// Messages as gRPC carries them, and errors as calls end with them.
//
// Calls carry bytes, not messages: bytes that aren't a message must be answered with a structured
// error, and gRPC's own parsing gives nobody the chance to.
#pragma once

#include <google/protobuf/message.h>
#include <grpcpp/grpcpp.h>

#include <string>

#include "wire/schema.h"

namespace meshnet {

// Trailing metadata under this name hold the serialised ShardError of a call that failed.
inline constexpr const char* kErrorTrailer = "meshnet-error-bin";

grpc::ByteBuffer to_buffer(const google::protobuf::Message& message);
std::string to_bytes(const grpc::ByteBuffer& buffer);

// gRPC's status for an error. The whole of it belongs into the trailer.
grpc::Status to_status(const pb::ShardError& error);

}  // namespace meshnet
