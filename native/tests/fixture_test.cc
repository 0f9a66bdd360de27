// The fixture's arithmetic against answers that the Python engine gave.

#include "fixture/arithmetic.h"
#include "fixture/engine.h"

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

Step step_of(const std::string& name, uint64_t epoch, pb::CacheMode mode, uint32_t position,
             uint64_t number) {
  Step step{{name, epoch}, position, {}, number, {Row{position, 1, 2, 3}}};
  step.expectation.set_mode(mode);
  step.expectation.set_expected_past_len(position);
  return step;
}

Step fork_of(const SessionKey& source, const std::string& name, uint64_t epoch, uint32_t position) {
  Step step = step_of(name, epoch, pb::CACHE_MODE_FORK, position, 0);
  step.expectation.set_source_session_id(source.session);
  step.expectation.set_source_epoch(source.epoch);
  return step;
}

void check_forks() {
  FixtureEngine engine({1, 3}, 4, 64, 3);
  std::vector<StepResult> alone;
  for (uint32_t i = 0; i < 4; ++i) {
    const auto mode = i == 0 ? pb::CACHE_MODE_FRESH : pb::CACHE_MODE_EXACT;
    alone.push_back(engine.run(step_of("a", 0, mode, i, i)));
  }
  expect(engine.run(fork_of({"a", 0}, "b", 0, 2)).rows == alone[2].rows, "a fork differs");
  const Step next = step_of("b", 0, pb::CACHE_MODE_EXACT, 3, 1);
  expect(engine.run(next).rows == alone[3].rows, "a fork differs later on");
  expect(engine.run(fork_of({"a", 0}, "a", 1, 3)).rows == alone[3].rows, "a fork of an old epoch");
  for (Step step : {fork_of({"ghost", 0}, "c", 0, 1), fork_of({"b", 0}, "c", 0, 5),
                           fork_of({"b", 0}, "a", 1, 1), fork_of({"a", 0}, "c", 0, 1)}) {
    step.number = 9;
    try {
      engine.run(step);
      expect(false, "a fork of what isn't there was taken");
    } catch (const ShardFailure& failure) {
      expect(failure.code() == pb::ERROR_CODE_CACHE_MISS, "how such a fork was refused");
    }
  }
}

}  // namespace
}  // namespace meshnet

int main() {
  meshnet::check_layers();
  meshnet::check_tokens();
  meshnet::check_bytes();
  meshnet::check_forks();
  return meshnet::failures == 0 ? 0 : 1;
}
