// Keys and values in memory.
//
// The cache's slots come in blocks of 16, as in the engine's tables. The keys of a block are stored with its slots side
// by side, so that 16 scores are computed together; values are stored slot by slot:
//
//   keys    layer, head, block, position in the head, slot of the block
//   values  layer, head, slot, position in the head
//
// Numbers are in half precision, or bytes with a scale per layer, head and slot.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>

#include "lanes.h"

namespace stride {

constexpr int64_t kBlock = 16;

struct Cache {
  void *keys, *values;
  float *key_scales, *value_scales;  // of bytes; null in half precision
  int64_t blocks;

  bool has_bytes() const { return key_scales != nullptr; }
};

struct Heads {
  int64_t layers, key_heads, per_key_head, size;

  // The first slot of a head: where its scales begin.
  int64_t first_slot(const Cache& cache, int64_t layer, int64_t head) const {
    return (layer * key_heads + head) * cache.blocks * kBlock;
  }
  template <class Number>
  Number* key_block(const Cache& cache, int64_t layer, int64_t head, int64_t block) const {
    return static_cast<Number*>(cache.keys) + (first_slot(cache, layer, head) + block * kBlock) * size;
  }
  template <class Number>
  Number* key(const Cache& cache, int64_t layer, int64_t head, int64_t slot) const {
    return key_block<Number>(cache, layer, head, slot / kBlock) + slot % kBlock;
  }
  template <class Number>
  Number* value(const Cache& cache, int64_t layer, int64_t head, int64_t slot) const {
    return static_cast<Number*>(cache.values) + (first_slot(cache, layer, head) + slot) * size;
  }
};

// A vector as bytes; returns their scale.
inline float to_bytes(const float* from, int64_t size, int8_t* to) {
  float largest = 0;
  for (int64_t i = 0; i < size; i++) largest = std::max(largest, std::fabs(from[i]));
  const float inverse = largest > 1e-34f ? 127.0f / largest : 0.0f;  // as in rows.h
  for (int64_t i = 0; i < size; i++) to[i] = static_cast<int8_t>(to_int(from[i] * inverse));
  return largest / 127.0f;
}
inline void to_halves(const float* from, int64_t size, Half* to) {
  for (int64_t i = 0; i < size; i += kLanes) store_halves(to + i, load(from + i));
}

constexpr int64_t kMaxHeadSize = 1024;

inline void store_key(const Heads& heads, const Cache& cache, int64_t layer, int64_t head, int64_t slot,
                      const float* values) {
  const auto spread = [&](const auto* from, auto* to) {
    for (int64_t i = 0; i < heads.size; i++) to[i * kBlock] = from[i];
  };
  if (cache.has_bytes()) {
    int8_t bytes[kMaxHeadSize];
    cache.key_scales[heads.first_slot(cache, layer, head) + slot] = to_bytes(values, heads.size, bytes);
    spread(bytes, heads.key<int8_t>(cache, layer, head, slot));
  } else {
    Half halves[kMaxHeadSize];
    to_halves(values, heads.size, halves);
    spread(halves, heads.key<Half>(cache, layer, head, slot));
  }
}

inline void store_value(const Heads& heads, const Cache& cache, int64_t layer, int64_t head, int64_t slot,
                        const float* values) {
  if (cache.has_bytes())
    cache.value_scales[heads.first_slot(cache, layer, head) + slot] =
        to_bytes(values, heads.size, heads.value<int8_t>(cache, layer, head, slot));
  else
    to_halves(values, heads.size, heads.value<Half>(cache, layer, head, slot));
}

// Copy slots to slots, in order and in all layers. A slot may be overwritten after it is read, never before.
template <class Number>
inline void move_slots(const Heads& heads, const Cache& cache, const int64_t* to, const int64_t* from, int64_t count) {
  for (int64_t layer = 0; layer < heads.layers; layer++)
    for (int64_t head = 0; head < heads.key_heads; head++)
      for (int64_t i = 0; i < count; i++) {
        Number* target = heads.key<Number>(cache, layer, head, to[i]);
        const Number* source = heads.key<Number>(cache, layer, head, from[i]);
        for (int64_t d = 0; d < heads.size; d++) target[d * kBlock] = source[d * kBlock];
        std::memcpy(heads.value<Number>(cache, layer, head, to[i]), heads.value<Number>(cache, layer, head, from[i]),
                    heads.size * sizeof(Number));
        if (!cache.has_bytes()) continue;
        const int64_t first = heads.first_slot(cache, layer, head);
        cache.key_scales[first + to[i]] = cache.key_scales[first + from[i]];
        cache.value_scales[first + to[i]] = cache.value_scales[first + from[i]];
      }
}

}  // namespace stride
