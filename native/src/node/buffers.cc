#include "node/buffers.h"

#include <vector>

#include "wire/failure.h"

namespace meshnet {
namespace {

constexpr size_t kMaxStatusText = 200;

grpc::StatusCode grpc_code(pb::ErrorCode code) {
  switch (code) {
    case pb::ERROR_CODE_UNSPECIFIED:
      return grpc::StatusCode::OK;
    case pb::ERROR_CODE_INVALID_ARGUMENT:
    case pb::ERROR_CODE_MALFORMED_FRAME:
    case pb::ERROR_CODE_TEMPLATE_FAILED:
      return grpc::StatusCode::INVALID_ARGUMENT;
    case pb::ERROR_CODE_MODEL_FILE_INVALID:
      return grpc::StatusCode::DATA_LOSS;
    case pb::ERROR_CODE_MODEL_UNSUPPORTED:
    case pb::ERROR_CODE_CACHE_MISS:
    case pb::ERROR_CODE_FINGERPRINT_MISMATCH:
      return grpc::StatusCode::FAILED_PRECONDITION;
    case pb::ERROR_CODE_MODEL_NOT_FOUND:
    case pb::ERROR_CODE_SESSION_NOT_FOUND:
      return grpc::StatusCode::NOT_FOUND;
    case pb::ERROR_CODE_LAYER_RANGE_INVALID:
    case pb::ERROR_CODE_CONTEXT_LENGTH_EXCEEDED:
      return grpc::StatusCode::OUT_OF_RANGE;
    case pb::ERROR_CODE_STALE_EPOCH:
      return grpc::StatusCode::ABORTED;
    case pb::ERROR_CODE_CANCELLED:
      return grpc::StatusCode::CANCELLED;
    case pb::ERROR_CODE_DEADLINE_EXCEEDED:
      return grpc::StatusCode::DEADLINE_EXCEEDED;
    case pb::ERROR_CODE_RESOURCE_EXHAUSTED:
      return grpc::StatusCode::RESOURCE_EXHAUSTED;
    case pb::ERROR_CODE_NODE_UNREACHABLE:
    case pb::ERROR_CODE_NODE_LOST:
    case pb::ERROR_CODE_NODE_NOT_READY:
      return grpc::StatusCode::UNAVAILABLE;
    default:
      return grpc::StatusCode::INTERNAL;
  }
}

}  // namespace

grpc::ByteBuffer to_buffer(const google::protobuf::Message& message) {
  const grpc::Slice slice(message.SerializeAsString());
  return grpc::ByteBuffer(&slice, 1);
}

std::string to_bytes(const grpc::ByteBuffer& buffer) {
  std::vector<grpc::Slice> slices;
  std::string bytes;
  // A buffer without slices, as for an empty message, can't be dumped.
  if (!buffer.Valid() || !buffer.Dump(&slices).ok()) return bytes;
  for (const grpc::Slice& slice : slices) {
    bytes.append(reinterpret_cast<const char*>(slice.begin()), slice.size());
  }
  return bytes;
}

grpc::Status to_status(const pb::ShardError& error) {
  return {grpc_code(code_of(error)), error.message().substr(0, kMaxStatusText)};
}

}  // namespace meshnet
