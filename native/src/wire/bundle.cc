#include "wire/bundle.h"

#include <algorithm>
#include <set>
#include <string_view>

#include "wire/crc32c.h"
#include "wire/failure.h"
#include "wire/packing.h"

namespace meshnet {
namespace {

constexpr uint32_t kVersion = 1;
constexpr int kMaxRank = 8;

// Bytes that a tensor of this shape takes; nothing when 64 bits can't hold the number.
std::optional<uint64_t> byte_length(const pb::NamedTensor& message, Block block,
                                    const std::string& field) {
  const auto& shape = message.shape();
  if (std::any_of(shape.begin(), shape.end(), [](int64_t extent) { return extent < 0; })) {
    throw malformed(field + ".shape", "a negative extent");
  }
  // An extent of 0 makes the product 0, however large the others are.
  if (std::count(shape.begin(), shape.end(), 0) != 0) return 0;
  uint64_t elements = 1;
  for (const int64_t extent : shape) {
    if (__builtin_mul_overflow(elements, static_cast<uint64_t>(extent), &elements)) {
      return std::nullopt;
    }
  }
  if (elements % block.values != 0) throw malformed(field + ".shape", "no whole blocks");
  uint64_t bytes = 0;
  if (__builtin_mul_overflow(elements / block.values, block.bytes, &bytes)) return std::nullopt;
  return bytes;
}

void check_size(const pb::NamedTensor& message, Block block, const std::string& field) {
  if (message.shape_size() > kMaxRank) throw malformed(field + ".shape", "too many extents");
  const std::optional<uint64_t> expected = byte_length(message, block, field);
  if (expected != message.total_bytes()) {
    throw malformed(field + ".total_bytes",
                    std::to_string(message.total_bytes()) + " declared; the shape takes others");
  }
}

std::vector<const pb::TensorFragment*> in_order(const pb::NamedTensor& message,
                                                const std::string& field) {
  std::vector<const pb::TensorFragment*> fragments;
  for (const pb::TensorFragment& fragment : message.fragments()) fragments.push_back(&fragment);
  std::stable_sort(fragments.begin(), fragments.end(),
                   [](const auto* a, const auto* b) { return a->index() < b->index(); });
  for (size_t place = 0; place < fragments.size(); ++place) {
    if (fragments[place]->index() != place) {
      throw malformed(field + ".fragments[" + std::to_string(place) + "].index",
                      std::to_string(fragments[place]->index()) + " is repeated or skips one");
    }
  }
  return fragments;
}

// Joins the fragments, which may come in any order; each begins where the one before it ended.
std::string reassemble(const pb::NamedTensor& message, pb::Compression how,
                       const std::string& field) {
  const uint64_t total = message.total_bytes();
  const std::vector<const pb::TensorFragment*> fragments = in_order(message, field);
  if (fragments.empty() && total != 0) throw malformed(field + ".fragments", "none");
  std::string data;
  for (size_t place = 0; place < fragments.size(); ++place) {
    const std::string where = field + ".fragments[" + std::to_string(place) + "]";
    const bool last = place + 1 == fragments.size();
    const uint64_t end = last ? total : fragments[place + 1]->offset();
    if (fragments[place]->offset() != data.size() || end <= data.size() || end > total) {
      throw malformed(where + ".offset", "the piece can't follow byte " +
                                             std::to_string(data.size()));
    }
    data += unpack(fragments[place]->data(), how, end - data.size(), where + ".data");
  }
  return data;
}

Tensor read_tensor(const pb::NamedTensor& message, pb::Compression how,
                   const std::string& field) {
  const std::optional<Block> block = block_of(message.dtype());
  if (!block) throw malformed(field + ".dtype", "no known element type");
  if (message.byte_order() != pb::BYTE_ORDER_LITTLE_ENDIAN) {
    throw malformed(field + ".byte_order", "only little-endian is taken");
  }
  check_size(message, *block, field);
  Tensor tensor;
  tensor.name = message.name();
  tensor.dtype = message.dtype();
  tensor.shape.assign(message.shape().begin(), message.shape().end());
  tensor.data = reassemble(message, how, field);
  if (crc32c(tensor.data) != message.checksum()) {
    throw malformed(field + ".checksum", "the data has another sum");
  }
  if (tensor.name.empty()) throw malformed(field + ".name", "a tensor needs a name");
  return tensor;
}

void write_tensor(const Tensor& tensor, pb::Compression how, size_t fragment_bytes,
                  pb::NamedTensor* message) {
  message->set_name(tensor.name);
  message->mutable_shape()->Add(tensor.shape.begin(), tensor.shape.end());
  message->set_dtype(tensor.dtype);
  message->set_byte_order(pb::BYTE_ORDER_LITTLE_ENDIAN);
  message->set_total_bytes(tensor.data.size());
  message->set_checksum(crc32c(tensor.data));
  for (size_t offset = 0; offset < tensor.data.size(); offset += fragment_bytes) {
    pb::TensorFragment* fragment = message->add_fragments();
    fragment->set_index(static_cast<uint32_t>(offset / fragment_bytes));
    fragment->set_offset(offset);
    fragment->set_data(pack(std::string_view(tensor.data).substr(offset, fragment_bytes), how));
  }
}

}  // namespace

int64_t Bundle::rows() const {
  return tensors.empty() || tensors[0].shape.empty() ? 0 : tensors[0].shape[0];
}

std::optional<Block> block_of(pb::TensorDtype dtype) {
  switch (dtype) {
    case pb::TENSOR_DTYPE_FLOAT32:
      return Block{1, 4};
    case pb::TENSOR_DTYPE_FLOAT16:
    case pb::TENSOR_DTYPE_BFLOAT16:
      return Block{1, 2};
    case pb::TENSOR_DTYPE_Q8_0:
      return Block{32, 34};
    default:
      return std::nullopt;
  }
}

Bundle read_bundle(const pb::TensorBundle& message, pb::Compression how, uint64_t max_bytes) {
  if (message.version() > kVersion) throw malformed("bundle.version", "newer than is known");
  uint64_t left = max_bytes;
  for (const pb::NamedTensor& tensor : message.tensors()) {
    if (tensor.total_bytes() > left) {
      throw malformed("bundle.total_bytes",
                      "over the bound of " + std::to_string(max_bytes) + " bytes");
    }
    left -= tensor.total_bytes();
  }
  Bundle bundle;
  std::set<std::string> names;
  for (int i = 0; i < message.tensors_size(); ++i) {
    const std::string field = "tensors[" + std::to_string(i) + "]";
    bundle.tensors.push_back(read_tensor(message.tensors(i), how, field));
    names.insert(bundle.tensors.back().name);
  }
  if (bundle.tensors.empty()) throw malformed("tensors", "a bundle holds at least one");
  if (names.size() != bundle.tensors.size()) throw malformed("tensors", "names repeat");
  bundle.token_id_sideband.assign(message.token_id_sideband().begin(),
                                  message.token_id_sideband().end());
  return bundle;
}

uint32_t write_bundle(const Bundle& bundle, pb::Compression how, size_t fragment_bytes,
                      pb::TensorBundle* message) {
  message->set_version(kVersion);
  message->mutable_token_id_sideband()->Add(bundle.token_id_sideband.begin(),
                                            bundle.token_id_sideband.end());
  uint32_t sum = 0;
  for (const Tensor& tensor : bundle.tensors) {
    write_tensor(tensor, how, fragment_bytes, message->add_tensors());
    sum = crc32c(tensor.data, sum);
  }
  return sum;
}

}  // namespace meshnet
