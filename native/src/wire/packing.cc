#include "wire/packing.h"

#include <zstd.h>

#include <stdexcept>

#include "wire/failure.h"

namespace meshnet {
namespace {

constexpr int kLevel = 1;

}  // namespace

std::string pack(std::string_view data, pb::Compression how) {
  if (how != pb::COMPRESSION_ZSTD) return std::string(data);
  std::string packed(ZSTD_compressBound(data.size()), '\0');
  const size_t size =
      ZSTD_compress(packed.data(), packed.size(), data.data(), data.size(), kLevel);
  if (ZSTD_isError(size) != 0) throw std::runtime_error(ZSTD_getErrorName(size));
  packed.resize(size);
  return packed;
}

std::string unpack(const std::string& data, pb::Compression how, uint64_t size,
                   const std::string& field) {
  if (how != pb::COMPRESSION_ZSTD) {
    if (data.size() != size) throw malformed(field, std::to_string(data.size()) + " bytes");
    return data;
  }
  const unsigned long long stated = ZSTD_getFrameContentSize(data.data(), data.size());
  if (stated != size) throw malformed(field, "no frame of " + std::to_string(size) + " bytes");
  // A second frame, or anything else behind the first, would be unpacked as well.
  const size_t frame = ZSTD_findFrameCompressedSize(data.data(), data.size());
  if (frame != data.size()) throw malformed(field, "not exactly one Zstandard frame");
  std::string content(size, '\0');
  const size_t got = ZSTD_decompress(content.data(), content.size(), data.data(), data.size());
  if (ZSTD_isError(got) != 0) throw malformed(field, ZSTD_getErrorName(got));
  if (got != size) throw malformed(field, std::to_string(got) + " bytes");
  return content;
}

void require_known_packing(pb::Compression how) {
  switch (how) {
    case pb::COMPRESSION_UNSPECIFIED:
    case pb::COMPRESSION_NONE:
    case pb::COMPRESSION_ZSTD:
      return;
    default:
      throw malformed("compression", std::to_string(how) + " is no known packing");
  }
}

}  // namespace meshnet
