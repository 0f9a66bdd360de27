// The fixture's arithmetic against answers that the Python engine gave.

#include "fixture/arithmetic.h"

#include <cstring>
#include <iostream>
#include <limits>
#include <string>

#include "wire/failure.h"

namespace meshnet {
namespace {

int failures = 0;

void expect(bool holds, const std::string& what) {
  if (holds) return;
  std::cerr << what << '\n';
  ++failures;
}

std::string floats(const std::vector<float>& values) {
  std::string data(values.size() * sizeof(float), '\0');
  std::memcpy(data.data(), values.data(), data.size());
  return data;
}

void check_layers() {
  RunningSums sums;
  std::vector<Row> rows = {Row{0, 1, 2, 65520}, Row{65520, 65520, 65520, 65520}};
  compute({1, 3}, 5, &sums, &rows);
  expect(rows[0] == Row{27929, 28715, 29501, 28175}, "layers: the first row");
  expect(rows[1] == Row{57487, 57745, 58003, 58261}, "layers: the second row");
  expect(sums.last(1) == 20614 && sums.last(2) == 40719, "layers: the running sums");
  expect(sums.last(0) == 0, "layers: a layer that saw nothing");
  sums.truncate(1);
  expect(sums.last(1) == 61780 && sums.last(2) == 48799, "layers: the sums after going back");
}

void check_tokens() {
  expect(embed(0) == Row{0, 1, 2, 3} && embed(259) == Row{8029, 8030, 8031, 8032}, "embed");
  expect(choose(Row{0, 0, 0, 0}) == 32, "of equal logits, the lowest id is chosen");
  expect(choose(Row{1, 2, 3, 4}) == 87, "choose: small values");
  expect(choose(Row{65520, 65520, 65520, 65520}) == 44, "choose: the largest values");
  expect(choose(Row{17, 0, 65520, 9999}) == 102, "choose: mixed values");
}

void check_bytes() {
  const std::vector<Row> rows = {Row{0, 1, 2, 3}, Row{65520, 4, 5, 6}};
  expect(from_bytes(to_bytes(rows)) == rows, "rows survive being bytes");
  // Values that no layer gives are reduced as Python's whole numbers are.
  const std::vector<Row> odd = from_bytes(floats({3.0e38F, -1.5F, -65522.0F, 65521.75F}));
  expect(odd == std::vector<Row>{Row{38513, 65520, 65520, 0}}, "values out of range");
  for (const float bad : {std::numeric_limits<float>::infinity(),
                          std::numeric_limits<float>::quiet_NaN()}) {
    try {
      from_bytes(floats({1.0F, bad, 1.0F, 1.0F}));
      expect(false, "a value that isn't finite was taken");
    } catch (const ShardFailure& failure) {
      expect(failure.code() == pb::ERROR_CODE_INVALID_ARGUMENT, "how it was refused");
    }
  }
}

}  // namespace
}  // namespace meshnet

int main() {
  meshnet::check_layers();
  meshnet::check_tokens();
  meshnet::check_bytes();
  return meshnet::failures == 0 ? 0 : 1;
}
