#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "wire/schema.h"

namespace meshnet {

// One fragment's data as it travels: as it is, or as one Zstandard frame that states its size.
std::string pack(std::string_view data, pb::Compression how);

// The `size` bytes that were packed. Throws `malformed` naming `field` when `data` holds anything
// else, and never takes more memory than `size` for it.
std::string unpack(const std::string& data, pb::Compression how, uint64_t size,
                   const std::string& field);

// Throws `malformed` for a packing that this codec can't read.
void require_known_packing(pb::Compression how);

}  // namespace meshnet
