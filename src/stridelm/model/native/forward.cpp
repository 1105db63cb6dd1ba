// The C interface of the kernels, bound by ctypes in native/library.py.
#include <algorithm>
#include <cstdint>
#include <cstring>
#include <limits>
#include <utility>
#include <vector>

#include "attention.h"
#include "forward.h"
#include "lanes.h"
#include "model.h"
#include "products.h"
#include "sequential.h"
#include "team.h"
#include "workspace.h"

using namespace stride;

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

// scores += x times some outputs of a matrix: rows x count. `x` is a whole number of groups long.
void stride_add_scores(const Matrix* matrix, const int64_t* outputs, int64_t count, const float* x, int64_t rows,
                       float* scores) {
  const int64_t size = matrix->groups * kGroup;
  std::vector<float> weights(size);
  for (int64_t i = 0; i < count; i++) {
    unpack_output(*matrix, outputs[i], weights.data());
    for (int64_t row = 0; row < rows; row++) {
      Floats sum = zeros();
      for (int64_t k = 0; k < size; k += kLanes) sum = multiply_add(load(x + row * size + k), load(&weights[k]), sum);
      scores[row * count + i] += sum_of(sum);
    }
  }
}

// The places of the `count` largest of some numbers, in any order. Nearly all are below the least of those found so far,
// and those are passed over a vector at a time.
void stride_top(const float* x, int64_t size, int64_t count, int64_t* places) {
  std::vector<std::pair<float, int64_t>> found;
  found.reserve(count);
  const auto worse = [](const auto& a, const auto& b) { return a.first > b.first; };
  float least = -std::numeric_limits<float>::infinity();
  const auto look = [&](int64_t i) {
    if (static_cast<int64_t>(found.size()) < count) {
      found.emplace_back(x[i], i);
      std::push_heap(found.begin(), found.end(), worse);
    } else if (x[i] > least) {
      std::pop_heap(found.begin(), found.end(), worse);
      found.back() = {x[i], i};
      std::push_heap(found.begin(), found.end(), worse);
    }
    if (static_cast<int64_t>(found.size()) == count) least = found.front().first;
  };
  int64_t i = 0;
  for (; i + kLanes <= size; i += kLanes) {
    if (static_cast<int64_t>(found.size()) == count && !any_above(load(x + i), every(least))) continue;
    for (int64_t j = i; j < i + kLanes; j++) look(j);
  }
  for (; i < size; i++) look(i);
  for (int64_t j = 0; j < static_cast<int64_t>(found.size()); j++) places[j] = found[j].second;
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
