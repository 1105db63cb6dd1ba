// Random numbers, the same everywhere, and packed models of them.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>
#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "steps.h"

using namespace stride;

class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed) {}
  uint64_t word() {
    uint64_t word = state_ += 0x9E3779B97F4A7C15;
    word = (word ^ (word >> 30)) * 0xBF58476D1CE4E5B9, word = (word ^ (word >> 27)) * 0x94D049BB133111EB;
    return word ^ (word >> 31);
  }
  int64_t below(int64_t bound) { return static_cast<int64_t>(word() % static_cast<uint64_t>(bound)); }
  // About normal.
  float number() {
    double sum = -6;
    for (int i = 0; i < 12; i++) sum += static_cast<double>(word() >> 11) * 0x1p-53;
    return static_cast<float>(sum);
  }
  std::vector<float> numbers(int64_t count, float size = 1, float offset = 0) {
    std::vector<float> found(count);
    for (float& each : found) each = offset + size * number();
    return found;
  }
  // A float of any sign, size and kind.
  float any_float() {
    const uint32_t bits = static_cast<uint32_t>(word());
    float found;
    std::memcpy(&found, &bits, sizeof found);
    return found;
  }
  float any_finite_float() {
    for (;;)
      if (const float found = any_float(); std::isfinite(found)) return found;
  }

 private:
  uint64_t state_;
};

// Owns what it makes.
class RandomParts {
 public:
  explicit RandomParts(uint64_t seed) : random(seed) {}

  // As tiles.h and blocks.h describe it. Scales are about those of real weights. Of blocks the inputs are whole ones.
  Matrix matrix(Kind kind, int64_t outputs, int64_t inputs) {
    if (is_blocks(kind)) return blocks(kind, outputs, inputs);
    const int64_t panels = (outputs + kLanes - 1) / kLanes, groups = (inputs + kGroup - 1) / kGroup;
    std::vector<uint8_t>& bytes = bytes_.emplace_back(panels * groups * group_bytes(kind) + kAhead);
    uint8_t* at = bytes.data();
    for (int64_t group = 0; group < panels * groups; group++) {
      for (int64_t i = 0; i < numbers_bytes(kind); i++) *at++ = static_cast<uint8_t>(random.word());
      at = kind == Kind::kFour ? halves(halves(at, 0x2400), 0xb000) : halves(at, 0x1800);
    }
    return {bytes.data(), panels, groups, kind};
  }
  // Query, key and value, value of another kind if there are blocks.
  JoinedMatrix joined(Kind kind, int64_t queries_and_keys, int64_t values, int64_t inputs) {
    JoinedMatrix found{};
    if (is_blocks(kind)) {
      const Kind other = kind == Kind::kSixK ? Kind::kFourK : Kind::kSixK;
      found.part[0] = matrix(kind, queries_and_keys, inputs), found.part[1] = matrix(other, values, inputs);
    } else {
      found.part[0] = matrix(kind, queries_and_keys + values, inputs);
    }
    for (const Matrix& part : found.part) found.panels += part.panels;
    return found;
  }
  const float* vector(int64_t size, float scale, float offset) {
    return vectors_.emplace_back(random.numbers(size, scale, offset)).data();
  }

  Random random;

 private:
  Matrix blocks(Kind kind, int64_t outputs, int64_t inputs) {
    const int64_t panels = (outputs + kLanes - 1) / kLanes, groups = inputs / kGroup;
    const int64_t count = panels * groups / groups_of(kind);
    std::vector<uint8_t>& bytes = bytes_.emplace_back(count * block_bytes(kind) + kAhead);
    for (uint8_t& each : bytes) each = static_cast<uint8_t>(random.word());
    for (int64_t block = 0; block < count; block++) {
      uint8_t* at = &bytes[block * block_bytes(kind)];
      for (int i = 0; kind == Kind::kSixK && i < kLanes; i++, at += 4) {
        const float unit = 1e-5f * (1 + 0.1f * random.number());
        std::memcpy(at, &unit, sizeof unit);
      }
      if (kind == Kind::kFive) halves(halves(at, 0x2000), 0xac00);
      if (kind == Kind::kFourK || kind == Kind::kFiveK) halves(halves(at, 0x0400), 0x8800);
    }
    return {bytes.data(), panels, groups, kind};
  }
  uint8_t* halves(uint8_t* to, uint16_t smallest) {  // up to twice as large
    for (int i = 0; i < kLanes; i++, to += 2) {
      const uint16_t half = static_cast<uint16_t>(smallest + random.below(1024));
      std::memcpy(to, &half, sizeof half);
    }
    return to;
  }

  std::deque<std::vector<uint8_t>> bytes_;
  std::deque<std::vector<float>> vectors_;
};

struct ModelShape {
  std::string name;
  int64_t width, heads, key_heads, head_size, inner, vocabulary, window, threads;
  Kind kind;
  Activations activations;
  bool has_bias, has_head_norms, has_bytes;  // has_bytes: keys and values as bytes
};

