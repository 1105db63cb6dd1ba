// Forwards over trees and masks, the sequential head, grown trees and whole steps, on random models.
#pragma once

#include <algorithm>
#include <numeric>
#include <string>
#include <vector>

#include "random_model.h"
#include "said.h"

inline const ModelShape kShapes[] = {
    {"four bits, int8", 64, 4, 2, 16, 96, 259, 0, 1, Kind::kFour, Activations::kInt8, false, false, false},
    {"four bits, int16, odd sizes", 80, 5, 5, 32, 100, 600, 0, 2, Kind::kFour, Activations::kInt16, true, false, true},
    {"eight bits, a window", 96, 6, 3, 48, 160, 1030, 20, 2, Kind::kEight, Activations::kInt16, false, true, false},
    {"one key head, bytes", 64, 16, 1, 32, 64, 300, 0, 2, Kind::kFour, Activations::kInt8, false, true, true},
    {"wide heads", 64, 3, 1, 96, 16, 259, 9, 1, Kind::kEight, Activations::kInt8, true, true, true},
    {"K-quants, int8", 256, 4, 2, 64, 512, 300, 0, 2, Kind::kFourK, Activations::kInt8, false, false, false},
    {"K-quants, int16", 256, 4, 4, 64, 256, 300, 0, 1, Kind::kSixK, Activations::kInt16, true, false, true},
};

// The rows of a step, collected sequence by sequence.
class RandomStep {
 public:
  RandomStep(RandomModel& model, Random& random) : model_(model), random_(random) {}

  void add(int64_t start, const std::vector<int64_t>& ids, const std::vector<int32_t>& blocks, int64_t masks) {
    const int32_t number = static_cast<int32_t>(starts_.size()), first = static_cast<int32_t>(ids_.size());
    starts_.push_back(static_cast<int32_t>(start)), tables_.push_back(static_cast<int32_t>(blocks_.size()));
    blocks_.insert(blocks_.end(), blocks.begin(), blocks.end());
    const int32_t count = static_cast<int32_t>(ids.size()), last = first + count - 1;
    int32_t place = 0;
    for (; place < count; place++) add_real(number, ids[place], place, place ? first + place - 1 : -1, start);
    for (int32_t parent : {-1, 0, 1, -1, 3, 0})  // a tree behind the last of them
      add_real(number, random_.below(model_.given.vocabulary), place++, last + 1 + parent, start);
    for (int32_t anchor = -1; masks && anchor < 6; anchor++)
      for (int64_t depth = 0; depth < masks; depth++)
        masks_.push_back({number, place++, depth ? -2 : last + 1 + anchor, depth});
  }

  void run(const std::string& name) {
    const int64_t width = model_.given.width, real = static_cast<int64_t>(ids_.size());
    std::vector<float> embedded;
    for (const Mask& mask : masks_) {
      const int32_t row = static_cast<int32_t>(rows_.size()), parent = mask.parent == -2 ? row - 1 : mask.parent;
      rows_.push_back({mask.sequence, mask.place, parent, rows_[parent].position + 1});
      const float* from = model_.masks.embedding + mask.depth * width;
      embedded.insert(embedded.end(), from, from + width);
    }
    const int64_t rows = static_cast<int64_t>(rows_.size());
    std::vector<int32_t> position, sequence, place, parent, wanted(rows);
    for (const Row& row : rows_)
      position.push_back(row.position), sequence.push_back(row.sequence), place.push_back(row.place), parent.push_back(row.parent);
    std::iota(wanted.begin(), wanted.end(), 0);
    const std::vector<int32_t> reads{0, RandomModel::kLayers};
    logits.resize(rows * model_.model.head.outputs()), hidden.resize(rows * width);
    std::vector<float> log_sums(rows), read(2 * rows * width);
    const Step step{rows, real, static_cast<int64_t>(starts_.size()), rows, rows, 2, ids_.data(), embedded.data(),
                    position.data(), sequence.data(), place.data(), parent.data(), starts_.data(), blocks_.data(),
                    tables_.data(), wanted.data(), wanted.data(), reads.data(), logits.data(), log_sums.data(),
                    hidden.data(), read.data()};
    void* workspace = stride_workspace();
    stride_forward(&model_.model, &model_.cache, &step, workspace);
    stride_free_workspace(workspace);
    say(name + ", logits", logits), say(name + ", log-sum-exp", log_sums);
    say(name + ", hidden", hidden), say(name + ", read", read);
  }

