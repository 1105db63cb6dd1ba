// Norms, rotary positions, sums of exponentials: what lies between the products.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>

#include "lanes.h"

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

// The logarithm of a sum of e^x, in parts that can be combined.
struct LogSum {
  float largest = -std::numeric_limits<float>::infinity(), total = 0;  // e^largest times total

  static LogSum of(const float* x, int64_t size) {
    Floats most = broadcast(-std::numeric_limits<float>::infinity());
    int64_t i = 0;
    for (; i + kLanes <= size; i += kLanes) most = maximum(most, load(x + i));
    LogSum sum{largest_of(most), 0};
    for (int64_t j = i; j < size; j++) sum.largest = std::max(sum.largest, x[j]);
    Floats totals = zeros();
    for (i = 0; i + kLanes <= size; i += kLanes)
      totals = add(totals, exponential(subtract(load(x + i), broadcast(sum.largest))));
    sum.total = sum_of(totals);
    for (; i < size; i++) sum.total += std::exp(x[i] - sum.largest);
    return sum;
  }
  static float combined(const LogSum* parts, int64_t count) {
    float largest = -std::numeric_limits<float>::infinity(), total = 0;
    for (int64_t i = 0; i < count; i++) largest = std::max(largest, parts[i].largest);
    for (int64_t i = 0; i < count; i++) total += parts[i].total * std::exp(parts[i].largest - largest);
    return largest + std::log(total);
  }
};

// Rotary positions: rotate the two halves of a head (the order of transformers).
inline void rotate(float* head, const float* cosine, const float* sine, int64_t half) {
  for (int64_t i = 0; i < half; i++) {
    const float a = head[i], b = head[half + i];
    head[i] = std::fma(a, cosine[i], -(b * sine[i]));
    head[half + i] = std::fma(b, cosine[i], a * sine[i]);
  }
}

}  // namespace stride
