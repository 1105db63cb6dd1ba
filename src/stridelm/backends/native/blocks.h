// Weights as GGUF's K-quants have them, with exactly the file's numbers: 4 to 6 bits, in blocks of 8 groups of 32 inputs
// (kFive: of one group). A panel of kLanes outputs (products.h) is consecutive blocks:
//
//   header   kFive            a scale and a minimum per output, in half precision
//            kFourK, kFiveK   d and e per output, in half precision; then of each group a byte s and a byte m per output
//            kSixK            d per output as a float; then of each half of a group a signed byte s per output
//   groups   4 vectors of 4 bytes per output, each with 8 inputs, as in tiles.h: input i in the lower half of byte i,
//            input 4 + i in its upper half. Then the upper bits: of four inputs 4 c + i, bit c of byte i of one vector
//            (5 bits), or bits 2 (c % 4) of byte i of vector c / 4 (6 bits).
//
// A weight is s d q + m e, of kSixK s d (q - 32): s d and m e are exact as floats. So a block is a whole number of cache
// lines, its numbers are aligned to vectors, and 256 weights take as many bytes as in the file, or few more.
#pragma once

#include <cstdint>
#include <cstring>

#include "lanes.h"
#include "rows.h"
#include "tiles.h"

namespace stride {

constexpr bool is_blocks(Kind kind) { return kind != Kind::kFour && kind != Kind::kEight; }
constexpr int bits_of(Kind kind) { return kind == Kind::kFourK ? 4 : kind == Kind::kSixK ? 6 : 5; }
constexpr int groups_of(Kind kind) { return kind == Kind::kFive ? 1 : 8; }
constexpr int scales_of(Kind kind) { return kind == Kind::kSixK ? 2 : 1; }  // per group
constexpr int64_t header_bytes(Kind kind) { return (kind == Kind::kFive ? 4 : 20) * kLanes; }
constexpr int64_t packed_bytes(Kind kind) { return bits_of(kind) * 4 * kLanes; }  // of a group
constexpr int64_t block_bytes(Kind kind) { return header_bytes(kind) + groups_of(kind) * packed_bytes(kind); }

// A block's scales; `place`: of a group, of kSixK of half a group.
template <Kind kind>
Floats scale_of(const uint8_t* header, int64_t place) {
  if constexpr (kind == Kind::kFive) return load_halves(header);
  const uint8_t* bytes = header + (4 + place) * kLanes;
  if constexpr (kind == Kind::kSixK)
    return multiply(load(reinterpret_cast<const float*>(header)), load_bytes(reinterpret_cast<const int8_t*>(bytes)));
  return multiply(load_halves(header), load_bytes(bytes));
}
template <Kind kind>
Floats minimum_of_group(const uint8_t* header, int64_t group) {
  const Floats unit = load_halves(header + 2 * kLanes);
  return kind == Kind::kFive ? unit : multiply(unit, load_bytes(header + (12 + group) * kLanes));
}

// The upper bits of four inputs of each output, number `quad` of a group, in their place above four others.
template <Kind kind, int quad>
Ints upper_bits(const uint8_t* upper) {
  constexpr int width = bits_of(kind) - 4, at = width * quad % 8;
  Ints bits = load_ints(upper + width * quad / 8 * 4 * kLanes);
  if constexpr (at < 4) bits = shift_left16<4 - at>(bits);
  if constexpr (at > 4) bits = shift_right16<at - 4>(bits);
  return bit_and(bits, broadcast8(width == 1 ? 0x10 : 0x30));
}

// Eight inputs of each output: vector number `number` of a group, unpacked.
template <Kind kind, int number>
struct EightInputs {
  Ints low, high;