  std::vector<float> logits, hidden;

 private:
  struct Row {
    int32_t sequence, place, parent, position;
  };
  struct Mask {
    int32_t sequence, place, parent;
    int64_t depth;
  };
  void add_real(int32_t sequence, int64_t id, int32_t place, int32_t parent, int64_t start) {
    ids_.push_back(id);
    rows_.push_back({sequence, place, parent, parent < 0 ? static_cast<int32_t>(start) : rows_[parent].position + 1});
  }

  RandomModel& model_;
  Random& random_;
  std::vector<int64_t> ids_;
  std::vector<Row> rows_;
  std::vector<Mask> masks_;
  std::vector<int32_t> starts_, tables_, blocks_;
};

// Blocks of a sequence, not in order.
inline std::vector<int32_t> blocks_of(int64_t sequence) {
  std::vector<int32_t> found;
  for (int64_t i = 0; i < 12; i++) found.push_back(static_cast<int32_t>((i * 7 + sequence * 12 + 3) % 12 + sequence * 12));
  return found;
}

inline void say_cache(const std::string& name, const RandomModel& model) {
  say(name + ", keys", model.keys()), say(name + ", values", model.values());
  say(name + ", key scales", model.key_scales()), say(name + ", value scales", model.value_scales());
}

inline void say_forwards(const std::string& name, RandomModel& model, Random& random) {
  for (const int64_t masks : {0, 1, 3}) {
    int64_t starts[3] = {0, 0, 0};
    for (int turn = 0; turn < 2; turn++) {
      RandomStep step(model, random);
      for (int64_t sequence = 0; sequence < 3; sequence++) {
        std::vector<int64_t> ids(std::vector<int64_t>{1, 16, 40}[(sequence + turn) % 3]);
        for (int64_t& id : ids) id = random.below(model.given.vocabulary);
        step.add(starts[sequence], ids, blocks_of(sequence), masks);
        starts[sequence] += static_cast<int64_t>(ids.size());
      }
      step.run(name + ", forward with " + std::to_string(masks) + " masks");
    }
  }
  const std::vector<int64_t> to{1, 20, 21}, from{40, 22, 23};
  stride_move(&model.model.shape, &model.cache, to.data(), from.data(), 3);
  say_cache(name + ", moved", model);
}

inline void say_drafts(const std::string& name, RandomModel& model, Random& random) {
  const int64_t width = model.given.width, rows = RandomModel::kMasks, size = model.masks.head.size;
  const std::vector<float> outputs = random.numbers(rows * width);
  std::vector<float> states = random.numbers(rows * size, 0.5f), added(rows * width), next(rows * size);
  const std::vector<int64_t> before{0, model.given.vocabulary - 1, 5};
  void* workspace = stride_workspace();
  stride_read_chain(&model.model, &model.masks.head, workspace, rows, outputs.data(), before.data(), states.data(),
                    added.data(), next.data());
  say(name + ", sequential head adds", added), say(name + ", its states", next);
  std::vector<float> logits(rows * model.model.head.outputs()), padded_outputs(rows * padded(width), 0.0f);
  for (int64_t row = 0; row < rows; row++) std::copy_n(&outputs[row * width], width, &padded_outputs[row * padded(width)]);
  stride_product(&model.model.head, 16, model.given.threads, padded_outputs.data(), rows, logits.data());
  const std::vector<int64_t> biased{0, 7}, ends{3, 4};
  const std::vector<float> biases{-INFINITY, 1.0f};
  for (const double temperature : {0.0, 0.7, 1.0})
    for (const int64_t branches : {1, 3}) {
      const int64_t room = rows * branches * branches;
      std::vector<int64_t> counts(2), tokens(room), parents(room), bud_nodes(room);
      std::vector<double> scores(room);
      std::vector<float> grown_states(room * size);
      const GrowthRules rules{5, 9, branches, 0.0, {temperature, 0.9, 0, 0, random.word()}, 2, biased.data(), biases.data(), 2, ends.data()};
      const Chain chain{rows, outputs.data(), states.data()};
      const LogitRows found{logits.data(), model.given.vocabulary, model.model.head.outputs(), branches == 1 ? 16 : 200};
      const Grown grown{&counts[0], &counts[1], tokens.data(), parents.data(), scores.data(), bud_nodes.data(), grown_states.data()};
      stride_grow(&model.model, &model.masks.head, &chain, &found, &rules, &grown, workspace);
      for (auto* each : {&counts, &tokens, &parents, &bud_nodes}) say(name + ", grown", *each);
      say(name + ", its scores", scores), say(name + ", its states", grown_states);
    }
  stride_free_workspace(workspace);
}

