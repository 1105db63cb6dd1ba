// A Llama-shaped model's forward over the rows of a step, behind a C interface (bound by ctypes in native/library.py).
//
// The rows come with the masks last. All threads go through the layers together and meet where one needs what the others
// have made. Nothing is allocated in there: `Workspace` grows before a step that is larger than all before it.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <vector>

#include "attention.h"
#include "lanes.h"
#include "products.h"
#include "team.h"

using namespace stride;

extern "C" {

struct Shape {
  int64_t layers, width, heads, key_heads, head_size, inner, window, threads;
  Activations activations;
  float epsilon;
};

struct Layer {
  Matrix query_key_value, attention_output, gate_up, down;
  const float *attention_norm, *mlp_norm;
  const float *bias, *query_norm, *key_norm;  // null where the family has none
};

// A low-rank part for mask rows: `down` of all parts that read the same input is one matrix, `up` one per part, whose
// panels are added to every `step`-th panel of the product from `first` on.
struct Part {
  Matrix up;
  int64_t first, step;
};
struct LowRank {
  Matrix down;
  int64_t parts;
  Part part[3];
};
struct Adapter {
  LowRank query_key_value, attention_output, gate_up, down;
};

struct Model {
  Shape shape;
  const Layer* layers;
  const Adapter* adapters;  // per layer; null where there is none
  Matrix embedding, head;
  int64_t vocabulary;
  const float* last_norm;
  const float* frequencies;  // of the rotary positions: head_size / 2
};

// The recurrent cell that reads, at one depth of a chain, what a mask said and the token before it: what to add to the
// mask's output, and the next state. `read` takes both, each of mean square one, and the state, side by side.
struct Sequential {
  Matrix read, write;
  const float* bias;
  int64_t size;
};

struct Step {
  int64_t rows, real, sequences, wanted, scored, reads;
  const int64_t* ids;         // per real row
  const float* masks;         // embeddings of the rows from `real` on
  const int32_t* positions;   // per row, as all that follow
  const int32_t* sequence;    // which of the sequences it belongs to
  const int32_t* place;       // its number among that sequence's rows of the step
  const int32_t* parent;      // a row of the step, or -1
  const int32_t* starts;      // per sequence, how many tokens are in the cache
  const int32_t* blocks;      // the sequences' blocks, one table behind the other
  const int32_t* tables;      // per sequence, where its table starts
  const int32_t* wanted_rows;
  const int32_t* scored_rows; // among the wanted
  const int32_t* read_layers; // whose inputs are to be noted; their number stands for the output head's
  float* logits;              // scored x head.panels x lanes
  float* log_sums;            // per scored row, the logarithm of the sum of all e^logit
  float* hidden;              // wanted x width, or null
  float* read;                // reads x rows x width
};

}  // extern "C"

namespace {

constexpr int64_t kAttentionRows = 4;

int64_t padded(int64_t size) { return (size + kGroup - 1) / kGroup * kGroup; }

// Some rows of one sequence, one behind the other, that attend together.
struct RowRun {
  int64_t first, count;
};

template <class Number>
void ensure(std::vector<Number>& memory, int64_t size) {
  if (static_cast<int64_t>(memory.size()) < size) memory.resize(size);
}

// The memory of a step.
struct Workspace {
  std::vector<float> hidden, input, made, added, low, cosines, sines, scratch;
  std::vector<int16_t> numbers, gated_numbers, mask_numbers, low_numbers;
  std::vector<float> scales, sums, gated_scales, gated_sums, mask_scales, mask_sums, low_scales, low_sums;
  std::vector<int32_t> tails;
  std::vector<int64_t> tail_starts;
  std::vector<Sight> sights;
  std::vector<RowRun> runs;
  int64_t input_stride = 0, made_stride = 0, low_stride = 0, score_stride = 0, scratch_size = 0;

