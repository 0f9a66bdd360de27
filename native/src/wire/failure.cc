#include "wire/failure.h"

#include <utility>

namespace meshnet {
namespace {

bool retryable(pb::ErrorCode code) {
  switch (code) {
    case pb::ERROR_CODE_CACHE_MISS:
    case pb::ERROR_CODE_DEADLINE_EXCEEDED:
    case pb::ERROR_CODE_RESOURCE_EXHAUSTED:
    case pb::ERROR_CODE_NODE_UNREACHABLE:
    case pb::ERROR_CODE_NODE_LOST:
    case pb::ERROR_CODE_NODE_NOT_READY:
      return true;
    default:
      return false;
  }
}

}  // namespace

ShardFailure::ShardFailure(pb::ErrorCode code, const std::string& message,
                           const std::map<std::string, std::string>& details)
    : std::runtime_error(message) {
  error_.set_code(code);
  error_.set_retryable(retryable(code));
  error_.set_message(message);
  for (const auto& [key, value] : details) {
    pb::ErrorDetail* added = error_.add_details();
    added->set_key(key);
    added->set_value(value);
  }
}

ShardFailure::ShardFailure(pb::ShardError error)
    : std::runtime_error(error.message()), error_(std::move(error)) {}

ShardFailure malformed(const std::string& field, const std::string& problem) {
  return {pb::ERROR_CODE_MALFORMED_FRAME, field + ": " + problem, {{"field", field}}};
}

ShardFailure invalid_argument(const std::string& field, const std::string& problem) {
  return {pb::ERROR_CODE_INVALID_ARGUMENT, field + ": " + problem, {{"field", field}}};
}

pb::ErrorCode code_of(const pb::ShardError& error) {
  return pb::ErrorCode_IsValid(error.code()) ? error.code() : pb::ERROR_CODE_INTERNAL;
}

std::string detail(const pb::ShardError& error, const std::string& key) {
  for (const pb::ErrorDetail& each : error.details()) {
    if (each.key() == key) return each.value();
  }
  return "";
}

}  // namespace meshnet
