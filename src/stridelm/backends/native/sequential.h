// The sequential head at one depth of some chains: see `Sequential` in model.h.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>

#include "model.h"
#include "products.h"
#include "team.h"
#include "workspace.h"

namespace stride {

class SequentialStep {
 public:
  SequentialStep(const Model& model, const Sequential& head, Workspace& work)
      : model_(model), head_(head), work_(work), width_(model.shape.width), inputs_(head.read.groups * kGroup) {}

  void run(int64_t rows, const float* outputs, const int64_t* before, const float* states, float* added, float* next) {
    const int64_t most = std::max({inputs_, head_.read.outputs(), padded(head_.size), head_.write.outputs()});
    ensure(work_.input, rows * most);
    ensure(work_.products, rows * most);
    work_.quantised.prepare(rows, most);
    Team::instance().run(static_cast<int>(model_.shape.threads), [&](int thread, int threads) {
      for (int64_t row = thread; row < rows; row += threads)
        write_input(row, outputs + row * width_, before[row], states + row * head_.size);
      multiply_by(head_.read, rows, thread, threads);
      for (int64_t row = thread; row < rows; row += threads)
        update_state(row, states + row * head_.size, next + row * head_.size);
      multiply_by(head_.write, rows, thread, threads);
      for (int64_t row = thread; row < rows; row += threads)
        std::memcpy(added + row * width_, work_.products.data() + row * head_.write.outputs(), width_ * sizeof(float));
    });
  }

 private:
  // Scale to a mean square of one.
  static void unit(const float* x, int64_t size, float* to) {
    float sum = 0;
    for (int64_t i = 0; i < size; i++) sum += x[i] * x[i];
    const float scale = 1.0f / std::sqrt(sum / static_cast<float>(size) + std::numeric_limits<float>::epsilon());
    for (int64_t i = 0; i < size; i++) to[i] = x[i] * scale;
  }

  void write_input(int64_t row, const float* output, int64_t before, const float* state) {
    float* x = work_.input.data() + row * inputs_;
    float* token = work_.products.data() + row * padded(width_);
    unpack_output(model_.embedding, before, token);
    unit(output, width_, x);
    unit(token, width_, x + width_);
    std::memcpy(x + 2 * width_, state, head_.size * sizeof(float));
    std::fill(x + 2 * width_ + head_.size, x + inputs_, 0.0f);
    quantise_row(x, Activations::kInt16, work_.quantised.rows(inputs_), row);
  }

  // state += sigmoid(gate) (tanh(candidate) - state)
  void update_state(int64_t row, const float* state, float* next) {
    const float* gate = work_.products.data() + row * head_.read.outputs();
    const float* candidate = gate + head_.size;
    float* x = work_.input.data() + row * padded(head_.size);
    for (int64_t i = 0; i < head_.size; i++) {
      const float share = 1.0f / (1.0f + std::exp(-(gate[i] + head_.bias[i])));
      next[i] = state[i] + share * (std::tanh(candidate[i] + head_.bias[head_.size + i]) - state[i]);
      x[i] = next[i];
    }
    std::fill(x + head_.size, x + padded(head_.size), 0.0f);
    quantise_row(x, Activations::kInt16, work_.quantised.rows(head_.size), row);
  }

  void multiply_by(const Matrix& matrix, int64_t rows, int thread, int threads) {
    Team::instance().wait(thread, threads);
    const Share share(matrix.panels, 1, thread, threads);
    product(matrix, Activations::kInt16, share.first, share.last, work_.quantised.rows(matrix.groups * kGroup), 0, rows,
            {work_.products.data(), matrix.outputs()});
    Team::instance().wait(thread, threads);
  }

  const Model& model_;
  const Sequential& head_;
  Workspace& work_;
  const int64_t width_, inputs_;
};

}  // namespace stride
