// What the chain's answers should be: the fixture's arithmetic, played without any node.
#pragma once

#include <cstdint>
#include <vector>

#include "fixture/arithmetic.h"

namespace meshnet {

using Tokens = std::vector<uint32_t>;

// A prompt of printable characters; other ones for other seeds.
Tokens prompt_of(uint32_t length, uint32_t seed);

// The tokens that a model of so many layers says after a prompt.
Tokens answer_of(const Tokens& prompt, uint32_t total_layers, size_t count);

// A session as it is at the border before a layer: turns tokens, in order, into the rows there.
class Border {
 public:
  explicit Border(uint32_t layer) : layers_{0, layer} {}

  std::vector<Row> next(const Tokens& tokens);
  uint32_t position() const { return position_; }

 private:
  Layers layers_;
  uint32_t position_ = 0;
  RunningSums sums_;
};

}  // namespace meshnet