  void prepare(const Model& model, const Step& step) {
    const Shape& shape = model.shape;
    const int64_t rows = std::max(step.rows, step.wanted), masks = step.rows - step.real;
    input_stride = padded(std::max({shape.width, shape.heads * shape.head_size, shape.inner}));
    const Layer& layer = model.layers[0];
    // Some more than is needed: rows a power of two apart would fall on the same lines of the first cache.
    made_stride = std::max({layer.query_key_value.outputs(), layer.attention_output.outputs(), layer.gate_up.outputs(),
                            layer.down.outputs()}) + 16;
    ensure(hidden, rows * shape.width);
    ensure(input, rows * input_stride);
    ensure(made, rows * made_stride);
    ensure(numbers, rows * input_stride);
    ensure(scales, rows * input_stride / kGroup);
    ensure(sums, rows * input_stride / kGroup);
    ensure(gated_numbers, rows * padded(shape.inner));
    ensure(gated_scales, rows * padded(shape.inner) / kGroup);
    ensure(gated_sums, rows * padded(shape.inner) / kGroup);
    if (masks > 0) {
      low_stride = 0;  // an adapter may leave out parts in some layers
      for (int64_t number = 0; number < shape.layers; number++) {
        const Adapter& adapter = model.adapters[number];
        low_stride = std::max({low_stride, adapter.query_key_value.down.outputs(),
                               adapter.attention_output.down.outputs(), adapter.gate_up.down.outputs(),
                               adapter.down.down.outputs()});
      }
      ensure(added, masks * made_stride);
      ensure(mask_numbers, masks * input_stride);
      ensure(mask_scales, masks * input_stride / kGroup);
      ensure(mask_sums, masks * input_stride / kGroup);
      ensure(low, masks * low_stride);
      ensure(low_numbers, shape.threads * masks * low_stride);
      ensure(low_scales, shape.threads * masks * low_stride / kGroup);
      ensure(low_sums, shape.threads * masks * low_stride / kGroup);
    }
    ensure(cosines, rows * shape.head_size / 2);
    ensure(sines, rows * shape.head_size / 2);
    int64_t longest = 0;
    for (int64_t row = 0; row < step.rows; row++) longest = std::max<int64_t>(longest, step.positions[row] + 1);
    score_stride = padded(longest) + kGroup;
    scratch_size = kMostQueries * shape.head_size + kAttentionRows * (shape.heads / shape.key_heads) * score_stride;
    ensure(scratch, shape.threads * scratch_size);
    sights.resize(step.rows);
    tail_starts.resize(step.rows);
  }

