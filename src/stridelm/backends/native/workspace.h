// The memory of a step: kept between steps, grown before a step that needs more.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "attention.h"
#include "model.h"

namespace stride {

constexpr int64_t kAttentionRows = 4;

inline int64_t padded(int64_t size) { return (size + kGroup - 1) / kGroup * kGroup; }

// Consecutive rows of one sequence that attend together.
struct RowRun {
  int64_t first, count;
};

template <class Number>
void ensure(std::vector<Number>& memory, int64_t size) {
  if (static_cast<int64_t>(memory.size()) < size) memory.resize(size);
}

// Memory for quantised rows of any length up to a maximum.
struct QuantisedMemory {
  std::vector<int8_t> numbers;
  std::vector<float> scales, sums;
  std::vector<int32_t> offsets;

  void prepare(int64_t rows, int64_t size) {
    const int64_t groups = (rows + kInterleaved - 1) / kInterleaved * kInterleaved * padded(size) / kGroup;
    ensure(numbers, groups * group_bytes(Activations::kInt16));
    ensure(scales, groups);
    ensure(sums, groups);
    ensure(offsets, groups);
  }
  Quantised rows(int64_t size) {
    return {numbers.data(), scales.data(), sums.data(), offsets.data(), padded(size) / kGroup};
  }
};

struct Workspace {
  std::vector<float> hidden, input, products, added, low, cosines, sines, scratch;
  // Gated rows have separate memory: a thread that gates does not wait for threads that still read the previous
  // product's input. Low rows are each thread's own: computing them takes no longer than waiting for another thread.
  QuantisedMemory quantised, gated;
  std::vector<QuantisedMemory> quantised_low;
  std::vector<int32_t> tails;
  std::vector<int64_t> tail_starts;
  std::vector<VisibleKeys> visible;
  std::vector<RowRun> runs;
  int64_t input_stride = 0, product_stride = 0, low_stride = 0, score_stride = 0, scratch_size = 0;

  void prepare(const Model& model, const Step& step) {
    const Shape& shape = model.shape;
    const int64_t rows = std::max(step.rows, step.wanted), masks = step.rows - step.real;
    input_stride = padded(std::max({shape.width, shape.heads * shape.head_size, shape.inner}));
    const Layer& layer = model.layers[0];
    // 16 more than needed: rows a power of two apart would map to the same lines of the L1 cache.
    product_stride = std::max({layer.query_key_value.outputs(), layer.attention_output.outputs(),
                               layer.gate_up.outputs(), layer.down.outputs()}) + 16;
    ensure(hidden, rows * shape.width);
    ensure(input, rows * input_stride);
    ensure(products, rows * product_stride);
    quantised.prepare(rows, input_stride);
    gated.prepare(rows, shape.inner);
    if (masks > 0) {
      low_stride = 0;  // the maximum over layers: an adapter may leave out parts in some of them
      for (int64_t number = 0; number < shape.layers; number++) {
        const Adapter& adapter = model.adapters[number];
        low_stride = std::max({low_stride, adapter.query_key_value.down.outputs(),
                               adapter.attention_output.down.outputs(), adapter.gate_up.down.outputs(),
                               adapter.down.down.outputs()});
      }
      ensure(added, masks * product_stride);
      ensure(low, masks * low_stride);
      quantised_low.resize(shape.threads);
      for (QuantisedMemory& each : quantised_low) each.prepare(masks, low_stride);
    }
    ensure(cosines, rows * shape.head_size / 2);
    ensure(sines, rows * shape.head_size / 2);
    int64_t longest = 0;
    for (int64_t row = 0; row < step.rows; row++) longest = std::max<int64_t>(longest, step.positions[row] + 1);
    score_stride = padded(longest) + kGroup;
    scratch_size = kMaxQueries * shape.head_size + kAttentionRows * (shape.heads / shape.key_heads) * score_stride;
    ensure(scratch, shape.threads * scratch_size);
    visible.resize(step.rows);
    tail_starts.resize(step.rows);
  }
};

// Zeros after the last value, up to a whole group. The weights there are zero or nearly so, but values left over from
// an earlier product or step would count in the group's scale.
inline void pad_with_zeros(float* values, int64_t size) {
  for (int64_t i = size; i < padded(size); i++) values[i] = 0;
}

// This thread's part of `count` items, in whole units.
struct Share {
  int64_t first, last;
  Share(int64_t count, int64_t unit, int thread, int threads) {
    const int64_t units = (count + unit - 1) / unit;
    first = std::min(count, units * thread / threads * unit);
    last = std::min(count, units * (thread + 1) / threads * unit);
  }
};

}  // namespace stride
