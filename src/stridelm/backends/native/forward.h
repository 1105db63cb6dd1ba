// The forward pass of a Llama-family model over the rows of a step.
//
// The rows come with the masks last. All threads go through the layers together and wait for each other wherever one
// needs results of the others.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>

#include "attention.h"
#include "lanes.h"
#include "model.h"
#include "products.h"
#include "team.h"
#include "workspace.h"

namespace stride {

// RMS norm: the sum of squares in a fixed order, then x * weight / sqrt(mean + epsilon).
inline void normalise(const float* x, const float* weight, int64_t size, float epsilon, float* to) {
  Floats squares = zeros();
  int64_t i = 0;
  for (; i + kLanes <= size; i += kLanes) squares = multiply_add(load(x + i), load(x + i), squares);
  float sum = sum_of(squares);
  for (; i < size; i++) sum = std::fma(x[i], x[i], sum);
  const float scale = 1.0f / std::sqrt(sum / static_cast<float>(size) + epsilon);
  for (i = 0; i < size; i++) to[i] = x[i] * scale * weight[i];
}

inline float log_sum(const float* x, int64_t size) {
  Floats most = broadcast(-std::numeric_limits<float>::infinity());
  int64_t i = 0;
  for (; i + kLanes <= size; i += kLanes) most = maximum(most, load(x + i));
  float largest = largest_of(most);
  for (int64_t j = i; j < size; j++) largest = std::max(largest, x[j]);
  Floats sum = zeros();
  for (i = 0; i + kLanes <= size; i += kLanes) sum = add(sum, exponential(subtract(load(x + i), broadcast(largest))));
  float total = sum_of(sum);
  for (; i < size; i++) total += std::exp(x[i] - largest);
  return largest + std::log(total);
}

// Rotary positions: rotate the two halves of a head (the order of transformers).
inline void rotate(float* head, const float* cosine, const float* sine, int64_t half) {
  for (int64_t i = 0; i < half; i++) {
    const float a = head[i], b = head[half + i];
    head[i] = std::fma(a, cosine[i], -(b * sine[i]));
    head[half + i] = std::fma(b, cosine[i], a * sine[i]);
  }
}

class Forward {
 public:
  Forward(const Model& model, const Cache& cache, const Step& step, Workspace& work)
      : model_(model), shape_(model.shape), cache_(cache), step_(step), work_(work),
        heads_{shape_.layers, shape_.key_heads, shape_.heads / shape_.key_heads, shape_.head_size} {
    work_.prepare(model, step);
    find_visible_keys();
  }

  void run() {
    Team::instance().run(static_cast<int>(shape_.threads), [this](int thread, int threads) {
      embed(thread, threads);
      for (int64_t layer = 0; layer < shape_.layers; layer++) {
        attention(layer, thread, threads);
        network(layer, thread, threads);
      }
      output(thread, threads);
    });
  }

 private:
  // Which keys each row sees. Parents come before their children. A row is in its table's order if it and its ancestors
  // are the first rows of their sequence; if not, the slots from the first ancestor out of order on are listed.
  void find_visible_keys() {
    work_.tails.clear();
    work_.runs.clear();
    for (int64_t row = 0; row < step_.rows; row++) {
      const int64_t count = step_.positions[row] + 1, parent = step_.parent[row];
      const VisibleKeys* above = parent < 0 ? nullptr : &work_.visible[parent];
      const int64_t known = above ? above->in_table : start(row), elsewhere = above ? above->count - known : 0;
      const bool in_order = elsewhere == 0 && step_.place[row] == step_.positions[row] - start(row);
      const int64_t first = shape_.window > 0 ? std::max<int64_t>(0, count - shape_.window) : 0;
      work_.visible[row] = {table(row), in_order ? count : known, nullptr, count, first};
      work_.tail_starts[row] = static_cast<int64_t>(work_.tails.size());
      if (!in_order) {
        for (int64_t i = 0; i < elsewhere; i++) work_.tails.push_back(work_.tails[work_.tail_starts[parent] + i]);
        work_.tails.push_back(static_cast<int32_t>(slot(row)));
      }
      const bool goes_on = row > 0 && step_.sequence[row] == step_.sequence[row - 1];
      if (goes_on && work_.runs.back().count < kAttentionRows) work_.runs.back().count++;
      else work_.runs.push_back({row, 1});
    }
    for (int64_t row = 0; row < step_.rows; row++)
      work_.visible[row].tail = work_.tails.data() + work_.tail_starts[row];
  }

