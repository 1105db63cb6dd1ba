// The memory of a step: kept between steps, grown before a step that needs more.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "attention.h"
#include "elementwise.h"
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
  std::vector<int32_t> offsets, halves;

  void prepare(int64_t rows, int64_t size) {
    const int64_t groups = (rows + kInterleaved - 1) / kInterleaved * kInterleaved * padded(size) / kGroup;
    ensure(numbers, groups * group_bytes(Activations::kInt16));
    ensure(scales, groups);
    ensure(sums, groups);
    ensure(offsets, groups);
    ensure(halves, 2 * groups);
  }
  Quantised rows(int64_t size) {
    return {numbers.data(), scales.data(), sums.data(), offsets.data(), padded(size) / kGroup, halves.data()};
  }
};

// Cosines and sines of rotary positions, computed once per position.
class RotaryTable {
 public:
  void prepare(int64_t positions, int64_t half) {
    half_ = half;
    known_ = wanted_;  // the step before has filled them
    wanted_ = std::max(wanted_, positions);
    ensure(values_, 2 * half * wanted_);
  }
  // Compute this thread's part of the positions that are new.
  void fill(const float* frequencies, int thread, int threads) {
    for (int64_t position = known_ + thread; position < wanted_; position += threads)
      for (int64_t i = 0; i < half_; i++) {
        const double angle = static_cast<float>(position) * frequencies[i];
        values_[2 * half_ * position + i] = static_cast<float>(std::cos(angle));
        values_[2 * half_ * position + half_ + i] = static_cast<float>(std::sin(angle));
      }
  }
  const float* cosines(int64_t position) const { return values_.data() + 2 * half_ * position; }
  const float* sines(int64_t position) const { return cosines(position) + half_; }

 private:
  std::vector<float> values_;
  int64_t half_ = 0, known_ = 0, wanted_ = 0;
};

constexpr int64_t kLogSumPanels = 512 / kLanes;  // of the output head, for one part of the sum

// Memory of one thread: what it computes for itself alone, since that takes no longer than waiting for another thread.
struct Own {
  QuantisedMemory quantised, low;
  std::vector<float> normed, scratch;
};

struct Workspace {
  std::vector<float> hidden, input, products, low;
  // Gated rows have separate memory: a thread that gates does not wait for threads that still read the previous
  // product's input.
  QuantisedMemory quantised, gated;
  std::vector<Own> own;
  RotaryTable rotary;
  std::vector<LogSum> log_sums;
  std::vector<int32_t> tails;
  std::vector<int64_t> tail_starts;
  std::vector<VisibleKeys> visible;
  std::vector<RowRun> runs;
  int64_t input_stride = 0, product_stride = 0, low_stride = 0, score_stride = 0, log_sum_parts = 0;

  void prepare(const Model& model, const Step& step) {
    const Shape& shape = model.shape;
    const int64_t rows = std::max(step.rows, step.scored), masks = step.rows - step.real;
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
      ensure(low, masks * low_stride);
    }
    log_sum_parts = (model.head.panels + kLogSumPanels - 1) / kLogSumPanels;
    ensure(log_sums, step.scored * log_sum_parts);
    int64_t longest = 0;
    for (int64_t row = 0; row < step.rows; row++) longest = std::max<int64_t>(longest, step.positions[row] + 1);
    rotary.prepare(longest, shape.head_size / 2);
    score_stride = padded(longest) + kGroup;
    if (static_cast<int64_t>(own.size()) < shape.threads) own.resize(shape.threads);
    for (Own& each : own) {
      each.quantised.prepare(kInterleaved, shape.width);
      ensure(each.normed, padded(shape.width));
      ensure(each.scratch, kMaxQueries * shape.head_size + kAttentionRows * (shape.heads / shape.key_heads) * score_stride);
      if (masks > 0) each.low.prepare(masks, low_stride);
    }
    find_visible_keys(shape, step);
  }

 private:
  // Which keys each row sees. Parents come before their children. A row is in its table's order if it and its ancestors
  // are the first rows of their sequence; if not, the slots from the first ancestor out of order on are listed.
  void find_visible_keys(const Shape& shape, const Step& step) {
    visible.resize(step.rows);
    tail_starts.resize(step.rows);
    tails.clear();
    for (int64_t row = 0; row < step.rows; row++) {
      const int64_t count = step.positions[row] + 1, parent = step.parent[row];
      const VisibleKeys* above = parent < 0 ? nullptr : &visible[parent];
      const int64_t known = above ? above->in_table : step.start(row), elsewhere = above ? above->count - known : 0;
      const bool in_order = elsewhere == 0 && step.place[row] == step.positions[row] - step.start(row);
      const int64_t first = shape.window > 0 ? std::max<int64_t>(0, count - shape.window) : 0;
      visible[row] = {step.table(row), in_order ? count : known, nullptr, count, first};
      tail_starts[row] = static_cast<int64_t>(tails.size());
      if (!in_order) {
        for (int64_t i = 0; i < elsewhere; i++) tails.push_back(tails[tail_starts[parent] + i]);
        tails.push_back(static_cast<int32_t>(step.slot(row)));
      }
    }
    for (int64_t row = 0; row < step.rows; row++) visible[row].tail = tails.data() + tail_starts[row];
    find_runs(step);
  }
  // Consecutive rows of a sequence, in runs of about equal size.
  void find_runs(const Step& step) {
    runs.clear();
    for (int64_t first = 0, last; first < step.rows; first = last) {
      for (last = first + 1; last < step.rows && step.sequence[last] == step.sequence[first];) last++;
      for (int64_t left = (last - first + kAttentionRows - 1) / kAttentionRows, row = first; left > 0; left--) {
        const int64_t count = (last - row + left - 1) / left;
        runs.push_back({row, count});
        row += count;
      }
    }
  }
};

// Zeros after the last value, up to a whole group. The weights there are zero or nearly so, but values left over from
// an earlier product or step would count in the group's scale.
inline void pad_with_zeros(float* values, int64_t size) {
  for (int64_t i = size; i < padded(size); i++) values[i] = 0;
}

// This thread's part of `count` items, in whole units. If it does not come out even, the first threads get more.
struct Share {
  int64_t first, last;
  Share(int64_t count, int64_t unit, int thread, int threads) {
    const int64_t units = (count + unit - 1) / unit;
    first = std::min(count, (units * thread + threads - 1) / threads * unit);
    last = std::min(count, (units * (thread + 1) + threads - 1) / threads * unit);
  }
};

}  // namespace stride
