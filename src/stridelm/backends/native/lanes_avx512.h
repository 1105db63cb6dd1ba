// Sixteen floats side by side: AVX-512 with VNNI. Whoever needs eight beside them takes those of AVX2.
#pragma once

#include <immintrin.h>

#include <cstdint>

namespace stride::sixteen {

constexpr int kLanes = 16;
constexpr bool kHasVnni = true;
using Ints = __m512i;
using Floats = __m512;

inline Ints zero_ints() { return _mm512_setzero_si512(); }
inline Ints load_ints(const void* from) { return _mm512_loadu_si512(from); }
inline Ints broadcast_bytes(const void* four_bytes) { return _mm512_set1_epi32(*static_cast<const int32_t*>(four_bytes)); }
inline Ints broadcast8(int value) { return _mm512_set1_epi8(static_cast<int8_t>(value)); }
inline Ints bit_and(Ints a, Ints b) { return _mm512_and_si512(a, b); }
inline Ints bit_or(Ints a, Ints b) { return _mm512_or_si512(a, b); }
template <int count>
inline Ints shift_right16(Ints a) { return _mm512_srli_epi16(a, count); }
template <int count>
inline Ints shift_left16(Ints a) { return _mm512_slli_epi16(a, count); }
template <int count>
inline Ints shift_left32(Ints a) { return _mm512_slli_epi32(a, count); }
template <int count>
inline Ints shift_right32(Ints a) { return _mm512_srli_epi32(a, count); }
inline Ints flip_bits(Ints a) { return _mm512_xor_si512(a, _mm512_set1_epi32(-1)); }
inline Ints add_ints(Ints a, Ints b) { return _mm512_add_epi32(a, b); }

// Half as many 64-bit words; products keep their lower half. `upper_halves` joins two vectors of them.
inline Ints broadcast64(uint64_t value) { return _mm512_set1_epi64(static_cast<int64_t>(value)); }
inline Ints add64(Ints a, Ints b) { return _mm512_add_epi64(a, b); }
inline Ints multiply64(Ints a, uint64_t b) { return _mm512_mullo_epi64(a, broadcast64(b)); }
template <int count>
inline Ints xor_shifted64(Ints a) { return _mm512_xor_si512(a, _mm512_srli_epi64(a, count)); }
inline Ints upper_halves(Ints a, Ints b) {
  const Ints odd = _mm512_setr_epi32(1, 3, 5, 7, 9, 11, 13, 15, 17, 19, 21, 23, 25, 27, 29, 31);
  return _mm512_permutex2var_epi32(a, odd, b);
}

inline Ints flip_signs(Ints a) { return _mm512_xor_si512(a, _mm512_set1_epi8(-128)); }

// sum += a0 b0 + .. + a3 b3, unsigned times signed bytes; `add_up` completes such a sum.
constexpr bool kSignedQuads = false;
inline Ints add_quads(Ints sum, Ints a, Ints b) { return _mm512_dpbusd_epi32(sum, a, b); }
inline Ints add_up(Ints sum) { return sum; }
// A complete sum += two such quads; `a` is less than 64.
inline Ints add_eight(Ints sum, Ints a0, Ints b0, Ints a1, Ints b1) { return add_quads(add_quads(sum, a0, b0), a1, b1); }

inline Floats zeros() { return _mm512_setzero_ps(); }
inline Floats load(const float* from) { return _mm512_loadu_ps(from); }
inline void store(float* to, Floats a) { _mm512_storeu_ps(to, a); }
inline Floats load_halves(const void* from) { return _mm512_cvtph_ps(_mm256_loadu_si256(static_cast<const __m256i*>(from))); }
inline void store_halves(void* to, Floats a) {
  _mm256_storeu_si256(static_cast<__m256i*>(to), _mm512_cvtps_ph(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}
inline Floats load_bytes(const int8_t* from) {
  return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from))));
}
inline Floats load_bytes(const uint8_t* from) {
  return _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from))));
}
inline Floats broadcast(float value) { return _mm512_set1_ps(value); }
inline Floats to_floats(Ints a) { return _mm512_cvtepi32_ps(a); }
inline Ints to_ints(Floats a) { return _mm512_cvtps_epi32(a); }
inline Floats round(Floats a) { return _mm512_roundscale_ps(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
inline Floats add(Floats a, Floats b) { return _mm512_add_ps(a, b); }
inline Floats subtract(Floats a, Floats b) { return _mm512_sub_ps(a, b); }
inline Floats multiply(Floats a, Floats b) { return _mm512_mul_ps(a, b); }
inline Floats divide(Floats a, Floats b) { return _mm512_div_ps(a, b); }
inline Floats multiply_add(Floats a, Floats b, Floats c) { return _mm512_fmadd_ps(a, b, c); }
inline Floats maximum(Floats a, Floats b) { return _mm512_max_ps(a, b); }
inline bool any_above(Floats a, Floats b) { return _mm512_cmp_ps_mask(a, b, _CMP_GT_OQ) != 0; }
inline bool any_nan(Floats a, Floats b) { return _mm512_cmp_ps_mask(a, b, _CMP_UNORD_Q) != 0; }
// A bit per lane.
inline uint32_t at_least(Floats a, Floats b) { return _mm512_cmp_ps_mask(a, b, _CMP_GE_OQ); }
// `value` where a is at least b, elsewhere zero.
inline Floats where_at_least(Floats a, Floats b, Floats value) {
  return _mm512_maskz_mov_ps(_mm512_cmp_ps_mask(a, b, _CMP_GE_OQ), value);
}
inline Ints bits_of(Floats a) { return _mm512_castps_si512(a); }
inline Floats minimum_of(Floats a, Floats b) { return _mm512_min_ps(a, b); }
inline Floats scale_by_power(Floats a, Ints power) {
  return _mm512_castsi512_ps(_mm512_add_epi32(_mm512_castps_si512(a), _mm512_slli_epi32(power, 23)));
}
// The accumulators of this many rows stay in registers.
constexpr int kMaxRows = 8;

}  // namespace stride::sixteen