  int64_t start(int64_t row) const { return step_.starts[step_.sequence[row]]; }
  const int32_t* table(int64_t row) const { return step_.blocks + step_.tables[step_.sequence[row]]; }
  int64_t slot(int64_t row) const {
    const int64_t at = start(row) + step_.place[row];
    return table(row)[at / kBlock] * kBlock + at % kBlock;
  }
  float* hidden(int64_t row) { return work_.hidden.data() + row * shape_.width; }
  float* input(int64_t row) { return work_.input.data() + row * work_.input_stride; }
  float* products(int64_t row) { return work_.products.data() + row * work_.product_stride; }
  int64_t masks() const { return step_.rows - step_.real; }
  Activations as(const Matrix& matrix) const {
    return matrix.kind == Kind::kFour ? shape_.activations : Activations::kInt16;
  }
  static void wait_for_all(int threads) { Team::instance().barrier.wait(threads); }

  void embed(int thread, int threads) {
    const int64_t half = shape_.head_size / 2;
    for (int64_t row = thread; row < step_.rows; row += threads) {
      const float* from = step_.masks + (row - step_.real) * shape_.width;
      if (row < step_.real) {
        unpack_output(model_.embedding, step_.ids[row], input(row));  // whole groups: may be longer than the width
        from = input(row);
      }
      std::memcpy(hidden(row), from, shape_.width * sizeof(float));
      for (int64_t i = 0; i < half; i++) {
        const double angle = static_cast<float>(step_.positions[row]) * model_.frequencies[i];
        work_.cosines[row * half + i] = static_cast<float>(std::cos(angle));
        work_.sines[row * half + i] = static_cast<float>(std::sin(angle));
      }
    }
  }

  void attention(int64_t number, int thread, int threads) {
    const Layer& layer = model_.layers[number];
    const LowRank* low = low_rank(number, &Adapter::query_key_value);
    for (int64_t row = thread; row < step_.rows; row += threads) {
      if (number > 0) add_product(row);
      save_input(number, row, hidden(row));
      normalise_to(row, layer.attention_norm, row);
      quantise(row, work_.quantised.rows(shape_.width), layer.query_key_value);
    }
    wait_for_all(threads);
    compute_product(layer.query_key_value, low, work_.quantised.rows(shape_.width), thread, threads);
    const Share heads(shape_.heads + 2 * shape_.key_heads, 1, thread, threads);
    for (int64_t row = 0; row < step_.rows; row++)
      for (int64_t head = heads.first; head < heads.last; head++) rotate_and_store_head(layer, number, row, head);
    wait_for_all(threads);
    // Shared out by query heads: those of one key head stay with one thread, except at the boundary of two shares.
    const Share share(static_cast<int64_t>(work_.runs.size()) * shape_.heads, 1, thread, threads);
    for (int64_t first = share.first; first < share.last;) {
      const int64_t last = std::min((first / heads_.per_key_head + 1) * heads_.per_key_head, share.last);
      attend_run(number, work_.runs[first / shape_.heads], first % shape_.heads, last - first, thread);
      first = last;
    }
    wait_for_all(threads);
    const int64_t attended = shape_.heads * shape_.head_size;
    low = low_rank(number, &Adapter::attention_output);
    for (int64_t row = thread; row < step_.rows; row += threads) {
      pad_with_zeros(input(row), attended);
      quantise(row, work_.quantised.rows(attended), layer.attention_output);
    }
    wait_for_all(threads);
    compute_product(layer.attention_output, low, work_.quantised.rows(attended), thread, threads);
  }

