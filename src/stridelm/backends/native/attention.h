// Attention of rows over the cache (key_values.h): the text before them, and their own ancestors in the step.
//
// Every score is a sum of its own, and weights and values are summed in the order of positions. The slot of a position
// and the other rows of the step do not change a bit of the result.
//
// `Number`: what the cache holds, Half or int8_t.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>

#include "key_values.h"
#include "lanes.h"

namespace stride {

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

// The keys of 16 slots. `scales` is null in half precision.
template <class Number>
struct KeyBlock {
  const Number* keys;
  const float* scales;
};

// The scores of 16 slots, for `count` of the `queries` gathered ones. Two sums each, over the even and the odd
// dimensions of the head: a single chain of additions would be bound by latency.
template <int count, class Number>
inline void block_scores(const KeyBlock<Number>& block, int64_t size, const float* gathered, int64_t queries,
                         float* scores, int64_t stride) {
  for (int part = 0; part < kBlock; part += kLanes) {
    Floats even[count], odd[count];
    for (int q = 0; q < count; q++) even[q] = odd[q] = zeros();
    const float* query = gathered;
    for (int64_t d = 0; d < size; d += 2, query += 2 * queries) {
      const Number* at = block.keys + d * kBlock + part;
      const Floats key = load_numbers(at), next = load_numbers(at + kBlock);
      for (int q = 0; q < count; q++) {
        even[q] = multiply_add(key, broadcast(query[q]), even[q]);
        odd[q] = multiply_add(next, broadcast(query[queries + q]), odd[q]);
      }
    }
    for (int q = 0; q < count; q++) {
      Floats score = add(even[q], odd[q]);
      if (block.scales) score = multiply(score, load(block.scales + part));
      store(scores + q * stride + part, score);
    }
  }
}

template <class Number>
inline void tile_scores(int64_t count, const KeyBlock<Number>& block, int64_t size, const float* gathered,
                        int64_t queries, float* scores, int64_t stride) {
  switch (count) {
    case 1: return block_scores<1>(block, size, gathered, queries, scores, stride);
    case 2: return block_scores<2>(block, size, gathered, queries, scores, stride);
    case 3: return block_scores<3>(block, size, gathered, queries, scores, stride);
    case 4: return block_scores<4>(block, size, gathered, queries, scores, stride);
    case 5: return block_scores<5>(block, size, gathered, queries, scores, stride);
    default: return block_scores<6>(block, size, gathered, queries, scores, stride);
  }
}

// The score of one slot, by the same additions in the same order.
template <class Number>
inline float slot_score(const Number* keys, const float* scale, int64_t size, const float* query) {
  float even = 0, odd = 0;
  for (int64_t d = 0; d < size; d += 2) {
    even = std::fma(to_float(keys[d * kBlock]), query[d], even);
    odd = std::fma(to_float(keys[(d + 1) * kBlock]), query[d + 1], odd);
  }
  return scale ? (even + odd) * *scale : even + odd;
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
template <class Number, int count, int vectors>
inline void add_value_columns(const Heads& heads, const Cache& cache, int64_t layer, int64_t head, int64_t column,
                              const ValueSum& part) {
  Floats sum[count][vectors];
  for (int q = 0; q < count; q++)
    for (int v = 0; v < vectors; v++) sum[q][v] = load(part.sums[q] + column + v * kLanes);
  const auto take = [&](const Number* value, int64_t t) {
    for (int v = 0; v < vectors; v++) {
      const Floats numbers = load_numbers(value + column + v * kLanes);
      for (int q = 0; q < count; q++)
        sum[q][v] = multiply_add(numbers, broadcast(part.weights[q * part.stride + t]), sum[q][v]);
    }
  };
  const VisibleKeys& seen = part.seen;
  int64_t t = part.from;
  while (t < std::min(part.until, seen.in_table)) {
    const int64_t until = std::min({(t / kBlock + 1) * kBlock, seen.in_table, part.until});
    const Number* value = heads.value<Number>(cache, layer, head, seen.blocks[t / kBlock] * kBlock + t % kBlock);
    for (; t < until; t++, value += heads.size) take(value, t);
  }
  for (; t < part.until; t++) take(heads.value<Number>(cache, layer, head, seen.tail[t - seen.in_table]), t);
  for (int q = 0; q < count; q++)
    for (int v = 0; v < vectors; v++) store(part.sums[q] + column + v * kLanes, sum[q][v]);
}

template <class Number, int count>
inline void add_value_tile(const Heads& heads, const Cache& cache, int64_t layer, int64_t head, const ValueSum& part) {
  int64_t column = 0;
  for (; column + 4 * kLanes <= heads.size; column += 4 * kLanes)
    add_value_columns<Number, count, 4>(heads, cache, layer, head, column, part);
  for (; column < heads.size; column += kLanes)
    add_value_columns<Number, count, 1>(heads, cache, layer, head, column, part);
}

constexpr int kValueQueries = kLanes == 16 ? 6 : 3;  // their sums stay in registers

template <class Number>
inline void add_values(const Heads& heads, const Cache& cache, int64_t layer, int64_t head, int64_t queries,
                       ValueSum part) {
  if (part.from >= part.until) return;
  for (int64_t left = queries; left > 0;) {
    const int64_t count = std::min<int64_t>(left, kValueQueries);
    switch (count) {
      case 1: add_value_tile<Number, 1>(heads, cache, layer, head, part); break;
      case 2: add_value_tile<Number, 2>(heads, cache, layer, head, part); break;
      case 3: add_value_tile<Number, 3>(heads, cache, layer, head, part); break;
      case 4: add_value_tile<Number, std::min(4, kValueQueries)>(heads, cache, layer, head, part); break;
      case 5: add_value_tile<Number, std::min(5, kValueQueries)>(heads, cache, layer, head, part); break;
      default: add_value_tile<Number, kValueQueries>(heads, cache, layer, head, part);
    }
    left -= count, part.weights += count * part.stride, part.sums += count;
  }
}

// Multiply weights by the scales of their positions' values.
inline void scale_weights(const float* scales, const VisibleKeys& seen, float* weights) {
  for (int64_t t = seen.first; t < seen.in_table; t++)
    weights[t] *= scales[seen.blocks[t / kBlock] * kBlock + t % kBlock];
  for (int64_t t = std::max(seen.first, seen.in_table); t < seen.count; t++)
    weights[t] *= scales[seen.tail[t - seen.in_table]];
}

// Attention for some query heads of one key head, of some rows of one sequence: row i reads query[i] (heads_here x
// size) and writes to[i]. `scratch` has room for the queries, and for `stride` scores per query.
template <class Number>
void attend(const Heads& heads, const Cache& cache, int64_t layer, int64_t head, int64_t heads_here, int64_t rows,
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
  const int64_t first_slot = heads.first_slot(cache, layer, head);
  const float* key_scales = cache.has_bytes() ? cache.key_scales + first_slot : nullptr;
  for (int64_t t = 0; t < reach; t += kBlock) {
    const int32_t block = blocks[t / kBlock];
    const KeyBlock<Number> keys{heads.key_block<Number>(cache, layer, head, block),
                                key_scales ? key_scales + block * kBlock : nullptr};
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
        own[t] = slot_score(heads.key<Number>(cache, layer, head, slot), key_scales ? key_scales + slot : nullptr,
                            heads.size, query[r] + h * heads.size);
      }
      scales[r * heads_here + h] = softmax_weights(own, seen);
      if (cache.has_bytes()) scale_weights(cache.value_scales + first_slot, seen, own);
      sums[r * heads_here + h] = to[r] + h * heads.size;
    }
    std::fill_n(to[r], heads_here * heads.size, 0.0f);
  }
  const auto add_own = [&](int64_t r, int64_t first, int64_t last) {
    const int64_t q = r * heads_here;
    const ValueSum part{*visible[r], first, last, scores + q * stride, stride, sums + q};
    add_values<Number>(heads, cache, layer, head, heads_here, part);
  };
  from = std::min(from, until);
  for (int64_t r = 0; r < rows; r++) add_own(r, visible[r]->first, from);
  add_values<Number>(heads, cache, layer, head, count, {*visible[0], from, until, scores, stride, sums});
  for (int64_t r = 0; r < rows; r++) add_own(r, std::max(until, visible[r]->first), visible[r]->count);
  for (int64_t q = 0; q < count; q++)
    for (int64_t d = 0; d < heads.size; d += kLanes)
      store(sums[q] + d, multiply(load(sums[q] + d), broadcast(scales[q])));
}

}  // namespace stride
