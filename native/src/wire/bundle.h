// Tensor bundles: read off the wire with every size checked before memory is taken, and written.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "wire/schema.h"

namespace meshnet {

inline constexpr const char* kResidual = "residual";

struct Tensor {
  std::string name;
  pb::TensorDtype dtype = pb::TENSOR_DTYPE_FLOAT32;
  std::vector<int64_t> shape;
  std::string data;  // row-major, little-endian
};

struct Bundle {
  std::vector<Tensor> tensors;
  std::vector<uint32_t> token_id_sideband;

  // Token positions, which the first tensor's first extent says.
  int64_t rows() const;
};

// A type's smallest unit: so many values in so many bytes; nothing for an unknown type.
struct Block {
  uint64_t values;
  uint64_t bytes;
};
std::optional<Block> block_of(pb::TensorDtype dtype);

// The bundle in a message; throws `malformed`, naming the field, for whatever contradicts itself or
// needs more than `max_bytes` for its data.
Bundle read_bundle(const pb::TensorBundle& message, pb::Compression how, uint64_t max_bytes);

// Fills an empty message; each fragment holds at most `fragment_bytes` before it is packed. Returns
// the sum of all tensors' data, for the envelope.
uint32_t write_bundle(const Bundle& bundle, pb::Compression how, size_t fragment_bytes,
                      pb::TensorBundle* message);

}  // namespace meshnet