  void network(int64_t number, int thread, int threads) {
    const Layer& layer = model_.layers[number];
    const LowRank* low = low_rank(number, &Adapter::gate_up);
    for (int64_t row = thread; row < step_.rows; row += threads) {
      add_product(row);
      normalise_to(row, layer.mlp_norm, row);
      quantise(row, work_.quantised.rows(shape_.width), layer.gate_up);
    }
    wait_for_all(threads);
    // A thread gates its own products, so its share is whole groups of 32; panels of gate and up alternate.
    constexpr int64_t unit = 2 * kGroup / kLanes;
    compute_share(layer.gate_up, low, work_.quantised.rows(shape_.width), unit, thread, threads);
    const Share share(layer.gate_up.panels, unit, thread, threads);
    if (low) {
      wait_for_all(threads);
      add_low_rank(*low, share, thread);
    }
    low = low_rank(number, &Adapter::down);
    for (int64_t row = 0; row < step_.rows; row++) gate(row, share, layer);
    wait_for_all(threads);
    compute_product(layer.down, low, work_.gated.rows(shape_.inner), thread, threads);
  }

  // The last norm and the output head, on wanted rows only.
  void output(int thread, int threads) {
    for (int64_t row = thread; row < step_.rows; row += threads) {
      add_product(row);
      if (!saves_input(shape_.layers)) continue;
      normalise_to(row, model_.last_norm, row);
      save_input(shape_.layers, row, input(row));
    }
    wait_for_all(threads);
    const Quantised x = work_.quantised.rows(shape_.width);
    for (int64_t i = thread; i < step_.wanted; i += threads) {
      normalise_to(step_.wanted_rows[i], model_.last_norm, i);
      if (step_.hidden) std::memcpy(step_.hidden + i * shape_.width, input(i), shape_.width * sizeof(float));
    }
    wait_for_all(threads);
    for (int64_t i = thread; i < step_.scored; i += threads)
      quantise_row(input(step_.scored_rows[i]), head_activations(), x, i);
    wait_for_all(threads);
    const Share share(model_.head.panels, 1, thread, threads);
    product(model_.head, head_activations(), share.first, share.last, x, 0, step_.scored, step_.logits,
            model_.head.outputs());
    wait_for_all(threads);
    for (int64_t i = thread; i < step_.scored; i += threads)
      step_.log_sums[i] = log_sum(step_.logits + i * model_.head.outputs(), model_.vocabulary);
  }
  // Logits are always computed from 16-bit rows.
  static Activations head_activations() { return Activations::kInt16; }

  bool saves_input(int64_t layer) const {
    return std::find(step_.read_layers, step_.read_layers + step_.reads, layer) != step_.read_layers + step_.reads;
  }
  void save_input(int64_t layer, int64_t row, const float* values) {
    for (int64_t i = 0; i < step_.reads; i++)
      if (step_.read_layers[i] == layer)
        std::memcpy(step_.read + (i * step_.rows + row) * shape_.width, values, shape_.width * sizeof(float));
  }
  // Norm a row's hidden state into input row `place`.
  void normalise_to(int64_t row, const float* weight, int64_t place) {
    normalise(hidden(row), weight, shape_.width, shape_.epsilon, input(place));
    pad_with_zeros(input(place), shape_.width);
  }
  void add_product(int64_t row) {
    float* to = hidden(row);
    const float* from = products(row);
    for (int64_t i = 0; i < shape_.width; i++) to[i] += from[i];
  }

  // Quantise the groups [first, last) of a row's input.
  void quantise(int64_t row, const Quantised& x, const Matrix& matrix, int64_t first = 0, int64_t last = -1) {
    if (last < 0) last = x.groups;
    for (int64_t group = first; group < last; group++)
      quantise_group(input(row) + group * kGroup, as(matrix), x, row, group);
  }

  // This thread's share of a product, and of the adapter's first factors on mask rows.
  void compute_share(const Matrix& matrix, const LowRank* low, const Quantised& x, int64_t unit, int thread,
                     int threads) {
    const Share share(matrix.panels, unit, thread, threads);
    product(matrix, as(matrix), share.first, share.last, x, 0, step_.rows, work_.products.data(), work_.product_stride);
    if (!low) return;
    const Share part(low->down.panels, 1, thread, threads);
    product(low->down, as(matrix), part.first, part.last, x, step_.real, masks(), work_.low.data(), work_.low_stride);
  }

  // A whole product, the adapter's part included; complete for all threads on return.
  void compute_product(const Matrix& matrix, const LowRank* low, const Quantised& x, int thread, int threads) {
    compute_share(matrix, low, x, 1, thread, threads);
    wait_for_all(threads);
    if (low) {
      add_low_rank(*low, Share(matrix.panels, 1, thread, threads), thread);
      wait_for_all(threads);
    }
  }