  explicit EightInputs(const uint8_t* group) {
    const Ints word = load_ints(group + number * 4 * kLanes);
    low = bit_and(word, broadcast8(15)), high = bit_and(shift_right16<4>(word), broadcast8(15));
    if constexpr (bits_of(kind) > 4) {
      low = bit_or(low, upper_bits<kind, 2 * number>(group + 16 * kLanes));
      high = bit_or(high, upper_bits<kind, 2 * number + 1>(group + 16 * kLanes));
    }
  }
};

// The sum of a row's group or of half of it. `x`: the row's numbers of the group.
template <Activations as>
struct BlockSum;

template <>
struct BlockSum<Activations::kInt8> {
  Ints sum;
  void begin(Ints offset) { sum = offset; }
  Ints whole() const { return sum; }
  template <int number, class Inputs>
  void add(const Inputs& inputs, const int8_t* x) {
    sum = add_eight(sum, inputs.low, broadcast_bytes(x + 8 * number), inputs.high, broadcast_bytes(x + 8 * number + 4));
  }
};

#if STRIDE_SPLITS_WORDS

template <>
struct BlockSum<Activations::kInt16> {
  BlockSum<Activations::kInt8> high, low;
  void begin(Ints offset) { high.begin(zero_ints()), low.begin(offset); }
  Ints whole() const { return add_ints(shift_left32<8>(high.sum), low.sum); }
  template <int number, class Inputs>
  void add(const Inputs& inputs, const int8_t* x) {
    high.template add<number>(inputs, x);
    low.template add<number>(inputs, x + kGroup);
  }
};

#else

template <>
struct BlockSum<Activations::kInt16> {
  Ints sum;
  void begin(Ints offset) { sum = offset; }
  Ints whole() const { return sum; }
  template <int number, class Inputs>
  void add(const Inputs& inputs, const int8_t* x) {
    x += 16 * number;  // words 0 2 4 6 1 3 5 7
    sum = add_pairs(sum, bit_and(inputs.low, broadcast16(255)), broadcast_bytes(x));
    sum = add_pairs(sum, bit_and(inputs.high, broadcast16(255)), broadcast_bytes(x + 4));
    sum = add_pairs(sum, shift_right16<8>(inputs.low), broadcast_bytes(x + 8));
    sum = add_pairs(sum, shift_right16<8>(inputs.high), broadcast_bytes(x + 12));
  }
};

#endif

// The same as `Tile`, on blocks.
template <int rows, Kind kind, Activations as>
struct BlockTile {
  static void run(const uint8_t* w, const Quantised& x, int64_t row, float* y, int64_t y_stride, bool adds) {
    Floats total[rows];
    for (int r = 0; r < rows; r++) total[r] = adds ? load(y + r * y_stride) : zeros();
    const int64_t first = x.at(row, 0);
    Numbers from{x.numbers + first * group_bytes(as), x.scales + first, x.sums + first, x.halves + 2 * first};
    for (int64_t block = x.groups / groups_of(kind); block > 0; block--) {
      const uint8_t* header = w;
      fetch_ahead(w, header_bytes(kind));
      w += header_bytes(kind);
      for (int64_t group = 0; group < groups_of(kind); group++, w += packed_bytes(kind)) {
        fetch_ahead(w, packed_bytes(kind));
        add_part<0>(w, scale_of<kind>(header, scales_of(kind) * group), from, total);
        if constexpr (scales_of(kind) == 2) {
          add_part<1>(w, scale_of<kind>(header, 2 * group + 1), from, total);
        } else {
          const Floats minimum = minimum_of_group<kind>(header, group);
          for (int r = 0; r < rows; r++) total[r] = multiply_add(minimum, broadcast(from.sums[r]), total[r]);
        }
        from.next();
      }
    }
    for (int r = 0; r < rows; r++) store(y + r * y_stride, total[r]);
  }

 private:
  // A group of the rows.
  struct Numbers {
    const int8_t* numbers;
    const float *scales, *sums;
    const int32_t* halves;

    void next() {
      numbers += kInterleaved * group_bytes(as);
      scales += kInterleaved, sums += kInterleaved, halves += 2 * kInterleaved;
    }
  };

