// Vectors of as many outputs as the processor adds side by side: 16 with AVX-512 and VNNI, 8 with AVX2.
//
// Everything above this file is written once, in terms of these few operations. The weights are packed for the width,
// so a packed file is of use to one of the two only (`stride_lanes` says which).
#pragma once

#include <immintrin.h>

#include <cstdint>

namespace stride {

#if defined(__AVX512VNNI__) && defined(__AVX512BW__) && defined(__AVX512VL__)

constexpr int kLanes = 16;
using Ints = __m512i;
using Floats = __m512;

inline Ints zero_ints() { return _mm512_setzero_si512(); }
inline Ints load_ints(const void* from) { return _mm512_loadu_si512(from); }
inline Ints spread(const void* four_bytes) { return _mm512_set1_epi32(*static_cast<const int32_t*>(four_bytes)); }
inline Ints every16(int value) { return _mm512_set1_epi16(static_cast<int16_t>(value)); }
inline Ints every8(int value) { return _mm512_set1_epi8(static_cast<int8_t>(value)); }
inline Ints both(Ints a, Ints b) { return _mm512_and_si512(a, b); }
template <int count>
inline Ints shift_right16(Ints a) { return _mm512_srli_epi16(a, count); }
// Signed bytes, two a lane, as 16-bit numbers.
inline Ints widen(const void* from) { return _mm512_cvtepi8_epi16(_mm256_loadu_si256(static_cast<const __m256i*>(from))); }

// sum += a0 b0 + a1 b1, 16-bit numbers.
inline Ints add_pairs(Ints sum, Ints a, Ints b) { return _mm512_dpwssd_epi32(sum, a, b); }
// sum += a0 b0 + .. + a3 b3, unsigned times signed bytes; `add_up` ends such a sum.
inline Ints add_quads(Ints sum, Ints a, Ints b) { return _mm512_dpbusd_epi32(sum, a, b); }
inline Ints add_up(Ints sum) { return sum; }

inline Floats zeros() { return _mm512_setzero_ps(); }
inline Floats load(const float* from) { return _mm512_loadu_ps(from); }
inline void store(float* to, Floats a) { _mm512_storeu_ps(to, a); }
inline Floats load_halves(const void* from) { return _mm512_cvtph_ps(_mm256_loadu_si256(static_cast<const __m256i*>(from))); }
inline Floats every(float value) { return _mm512_set1_ps(value); }
inline Floats to_floats(Ints a) { return _mm512_cvtepi32_ps(a); }
inline Ints to_ints(Floats a) { return _mm512_cvtps_epi32(a); }
inline Floats round(Floats a) { return _mm512_roundscale_ps(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
inline Floats add(Floats a, Floats b) { return _mm512_add_ps(a, b); }
inline Floats subtract(Floats a, Floats b) { return _mm512_sub_ps(a, b); }
inline Floats multiply(Floats a, Floats b) { return _mm512_mul_ps(a, b); }
inline Floats divide(Floats a, Floats b) { return _mm512_div_ps(a, b); }
inline Floats multiply_add(Floats a, Floats b, Floats c) { return _mm512_fmadd_ps(a, b, c); }
inline Floats larger(Floats a, Floats b) { return _mm512_max_ps(a, b); }
inline Floats smaller(Floats a, Floats b) { return _mm512_min_ps(a, b); }
inline Floats scale_by_power(Floats a, Ints power) {
  return _mm512_castsi512_ps(_mm512_add_epi32(_mm512_castps_si512(a), _mm512_slli_epi32(power, 23)));
}
// The accumulators of this many rows and panels stay in registers.
constexpr int kMostRows = 6;

#elif defined(__AVX2__) && defined(__FMA__) && defined(__F16C__)

constexpr int kLanes = 8;
using Ints = __m256i;
using Floats = __m256;

inline Ints zero_ints() { return _mm256_setzero_si256(); }
inline Ints load_ints(const void* from) { return _mm256_loadu_si256(static_cast<const __m256i*>(from)); }
inline Ints spread(const void* four_bytes) { return _mm256_set1_epi32(*static_cast<const int32_t*>(four_bytes)); }
inline Ints every16(int value) { return _mm256_set1_epi16(static_cast<int16_t>(value)); }
inline Ints every8(int value) { return _mm256_set1_epi8(static_cast<int8_t>(value)); }
inline Ints both(Ints a, Ints b) { return _mm256_and_si256(a, b); }
template <int count>
inline Ints shift_right16(Ints a) { return _mm256_srli_epi16(a, count); }
inline Ints widen(const void* from) { return _mm256_cvtepi8_epi16(_mm_loadu_si128(static_cast<const __m128i*>(from))); }

// GCC reorders a chain of integer additions and then runs out of registers; what it cannot see into, it leaves alone.
inline Ints in_order(Ints a) {
  asm("" : "+x"(a));
  return a;
}
inline Ints add_pairs(Ints sum, Ints a, Ints b) { return in_order(_mm256_add_epi32(sum, _mm256_madd_epi16(a, b))); }
// In 16 bits: a group's 16 products a lane of at most 15 x 127 have room, so they are widened once, at its end.
inline Ints add_quads(Ints sum, Ints a, Ints b) { return in_order(_mm256_add_epi16(sum, _mm256_maddubs_epi16(a, b))); }
inline Ints add_up(Ints sum) { return _mm256_madd_epi16(sum, _mm256_set1_epi16(1)); }

inline Floats zeros() { return _mm256_setzero_ps(); }
inline Floats load(const float* from) { return _mm256_loadu_ps(from); }
inline void store(float* to, Floats a) { _mm256_storeu_ps(to, a); }
inline Floats load_halves(const void* from) { return _mm256_cvtph_ps(_mm_loadu_si128(static_cast<const __m128i*>(from))); }
inline Floats every(float value) { return _mm256_set1_ps(value); }
inline Floats to_floats(Ints a) { return _mm256_cvtepi32_ps(a); }
inline Ints to_ints(Floats a) { return _mm256_cvtps_epi32(a); }
inline Floats round(Floats a) { return _mm256_round_ps(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
inline Floats add(Floats a, Floats b) { return _mm256_add_ps(a, b); }
inline Floats subtract(Floats a, Floats b) { return _mm256_sub_ps(a, b); }
inline Floats multiply(Floats a, Floats b) { return _mm256_mul_ps(a, b); }
inline Floats divide(Floats a, Floats b) { return _mm256_div_ps(a, b); }
inline Floats multiply_add(Floats a, Floats b, Floats c) { return _mm256_fmadd_ps(a, b, c); }
inline Floats larger(Floats a, Floats b) { return _mm256_max_ps(a, b); }
inline Floats smaller(Floats a, Floats b) { return _mm256_min_ps(a, b); }
inline Floats scale_by_power(Floats a, Ints power) {
  return _mm256_castsi256_ps(_mm256_add_epi32(_mm256_castps_si256(a), _mm256_slli_epi32(power, 23)));
}
constexpr int kMostRows = 6;

#else
#error "the native backend needs AVX2, FMA and F16C"
#endif

inline float lane(Floats a, int index) {
  alignas(64) float lanes[kLanes];
  store(lanes, a);
  return lanes[index];
}

// The lanes' sum, in one order.
inline float sum_of(Floats a) {
  alignas(64) float lanes[kLanes];
  store(lanes, a);
  for (int half = kLanes / 2; half > 0; half /= 2)
    for (int i = 0; i < half; i++) lanes[i] += lanes[i + half];
  return lanes[0];
}

inline float largest_of(Floats a) {
  alignas(64) float lanes[kLanes];
  store(lanes, a);
  float best = lanes[0];
  for (int i = 1; i < kLanes; i++) best = lanes[i] > best ? lanes[i] : best;
  return best;
}

// e^x to about one unit in the last place: 2^n times a polynomial on [-ln 2 / 2, ln 2 / 2].
inline Floats exponential(Floats x) {
  x = larger(smaller(x, every(88.0f)), every(-87.0f));
  const Floats n = round(multiply(x, every(1.44269504f)));
  Floats r = multiply_add(n, every(-0.693359375f), x);
  r = multiply_add(n, every(2.12194440e-4f), r);
  Floats p = every(1.0f / 5040);
  for (float coefficient : {1.0f / 720, 1.0f / 120, 1.0f / 24, 1.0f / 6, 0.5f, 1.0f, 1.0f})
    p = multiply_add(p, r, every(coefficient));
  return scale_by_power(p, to_ints(n));
}

}  // namespace stride
