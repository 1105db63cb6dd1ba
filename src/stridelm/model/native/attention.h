// Attention of one row over the cache: the text before it, and its own ancestors in the step.
//
// The cache's slots come in blocks of 16, as the engine's tables have them. Keys are stored with a block's slots side by
// side, so that 16 scores are found together; values slot by slot:
//
//   keys    layer, head, block, position in the head, slot of the block
//   values  layer, head, slot, position in the head
//
// Every score is a sum of its own, and weights and values are added up in the order of positions. Which slot a position
// is in, and what the rows beside this one are, makes no difference to a bit of the result.
#pragma once

#include <cmath>
#include <cstdint>
#include <limits>

#include "lanes.h"

namespace stride {

constexpr int64_t kBlock = 16;

struct Cache {
  float* keys;
  float* values;
  int64_t blocks;
};

struct Heads {
  int64_t layers, key_heads, per_key_head, size;

  float* key_block(const Cache& cache, int64_t layer, int64_t head, int64_t block) const {
    return cache.keys + (((layer * key_heads + head) * cache.blocks + block) * size) * kBlock;
  }
  float* value(const Cache& cache, int64_t layer, int64_t head, int64_t slot) const {
    return cache.values + ((layer * key_heads + head) * cache.blocks * kBlock + slot) * size;
  }
};

// Where the positions that a row sees are. The first `in_table` of them are in the order of the sequence's blocks; a
// branch of a tree goes on elsewhere, in `tail`.
struct Sight {
  const int32_t* blocks;
  int64_t in_table;
  const int32_t* tail;
  int64_t count;  // positions in all: the row's own and all before it
  int64_t first;  // of them, the first inside the window
};

// The scores of 16 slots, for some queries. Two sums each, of the even and of the odd positions in the head: a single
// chain would wait for itself.
template <int queries>
inline void block_scores(const float* keys, int64_t size, const float* const* query, float* const* scores, int64_t at) {
  for (int part = 0; part < kBlock; part += kLanes) {
    Floats even[queries], odd[queries];
    for (int q = 0; q < queries; q++) even[q] = odd[q] = zeros();
    for (int64_t d = 0; d < size; d += 2) {
      const Floats key = load(keys + d * kBlock + part), next = load(keys + (d + 1) * kBlock + part);
      for (int q = 0; q < queries; q++) {
        even[q] = multiply_add(key, every(query[q][d]), even[q]);
        odd[q] = multiply_add(next, every(query[q][d + 1]), odd[q]);
      }
    }
    for (int q = 0; q < queries; q++) store(scores[q] + at + part, add(even[q], odd[q]));
  }
}

// One of them, by the same additions.
inline float slot_score(const float* keys, int64_t size, const float* query) {
  float even = 0, odd = 0;
  for (int64_t d = 0; d < size; d += 2) {
    even = std::fma(keys[d * kBlock], query[d], even);
    odd = std::fma(keys[(d + 1) * kBlock], query[d + 1], odd);
  }
  return even + odd;
}

// Scores to weights that are not divided by their sum yet; returns one over the sum. The lanes behind the last position
// are written, too.
inline float soften(float* scores, const Sight& sight) {
  const int64_t end = (sight.count + kLanes - 1) / kLanes * kLanes;
  for (int64_t t = sight.count; t < end; t++) scores[t] = -std::numeric_limits<float>::infinity();
  for (int64_t t = 0; t < sight.first; t++) scores[t] = -std::numeric_limits<float>::infinity();
  Floats most = load(scores);
  for (int64_t t = kLanes; t < end; t += kLanes) most = larger(most, load(scores + t));
  const Floats largest = every(largest_of(most));
  Floats sum = zeros();
  for (int64_t t = 0; t < end; t += kLanes) {
    const Floats weight = exponential(subtract(load(scores + t), largest));
    store(scores + t, weight);
    sum = add(sum, weight);
  }
  return 1.0f / sum_of(sum);
}

// Some heads' weighted sums of values, some vectors of the head wide.
template <int queries, int vectors>
inline void weighted_values(const Heads& heads, const Cache& cache, int64_t layer, int64_t head, const Sight& sight,
                            float* const* weights, const float* scales, float* const* to, int64_t column) {
  Floats sum[queries][vectors];
  for (int q = 0; q < queries; q++)
    for (int v = 0; v < vectors; v++) sum[q][v] = zeros();
  const auto take = [&](const float* value, int64_t t) {
    for (int v = 0; v < vectors; v++) {
      const Floats part = load(value + v * kLanes);
      for (int q = 0; q < queries; q++) sum[q][v] = multiply_add(part, every(weights[q][t]), sum[q][v]);
    }
  };
  int64_t t = sight.first;
  while (t < sight.in_table) {
    const int64_t until = std::min((t / kBlock + 1) * kBlock, sight.in_table);
    const float* value = heads.value(cache, layer, head, sight.blocks[t / kBlock] * kBlock + t % kBlock) + column;
    for (; t < until; t++, value += heads.size) take(value, t);
  }
  for (; t < sight.count; t++) take(heads.value(cache, layer, head, sight.tail[t - sight.in_table]) + column, t);
  for (int q = 0; q < queries; q++)
    for (int v = 0; v < vectors; v++) store(to[q] + column + v * kLanes, multiply(sum[q][v], every(scales[q])));
}

template <int queries>
inline void all_values(const Heads& heads, const Cache& cache, int64_t layer, int64_t head, const Sight& sight,
                       float* const* weights, const float* scales, float* const* to) {
  int64_t column = 0;
  for (; column + 4 * kLanes <= heads.size; column += 4 * kLanes)
    weighted_values<queries, 4>(heads, cache, layer, head, sight, weights, scales, to, column);
  for (; column < heads.size; column += kLanes)
    weighted_values<queries, 1>(heads, cache, layer, head, sight, weights, scales, to, column);
}

// The query heads of one key head, of some rows of one sequence: rows[i] reads query[i] (per_key_head x size) and
// writes to[i]. `scratch` has room for `queries` times `stride` scores.
inline void attend(const Heads& heads, const Cache& cache, int64_t layer, int64_t head, int64_t rows,
                   const Sight* const* sights, const float* const* query, float* const* to, float* scratch,
                   int64_t stride) {
  constexpr int kMost = 64;
  const float* queries[kMost];
  float* scores[kMost];
  int64_t count = 0, reach = 0;
  for (int64_t r = 0; r < rows; r++) {
    reach = std::max(reach, sights[r]->in_table);
    for (int64_t h = 0; h < heads.per_key_head; h++, count++) {
      queries[count] = query[r] + h * heads.size;
      scores[count] = scratch + count * stride;
    }
  }
  const int32_t* blocks = sights[0]->blocks;
  for (int64_t t = 0; t < reach; t += kBlock) {
    const float* keys = heads.key_block(cache, layer, head, blocks[t / kBlock]);
    int64_t q = 0;
    for (; q + 4 <= count; q += 4) block_scores<4>(keys, heads.size, queries + q, scores + q, t);
    if (count - q == 3) block_scores<3>(keys, heads.size, queries + q, scores + q, t);
    if (count - q == 2) block_scores<2>(keys, heads.size, queries + q, scores + q, t);
    if (count - q == 1) block_scores<1>(keys, heads.size, queries + q, scores + q, t);
  }
  for (int64_t r = 0, q = 0; r < rows; r++, q += heads.per_key_head) {
    const Sight& sight = *sights[r];
    float scales[kMost];
    float* outputs[kMost];
    for (int64_t h = 0; h < heads.per_key_head; h++) {
      for (int64_t t = sight.in_table; t < sight.count; t++) {
        const int32_t slot = sight.tail[t - sight.in_table];
        const float* keys = heads.key_block(cache, layer, head, slot / kBlock) + slot % kBlock;
        scores[q + h][t] = slot_score(keys, heads.size, queries[q + h]);
      }
      scales[h] = soften(scores[q + h], sight);
      outputs[h] = to[r] + h * heads.size;
    }
    int64_t h = 0;
    for (; h + 3 <= heads.per_key_head; h += 3)
      all_values<3>(heads, cache, layer, head, sight, scores + q + h, scales + h, outputs + h);
    for (; h < heads.per_key_head; h++)
      all_values<1>(heads, cache, layer, head, sight, scores + q + h, scales + h, outputs + h);
  }
}

}  // namespace stride