  // With up to two rows the processor fetches ahead by itself (tiles.h).
  static void fetch_ahead(const uint8_t* w, int64_t bytes) {
    if constexpr (rows > 2)
      for (int64_t line = 0; line < bytes; line += kLine) fetch_line(w + kAhead + line);
  }

  // A group, or half of it: what has one scale.
  template <int part>
  static void add_part(const uint8_t* w, Floats scale, const Numbers& from, Floats (&total)[rows]) {
    BlockSum<as> sum[rows];
    for (int r = 0; r < rows; r++)
      sum[r].begin(scales_of(kind) == 2 ? broadcast_bytes(from.halves + 2 * r + part) : zero_ints());
    add_vectors<part * 2>(w, from.numbers, sum);
    for (int r = 0; r < rows; r++)
      total[r] = multiply_add(to_floats(sum[r].whole()), multiply(scale, broadcast(from.scales[r])), total[r]);
  }
  template <int number>
  static void add_vectors(const uint8_t* w, const int8_t* numbers, BlockSum<as> (&sum)[rows]) {
    const EightInputs<kind, number> inputs(w);
#pragma GCC unroll 8
    for (int r = 0; r < rows; r++) sum[r].template add<number>(inputs, numbers + r * group_bytes(as));
    if constexpr ((number + 1) % (4 / scales_of(kind)) != 0) add_vectors<number + 1>(w, numbers, sum);
  }
};

// One output's 32 numbers of a group, in order.
inline void unpack_block_numbers(Kind kind, const uint8_t* group, int64_t lane, uint8_t* to) {
  unpack_numbers(Kind::kFour, group + 4 * lane, to);
  const int width = bits_of(kind) - 4;
  if (width == 0) return;
  for (int quad = 0; quad < 8; quad++) {
    uint32_t upper, lower;
    std::memcpy(&upper, group + (16 + width * quad / 8 * 4) * kLanes + 4 * lane, sizeof upper);
    std::memcpy(&lower, to + 4 * quad, sizeof lower);
    lower |= (upper >> width * quad % 8 & (width == 1 ? 0x01010101u : 0x03030303u)) << 4;
    std::memcpy(to + 4 * quad, &lower, sizeof lower);
  }
}

template <Kind kind>
void unpack_blocks(const uint8_t* w, int64_t groups, int64_t lane, float* to) {
  alignas(32) uint8_t numbers[kGroup];
  alignas(64) float scale[kLanes], minimum[kLanes];
  for (int64_t block = 0; block < groups; block += groups_of(kind)) {
    const uint8_t* header = w;
    w += header_bytes(kind);
    for (int64_t group = 0; group < groups_of(kind); group++, w += packed_bytes(kind), to += kGroup) {
      unpack_block_numbers(kind, w, lane, numbers);
      if constexpr (kind != Kind::kSixK) store(minimum, minimum_of_group<kind>(header, group));
      for (int i = 0; i < kGroup; i += kLanes) {
        const Floats values = load_bytes(numbers + i);
        store(scale, scale_of<kind>(header, scales_of(kind) * group + i * scales_of(kind) / kGroup));
        const Floats factor = broadcast(scale[lane]);
        if constexpr (kind == Kind::kSixK) store(to + i, multiply(factor, subtract(values, broadcast(32))));
        else store(to + i, multiply_add(factor, values, broadcast(minimum[lane])));
      }
    }
  }
}
inline void unpack_blocks(Kind kind, const uint8_t* panel, int64_t groups, int64_t lane, float* to) {
  switch (kind) {
    case Kind::kFive: return unpack_blocks<Kind::kFive>(panel, groups, lane, to);
    case Kind::kFourK: return unpack_blocks<Kind::kFourK>(panel, groups, lane, to);
    case Kind::kFiveK: return unpack_blocks<Kind::kFiveK>(panel, groups, lane, to);
    default: return unpack_blocks<Kind::kSixK>(panel, groups, lane, to);
  }
}

}  // namespace stride