// A model with an adapter, a sequential head and tail heads, and a cache.
class RandomModel {
 public:
  static constexpr int64_t kBlocks = 60, kLayers = 2, kMasks = 3;

  RandomModel(const ModelShape& shape, uint64_t seed) : given(shape), parts_(seed) {
    const int64_t size = shape.head_size, queries = shape.heads * size, keys = shape.key_heads * size;
    for (int64_t number = 0; number < kLayers; number++) {
      Layer layer{parts_.joined(shape.kind, queries + keys, keys, shape.width), parts_.matrix(shape.kind, shape.width, queries),
                  parts_.matrix(shape.kind, 2 * padded_to_lanes(shape.inner), shape.width),
                  parts_.matrix(shape.kind, shape.width, shape.inner), norm(shape.width), norm(shape.width),
                  shape.has_bias ? parts_.vector(queries + 2 * keys, 0.5f, 0) : nullptr,
                  shape.has_head_norms ? norm(size) : nullptr, shape.has_head_norms ? norm(size) : nullptr};
      layers_.push_back(layer);
      const int64_t query_panels = queries / kLanes, key_panels = keys / kLanes, inner = padded_to_lanes(shape.inner);
      Adapter adapter{};
      adapter.query_key_value = low_rank(shape.width, {{queries, 0, 1}, {keys, query_panels, 1}, {keys, query_panels + key_panels, 1}});
      if (number) adapter.attention_output = low_rank(queries, {{shape.width, 0, 1}});
      adapter.gate_up = low_rank(shape.width, {{inner, 0, 2}, {inner, 1, 2}});
      adapter.down = low_rank(shape.inner, {{shape.width, 0, 1}});
      adapters_.push_back(adapter);
    }
    model = {{kLayers, shape.width, shape.heads, shape.key_heads, size, shape.inner, shape.window, shape.threads,
              shape.activations, 1e-5f},
             layers_.data(), adapters_.data(), parts_.matrix(Kind::kEight, shape.vocabulary, shape.width),
             parts_.matrix(Kind::kEight, shape.vocabulary, shape.width), shape.vocabulary, norm(shape.width), frequencies(size)};
    const int64_t state = 40;
    const Sequential head{parts_.matrix(Kind::kFour, 2 * state, 2 * shape.width + state),
                          parts_.matrix(Kind::kFour, shape.width, state), parts_.vector(2 * state, 0.5f, 0), state};
    masks = {kMasks, parts_.vector(kMasks * shape.width, 1, 0), 2, 5, parts_.vector(2 * 5 * shape.width, 0.2f, 0),
             parts_.vector(2 * 5 * shape.width, 0.2f, 0), head};
    const int64_t slots = kLayers * shape.key_heads * kBlocks * kBlock;
    for (auto* numbers : {&keys_, &values_}) numbers->assign(slots * size, 0);  // room for halves, either way
    for (auto* scales : {&key_scales_, &value_scales_}) scales->assign(shape.has_bytes ? slots : 0, 0.0f);
    cache = {keys_.data(), values_.data(), shape.has_bytes ? key_scales_.data() : nullptr,
             shape.has_bytes ? value_scales_.data() : nullptr, kBlocks};
  }

  const std::vector<uint16_t>& keys() const { return keys_; }
  const std::vector<uint16_t>& values() const { return values_; }
  const std::vector<float>& key_scales() const { return key_scales_; }
  const std::vector<float>& value_scales() const { return value_scales_; }

  const ModelShape given;
  Model model;
  MaskParts masks;
  Cache cache;

 private:
  struct Second {
    int64_t outputs, first, step;
  };
  static int64_t padded_to_lanes(int64_t size) { return (size + kLanes - 1) / kLanes * kLanes; }
  const float* norm(int64_t size) { return parts_.vector(size, 0.3f, 1); }
  const float* frequencies(int64_t size) {
    float* found = const_cast<float*>(parts_.vector(size / 2, 0, 1));
    for (int64_t i = 1; i < size / 2; i++) found[i] = found[i - 1] * 0.7f;
    return found;
  }
  LowRank low_rank(int64_t inputs, const std::vector<Second>& seconds) {
    LowRank found{};
    found.parts = static_cast<int64_t>(seconds.size());
    found.down = parts_.matrix(Kind::kFour, kGroup * found.parts, inputs);
    for (int64_t i = 0; i < found.parts; i++)
      found.part[i] = {parts_.matrix(Kind::kFour, seconds[i].outputs, kGroup), seconds[i].first, seconds[i].step};
    return found;
  }

  RandomParts parts_;
  std::vector<Layer> layers_;
  std::vector<Adapter> adapters_;
  std::vector<uint16_t> keys_, values_;
  std::vector<float> key_scales_, value_scales_;
};
