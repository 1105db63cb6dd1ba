// The likeliest tokens of a position, and their logits after something is added to the hidden state.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <utility>
#include <vector>

#include "lanes.h"
#include "model.h"
#include "products.h"

namespace stride {

// The indices of the `count` largest of `size` numbers, in any order. Nearly all numbers are below the smallest one
// found so far; those are skipped a whole vector at a time.
inline void top(const float* x, int64_t size, int64_t count, int64_t* places) {
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
    if (static_cast<int64_t>(found.size()) == count && !any_above(load(x + i), broadcast(least))) continue;
    for (int64_t j = i; j < i + kLanes; j++) look(j);
  }
  for (; i < size; i++) look(i);
  for (int64_t j = 0; j < static_cast<int64_t>(found.size()); j++) places[j] = found[j].second;
}

// scores += x times some outputs of a matrix: rows x count. Each row of `x` is a whole number of groups long.
inline void add_scores(const Matrix& matrix, const int64_t* outputs, int64_t count, const float* x, int64_t rows,
                       float* scores) {
  const int64_t size = matrix.groups * kGroup;
  std::vector<float> weights(size);
  for (int64_t i = 0; i < count; i++) {
    unpack_output(matrix, outputs[i], weights.data());
    for (int64_t row = 0; row < rows; row++) {
      Floats sum = zeros();
      for (int64_t k = 0; k < size; k += kLanes) sum = multiply_add(load(x + row * size + k), load(&weights[k]), sum);
      scores[row * count + i] += sum_of(sum);
    }
  }
}

}  // namespace stride
