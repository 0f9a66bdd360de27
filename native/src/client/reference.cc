#include "client/reference.h"

namespace meshnet {

Tokens prompt_of(uint32_t length, uint32_t seed) {
  Tokens prompt;
  for (uint32_t i = 0; i < length; ++i) prompt.push_back(32 + (seed * 31 + i * 7 + i * i) % 95);
  return prompt;
}

Tokens answer_of(const Tokens& prompt, uint32_t total_layers, size_t count) {
  Border end(total_layers);
  Tokens answer;
  std::vector<Row> rows = end.next(prompt);
  while (true) {
    answer.push_back(choose(rows.back()));
    if (answer.size() == count) return answer;
    rows = end.next({answer.back()});
  }
}

std::vector<Row> Border::next(const Tokens& tokens) {
  std::vector<Row> rows;
  for (const uint32_t token : tokens) rows.push_back(embed(token));
  compute(layers_, position_, &sums_, &rows);
  position_ += static_cast<uint32_t>(tokens.size());
  return rows;
}

}  // namespace meshnet