  Quantised quantised(int64_t size) { return {numbers.data(), scales.data(), sums.data(), padded(size) / kGroup}; }
  // Apart, since a thread that gates does not wait for those that still read what was multiplied.
  Quantised quantised_gated(int64_t size) {
    return {gated_numbers.data(), gated_scales.data(), gated_sums.data(), padded(size) / kGroup};
  }
  // 8-bit rows do not do for the adapter's matrices: there, the masks have 16-bit ones beside them.
  Quantised quantised_masks(int64_t groups) {
    return {mask_numbers.data(), mask_scales.data(), mask_sums.data(), groups};
  }
  // Every thread has its own: they are as quickly made as waited for.
  Quantised quantised_low(int thread, int64_t masks, int64_t rank) {
    const int64_t first = thread * masks * low_stride;
    return {low_numbers.data() + first, low_scales.data() + first / kGroup, low_sums.data() + first / kGroup,
            rank / kGroup};
  }
};

// Zeros behind the last value, up to a group. The weights there are next to nothing, but what an earlier product or step
// has left would count in the group's scale.
void fill_up(float* values, int64_t size) {
  for (int64_t i = size; i < padded(size); i++) values[i] = 0;
}

// The sum of squares in one order, then x * weight / sqrt(mean + epsilon).
void normalise(const float* x, const float* weight, int64_t size, float epsilon, float* to) {
  Floats squares = zeros();
  int64_t i = 0;
  for (; i + kLanes <= size; i += kLanes) squares = multiply_add(load(x + i), load(x + i), squares);
  float sum = sum_of(squares);
  for (; i < size; i++) sum = std::fma(x[i], x[i], sum);
  const float scale = 1.0f / std::sqrt(sum / static_cast<float>(size) + epsilon);
  for (i = 0; i < size; i++) to[i] = x[i] * scale * weight[i];
}

float log_sum(const float* x, int64_t size) {
  Floats most = every(-std::numeric_limits<float>::infinity());
  int64_t i = 0;
  for (; i + kLanes <= size; i += kLanes) most = larger(most, load(x + i));
  float largest = largest_of(most);
  for (int64_t j = i; j < size; j++) largest = std::max(largest, x[j]);
  Floats sum = zeros();
  for (i = 0; i + kLanes <= size; i += kLanes) sum = add(sum, exponential(subtract(load(x + i), every(largest))));
  float total = sum_of(sum);
  for (; i < size; i++) total += std::exp(x[i] - largest);
  return largest + std::log(total);
}

// Turn the two halves of a head against each other (the order of transformers).
void turn(float* head, const float* cosine, const float* sine, int64_t half) {
  for (int64_t i = 0; i < half; i++) {
    const float a = head[i], b = head[half + i];
    head[i] = std::fma(a, cosine[i], -(b * sine[i]));
    head[half + i] = std::fma(b, cosine[i], a * sine[i]);
  }
}

// What part of so many things is this thread's, in whole units.
struct Share {
  int64_t first, last;
  Share(int64_t count, int64_t unit, int thread, int threads) {
    const int64_t units = (count + unit - 1) / unit;
    first = std::min(count, units * thread / threads * unit);
    last = std::min(count, units * (thread + 1) / threads * unit);
  }
};

class Forward {
 public:
  Forward(const Model& model, const Cache& cache, const Step& step, Workspace& work)
      : model_(model), shape_(model.shape), cache_(cache), step_(step), work_(work),
        heads_{shape_.layers, shape_.key_heads, shape_.heads / shape_.key_heads, shape_.head_size} {
    work_.prepare(model, step);
    look_around();
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
  // What each row sees. Parents come before their children. A row is in its table's order if it and all its ancestors
  // are the first rows of their sequence; if not, its positions from some ancestor on are listed.
  void look_around() {
    work_.tails.clear();
    work_.runs.clear();
    for (int64_t row = 0; row < step_.rows; row++) {
      const int64_t count = step_.positions[row] + 1, parent = step_.parent[row];
      const Sight* above = parent < 0 ? nullptr : &work_.sights[parent];
      const int64_t known = above ? above->in_table : start(row), elsewhere = above ? above->count - known : 0;
      const bool in_order = elsewhere == 0 && step_.place[row] == step_.positions[row] - start(row);
      const int64_t first = shape_.window > 0 ? std::max<int64_t>(0, count - shape_.window) : 0;
      work_.sights[row] = {table(row), in_order ? count : known, nullptr, count, first};
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
      work_.sights[row].tail = work_.tails.data() + work_.tail_starts[row];
  }

  int64_t start(int64_t row) const { return step_.starts[step_.sequence[row]]; }
  const int32_t* table(int64_t row) const { return step_.blocks + step_.tables[step_.sequence[row]]; }
  int64_t slot(int64_t row) const {
    const int64_t at = start(row) + step_.place[row];
    return table(row)[at / kBlock] * kBlock + at % kBlock;
  }
  float* hidden(int64_t row) { return work_.hidden.data() + row * shape_.width; }
  float* input(int64_t row) { return work_.input.data() + row * work_.input_stride; }
  float* made(int64_t row) { return work_.made.data() + row * work_.made_stride; }
  int64_t masks() const { return step_.rows - step_.real; }
  Activations as(const Matrix& matrix) const {
    return matrix.kind == Kind::kFour ? shape_.activations : Activations::kInt16;
  }
  static void meet(int threads) { Team::instance().barrier.wait(threads); }

  void embed(int thread, int threads) {
    const int64_t half = shape_.head_size / 2;
    for (int64_t row = thread; row < step_.rows; row += threads) {
      const float* from = step_.masks + (row - step_.real) * shape_.width;
      if (row < step_.real) {
        unpack_output(model_.embedding, step_.ids[row], input(row));  // whole groups: there may be more than the width
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
      if (number > 0) add_made(row);
      note(number, row, hidden(row));
      normalise_to(row, layer.attention_norm, row);
      quantise(row, work_.quantised(shape_.width), layer.query_key_value, low);
    }
    meet(threads);
    multiply_by(layer.query_key_value, low, work_.quantised(shape_.width), 1, thread, threads);
    meet(threads);
    if (low) {
      add_low_rank(*low, Share(layer.query_key_value.panels, 1, thread, threads), thread);
      meet(threads);
    }
    const Share heads(shape_.heads + 2 * shape_.key_heads, 1, thread, threads);
    for (int64_t row = 0; row < step_.rows; row++)
      for (int64_t head = heads.first; head < heads.last; head++) place_head(layer, number, row, head);
    meet(threads);
    // By query heads, one behind the other: those of one key head stay together, but for one at a border.
    const Share share(static_cast<int64_t>(work_.runs.size()) * shape_.heads, 1, thread, threads);
    for (int64_t first = share.first; first < share.last;) {
      const int64_t last = std::min((first / heads_.per_key_head + 1) * heads_.per_key_head, share.last);
      attend_run(number, work_.runs[first / shape_.heads], first % shape_.heads, last - first, thread);
      first = last;
    }
    meet(threads);
    const int64_t attended = shape_.heads * shape_.head_size;
    low = low_rank(number, &Adapter::attention_output);
    for (int64_t row = thread; row < step_.rows; row += threads) {
      fill_up(input(row), attended);
      quantise(row, work_.quantised(attended), layer.attention_output, low);
    }
    meet(threads);
    multiply_by(layer.attention_output, low, work_.quantised(attended), 1, thread, threads);
    meet(threads);
    if (low) {
      add_low_rank(*low, Share(layer.attention_output.panels, 1, thread, threads), thread);
      meet(threads);
    }
  }

  void network(int64_t number, int thread, int threads) {
    const Layer& layer = model_.layers[number];
    const LowRank* low = low_rank(number, &Adapter::gate_up);
    for (int64_t row = thread; row < step_.rows; row += threads) {
      add_made(row);
      normalise_to(row, layer.mlp_norm, row);
      quantise(row, work_.quantised(shape_.width), layer.gate_up, low);
    }
    meet(threads);
    // A thread gates what it made itself, so its share is whole groups of 32, gate and up being panels in turn.
    constexpr int64_t unit = 2 * kGroup / kLanes;
    multiply_by(layer.gate_up, low, work_.quantised(shape_.width), unit, thread, threads);
    const Share share(layer.gate_up.panels, unit, thread, threads);
    if (low) {
      meet(threads);
      add_low_rank(*low, share, thread);
    }
    low = low_rank(number, &Adapter::down);
    for (int64_t row = 0; row < step_.rows; row++) gate(row, share, layer, low);
    meet(threads);
    multiply_by(layer.down, low, work_.quantised_gated(shape_.inner), 1, thread, threads);
    meet(threads);
    if (low) {
      add_low_rank(*low, Share(layer.down.panels, 1, thread, threads), thread);
      meet(threads);
    }
  }

  // The last norm and the output head, on wanted rows only.
  void output(int thread, int threads) {
    for (int64_t row = thread; row < step_.rows; row += threads) {
      add_made(row);
      if (!notes(shape_.layers)) continue;
      normalise_to(row, model_.last_norm, row);
      note(shape_.layers, row, input(row));
    }
    meet(threads);
    const Quantised x = work_.quantised(shape_.width);
    for (int64_t i = thread; i < step_.wanted; i += threads) {
      normalise_to(step_.wanted_rows[i], model_.last_norm, i);
      if (step_.hidden) std::memcpy(step_.hidden + i * shape_.width, input(i), shape_.width * sizeof(float));
    }
    meet(threads);
    for (int64_t i = thread; i < step_.scored; i += threads)
      quantise_row(input(step_.scored_rows[i]), as_head(), x, i);
    meet(threads);
    const Share share(model_.head.panels, 1, thread, threads);
    product(model_.head, as_head(), share.first, share.last, x, 0, step_.scored, step_.logits, model_.head.outputs());
    meet(threads);
    for (int64_t i = thread; i < step_.scored; i += threads)
      step_.log_sums[i] = log_sum(step_.logits + i * model_.head.outputs(), model_.vocabulary);
  }
  // What is drawn from is never made of 8-bit rows.
  static Activations as_head() { return Activations::kInt16; }

  bool notes(int64_t layer) const {
    return std::find(step_.read_layers, step_.read_layers + step_.reads, layer) != step_.read_layers + step_.reads;
  }
  void note(int64_t layer, int64_t row, const float* values) {
    for (int64_t i = 0; i < step_.reads; i++)
      if (step_.read_layers[i] == layer)
        std::memcpy(step_.read + (i * step_.rows + row) * shape_.width, values, shape_.width * sizeof(float));
  }
  // A row's hidden values as an input, in the place of a row.
  void normalise_to(int64_t row, const float* weight, int64_t place) {
    normalise(hidden(row), weight, shape_.width, shape_.epsilon, input(place));
    fill_up(input(place), shape_.width);
  }
  void add_made(int64_t row) {
    float* to = hidden(row);
    const float* from = made(row);
    for (int64_t i = 0; i < shape_.width; i++) to[i] += from[i];
  }

  // A row's input as whole numbers, those groups of it that are ready.
  void quantise(int64_t row, const Quantised& x, const Matrix& matrix, const LowRank* low, int64_t first = 0,
                int64_t last = -1) {
    if (last < 0) last = x.groups;
    for (int64_t group = first; group < last; group++) {
      const float* values = input(row) + group * kGroup;
      quantise_group(values, as(matrix), x, row, group);
      if (low && row >= step_.real && as(matrix) == Activations::kInt8)
        quantise_group(values, Activations::kInt16, work_.quantised_masks(x.groups), row - step_.real, group);
    }
  }

  // This thread's share of a product, and of the adapter's first factors on the masks.
  void multiply_by(const Matrix& matrix, const LowRank* low, const Quantised& x, int64_t unit, int thread, int threads) {
    const Share share(matrix.panels, unit, thread, threads);
    product(matrix, as(matrix), share.first, share.last, x, 0, step_.rows, work_.made.data(), work_.made_stride);
    if (!low) return;
    const bool apart = as(matrix) == Activations::kInt8;
    const Share part(low->down.panels, 1, thread, threads);
    product(low->down, Activations::kInt16, part.first, part.last, apart ? work_.quantised_masks(x.groups) : x,
            apart ? 0 : step_.real, masks(), work_.low.data(), work_.low_stride);
  }

  const LowRank* low_rank(int64_t layer, LowRank Adapter::*which) const {
    return masks() > 0 ? &(model_.adapters[layer].*which) : nullptr;
  }

  // The second factors, added to what the masks' rows have: by each thread to what it has made itself, since what lies in
  // another core's cache takes longer to fetch than to compute.
  void add_low_rank(const LowRank& low, const Share& own, int thread) {
    // Each part has a place of its own in `added`: threads do not wait for each other between two of them.
    int64_t column = 0, panels_before = 0;
    for (int64_t number = 0; number < low.parts; number++) {
      float* added = work_.added.data() + panels_before * kLanes;
      const Part& part = low.part[number];
      const int64_t rank = part.up.groups * kGroup;
      const Quantised x = work_.quantised_low(thread, masks(), rank);
      for (int64_t row = 0; row < masks(); row++)
        quantise_row(work_.low.data() + row * work_.low_stride + column, Activations::kInt16, x, row);
      const auto panel_at = [&](int64_t of_product) {
        const int64_t panel = (of_product - part.first + part.step - 1) / part.step;
        return std::clamp<int64_t>(panel, 0, part.up.panels);
      };
      const int64_t first = panel_at(std::max(own.first, part.first)), last = panel_at(std::max(own.last, part.first));
      product(part.up, Activations::kInt16, first, last, x, 0, masks(), added, work_.made_stride);
      for (int64_t row = 0; row < masks(); row++)
        for (int64_t panel = first; panel < last; panel++) {
          float* to = made(step_.real + row) + (part.first + panel * part.step) * kLanes;
          store(to, add(load(to), load(added + row * work_.made_stride + panel * kLanes)));
        }
      column += rank;
      panels_before += part.up.panels;
    }
  }

  // Turn a query or a key by its position; keys and values go to the cache.
  void place_head(const Layer& layer, int64_t number, int64_t row, int64_t head) {
    const int64_t size = shape_.head_size, half = size / 2;
    float* values = made(row) + head * size;
    if (layer.bias)
      for (int64_t i = 0; i < size; i++) values[i] += layer.bias[head * size + i];
    const bool is_query = head < shape_.heads, is_key = !is_query && head < shape_.heads + shape_.key_heads;
    const float* norm = is_query ? layer.query_norm : is_key ? layer.key_norm : nullptr;
    if (norm) normalise(values, norm, size, shape_.epsilon, values);
    if (is_query || is_key) turn(values, &work_.cosines[row * half], &work_.sines[row * half], half);
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

  // Some query heads of one key head, of some rows.
  void attend_run(int64_t number, const RowRun& run, int64_t head, int64_t heads_here, int thread) {
    const Sight* sights[kAttentionRows];
    const float* queries[kAttentionRows];
    float* outputs[kAttentionRows];
    for (int64_t i = 0; i < run.count; i++) {
      sights[i] = &work_.sights[run.first + i];
      queries[i] = made(run.first + i) + head * shape_.head_size;
      outputs[i] = input(run.first + i) + head * shape_.head_size;
    }
    float* scratch = work_.scratch.data() + thread * work_.scratch_size;
    attend(heads_, cache_, number, head / heads_.per_key_head, heads_here, run.count, sights, queries, outputs, scratch,
           work_.score_stride);
  }

  // silu(gate) * up on this thread's share, as the input of the product that comes next.
  void gate(int64_t row, const Share& share, const Layer& layer, const LowRank* low) {
    const float* from = made(row);
    float* to = input(row);
    for (int64_t panel = share.first; panel < share.last; panel += 2) {
      const Floats x = load(from + panel * kLanes), up = load(from + (panel + 1) * kLanes);
      const Floats silu = divide(x, add(every(1.0f), exponential(subtract(zeros(), x))));
      store(to + panel / 2 * kLanes, multiply(silu, up));
    }
    if (share.last == layer.gate_up.panels) fill_up(to, shape_.inner);
    const int64_t per_group = 2 * kGroup / kLanes, groups = padded(shape_.inner) / kGroup;
    const int64_t last = std::min((share.last + per_group - 1) / per_group, groups);
    quantise(row, work_.quantised_gated(shape_.inner), layer.down, low, share.first / per_group, last);
  }

  const Model& model_;
  const Shape& shape_;
  const Cache& cache_;
  const Step& step_;
  Workspace& work_;
  const Heads heads_;
};

class SequentialStep {
 public:
  SequentialStep(const Model& model, const Sequential& head, Workspace& work)
      : model_(model), head_(head), work_(work), width_(model.shape.width), inputs_(head.read.groups * kGroup) {}

  void run(int64_t rows, const float* outputs, const int64_t* before, const float* states, float* added, float* next) {
    const int64_t most = std::max({inputs_, head_.read.outputs(), padded(head_.size), head_.write.outputs()});
    ensure(work_.input, rows * most);
    ensure(work_.made, rows * most);
    ensure(work_.numbers, rows * most);
    ensure(work_.scales, rows * most / kGroup);
    ensure(work_.sums, rows * most / kGroup);
    Team::instance().run(static_cast<int>(model_.shape.threads), [&](int thread, int threads) {
      for (int64_t row = thread; row < rows; row += threads)
        enter(row, outputs + row * width_, before[row], states + row * head_.size);
      multiply_by(head_.read, rows, thread, threads);
      for (int64_t row = thread; row < rows; row += threads)
        go_on(row, states + row * head_.size, next + row * head_.size);
      multiply_by(head_.write, rows, thread, threads);
      for (int64_t row = thread; row < rows; row += threads)
        std::memcpy(added + row * width_, work_.made.data() + row * head_.write.outputs(), width_ * sizeof(float));
    });
  }

 private:
  // Of mean square one.
  static void unit(const float* x, int64_t size, float* to) {
    float sum = 0;
    for (int64_t i = 0; i < size; i++) sum += x[i] * x[i];
    const float scale = 1.0f / std::sqrt(sum / static_cast<float>(size) + std::numeric_limits<float>::epsilon());
    for (int64_t i = 0; i < size; i++) to[i] = x[i] * scale;
  }

  void enter(int64_t row, const float* output, int64_t before, const float* state) {
    float* x = work_.input.data() + row * inputs_;
    float* token = work_.made.data() + row * padded(width_);
    unpack_output(model_.embedding, before, token);
    unit(output, width_, x);
    unit(token, width_, x + width_);
    std::memcpy(x + 2 * width_, state, head_.size * sizeof(float));
    std::fill(x + 2 * width_ + head_.size, x + inputs_, 0.0f);
    quantise_row(x, Activations::kInt16, quantised(inputs_), row);
  }

  // state += sigmoid(gate) (tanh(candidate) - state)
  void go_on(int64_t row, const float* state, float* next) {
    const float* gate = work_.made.data() + row * head_.read.outputs();
    const float* candidate = gate + head_.size;
    float* x = work_.input.data() + row * padded(head_.size);
    for (int64_t i = 0; i < head_.size; i++) {
      const float share = 1.0f / (1.0f + std::exp(-(gate[i] + head_.bias[i])));
      next[i] = state[i] + share * (std::tanh(candidate[i] + head_.bias[head_.size + i]) - state[i]);
      x[i] = next[i];
    }
    std::fill(x + head_.size, x + padded(head_.size), 0.0f);
    quantise_row(x, Activations::kInt16, quantised(head_.size), row);
  }

  void multiply_by(const Matrix& matrix, int64_t rows, int thread, int threads) {
    Team::instance().barrier.wait(threads);
    const Share share(matrix.panels, 1, thread, threads);
    product(matrix, Activations::kInt16, share.first, share.last, quantised(matrix.groups * kGroup), 0, rows,
            work_.made.data(), matrix.outputs());
    Team::instance().barrier.wait(threads);
  }

  Quantised quantised(int64_t size) {
    return {work_.numbers.data(), work_.scales.data(), work_.sums.data(), padded(size) / kGroup};
  }

  const Model& model_;
  const Sequential& head_;
  Workspace& work_;
  const int64_t width_, inputs_;
};

}  // namespace

extern "C" {

int64_t stride_lanes() { return kLanes; }

void* stride_workspace() { return new Workspace; }
void stride_free_workspace(void* workspace) { delete static_cast<Workspace*>(workspace); }

void stride_forward(const Model* model, const Cache* cache, const Step* step, void* workspace) {
  Forward(*model, *cache, *step, *static_cast<Workspace*>(workspace)).run();
}

// Any matrix times some rows of floats, which are a whole number of groups long.
void stride_product(const Matrix* matrix, int64_t activations, int64_t threads, const float* x, int64_t rows, float* y) {
  const int64_t size = matrix->groups * kGroup;
  std::vector<int16_t> numbers(rows * size);
  std::vector<float> scales(rows * matrix->groups), sums(rows * matrix->groups);
  const Quantised quantised{numbers.data(), scales.data(), sums.data(), matrix->groups};
  const auto as = static_cast<Activations>(activations);
  for (int64_t row = 0; row < rows; row++) quantise_row(x + row * size, as, quantised, row);
  Team::instance().run(static_cast<int>(threads), [&](int thread, int count) {
    const Share share(matrix->panels, 1, thread, count);
    product(*matrix, as, share.first, share.last, quantised, 0, rows, y, matrix->outputs());
  });
}

void stride_read_chain(const Model* model, const Sequential* head, void* workspace, int64_t rows, const float* outputs,
                       const int64_t* before, const float* states, float* added, float* next_states) {
  SequentialStep(*model, *head, *static_cast<Workspace*>(workspace)).run(rows, outputs, before, states, added, next_states);
}

// Some outputs' weights as floats, each a whole number of groups long.
void stride_unpack(const Matrix* matrix, const int64_t* outputs, int64_t count, float* to) {
  for (int64_t i = 0; i < count; i++) unpack_output(*matrix, outputs[i], to + i * matrix->groups * kGroup);
}

// Copy slots to slots, in all layers. What is read may be written by a later one, never by an earlier one.
void stride_move(const Shape* shape, const Cache* cache, const int64_t* to, const int64_t* from, int64_t count) {
  const Heads heads{shape->layers, shape->key_heads, shape->heads / shape->key_heads, shape->head_size};
  for (int64_t layer = 0; layer < shape->layers; layer++)
    for (int64_t head = 0; head < shape->key_heads; head++)
      for (int64_t i = 0; i < count; i++) {
        float* target = heads.key_block(*cache, layer, head, to[i] / kBlock) + to[i] % kBlock;
        const float* source = heads.key_block(*cache, layer, head, from[i] / kBlock) + from[i] % kBlock;
        for (int64_t d = 0; d < heads.size; d++) target[d * kBlock] = source[d * kBlock];
        std::memcpy(heads.value(*cache, layer, head, to[i]), heads.value(*cache, layer, head, from[i]),
                    heads.size * sizeof(float));
      }
}

}  // extern "C"
