// Rows of activations, quantised in groups of 32 with a scale each, as the products read them.
//
// Sixteen rows are interleaved, group by group, so that a tile of some of them reaches all of its numbers at constant
// distances from one pointer. Within a group of a row:
//
//   int8    32 bytes in order.
//   int16   x = 256 high + low. With VNNI 32 high bytes, then 32 low ones, all signed: a product with a byte takes two
//           multiplications of bytes. With AVX2 alone 32 words, and of every eight the inputs 0 2 4 6 1 3 5 7: pairs
//           that unpacking leaves side by side.
#pragma once

#include <immintrin.h>

#include <cstdint>

#include "lanes.h"

namespace stride {

constexpr int kGroup = 32;
constexpr int kInterleaved = 16;

enum class Activations : int64_t { kInt16 = 16, kInt8 = 8 };

constexpr int64_t group_bytes(Activations as) { return as == Activations::kInt16 ? 2 * kGroup : kGroup; }

// Does not own its memory, which is for a multiple of 16 rows.
struct Quantised {
  int8_t* numbers;
  float* scales;
  float* sums;       // the sum of each group's values, for the minima
  int32_t* offsets;  // -128 times the sum of each group's numbers: 8-bit weights are stored as q + 128
  int64_t groups;

  int64_t at(int64_t row, int64_t group) const {
    return (row / kInterleaved * groups + group) * kInterleaved + row % kInterleaved;
  }
};

inline int32_t sum_of_ints(__m256i a) {
  __m128i sum = _mm_add_epi32(_mm256_castsi256_si128(a), _mm256_extracti128_si256(a, 1));
  sum = _mm_add_epi32(sum, _mm_shuffle_epi32(sum, 0x4e));
  return _mm_cvtsi128_si32(_mm_add_epi32(sum, _mm_shuffle_epi32(sum, 0xb1)));
}

// Sixteen 32-bit integers to words, in order.
inline __m256i to_words(__m256i a, __m256i b) { return _mm256_permute4x64_epi64(_mm256_packs_epi32(a, b), 0xd8); }
// Thirty-two words to bytes, in order.
inline __m256i to_bytes(__m256i a, __m256i b) { return _mm256_permute4x64_epi64(_mm256_packs_epi16(a, b), 0xd8); }

inline void store_words(__m256i first, __m256i second, int8_t* to) {
  __m256i* vectors = reinterpret_cast<__m256i*>(to);
  if constexpr (kHasVnni) {
    // The high byte is rounded, so that the low one is signed; the largest number is 127 * 256 + 127.
    const auto high = [](__m256i a) { return _mm256_srai_epi16(_mm256_adds_epi16(a, _mm256_set1_epi16(128)), 8); };
    const __m256i high0 = high(first), high1 = high(second);
    _mm256_storeu_si256(vectors, to_bytes(high0, high1));
    _mm256_storeu_si256(vectors + 1, to_bytes(_mm256_sub_epi16(first, _mm256_slli_epi16(high0, 8)),
                                              _mm256_sub_epi16(second, _mm256_slli_epi16(high1, 8))));
  } else {
    const __m256i order = _mm256_broadcastsi128_si256(_mm_setr_epi8(0, 1, 4, 5, 8, 9, 12, 13, 2, 3, 6, 7, 10, 11, 14, 15));
    _mm256_storeu_si256(vectors, _mm256_shuffle_epi8(first, order));
    _mm256_storeu_si256(vectors + 1, _mm256_shuffle_epi8(second, order));
  }
}

// Quantise one group of 32 values. In 16 bits the error is 3e-5 of the group's largest value, in 8 bits 8e-3.
inline void quantise_group(const float* values, Activations as, const Quantised& to, int64_t row, int64_t group) {
  __m256 part[4], most = _mm256_setzero_ps();
  const __m256 sign = _mm256_set1_ps(-0.0f);
  for (int i = 0; i < 4; i++) {
    part[i] = _mm256_loadu_ps(values + 8 * i);
    most = _mm256_max_ps(most, _mm256_andnot_ps(sign, part[i]));
  }
  __m128 four = _mm_max_ps(_mm256_castps256_ps128(most), _mm256_extractf128_ps(most, 1));
  four = _mm_max_ps(four, _mm_movehl_ps(four, four));
  const float largest = _mm_cvtss_f32(_mm_max_ss(four, _mm_shuffle_ps(four, four, 1)));
  const float limit = as == Activations::kInt16 ? 32639.0f : 127.0f;
  const float inverse = largest > 1e-34f ? limit / largest : 0.0f;  // of less there is no finite inverse: it counts as 0
  const float scale = largest / limit;
  __m256i whole[4], total = _mm256_setzero_si256();
  for (int i = 0; i < 4; i++) {
    whole[i] = _mm256_cvtps_epi32(_mm256_mul_ps(part[i], _mm256_set1_ps(inverse)));
    total = _mm256_add_epi32(total, whole[i]);
  }
  const int32_t sum = sum_of_ints(total);
  const int64_t at = to.at(row, group);
  to.scales[at] = scale;
  to.sums[at] = scale * static_cast<float>(sum);
  to.offsets[at] = static_cast<int32_t>(-128u * static_cast<uint32_t>(sum));  // wraps if the values are not finite
  const __m256i first = to_words(whole[0], whole[1]), second = to_words(whole[2], whole[3]);
  int8_t* numbers = to.numbers + at * group_bytes(as);
  if (as == Activations::kInt16) store_words(first, second, numbers);
  else _mm256_storeu_si256(reinterpret_cast<__m256i*>(numbers), to_bytes(first, second));
}

inline void quantise_row(const float* values, Activations as, const Quantised& to, int64_t row) {
  for (int64_t group = 0; group < to.groups; group++) quantise_group(values + group * kGroup, as, to, row, group);
}

}  // namespace stride
