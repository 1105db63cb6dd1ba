// Eight floats side by side: two vectors of NEON with dot products (Armv8.2-A). In all operations the same bits as AVX2,
// but those of a NaN.
#pragma once

#include <arm_neon.h>

#include <cstdint>
#include <cstring>
#include <limits>

namespace stride {

using Half = uint16_t;  // a number in half precision
inline float to_float(Half a) {
  __fp16 half;
  std::memcpy(&half, &a, sizeof half);
  return half;
}
inline int to_int(float a) { return vcvtns_s32_f32(a); }
inline void pause_spinning() { asm volatile("isb"); }  // `yield` does nothing on most cores

namespace eight {

constexpr int kLanes = 8;
constexpr bool kHasVnni = false;  // 8-bit weights take 16-bit rows, as with AVX2
struct Ints {
  int32x4_t low, high;
};
struct Floats {
  float32x4_t low, high;
};

// Integers of other widths in the same registers.
inline int8x16_t as_bytes(int32x4_t a) { return vreinterpretq_s8_s32(a); }
inline int16x8_t as_words(int32x4_t a) { return vreinterpretq_s16_s32(a); }
inline uint16x8_t as_unsigned_words(int32x4_t a) { return vreinterpretq_u16_s32(a); }
inline uint64x2_t as_longs(int32x4_t a) { return vreinterpretq_u64_s32(a); }
inline Ints of_bytes(int8x16_t low, int8x16_t high) { return {vreinterpretq_s32_s8(low), vreinterpretq_s32_s8(high)}; }
inline Ints of_words(int16x8_t low, int16x8_t high) { return {vreinterpretq_s32_s16(low), vreinterpretq_s32_s16(high)}; }
inline Ints of_words(uint16x8_t low, uint16x8_t high) { return {vreinterpretq_s32_u16(low), vreinterpretq_s32_u16(high)}; }
inline Ints of_longs(uint64x2_t low, uint64x2_t high) { return {vreinterpretq_s32_u64(low), vreinterpretq_s32_u64(high)}; }

inline Ints zero_ints() { return {vdupq_n_s32(0), vdupq_n_s32(0)}; }
inline Ints load_ints(const void* from) {
  const int8_t* bytes = static_cast<const int8_t*>(from);
  return of_bytes(vld1q_s8(bytes), vld1q_s8(bytes + 16));
}
inline void store_ints(void* to, Ints a) {
  int8_t* bytes = static_cast<int8_t*>(to);
  vst1q_s8(bytes, as_bytes(a.low)), vst1q_s8(bytes + 16, as_bytes(a.high));
}
inline Ints broadcast_bytes(const void* four_bytes) {
  int32_t word;
  std::memcpy(&word, four_bytes, sizeof word);
  return {vdupq_n_s32(word), vdupq_n_s32(word)};
}
inline Ints broadcast16(int value) {
  const int16x8_t all = vdupq_n_s16(static_cast<int16_t>(value));
  return of_words(all, all);
}
inline Ints broadcast8(int value) {
  const int8x16_t all = vdupq_n_s8(static_cast<int8_t>(value));
  return of_bytes(all, all);
}
inline Ints bit_and(Ints a, Ints b) { return {vandq_s32(a.low, b.low), vandq_s32(a.high, b.high)}; }
inline Ints bit_or(Ints a, Ints b) { return {vorrq_s32(a.low, b.low), vorrq_s32(a.high, b.high)}; }
inline Ints bit_xor(Ints a, Ints b) { return {veorq_s32(a.low, b.low), veorq_s32(a.high, b.high)}; }
template <int count>
inline Ints shift_right16(Ints a) {
  return of_words(vshrq_n_u16(as_unsigned_words(a.low), count), vshrq_n_u16(as_unsigned_words(a.high), count));
}
template <int count>
inline Ints shift_left16(Ints a) {
  return of_words(vshlq_n_s16(as_words(a.low), count), vshlq_n_s16(as_words(a.high), count));
}
template <int count>
inline Ints shift_left32(Ints a) { return {vshlq_n_s32(a.low, count), vshlq_n_s32(a.high, count)}; }
template <int count>
inline Ints shift_right32(Ints a) {
  const auto shifted = [](int32x4_t half) {
    return vreinterpretq_s32_u32(vshrq_n_u32(vreinterpretq_u32_s32(half), count));
  };
  return {shifted(a.low), shifted(a.high)};
}
inline Ints flip_bits(Ints a) { return {vmvnq_s32(a.low), vmvnq_s32(a.high)}; }
inline Ints add_ints(Ints a, Ints b) { return {vaddq_s32(a.low, b.low), vaddq_s32(a.high, b.high)}; }

// Half as many 64-bit words; products keep their lower half. `upper_halves` joins two vectors of them.
inline Ints broadcast64(uint64_t value) { return of_longs(vdupq_n_u64(value), vdupq_n_u64(value)); }
inline Ints add64(Ints a, Ints b) {
  return of_longs(vaddq_u64(as_longs(a.low), as_longs(b.low)), vaddq_u64(as_longs(a.high), as_longs(b.high)));
}
// From products of 32 bits, as with AVX2.
inline Ints multiply64(Ints a, uint64_t b) {
  const uint32x2_t low = vdup_n_u32(static_cast<uint32_t>(b)), high = vdup_n_u32(static_cast<uint32_t>(b >> 32));
  const auto product = [&](int32x4_t half) {
    const uint32x2_t lower = vmovn_u64(as_longs(half)), upper = vshrn_n_u64(as_longs(half), 32);
    const uint64x2_t crossed = vaddq_u64(vmull_u32(upper, low), vmull_u32(lower, high));
    return vaddq_u64(vmull_u32(lower, low), vshlq_n_u64(crossed, 32));
  };
  return of_longs(product(a.low), product(a.high));
}
template <int count>
inline Ints xor_shifted64(Ints a) {
  return bit_xor(a, of_longs(vshrq_n_u64(as_longs(a.low), count), vshrq_n_u64(as_longs(a.high), count)));
}
inline Ints upper_halves(Ints a, Ints b) { return {vuzp2q_s32(a.low, a.high), vuzp2q_s32(b.low, b.high)}; }

// The upper of every two signed bytes, as 16-bit integers.
inline Ints upper_bytes(Ints a) { return of_words(vshrq_n_s16(as_words(a.low), 8), vshrq_n_s16(as_words(a.high), 8)); }
inline Ints flip_signs(Ints a) { return bit_xor(a, broadcast8(-128)); }

// To 16 bits, and to 8: as near as these come to a number that is too large.
inline Ints to_words(Ints a, Ints b) {
  return of_words(vqmovn_high_s32(vqmovn_s32(a.low), a.high), vqmovn_high_s32(vqmovn_s32(b.low), b.high));
}
inline Ints to_bytes(Ints a, Ints b) {
  const auto narrow = [](Ints words) { return vqmovn_high_s16(vqmovn_s16(as_words(words.low)), as_words(words.high)); };
  return of_bytes(narrow(a), narrow(b));
}
inline Ints add_saturated16(Ints a, Ints b) {
  return of_words(vqaddq_s16(as_words(a.low), as_words(b.low)), vqaddq_s16(as_words(a.high), as_words(b.high)));
}
inline Ints subtract16(Ints a, Ints b) {
  return of_words(vsubq_s16(as_words(a.low), as_words(b.low)), vsubq_s16(as_words(a.high), as_words(b.high)));
}
inline int32_t sum_of_ints(Ints a) { return vaddvq_s32(vaddq_s32(a.low, a.high)); }

// sum += a0 b0 + .. + a3 b3, signed bytes; `add_up` completes such a sum.
constexpr bool kSignedQuads = true;
inline Ints add_quads(Ints sum, Ints a, Ints b) {
  return {vdotq_s32(sum.low, as_bytes(a.low), as_bytes(b.low)), vdotq_s32(sum.high, as_bytes(a.high), as_bytes(b.high))};
}
inline Ints add_up(Ints sum) { return sum; }
// A complete sum += two such quads; `a` is less than 64.
inline Ints add_eight(Ints sum, Ints a0, Ints b0, Ints a1, Ints b1) { return add_quads(add_quads(sum, a0, b0), a1, b1); }

inline Floats zeros() { return {vdupq_n_f32(0), vdupq_n_f32(0)}; }
inline Floats load(const float* from) { return {vld1q_f32(from), vld1q_f32(from + 4)}; }
inline void store(float* to, Floats a) { vst1q_f32(to, a.low), vst1q_f32(to + 4, a.high); }
inline Floats load_halves(const void* from) {
  const float16x8_t halves = vreinterpretq_f16_u8(vld1q_u8(static_cast<const uint8_t*>(from)));
  return {vcvt_f32_f16(vget_low_f16(halves)), vcvt_high_f32_f16(halves)};
}
inline void store_halves(void* to, Floats a) {
  const float16x8_t halves = vcvt_high_f16_f32(vcvt_f16_f32(a.low), a.high);
  vst1q_u8(static_cast<uint8_t*>(to), vreinterpretq_u8_f16(halves));
}
inline Floats load_bytes(const int8_t* from) {
  const int16x8_t words = vmovl_s8(vld1_s8(from));
  return {vcvtq_f32_s32(vmovl_s16(vget_low_s16(words))), vcvtq_f32_s32(vmovl_high_s16(words))};
}
inline Floats load_bytes(const uint8_t* from) {
  const uint16x8_t words = vmovl_u8(vld1_u8(from));
  return {vcvtq_f32_u32(vmovl_u16(vget_low_u16(words))), vcvtq_f32_u32(vmovl_high_u16(words))};
}
inline Floats broadcast(float value) { return {vdupq_n_f32(value), vdupq_n_f32(value)}; }
inline Floats to_floats(Ints a) { return {vcvtq_f32_s32(a.low), vcvtq_f32_s32(a.high)}; }
// The least integer stands for what is too large for one, and for NaN.
inline Ints to_ints(Floats a) {
  const auto nearest = [](float32x4_t half) {
    const int32x4_t least = vdupq_n_s32(std::numeric_limits<int32_t>::min());
    return vbslq_s32(vcaltq_f32(half, vdupq_n_f32(0x1p31f)), vcvtnq_s32_f32(half), least);
  };
  return {nearest(a.low), nearest(a.high)};
}
inline Floats round(Floats a) { return {vrndnq_f32(a.low), vrndnq_f32(a.high)}; }
inline Floats add(Floats a, Floats b) { return {vaddq_f32(a.low, b.low), vaddq_f32(a.high, b.high)}; }
inline Floats subtract(Floats a, Floats b) { return {vsubq_f32(a.low, b.low), vsubq_f32(a.high, b.high)}; }
inline Floats multiply(Floats a, Floats b) { return {vmulq_f32(a.low, b.low), vmulq_f32(a.high, b.high)}; }
inline Floats divide(Floats a, Floats b) { return {vdivq_f32(a.low, b.low), vdivq_f32(a.high, b.high)}; }
inline Floats multiply_add(Floats a, Floats b, Floats c) {
  return {vfmaq_f32(c.low, a.low, b.low), vfmaq_f32(c.high, a.high, b.high)};
}
// By a comparison: of a NaN and a number, NEON's own maximum would be the NaN, whichever is the second.
inline float32x4_t maximum_of_four(float32x4_t a, float32x4_t b) { return vbslq_f32(vcgtq_f32(a, b), a, b); }
inline float32x4_t minimum_of_four(float32x4_t a, float32x4_t b) { return vbslq_f32(vcltq_f32(a, b), a, b); }
inline Floats maximum(Floats a, Floats b) { return {maximum_of_four(a.low, b.low), maximum_of_four(a.high, b.high)}; }
inline Floats minimum_of(Floats a, Floats b) { return {minimum_of_four(a.low, b.low), minimum_of_four(a.high, b.high)}; }
inline Floats absolute(Floats a) { return {vabsq_f32(a.low), vabsq_f32(a.high)}; }
inline float largest_number(Floats a) {
  float32x4_t most = maximum_of_four(a.low, a.high);
  most = maximum_of_four(most, vextq_f32(most, most, 2));
  return vgetq_lane_f32(maximum_of_four(most, vextq_f32(most, most, 1)), 0);
}
// A bit per lane.
inline uint32_t lanes_of(uint32x4_t low, uint32x4_t high) {
  const uint32x4_t lanes = {1, 2, 4, 8};
  return vaddvq_u32(vandq_u32(low, lanes)) | vaddvq_u32(vandq_u32(high, lanes)) << 4;
}
inline uint32_t at_least(Floats a, Floats b) { return lanes_of(vcgeq_f32(a.low, b.low), vcgeq_f32(a.high, b.high)); }
inline bool any_above(Floats a, Floats b) { return lanes_of(vcgtq_f32(a.low, b.low), vcgtq_f32(a.high, b.high)) != 0; }
inline bool any_nan(Floats a, Floats b) {
  const auto are_numbers = [](float32x4_t a, float32x4_t b) { return vandq_u32(vceqq_f32(a, a), vceqq_f32(b, b)); };
  return lanes_of(are_numbers(a.low, b.low), are_numbers(a.high, b.high)) != 0xff;
}
inline Floats where_at_least(Floats a, Floats b, Floats value) {
  const float32x4_t zero = vdupq_n_f32(0);
  return {vbslq_f32(vcgeq_f32(a.low, b.low), value.low, zero), vbslq_f32(vcgeq_f32(a.high, b.high), value.high, zero)};
}
inline Ints bits_of(Floats a) { return {vreinterpretq_s32_f32(a.low), vreinterpretq_s32_f32(a.high)}; }
inline Floats scale_by_power(Floats a, Ints power) {
  const Ints scaled = add_ints(bits_of(a), shift_left32<23>(power));
  return {vreinterpretq_f32_s32(scaled.low), vreinterpretq_f32_s32(scaled.high)};
}
constexpr int kMaxRows = 6;

}  // namespace eight
}  // namespace stride
