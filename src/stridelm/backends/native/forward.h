// The forward pass of a Llama-family model over the rows of a step.
//
// The rows come with the masks last. All threads go through the layers together and wait for each other wherever one
// needs results of the others: five times a layer. A thread owns some outputs of every product, and goes on with them
// without waiting as far as it can: it adds what it has computed to the hidden states, rotates and stores its heads,
// gates its part of the network.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>

#include "attention.h"
#include "elementwise.h"
#include "head.h"
#include "lanes.h"
#include "low_rank.h"
#include "model.h"
#include "products.h"
#include "team.h"
#include "workspace.h"

namespace stride {

// One thread's part of a forward.
class Forward {
 public:
  static void run(const Model& model, const Cache& cache, const Step& step, Workspace& work) {
    work.prepare(model, step);
    Team::instance().run(static_cast<int>(model.shape.threads), [&](int thread, int threads) {
      Forward(model, cache, step, work, thread, threads).run();
    });
  }

 private:
  Forward(const Model& model, const Cache& cache, const Step& step, Workspace& work, int thread, int threads)
      : model_(model), shape_(model.shape), cache_(cache), step_(step), work_(work), thread_(thread), threads_(threads),
        heads_{shape_.layers, shape_.key_heads, shape_.heads / shape_.key_heads, shape_.head_size} {}

  void run() {
    embed();
    wait_for_all(model_.layers[0].query_key_value, head_panels(), low_rank(0, &Adapter::query_key_value));
    for (int64_t layer = 0; layer < shape_.layers; layer++) {
      if (!goes_on()) return;
      attention(layer);
      network(layer);
    }
    if (goes_on()) output();
  }

  // Between two layers: do all threads still take part? The first one decides it before the others pass the barrier.
  bool goes_on() {
    threads_ = Team::instance().threads();
    return thread_ < threads_;
  }

  float* hidden(int64_t row) { return work_.hidden.data() + row * shape_.width; }
  float* input(int64_t row) { return work_.input.data() + row * work_.input_stride; }
  float* products(int64_t row) { return work_.products.data() + row * work_.product_stride; }
  int64_t head_panels() const { return shape_.head_size / kLanes; }
  template <class Weights>
  Activations as(const Weights& matrix) const {
    return matrix.has_bytes() ? Activations::kInt16 : shape_.activations;
  }
  template <class Weights>
  Share share_of(const Weights& matrix, int64_t unit) const { return Share(matrix.panels, unit, thread_, threads_); }

  void wait_for_all() { Team::instance().wait(thread_, threads_); }
  // The same, and the first lines of what this thread reads next are fetched meanwhile: of its part of the matrix, or
  // of the low-rank parts that come before it.
  template <class Weights>
  void wait_for_all(const Weights& next, int64_t unit, const LowRank* low = nullptr) {
    Upcoming first = beginning(next, share_of(next, unit));
    if (low) first = LowRankProduct::first_factor(*low, thread_, threads_);
    first.fetch(kFetched);
    wait_for_all();
  }
  template <class Weights>
  static Upcoming beginning(const Weights& matrix, const Share& share) {
    Upcoming found;
    found.add(matrix, share.first, share.last);
    return found;
  }

  void embed() {
    for (int64_t row = thread_; row < step_.rows; row += threads_) {
      if (row < step_.real) {
        unpack_output(model_.embedding, step_.ids[row], input(row));  // whole groups: may be longer than the width
        std::memcpy(hidden(row), input(row), shape_.width * sizeof(float));
      } else {
        std::memcpy(hidden(row), step_.masks + (row - step_.real) * shape_.width, shape_.width * sizeof(float));
      }
    }
    work_.rotary.fill(model_.frequencies, thread_, threads_);
  }

  void attention(int64_t number) {
    const Layer& layer = model_.layers[number];
    save_inputs(number);
    const Quantised normed = normalise_rows(layer.attention_norm, layer.query_key_value);
    const Share share =
        compute_product(layer.query_key_value, low_rank(number, &Adapter::query_key_value), normed, head_panels());
    for (int64_t head = share.first / head_panels(); head < share.last / head_panels(); head++)
      for (int64_t row = 0; row < step_.rows; row++) rotate_and_store_head(layer, number, row, head);
    wait_for_all();
    const Quantised attended = attend_rows(number, layer.attention_output);
    const LowRank* low = low_rank(number, &Adapter::attention_output);
    wait_for_all(layer.attention_output, 1, low);
    add_to_hidden(compute_product(layer.attention_output, low, attended, 1));
    wait_for_all(layer.gate_up, kGatePanels, low_rank(number, &Adapter::gate_up));
  }

