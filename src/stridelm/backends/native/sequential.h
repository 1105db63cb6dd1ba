// The sequential head at one depth of some chains: see `Sequential` in model.h.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <vector>

#include "lanes.h"
#include "model.h"
#include "products.h"
#include "team.h"
#include "workspace.h"

namespace stride {

// What the head reads at one mask, and where its next state goes.
struct Reading {
  const float* output;  // the mask's
  int64_t before;       // the token before it
  const float* state;
  float* next;
};

class SequentialStep {
 public:
  SequentialStep(const Model& model, const Sequential& head, Workspace& work)
      : model_(model), head_(head), work_(work), width_(model.shape.width), inputs_(head.read.groups * kGroup) {}

  void run(int64_t rows, const float* outputs, const int64_t* before, const float* states, float* added, float* next) {
    std::vector<Reading> readings;
    for (int64_t row = 0; row < rows; row++)
      readings.push_back({outputs + row * width_, before[row], states + row * head_.size, next + row * head_.size});
    const int64_t stride = head_.write.outputs();
    std::vector<float> wide(rows * stride);
    prepare(rows);
    Team::instance().run(static_cast<int>(model_.shape.threads), [&](int thread, int threads) {
      compute(thread, threads, readings.data(), rows, wide.data(), stride);
    });
    for (int64_t row = 0; row < rows; row++) std::copy_n(wide.data() + row * stride, width_, added + row * width_);
  }

  // Before any number of calls of `compute` with at most so many rows.
  void prepare(int64_t rows) {
    const int64_t most = std::max({inputs_, head_.read.outputs(), padded(head_.size), padded(width_)});
    ensure(work_.input, rows * most);
    ensure(work_.products, rows * most);
    work_.quantised.prepare(rows, most);
  }

  // This thread's part, within a team's run. What is added to the masks' outputs goes to `added`: head.write.outputs()
  // numbers per row, of which those behind the width are zeros; it is there after the next barrier.
  void compute(int thread, int threads, const Reading* readings, int64_t rows, float* added, int64_t stride) {
    for (int64_t row = thread; row < rows; row += threads) write_input(row, readings[row]);
    multiply_by(head_.read, rows, thread, threads, {work_.products.data(), head_.read.outputs()});
    const Share share(padded(head_.size), kGroup, thread, threads);
    Team::instance().wait(thread, threads);
    for (int64_t row = 0; row < rows; row++) update_state(row, readings[row], share);
    multiply_by(head_.write, rows, thread, threads, {added, stride});
  }

 private:
  // Scale to a mean square of one.
  static void unit(const float* x, int64_t size, float* to) {
    Floats squares = zeros();
    for (int64_t i = 0; i < size; i += kLanes) {
      const Floats part = load_first(x + i, size - i);
      squares = multiply_add(part, part, squares);
    }
    const float scale = 1.0f / std::sqrt(sum_of(squares) / static_cast<float>(size) + std::numeric_limits<float>::epsilon());
    for (int64_t i = 0; i < size; i++) to[i] = x[i] * scale;
  }

  void write_input(int64_t row, const Reading& reading) {
    float* x = work_.input.data() + row * inputs_;
    float* token = work_.products.data() + row * padded(width_);
    unpack_output(model_.embedding, reading.before, token);
    unit(reading.output, width_, x);
    unit(token, width_, x + width_);
    std::memcpy(x + 2 * width_, reading.state, head_.size * sizeof(float));
    std::fill(x + 2 * width_ + head_.size, x + inputs_, 0.0f);
    quantise_row(x, Activations::kInt16, work_.quantised.rows(inputs_), row);
  }

  // state += sigmoid(gate) (tanh(candidate) - state)
  void update_state(int64_t row, const Reading& reading, const Share& share) {
    const float* gates = work_.products.data() + row * head_.read.outputs();
    float* x = work_.input.data() + row * padded(head_.size);
    const Floats one = broadcast(1);
    for (int64_t i = share.first; i < share.last; i += kLanes) {
      const int64_t left = std::max<int64_t>(head_.size - i, 0);
      const auto with_bias = [&](int64_t at) { return add(load_first(gates + at, left), load_first(head_.bias + at, left)); };
      const Floats gate = with_bias(i), candidate = with_bias(head_.size + i), state = load_first(reading.state + i, left);
      const Floats opened = divide(one, add(one, exponential(subtract(zeros(), gate))));
      const Floats tanh = subtract(one, divide(broadcast(2), add(one, exponential(add(candidate, candidate)))));
      const Floats next = multiply_add(opened, subtract(tanh, state), state);
      store_first(reading.next + i, left, next);
      store(x + i, zeros());
      store_first(x + i, left, next);
    }
    for (int64_t i = share.first; i < share.last; i += kGroup)
      quantise_group(x + i, Activations::kInt16, work_.quantised.rows(head_.size), row, i / kGroup);
  }

  void multiply_by(const Matrix& matrix, int64_t rows, int thread, int threads, const Destination& to) {
    Team::instance().wait(thread, threads);
    const Share share(matrix.panels, 1, thread, threads);
    product(matrix, Activations::kInt16, share.first, share.last, work_.quantised.rows(matrix.groups * kGroup), 0, rows, to);
  }

  const Model& model_;
  const Sequential& head_;
  Workspace& work_;
  const int64_t width_, inputs_;
};

}  // namespace stride
