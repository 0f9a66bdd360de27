#include "wire/crc32c.h"

#include <array>

namespace meshnet {
namespace {

// The polynomial 0x1EDC6F41 with its bits in reverse order, as the sum takes each byte's lowest
// bit first.
constexpr uint32_t kPolynomial = 0x82F63B78;

constexpr std::array<uint32_t, 256> make_table() {
  std::array<uint32_t, 256> table{};
  for (uint32_t byte = 0; byte < table.size(); ++byte) {
    uint32_t rest = byte;
    for (int bit = 0; bit < 8; ++bit) {
      rest = (rest & 1) != 0 ? (rest >> 1) ^ kPolynomial : rest >> 1;
    }
    table[byte] = rest;
  }
  return table;
}

constexpr std::array<uint32_t, 256> kTable = make_table();

}  // namespace

uint32_t crc32c(std::string_view data, uint32_t start) {
  uint32_t sum = ~start;
  for (const char c : data) {
    sum = (sum >> 8) ^ kTable[(sum ^ static_cast<unsigned char>(c)) & 0xFF];
  }
  return ~sum;
}

}  // namespace meshnet