  void network(int64_t number) {
    const Layer& layer = model_.layers[number];
    const Quantised normed = normalise_rows(layer.mlp_norm, layer.gate_up);
    const Share share = compute_product(layer.gate_up, low_rank(number, &Adapter::gate_up), normed, kGatePanels);
    for (int64_t row = 0; row < step_.rows; row++) gate(row, share, layer);
    const LowRank* low = low_rank(number, &Adapter::down);
    wait_for_all(layer.down, 1, low);
    add_to_hidden(compute_product(layer.down, low, work_.gated.rows(shape_.inner), 1));
    if (thread_ == 0) Team::instance().decide();
    const int64_t next = number + 1;
    if (next == shape_.layers) return wait_for_all(model_.head, kLogSumPanels);
    wait_for_all(model_.layers[next].query_key_value, head_panels(), low_rank(next, &Adapter::query_key_value));
  }

  // The last norm and the output head, on wanted rows only.
  void output() {
    if (saves_input(shape_.layers))
      for (int64_t row = thread_; row < step_.rows; row += threads_)
        save_input(shape_.layers, row, normalised(row, model_.last_norm));
    for (int64_t i = thread_; step_.hidden && i < step_.wanted; i += threads_)
      std::memcpy(step_.hidden + i * shape_.width, normalised(step_.wanted_rows[i], model_.last_norm),
                  shape_.width * sizeof(float));
    const Quantised x = for_all_rows(step_.scored, shape_.width, [&](int64_t i, const Quantised& to) {
      quantise_row(normalised(step_.wanted_rows[step_.scored_rows[i]], model_.last_norm), kHeadActivations, to, i);
    });
    const int64_t parts = work_.log_sum_parts;
    score_share(model_, x, step_.scored, share_of(model_.head, kLogSumPanels), step_.logits, work_.log_sums.data(), parts);
    wait_for_all();
    for (int64_t i = thread_; i < step_.scored; i += threads_)
      step_.log_sums[i] = LogSum::combined(work_.log_sums.data() + i * parts, parts);
  }

  bool saves_input(int64_t layer) const {
    return std::find(step_.read_layers, step_.read_layers + step_.reads, layer) != step_.read_layers + step_.reads;
  }
  void save_inputs(int64_t layer) {
    if (!saves_input(layer)) return;
    for (int64_t row = thread_; row < step_.rows; row += threads_) save_input(layer, row, hidden(row));
  }
  void save_input(int64_t layer, int64_t row, const float* values) {
    for (int64_t i = 0; i < step_.reads; i++)
      if (step_.read_layers[i] == layer)
        std::memcpy(step_.read + (i * step_.rows + row) * shape_.width, values, shape_.width * sizeof(float));
  }

  // Quantised rows that all threads need: one block of interleaved rows is computed by every thread for itself, which
  // takes less time than waiting; several are shared out, in whole blocks, since two threads that write to one cache
  // line are slower than one.
  template <class Quantise>
  Quantised for_all_rows(int64_t rows, int64_t size, Quantise quantise) {
    const bool by_itself = rows <= kInterleaved;
    const Quantised to = (by_itself ? work_.own[thread_].quantised : work_.quantised).rows(size);
    const Share share = by_itself ? Share(rows, 1, 0, 1) : Share(rows, kInterleaved, thread_, threads_);
    for (int64_t row = share.first; row < share.last; row++) quantise(row, to);
    if (!by_itself) wait_for_all();
    return to;
  }
  template <class Weights>
  Quantised normalise_rows(const float* weight, const Weights& matrix) {
    return for_all_rows(step_.rows, shape_.width, [&](int64_t row, const Quantised& to) {
      quantise_row(normalised(row, weight), as(matrix), to, row);
    });
  }
  // A row's hidden state after a norm, in memory of this thread.
  const float* normalised(int64_t row, const float* weight) {
    float* to = work_.own[thread_].normed.data();
    normalise(hidden(row), weight, shape_.width, shape_.epsilon, to);
    pad_with_zeros(to, shape_.width);
    return to;
  }

  // This thread's share of a product, in whole units of panels, low-rank parts of mask rows included.
  template <class Weights>
  Share compute_product(const Weights& matrix, const LowRank* low, const Quantised& x, int64_t unit) {
    const Share share = share_of(matrix, unit);
    const Destination to{work_.products.data(), work_.product_stride};
    if (!low) {
      product(matrix, as(matrix), share.first, share.last, x, 0, step_.rows, to);
      return share;
    }
    LowRankProduct masks(*low, step_, work_, share, thread_, threads_);
    masks.begin(x, as(matrix), beginning(matrix, share));
    Upcoming upcoming = masks.upcoming();
    product(matrix, as(matrix), share.first, share.last, x, 0, step_.rows, to, &upcoming);
    masks.finish(shape_.activations);
    return share;
  }
  const LowRank* low_rank(int64_t layer, LowRank Adapter::*which) const {
    return step_.rows > step_.real ? &(model_.adapters[layer].*which) : nullptr;
  }

  void add_to_hidden(const Share& share) {
    const int64_t first = share.first * kLanes, last = std::min(share.last * kLanes, shape_.width);
    for (int64_t row = 0; row < step_.rows; row++) {
      float* to = hidden(row);
      const float* from = products(row);
      for (int64_t i = first; i < last; i++) to[i] += from[i];
    }
  }

