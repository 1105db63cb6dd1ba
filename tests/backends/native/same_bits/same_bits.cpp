// Runs every kernel on random numbers and says all results (said.h). Compiled for two processors with vectors of the
// same width, it must say the same: test_native_arm.py.
#include "forward.cpp"
#include "random_model.h"
#include "said.h"
#include "say_lanes.h"
#include "say_steps.h"

namespace {

// Outputs and inputs.
std::vector<std::pair<int, int>> sizes_of(Kind kind) {
  if (is_blocks(kind)) return {{8, 256}, {40, 768}};
  return {{8, 32}, {40, 96}, {136, 160}};
}

void say_products() {
  RandomParts parts(1);
  for (const Kind kind : {Kind::kFour, Kind::kEight, Kind::kFive, Kind::kFourK, Kind::kFiveK, Kind::kSixK})
    for (const auto& [outputs, inputs] : sizes_of(kind)) {
      const Matrix matrix = parts.matrix(kind, outputs, inputs);
      const std::string name = "product " + std::to_string(static_cast<int>(kind)) + " bits, " + std::to_string(outputs) +
                               " x " + std::to_string(inputs);
      std::vector<int64_t> order(outputs);
      for (int64_t i = 0; i < outputs; i++) order[i] = outputs - 1 - i;
      std::vector<float> unpacked(outputs * inputs);
      stride_unpack(&matrix, order.data(), outputs, unpacked.data());
      say(name + ", unpacked", unpacked);
      for (const int64_t rows : {1, 2, 3, 4, 5, 6, 7, 8, 9, 11, 13, 16, 17, 20, 33, 70}) {
        std::vector<float> x;
        for (int64_t row = 0; row < rows; row++)
          for (float each : parts.random.numbers(inputs, std::pow(10.0f, static_cast<float>(row % 7) - 3))) x.push_back(each);
        // Groups of zeros, of what is too small to be scaled, of one huge number, of an infinite one, of any, of ties.
        const int64_t special = rows > 8 ? kGroup : 0;
        for (int64_t i = 0; i < special; i++) {
          x[1 * inputs + i] = 0, x[2 * inputs + i] = 1e-36f, x[3 * inputs + i] = i == 5 ? 1e30f : 1.0f;
          x[4 * inputs + i] = i == 7 ? INFINITY : 1.0f, x[5 * inputs + i] = parts.random.any_finite_float();
          x[6 * inputs + i] = i % 2 ? 127 : 126.5f;
        }
        std::vector<float> y(rows * matrix.outputs()), scores(rows * outputs, 0.5f);
        for (const int64_t activations : {16, 8}) {
          stride_product(&matrix, activations, 1 + rows % 3, x.data(), rows, y.data());
          say(name + ", " + std::to_string(rows) + " rows of " + std::to_string(activations), y);
        }
        stride_add_scores(&matrix, order.data(), outputs, x.data(), rows, scores.data());
        say(name + ", scores of " + std::to_string(rows), scores);
      }
    }
}

void say_choices() {
  Random random(2);
  const DrawRules all_rules[] = {{0, 1, 0, 0, 0},       {0.7, 1, 0, 0, 0},  {1, 0.9, 0, 0, 0},   {1, 0.5, 0.1, 40, 0},
                                 {1.3, 0.99, 0.01, 7, 0}, {9, 1, 0, 1, 0}, {0.2, 1, 0.05, 0, 0}};
  for (const int64_t size : {1, 7, 15, 17, 600, 5001, 49152})
    for (int kind = 0; kind < 5; kind++) {
      std::vector<float> logits = random.numbers(size, kind == 1 ? 8 : 2);
      if (kind == 2)
        for (float& each : logits) each = static_cast<float>(random.below(3));  // many are equal
      if (kind == 3) std::fill(logits.begin(), logits.end(), -INFINITY);
      if (kind == 4) logits[random.below(size)] = NAN, logits[random.below(size)] = -INFINITY;
      const std::string name = "choices " + std::to_string(size) + "." + std::to_string(kind);
      std::vector<int64_t> drawn, tokens(size);
      std::vector<double> scores(size);
      for (int64_t i = 0; i < size; i++) tokens[i] = 3 * i;
      for (DrawRules rules : all_rules)
        for (int64_t position = 0; position < (size < 10000 ? 20 : 5); position++) {
          rules.key = random.word();
          drawn.push_back(stride_draw(logits.data(), size, &rules, position));
          if (position) continue;
          stride_perturb(tokens.data(), logits.data(), size, &rules, position, scores.data());
          say(name + ", scores at " + std::to_string(drawn.size()), scores);
        }
      say(name + ", drawn", drawn);
      for (const int64_t count : {int64_t{1}, std::min<int64_t>(16, size), std::min<int64_t>(300, size)}) {
        std::vector<int64_t> places(count), found(count);
        std::vector<float> found_logits(count), log_sum(1);
        stride_top(logits.data(), size, count, places.data());
        places.push_back(
            stride_candidates(logits.data(), size, count, found.data(), found_logits.data(), log_sum.data()));
        say(name + ", top", places), say(name + ", candidates", found), say(name + ", their logits", found_logits);
        say(name + ", the sum of all", log_sum);
      }
    }
}

void say_proposals() {
  Random random(3);
  for (int trial = 0; trial < 8; trial++) {
    std::vector<int32_t> text(200), prediction(60), tokens(32);
    for (auto* each : {&text, &prediction})
      for (int32_t& token : *each) token = static_cast<int32_t>(random.below(3 + trial));
    std::copy_n(prediction.begin(), 10, text.end() - 10);
    std::vector<double> scores(32);
    const std::string name = "proposals " + std::to_string(trial);
    tokens.push_back(static_cast<int32_t>(stride_look_up(text.data(), 200, 16, tokens.data(), scores.data())));
    say(name + ", looked up", tokens), say(name + ", scores", scores);
    tokens.push_back(static_cast<int32_t>(
        stride_follow(prediction.data(), 60, text.data(), 200, 190, 16, tokens.data(), scores.data())));
    say(name + ", followed", tokens), say(name + ", scores", scores);
  }
}

}  // namespace

int main() {
  say("lanes", std::vector<int64_t>{stride_lanes()});
  say_lanes();
  say_elementwise();
  say_products();
  say_choices();
  say_proposals();
  uint64_t seed = 10;
  for (const ModelShape& shape : kShapes) say_model(shape, seed++);
}