// Whole steps of five texts: one token at a time, and with drafts of all kinds, greedy and sampled. Rows cost nothing,
// and a depth of a tree so little that what is measured of it does not count.
inline void say_own_steps(const std::string& name, RandomModel& model, Random& random) {
  const int64_t texts = 5, ends[] = {3}, vocabulary = model.given.vocabulary;
  const std::vector<double> seconds(65, 1.0);
  Prior prior{0.6, {0.2, 0.8, 0.3, -0.1, -0.1}, {0, 0.5, -0.1, -0.2}, {0, 1, 1}, {0.5, 0.5, 0.5}, {0, 0.5, -0.5}, {0, -0.5, 0.5}};
  for (const double head_row : {0.0, 1.0}) {
    void* steps = stride_steps(&model.model, &model.cache, &model.masks, ends, 1, texts, 1000);
    for (int64_t place = 0; place < texts; place++) {
      std::vector<int32_t> text;
      for (int64_t i = 0; i < 5 + 4 * place; i++) text.push_back(static_cast<int32_t>(random.below(vocabulary)));
      for (int32_t token : {9, 7, 9, 7, 9}) text.push_back(token);
      const std::vector<int64_t> prefix(text.begin(), text.end() - 1);
      RandomStep begun(model, random);
      begun.add(0, prefix, blocks_of(place), 0);
      begun.run(name + ", a text");
      TextStart start{};
      const std::vector<int32_t> blocks = blocks_of(place);
      start.cached = static_cast<int64_t>(prefix.size()), start.room = 40, start.length = start.cached + 1;
      start.prompt_length = start.length, start.block_count = 12, start.alternatives = place == 2 ? 8 : 0;
      start.tokens = text.data(), start.blocks = blocks.data();
      if (place == 3) start.prediction = text.data(), start.prediction_length = start.length;
      start.draws = {place % 2 ? 1.0 : 0.0, place == 3 ? 0.9 : 1.0, 0, 0, random.word()};
      if (place) start.plan = {RandomModel::kMasks, 24, place == 4 ? 3 : 1, 8, 8,
                               {seconds.data(), 64, 0, 0, 0, 0, 0, head_row, 1e-30}, {prior, prior}};
      stride_begin(steps, place, &start);
    }
    const int64_t integers = 4000, probabilities = 3000;
    std::vector<int32_t> integer(texts * integers);
    std::vector<double> probability(texts * probabilities);
    const Sheets sheets{integers, probabilities, integer.data(), probability.data()};
    for (int number = 0; number < 12; number++) {
      std::fill(integer.begin(), integer.end(), 0), std::fill(probability.begin(), probability.end(), 0.0);
      stride_run_step(steps, &sheets, nullptr, 0);
      for (int64_t place = 0; place < texts; place++) {
        const std::string what = name + ", step " + std::to_string(number) + " of text " + std::to_string(place);
        say(what, &integer[place * integers], 400), say(what + ", chances", &probability[place * probabilities], 200);
      }
    }
    stride_free_steps(steps);
  }
  say_cache(name + ", after steps", model);
}

inline void say_model(const ModelShape& shape, uint64_t seed) {
  RandomModel model(shape, seed);
  Random random(seed);
  say_forwards(shape.name, model, random);
  say_drafts(shape.name, model, random);
  say_own_steps(shape.name, model, random);
}