  const LowRank* low_rank(int64_t layer, LowRank Adapter::*which) const {
    return masks() > 0 ? &(model_.adapters[layer].*which) : nullptr;
  }

  // Apply the adapter's second factors to mask rows: each thread to its own share of the product, since data in another
  // core's cache takes longer to fetch than to compute.
  void add_low_rank(const LowRank& low, const Share& own, int thread) {
    // Each part has its own memory in `added`, so that threads need not wait for each other between parts.
    int64_t column = 0, panels_before = 0;
    for (int64_t number = 0; number < low.parts; number++) {
      float* added = work_.added.data() + panels_before * kLanes;
      const Part& part = low.part[number];
      const int64_t rank = part.up.groups * kGroup;
      const Quantised x = work_.quantised_low[thread].rows(rank);
      for (int64_t row = 0; row < masks(); row++)
        quantise_row(work_.low.data() + row * work_.low_stride + column, shape_.activations, x, row);
      const auto panel_at = [&](int64_t of_product) {
        const int64_t panel = (of_product - part.first + part.step - 1) / part.step;
        return std::clamp<int64_t>(panel, 0, part.up.panels);
      };
      const int64_t first = panel_at(std::max(own.first, part.first)), last = panel_at(std::max(own.last, part.first));
      product(part.up, shape_.activations, first, last, x, 0, masks(), added, work_.product_stride);
      for (int64_t row = 0; row < masks(); row++)
        for (int64_t panel = first; panel < last; panel++) {
          float* to = products(step_.real + row) + (part.first + panel * part.step) * kLanes;
          store(to, add(load(to), load(added + row * work_.product_stride + panel * kLanes)));
        }
      column += rank;
      panels_before += part.up.panels;
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
    if (is_query || is_key) rotate(values, &work_.cosines[row * half], &work_.sines[row * half], half);
    const int64_t at = slot(row);
    if (is_query) {
      const float scale = 1.0f / std::sqrt(static_cast<float>(size));
      for (int64_t i = 0; i < size; i++) values[i] *= scale;
    } else if (is_key) {
      float* to = heads_.key_block(cache_, number, head - shape_.heads, at / kBlock) + at % kBlock;
      for (int64_t i = 0; i < size; i++) to[i * kBlock] = values[i];
    } else {
      std::memcpy(heads_.value(cache_, number, head - shape_.heads - shape_.key_heads, at), values, size * sizeof(float));
    }
  }

  // Attention of a run of rows, for some query heads of one key head.
  void attend_run(int64_t number, const RowRun& run, int64_t head, int64_t heads_here, int thread) {
    const VisibleKeys* visible[kAttentionRows];
    const float* queries[kAttentionRows];
    float* outputs[kAttentionRows];
    for (int64_t i = 0; i < run.count; i++) {
      visible[i] = &work_.visible[run.first + i];
      queries[i] = products(run.first + i) + head * shape_.head_size;
      outputs[i] = input(run.first + i) + head * shape_.head_size;
    }
    float* scratch = work_.scratch.data() + thread * work_.scratch_size;
    attend(heads_, cache_, number, head / heads_.per_key_head, heads_here, run.count, visible, queries, outputs, scratch,
           work_.score_stride);
  }

  // silu(gate) * up on this thread's share, as the input of the next product.
  void gate(int64_t row, const Share& share, const Layer& layer) {
    const float* from = products(row);
    float* to = input(row);
    for (int64_t panel = share.first; panel < share.last; panel += 2) {
      const Floats x = load(from + panel * kLanes), up = load(from + (panel + 1) * kLanes);
      const Floats silu = divide(x, add(broadcast(1.0f), exponential(subtract(zeros(), x))));
      store(to + panel / 2 * kLanes, multiply(silu, up));
    }
    if (share.last == layer.gate_up.panels) pad_with_zeros(to, shape_.inner);
    const int64_t per_group = 2 * kGroup / kLanes, groups = padded(shape_.inner) / kGroup;
    const int64_t last = std::min((share.last + per_group - 1) / per_group, groups);
    quantise(row, work_.gated.rows(shape_.inner), layer.down, share.first / per_group, last);
  }

  const Model& model_;
  const Shape& shape_;
  const Cache& cache_;
  const Step& step_;
  Workspace& work_;
  const Heads heads_;
};

}  // namespace stride
