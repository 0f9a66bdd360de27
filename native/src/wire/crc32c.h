#pragma once

#include <cstdint>
#include <string_view>

namespace meshnet {

// CRC32C (Castagnoli) of `data`, going on from `start`, the sum of what came before it.
//
// Made from the polynomial alone, so that it shares nothing with the library that the Python codec
// uses. Speed doesn't matter here.
uint32_t crc32c(std::string_view data, uint32_t start = 0);

}  // namespace meshnet
