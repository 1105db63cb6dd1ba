// Attention of one row over the cache: the text before it, and its own ancestors in the step.
//
// The cache's slots come in blocks of 16, as in the engine's tables. The keys of a block are stored with its slots side
// by side, so that 16 scores are computed together; values are stored slot by slot:
//
//   keys    layer, head, block, position in the head, slot of the block
//   values  layer, head, slot, position in the head
//
// Both are in half precision.
//
// Every score is a sum of its own, and weights and values are summed in the order of positions. The slot of a position
// and the other rows of the step do not change a bit of the result.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>

#include "lanes.h"

namespace stride {

constexpr int64_t kBlock = 16;

struct Cache {
  Half* keys;
  Half* values;
  int64_t blocks;
};

struct Heads {
  int64_t layers, key_heads, per_key_head, size;

  Half* key_block(const Cache& cache, int64_t layer, int64_t head, int64_t block) const {
    return cache.keys + (((layer * key_heads + head) * cache.blocks + block) * size) * kBlock;
  }
  Half* value(const Cache& cache, int64_t layer, int64_t head, int64_t slot) const {
    return cache.values + ((layer * key_heads + head) * cache.blocks * kBlock + slot) * size;
  }
};

// Where the keys that a row sees are stored. The first `in_table` positions are in the order of the sequence's blocks;
// for a branch of a tree, `tail` lists the slots of the others.
struct VisibleKeys {
  const int32_t* blocks;
  int64_t in_table;
  const int32_t* tail;
  int64_t count;  // number of positions: the row's own and all before it
  int64_t first;  // the first position inside the window
};

constexpr int kMaxQueries = 64;

// Interleave queries, dimension by dimension, so that a tile of them reads memory in order.
inline void gather(const float* const* query, int64_t queries, int64_t size, float* to) {
  for (int64_t d = 0; d < size; d++)
    for (int64_t q = 0; q < queries; q++) *to++ = query[q][d];
}

// The scores of 16 slots, for `count` of the `queries` gathered ones. Two sums each, over the even and the odd
// dimensions of the head: a single chain of additions would be bound by latency.
template <int count>
inline void block_scores(const Half* keys, int64_t size, const float* gathered, int64_t queries, float* scores,
                         int64_t stride) {
  for (int part = 0; part < kBlock; part += kLanes) {
    Floats even[count], odd[count];
    for (int q = 0; q < count; q++) even[q] = odd[q] = zeros();
    const float* query = gathered;
    for (int64_t d = 0; d < size; d += 2, query += 2 * queries) {
      const Floats key = load_halves(keys + d * kBlock + part), next = load_halves(keys + (d + 1) * kBlock + part);
      for (int q = 0; q < count; q++) {
        even[q] = multiply_add(key, broadcast(query[q]), even[q]);
        odd[q] = multiply_add(next, broadcast(query[queries + q]), odd[q]);
      }
    }
    for (int q = 0; q < count; q++) store(scores + q * stride + part, add(even[q], odd[q]));
  }
}

inline void tile_scores(int64_t count, const Half* keys, int64_t size, const float* gathered, int64_t queries,
                        float* scores, int64_t stride) {
  switch (count) {
    case 1: return block_scores<1>(keys, size, gathered, queries, scores, stride);
    case 2: return block_scores<2>(keys, size, gathered, queries, scores, stride);
    case 3: return block_scores<3>(keys, size, gathered, queries, scores, stride);
    case 4: return block_scores<4>(keys, size, gathered, queries, scores, stride);
    case 5: return block_scores<5>(keys, size, gathered, queries, scores, stride);
    default: return block_scores<6>(keys, size, gathered, queries, scores, stride);
  }
}

// The score of one slot, by the same additions in the same order.
inline float slot_score(const Half* keys, int64_t size, const float* query) {
  float even = 0, odd = 0;
  for (int64_t d = 0; d < size; d += 2) {
    even = std::fma(to_float(keys[d * kBlock]), query[d], even);
    odd = std::fma(to_float(keys[(d + 1) * kBlock]), query[d + 1], odd);
  }
  return even + odd;
}

// Scores to softmax weights that are not divided by their sum yet; returns one over the sum. Lanes after the last
// position, up to a whole vector, are written, too.
inline float softmax_weights(float* scores, const VisibleKeys& seen) {
  const int64_t end = (seen.count + kLanes - 1) / kLanes * kLanes;
  for (int64_t t = seen.count; t < end; t++) scores[t] = -std::numeric_limits<float>::infinity();
  for (int64_t t = 0; t < seen.first; t++) scores[t] = -std::numeric_limits<float>::infinity();
  Floats most = load(scores);
  for (int64_t t = kLanes; t < end; t += kLanes) most = maximum(most, load(scores + t));
  const Floats largest = broadcast(largest_of(most));
  Floats sum = zeros();
  for (int64_t t = 0; t < end; t += kLanes) {
    const Floats weight = exponential(subtract(load(scores + t), largest));
    store(scores + t, weight);
    sum = add(sum, weight);
  }
  return 1.0f / sum_of(sum);
}

// Positions of a text, some query heads that see all of them, and where their sums of values are.
struct ValueSum {
  const VisibleKeys& seen;
  int64_t from, until;
  const float* weights;  // by query, `stride` apart, and position
  int64_t stride;
  float* const* sums;  // by query
};

// Add weighted values to the sums of `count` queries, over `vectors` vectors of the head's dimensions.
template <int count, int vectors>
inline void add_value_columns(const Heads& heads, const Cache& cache, int64_t layer, int64_t head, int64_t column,
                              const ValueSum& part) {
  Floats sum[count][vectors];
  for (int q = 0; q < count; q++)
    for (int v = 0; v < vectors; v++) sum[q][v] = load(part.sums[q] + column + v * kLanes);
  const auto take = [&](const Half* value, int64_t t) {
    for (int v = 0; v < vectors; v++) {
      const Floats numbers = load_halves(value + column + v * kLanes);
      for (int q = 0; q < count; q++)
        sum[q][v] = multiply_add(numbers, broadcast(part.weights[q * part.stride + t]), sum[q][v]);
    }
  };
  const VisibleKeys& seen = part.seen;
  int64_t t = part.from;
  while (t < std::min(part.until, seen.in_table)) {
    const int64_t until = std::min({(t / kBlock + 1) * kBlock, seen.in_table, part.until});
    const Half* value = heads.value(cache, layer, head, seen.blocks[t / kBlock] * kBlock + t % kBlock);
    for (; t < until; t++, value += heads.size) take(value, t);
  }
  for (; t < part.until; t++) take(heads.value(cache, layer, head, seen.tail[t - seen.in_table]), t);
  for (int q = 0; q < count; q++)
    for (int v = 0; v < vectors; v++) store(part.sums[q] + column + v * kLanes, sum[q][v]);
}

template <int count>
inline void add_value_tile(const Heads& heads, const Cache& cache, int64_t layer, int64_t head, const ValueSum& part) {
  int64_t column = 0;
  for (; column + 4 * kLanes <= heads.size; column += 4 * kLanes)
    add_value_columns<count, 4>(heads, cache, layer, head, column, part);
  for (; column < heads.size; column += kLanes) add_value_columns<count, 1>(heads, cache, layer, head, column, part);
}

constexpr int kValueQueries = kLanes == 16 ? 6 : 3;  // their sums stay in registers

inline void add_values(const Heads& heads, const Cache& cache, int64_t layer, int64_t head, int64_t queries,
                       ValueSum part) {
  if (part.from >= part.until) return;
  for (int64_t left = queries; left > 0;) {
    const int64_t count = std::min<int64_t>(left, kValueQueries);
    switch (count) {
      case 1: add_value_tile<1>(heads, cache, layer, head, part); break;
      case 2: add_value_tile<2>(heads, cache, layer, head, part); break;
      case 3: add_value_tile<3>(heads, cache, layer, head, part); break;
      case 4: add_value_tile<std::min(4, kValueQueries)>(heads, cache, layer, head, part); break;
      case 5: add_value_tile<std::min(5, kValueQueries)>(heads, cache, layer, head, part); break;
      default: add_value_tile<kValueQueries>(heads, cache, layer, head, part);
    }
    left -= count, part.weights += count * part.stride, part.sums += count;
  }
}

// Attention for some query heads of one key head, of some rows of one sequence: row i reads query[i] (heads_here x
// size) and writes to[i]. `scratch` has room for the queries, and for `stride` scores per query.
inline void attend(const Heads& heads, const Cache& cache, int64_t layer, int64_t head, int64_t heads_here, int64_t rows,
                   const VisibleKeys* const* visible, const float* const* query, float* const* to, float* scratch,
                   int64_t stride) {
  const float* queries[kMaxQueries];
  int64_t count = 0, reach = 0;
  for (int64_t r = 0; r < rows; r++) {
    reach = std::max(reach, visible[r]->in_table);
    for (int64_t h = 0; h < heads_here; h++) queries[count++] = query[r] + h * heads.size;
  }
  float* gathered = scratch;
  float* scores = scratch + kMaxQueries * heads.size;
  gather(queries, count, heads.size, gathered);
  const int32_t* blocks = visible[0]->blocks;
  for (int64_t t = 0; t < reach; t += kBlock) {
    const Half* keys = heads.key_block(cache, layer, head, blocks[t / kBlock]);
    for (int64_t q = 0; q < count; q += 6)
      tile_scores(std::min<int64_t>(6, count - q), keys, heads.size, gathered + q, count, scores + q * stride + t, stride);
  }
  float* sums[kMaxQueries];
  float scales[kMaxQueries];
  int64_t from = 0, until = reach;  // positions that all rows see, in the table's order: their values are read once
  for (int64_t r = 0; r < rows; r++) {
    const VisibleKeys& seen = *visible[r];
    from = std::max(from, seen.first), until = std::min(until, seen.in_table);
    for (int64_t h = 0; h < heads_here; h++) {
      float* own = scores + (r * heads_here + h) * stride;
      for (int64_t t = seen.in_table; t < seen.count; t++) {
        const int32_t slot = seen.tail[t - seen.in_table];
        const Half* keys = heads.key_block(cache, layer, head, slot / kBlock) + slot % kBlock;
        own[t] = slot_score(keys, heads.size, query[r] + h * heads.size);
      }
      scales[r * heads_here + h] = softmax_weights(own, seen);
      sums[r * heads_here + h] = to[r] + h * heads.size;
    }
    std::fill_n(to[r], heads_here * heads.size, 0.0f);
  }
  const auto add_own = [&](int64_t r, int64_t first, int64_t last) {
    const int64_t q = r * heads_here;
    add_values(heads, cache, layer, head, heads_here, {*visible[r], first, last, scores + q * stride, stride, sums + q});
  };
  from = std::min(from, until);
  for (int64_t r = 0; r < rows; r++) add_own(r, visible[r]->first, from);
  add_values(heads, cache, layer, head, count, {*visible[0], from, until, scores, stride, sums});
  for (int64_t r = 0; r < rows; r++) add_own(r, std::max(until, visible[r]->first), visible[r]->count);
  for (int64_t q = 0; q < count; q++)
    for (int64_t d = 0; d < heads.size; d += kLanes) store(sums[q] + d, multiply(load(sums[q] + d), broadcast(scales[q])));
}

}  // namespace stride
