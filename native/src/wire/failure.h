// What goes wrong, as the wire's structured error.
#pragma once

#include <map>
#include <stdexcept>
#include <string>

#include "wire/schema.h"

namespace meshnet {

// An error that crosses a process border as it is. Each code says whether a retry helps.
class ShardFailure : public std::runtime_error {
 public:
  ShardFailure(pb::ErrorCode code, const std::string& message,
               const std::map<std::string, std::string>& details = {});
  // An error that a peer reported, as it came.
  explicit ShardFailure(pb::ShardError error);

  const pb::ShardError& error() const { return error_; }
  pb::ErrorCode code() const { return error_.code(); }

 private:
  pb::ShardError error_;
};

// Bytes that don't obey the contract; the detail `field` names what is wrong.
ShardFailure malformed(const std::string& field, const std::string& problem);

// A value that can't be used here; the detail `field` names it.
ShardFailure invalid_argument(const std::string& field, const std::string& problem);

// An error's code; one of a newer schema is taken for ERROR_CODE_INTERNAL.
pb::ErrorCode code_of(const pb::ShardError& error);

// The value of one detail; empty if there is none of that key.
std::string detail(const pb::ShardError& error, const std::string& key);

}  // namespace meshnet
