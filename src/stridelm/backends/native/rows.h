// Rows of activations, quantised in groups of 32 with a scale each, as the products read them.
//
// Sixteen rows are interleaved, group by group, so that a tile of some of them reaches all of its numbers at constant
// distances from one pointer. Within a group of a row:
//
//   int8    32 bytes in order.
//   int16   x = 256 high + low. With VNNI or NEON 32 high bytes, then 32 low ones, all signed: a product with a byte
//           takes two multiplications of bytes. With AVX2 alone 32 words, and of every eight the inputs 0 2 4 6 1 3 5 7:
//           pairs that unpacking leaves side by side.
#pragma once

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
  int32_t* halves;  // -32 times the sums of a group's two halves: 6-bit weights are stored as q + 32

  int64_t at(int64_t row, int64_t group) const {
    return (row / kInterleaved * groups + group) * kInterleaved + row % kInterleaved;
  }
};

// Thirty-two words.
inline void store_words(eight::Ints first, eight::Ints second, int8_t* to) {
#if STRIDE_SPLITS_WORDS
  // The high byte is rounded, so that the low one is signed; the largest number is 127 * 256 + 127.
  const auto high = [](eight::Ints a) { return eight::upper_bytes(eight::add_saturated16(a, eight::broadcast16(128))); };
  const auto low = [](eight::Ints a, eight::Ints high) { return eight::subtract16(a, eight::shift_left16<8>(high)); };
  const eight::Ints high0 = high(first), high1 = high(second);
  eight::store_ints(to, eight::to_bytes(high0, high1));
  eight::store_ints(to + kGroup, eight::to_bytes(low(first, high0), low(second, high1)));
#else
  eight::store_ints(to, eight::in_pairs(first));
  eight::store_ints(to + kGroup, eight::in_pairs(second));
#endif
}

// Quantise one group of 32 values, as four vectors of eight. In 16 bits the error is 3e-5 of the group's largest value,
// in 8 bits 8e-3.
inline void quantise_group(const float* values, Activations as, const Quantised& to, int64_t row, int64_t group) {
  eight::Floats part[4], most = eight::zeros();
  for (int i = 0; i < 4; i++) {
    part[i] = eight::load(values + 8 * i);
    most = eight::maximum(most, eight::absolute(part[i]));
  }
  const float largest = eight::largest_number(most);
  const float limit = as == Activations::kInt16 ? 32639.0f : 127.0f;
  const float inverse = largest > 1e-34f ? limit / largest : 0.0f;  // of less there is no finite inverse: it counts as 0
  const float scale = largest / limit;
  eight::Ints whole[4], total = eight::zero_ints();
  for (int i = 0; i < 4; i++) {
    whole[i] = eight::to_ints(eight::multiply(part[i], eight::broadcast(inverse)));
    total = eight::add_ints(total, whole[i]);
  }
  const int32_t sum = eight::sum_of_ints(total);
  const int64_t at = to.at(row, group);
  to.scales[at] = scale;
  to.sums[at] = scale * static_cast<float>(sum);
  // These wrap if the values are not finite.
  const uint32_t first_half = static_cast<uint32_t>(eight::sum_of_ints(eight::add_ints(whole[0], whole[1])));
  to.offsets[at] = static_cast<int32_t>(-128u * static_cast<uint32_t>(sum));
  to.halves[2 * at] = static_cast<int32_t>(-32u * first_half);
  to.halves[2 * at + 1] = static_cast<int32_t>(-32u * (static_cast<uint32_t>(sum) - first_half));
  const eight::Ints first = eight::to_words(whole[0], whole[1]), second = eight::to_words(whole[2], whole[3]);
  int8_t* numbers = to.numbers + at * group_bytes(as);
  if (as == Activations::kInt16) store_words(first, second, numbers);
  else eight::store_ints(numbers, eight::to_bytes(first, second));
}

inline void quantise_row(const float* values, Activations as, const Quantised& to, int64_t row) {
  for (int64_t group = 0; group < to.groups; group++) quantise_group(values + group * kGroup, as, to, row, group);
}

}  // namespace stride