  // Rotate a query or key by its position; keys and values go to the cache.
  void rotate_and_store_head(const Layer& layer, int64_t number, int64_t row, int64_t head) {
    const int64_t size = shape_.head_size, half = size / 2;
    float* values = products(row) + head * size;
    if (layer.bias)
      for (int64_t i = 0; i < size; i++) values[i] += layer.bias[head * size + i];
    const bool is_query = head < shape_.heads, is_key = !is_query && head < shape_.heads + shape_.key_heads;
    const float* norm = is_query ? layer.query_norm : is_key ? layer.key_norm : nullptr;
    if (norm) normalise(values, norm, size, shape_.epsilon, values);
    const int64_t position = step_.positions[row], at = step_.slot(row);
    if (is_query || is_key) rotate(values, work_.rotary.cosines(position), work_.rotary.sines(position), half);
    if (is_query) {
      const float scale = 1.0f / std::sqrt(static_cast<float>(size));
      for (int64_t i = 0; i < size; i++) values[i] *= scale;
    } else if (is_key) {
      store_key(heads_, cache_, number, head - shape_.heads, at, values);
    } else {
      store_value(heads_, cache_, number, head - shape_.heads - shape_.key_heads, at, values);
    }
  }

  // Attention of all rows, quantised for the product that follows. Each run's query heads are shared out, from the other
  // end in every second run, so that what does not come out even does.
  Quantised attend_rows(int64_t number, const Matrix& next) {
    const Quantised x = work_.quantised.rows(shape_.heads * shape_.head_size);
    const bool whole_groups = shape_.head_size % kGroup == 0;
    for (size_t i = 0; i < work_.runs.size(); i++) {
      const RowRun& run = work_.runs[i];
      const Share share(shape_.heads, 1, i % 2 ? threads_ - 1 - thread_ : thread_, threads_);
      for (int64_t first = share.first; first < share.last;) {
        const int64_t last = std::min((first / heads_.per_key_head + 1) * heads_.per_key_head, share.last);
        attend_run(number, run, first, last - first);
        first = last;
      }
      if (whole_groups)
        quantise_groups(run.first, run.count, share.first * shape_.head_size / kGroup,
                        share.last * shape_.head_size / kGroup, next, x);
    }
    if (whole_groups) return x;
    wait_for_all();
    for (int64_t row = thread_; row < step_.rows; row += threads_) {
      pad_with_zeros(input(row), shape_.heads * shape_.head_size);
      quantise_groups(row, 1, 0, x.groups, next, x);
    }
    return x;
  }
  void quantise_groups(int64_t first_row, int64_t rows, int64_t first, int64_t last, const Matrix& next,
                       const Quantised& x) {
    for (int64_t row = first_row; row < first_row + rows; row++)
      for (int64_t group = first; group < last; group++)
        quantise_group(input(row) + group * kGroup, as(next), x, row, group);
  }

  // Attention of a run of rows, for some query heads of one key head.
  void attend_run(int64_t number, const RowRun& run, int64_t head, int64_t heads_here) {
    const VisibleKeys* visible[kAttentionRows];
    const float* queries[kAttentionRows];
    float* outputs[kAttentionRows];
    for (int64_t i = 0; i < run.count; i++) {
      visible[i] = &work_.visible[run.first + i];
      queries[i] = products(run.first + i) + head * shape_.head_size;
      outputs[i] = input(run.first + i) + head * shape_.head_size;
    }
    const auto run_kernel = cache_.has_bytes() ? attend<int8_t> : attend<Half>;
    run_kernel(heads_, cache_, number, head / heads_.per_key_head, heads_here, run.count, visible, queries, outputs,
               work_.own[thread_].scratch.data(), work_.score_stride);
  }

  // silu(gate) * up on this thread's share, as the input of the next product. Panels of gate and up alternate, and the
  // share is whole groups of 32.
  void gate(int64_t row, const Share& share, const Layer& layer) {
    // Without this, a thread with nothing to do would take part in an unfinished last group.
    if (share.first == share.last) return;
    const float* from = products(row);
    float* to = input(row);
    for (int64_t panel = share.first; panel < share.last; panel += 2) {
      const Floats x = load(from + panel * kLanes), up = load(from + (panel + 1) * kLanes);
      const Floats silu = divide(x, add(broadcast(1.0f), exponential(subtract(zeros(), x))));
      store(to + panel / 2 * kLanes, multiply(silu, up));
    }
    if (share.last == layer.gate_up.panels) pad_with_zeros(to, shape_.inner);
    const Quantised x = work_.gated.rows(shape_.inner);
    const int64_t last = std::min((share.last + kGatePanels - 1) / kGatePanels, x.groups);
    quantise_groups(row, 1, share.first / kGatePanels, last, layer.down, x);
  }

  static constexpr int64_t kGatePanels = 2 * kGroup / kLanes;

  const Model& model_;
  const Shape& shape_;
  const Cache& cache_;
  const Step& step_;
  Workspace& work_;
  const int thread_;
  int threads_;
  const Heads heads_;
};

}  // namespace stride
