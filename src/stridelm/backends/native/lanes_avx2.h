// Eight floats side by side: AVX2, FMA and F16C.
#pragma once

#include <immintrin.h>

#include <cstdint>

namespace stride {

using Half = uint16_t;  // a number in half precision
inline float to_float(Half a) { return _cvtsh_ss(a); }
inline int to_int(float a) { return _mm_cvtss_si32(_mm_set_ss(a)); }
inline void pause_spinning() { _mm_pause(); }

namespace eight {

constexpr int kLanes = 8;
constexpr bool kHasVnni = false;
using Ints = __m256i;
using Floats = __m256;

inline Ints zero_ints() { return _mm256_setzero_si256(); }
inline Ints load_ints(const void* from) { return _mm256_loadu_si256(static_cast<const __m256i*>(from)); }
inline void store_ints(void* to, Ints a) { _mm256_storeu_si256(static_cast<__m256i*>(to), a); }
inline Ints broadcast_bytes(const void* four_bytes) { return _mm256_set1_epi32(*static_cast<const int32_t*>(four_bytes)); }
inline Ints broadcast16(int value) { return _mm256_set1_epi16(static_cast<int16_t>(value)); }
inline Ints broadcast8(int value) { return _mm256_set1_epi8(static_cast<int8_t>(value)); }
inline Ints bit_and(Ints a, Ints b) { return _mm256_and_si256(a, b); }
inline Ints bit_or(Ints a, Ints b) { return _mm256_or_si256(a, b); }
template <int count>
inline Ints shift_right16(Ints a) { return _mm256_srli_epi16(a, count); }
template <int count>
inline Ints shift_left16(Ints a) { return _mm256_slli_epi16(a, count); }
template <int count>
inline Ints shift_right32(Ints a) { return _mm256_srli_epi32(a, count); }
inline Ints add_ints(Ints a, Ints b) { return _mm256_add_epi32(a, b); }
inline Ints flip_bits(Ints a) { return _mm256_xor_si256(a, _mm256_set1_epi32(-1)); }

inline Ints broadcast64(uint64_t value) { return _mm256_set1_epi64x(static_cast<int64_t>(value)); }
inline Ints add64(Ints a, Ints b) { return _mm256_add_epi64(a, b); }
// From products of 32 bits: the upper halves' own product is beyond the 64 bits.
inline Ints multiply64(Ints a, uint64_t b) {
  const Ints low = broadcast64(b & 0xffffffff), high = broadcast64(b >> 32);
  const Ints crossed = add64(_mm256_mul_epu32(_mm256_srli_epi64(a, 32), low), _mm256_mul_epu32(a, high));
  return add64(_mm256_mul_epu32(a, low), _mm256_slli_epi64(crossed, 32));
}
template <int count>
inline Ints xor_shifted64(Ints a) { return _mm256_xor_si256(a, _mm256_srli_epi64(a, count)); }
inline Ints upper_halves(Ints a, Ints b) {
  const Floats joined = _mm256_shuffle_ps(_mm256_castsi256_ps(a), _mm256_castsi256_ps(b), _MM_SHUFFLE(3, 1, 3, 1));
  return _mm256_permute4x64_epi64(_mm256_castps_si256(joined), _MM_SHUFFLE(3, 1, 2, 0));
}
// The lower and the upper of every two signed bytes, as 16-bit integers.
inline Ints lower_bytes(Ints a) { return _mm256_srai_epi16(_mm256_slli_epi16(a, 8), 8); }
inline Ints upper_bytes(Ints a) { return _mm256_srai_epi16(a, 8); }
inline Ints flip_signs(Ints a) { return _mm256_xor_si256(a, _mm256_set1_epi8(-128)); }

// To 16 bits, and to 8: as near as these come to a number that is too large.
inline Ints to_words(Ints a, Ints b) { return _mm256_permute4x64_epi64(_mm256_packs_epi32(a, b), 0xd8); }
inline Ints to_bytes(Ints a, Ints b) { return _mm256_permute4x64_epi64(_mm256_packs_epi16(a, b), 0xd8); }
inline Ints add_saturated16(Ints a, Ints b) { return _mm256_adds_epi16(a, b); }
inline Ints subtract16(Ints a, Ints b) { return _mm256_sub_epi16(a, b); }
// Of every eight words 0 2 4 6 1 3 5 7.
inline Ints in_pairs(Ints a) {
  const __m128i order = _mm_setr_epi8(0, 1, 4, 5, 8, 9, 12, 13, 2, 3, 6, 7, 10, 11, 14, 15);
  return _mm256_shuffle_epi8(a, _mm256_broadcastsi128_si256(order));
}
inline int32_t sum_of_ints(Ints a) {
  __m128i sum = _mm_add_epi32(_mm256_castsi256_si128(a), _mm256_extracti128_si256(a, 1));
  sum = _mm_add_epi32(sum, _mm_shuffle_epi32(sum, 0x4e));
  return _mm_cvtsi128_si32(_mm_add_epi32(sum, _mm_shuffle_epi32(sum, 0xb1)));
}

// GCC reorders a chain of integer additions and then runs out of registers; an empty asm statement prevents that.
inline Ints in_order(Ints a) {
  asm("" : "+x"(a));
  return a;
}
// sum += a0 b0 + a1 b1, 16-bit integers.
inline Ints add_pairs(Ints sum, Ints a, Ints b) { return in_order(_mm256_add_epi32(sum, _mm256_madd_epi16(a, b))); }
// sum += a0 b0 + .. + a3 b3, unsigned times signed bytes; `add_up` completes such a sum.
// In 16 bits: a group has 16 products per lane of at most 15 x 127, which fit, so they are widened once, at its end.
constexpr bool kSignedQuads = false;
inline Ints add_quads(Ints sum, Ints a, Ints b) { return in_order(_mm256_add_epi16(sum, _mm256_maddubs_epi16(a, b))); }
inline Ints add_up(Ints sum) { return _mm256_madd_epi16(sum, _mm256_set1_epi16(1)); }
// A complete sum += two such quads; `a` is less than 64, so that four products fit into 16 bits.
inline Ints add_eight(Ints sum, Ints a0, Ints b0, Ints a1, Ints b1) {
  const Ints words = _mm256_add_epi16(_mm256_maddubs_epi16(a0, b0), _mm256_maddubs_epi16(a1, b1));
  return in_order(_mm256_add_epi32(sum, add_up(words)));
}

inline Floats zeros() { return _mm256_setzero_ps(); }
inline Floats load(const float* from) { return _mm256_loadu_ps(from); }
inline void store(float* to, Floats a) { _mm256_storeu_ps(to, a); }
inline Floats load_halves(const void* from) { return _mm256_cvtph_ps(_mm_loadu_si128(static_cast<const __m128i*>(from))); }
inline void store_halves(void* to, Floats a) {
  _mm_storeu_si128(static_cast<__m128i*>(to), _mm256_cvtps_ph(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}
inline Floats load_bytes(const int8_t* from) {
  return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(from))));
}
inline Floats load_bytes(const uint8_t* from) {
  return _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(from))));
}
inline Floats broadcast(float value) { return _mm256_set1_ps(value); }
inline Floats to_floats(Ints a) { return _mm256_cvtepi32_ps(a); }
inline Ints to_ints(Floats a) { return _mm256_cvtps_epi32(a); }
inline Floats round(Floats a) { return _mm256_round_ps(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
inline Floats add(Floats a, Floats b) { return _mm256_add_ps(a, b); }
inline Floats subtract(Floats a, Floats b) { return _mm256_sub_ps(a, b); }
inline Floats multiply(Floats a, Floats b) { return _mm256_mul_ps(a, b); }
inline Floats divide(Floats a, Floats b) { return _mm256_div_ps(a, b); }
inline Floats multiply_add(Floats a, Floats b, Floats c) { return _mm256_fmadd_ps(a, b, c); }
inline Floats maximum(Floats a, Floats b) { return _mm256_max_ps(a, b); }
inline Floats absolute(Floats a) { return _mm256_andnot_ps(_mm256_set1_ps(-0.0f), a); }
inline float largest_number(Floats a) {
  __m128 four = _mm_max_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
  four = _mm_max_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_max_ss(four, _mm_shuffle_ps(four, four, 1)));
}
inline bool any_above(Floats a, Floats b) { return _mm256_movemask_ps(_mm256_cmp_ps(a, b, _CMP_GT_OQ)) != 0; }
inline bool any_nan(Floats a, Floats b) { return _mm256_movemask_ps(_mm256_cmp_ps(a, b, _CMP_UNORD_Q)) != 0; }
inline uint32_t at_least(Floats a, Floats b) {
  return static_cast<uint32_t>(_mm256_movemask_ps(_mm256_cmp_ps(a, b, _CMP_GE_OQ)));
}
inline Floats where_at_least(Floats a, Floats b, Floats value) {
  return _mm256_and_ps(_mm256_cmp_ps(a, b, _CMP_GE_OQ), value);
}
inline Ints bits_of(Floats a) { return _mm256_castps_si256(a); }
inline Floats minimum_of(Floats a, Floats b) { return _mm256_min_ps(a, b); }
inline Floats scale_by_power(Floats a, Ints power) {
  return _mm256_castsi256_ps(_mm256_add_epi32(_mm256_castps_si256(a), _mm256_slli_epi32(power, 23)));
}
constexpr int kMaxRows = 6;

}  // namespace eight
}  // namespace stride
