// Logits of some tokens after something is added to the hidden state.
#pragma once

#include <cstdint>
#include <vector>

#include "lanes.h"
#include "products.h"

namespace stride {

// scores += x times the outputs `first` to `last` of a list of a matrix's: rows x count. Each row of `x` is a whole
// number of groups long. `weights`: memory for such a row.
inline void add_scores(const Matrix& matrix, const int64_t* outputs, int64_t first, int64_t last, int64_t count,
                       const float* x, int64_t rows, std::vector<float>& weights, float* scores) {
  const int64_t size = matrix.groups * kGroup;
  weights.resize(size);
  for (int64_t i = first; i < last; i++) {
    unpack_output(matrix, outputs[i], weights.data());
    for (int64_t row = 0; row < rows; row++) {
      Floats sum = zeros();
      for (int64_t k = 0; k < size; k += kLanes) sum = multiply_add(load(x + row * size + k), load(&weights[k]), sum);
      scores[row * count + i] += sum_of(sum);
    }
  }
}

}  // namespace stride
