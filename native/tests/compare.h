// Compares messages with their fields as conformance/vectors.json writes them down.
#pragma once

#include <google/protobuf/message.h>

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace meshnet {

// One line for every field that differs, is missing, or is there although the case doesn't name it;
// unknown fields are compared as well. `path` begins each line.
std::vector<std::string> differences(const google::protobuf::Message& message,
                                     const nlohmann::json& fields, const std::string& path);

std::string hex(const std::string& bytes);

// Bytes that don't depend on anything but the message.
std::string serialise(const google::protobuf::Message& message);

}  // namespace meshnet
