// A tile: some rows times one panel of a matrix. The panel's weights are unpacked once for all rows of the tile, and
// the sums stay in registers.
//
// One panel at a time is one stream of memory, which the processor fetches ahead by itself; with three rows or more it
// falls behind, and every cache line is named 8 KB before it is needed. (One line in 8.5 left out made the output head
// 80 % slower; with one or two rows naming lines costs 10 to 25 %.)
#pragma once

#include <cstdint>

#include "lanes.h"
#include "rows.h"

namespace stride {

// Weights in groups of 32 inputs, a panel of kLanes outputs side by side (products.h):
//
//   4 bits   4 chunks of 8 inputs: four bytes per output, input i in the lower half of byte i, input 4 + i in its upper
//            half; then a scale d and a minimum m per output in half precision. A weight is d q + m.
//   8 bits   8 chunks of 4 inputs: a byte q + 128 each; then a scale per output. A weight is d q.
//
// The other kinds are blocks (blocks.h).
enum class Kind : int64_t { kFour = 4, kFive = 5, kEight = 8, kFourK = 12, kFiveK = 13, kSixK = 14 };

constexpr int chunks_of(Kind kind) { return kind == Kind::kFour ? 4 : 8; }
constexpr int64_t numbers_bytes(Kind kind) { return chunks_of(kind) * 4 * kLanes; }
constexpr int64_t group_bytes(Kind kind) { return numbers_bytes(kind) + (kind == Kind::kFour ? 4 : 2) * kLanes; }

// One output's 32 numbers of a group, in order. `from`: its first bytes; `to` is aligned to 32 bytes.
#if defined(__AVX2__)
inline __m256i numbers_of(Kind kind, const uint8_t* from) {
  const int* words = reinterpret_cast<const int*>(from);
  const __m256i chunks = _mm256_mullo_epi32(_mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7), _mm256_set1_epi32(kLanes));
  if (kind == Kind::kEight) return _mm256_i32gather_epi32(words, chunks, 4);
  const __m128i bytes = _mm_i32gather_epi32(words, _mm256_castsi256_si128(chunks), 4), mask = _mm_set1_epi8(15);
  const __m128i low = _mm_and_si128(bytes, mask), high = _mm_and_si128(_mm_srli_epi16(bytes, 4), mask);
  return _mm256_set_m128i(_mm_unpackhi_epi32(low, high), _mm_unpacklo_epi32(low, high));
}
inline void unpack_numbers(Kind kind, const uint8_t* from, uint8_t* to) {
  _mm256_store_si256(reinterpret_cast<__m256i*>(to), numbers_of(kind, from));
}
#else
inline void unpack_numbers(Kind kind, const uint8_t* from, uint8_t* to) {
  for (int chunk = 0; chunk < chunks_of(kind); chunk++, from += 4 * kLanes)
    for (int i = 0; i < 4; i++) {
      if (kind == Kind::kEight) to[4 * chunk + i] = from[i];
      else to[8 * chunk + i] = from[i] & 15, to[8 * chunk + 4 + i] = from[i] >> 4;
    }
}
#endif

constexpr int64_t kAhead = 8192;
constexpr int64_t kLine = 64;
inline void fetch_line(const void* line) { __builtin_prefetch(line, 0, 2); }

// A chunk of weights, unpacked, and how a row's group sum takes it in. `x` are the row's numbers of the group.
template <Kind kind, Activations as>
struct Chunk;

// The sum of a row's group, in parts as the multiplications leave it.
template <Activations as>
struct GroupSum;

template <>
struct GroupSum<Activations::kInt8> {
  Ints sum;
  void begin(Ints offset) { sum = offset; }
  Ints whole() const { return add_up(sum); }
};

template <Kind kind>
struct Chunk<kind, Activations::kInt8> {
  Ints low, high;  // of 8-bit weights `low` only, and not with AVX2 alone

  explicit Chunk(Ints word) {
    low = kind == Kind::kFour ? bit_and(word, broadcast8(15)) : kSignedQuads ? flip_signs(word) : word;
    if (kind == Kind::kFour) high = bit_and(shift_right16<4>(word), broadcast8(15));
  }
  template <int number>
  void add_to(GroupSum<Activations::kInt8>& to, const int8_t* x) const {
    constexpr int inputs = kGroup / chunks_of(kind);
    to.sum = add_quads(to.sum, low, broadcast_bytes(x + number * inputs));
    if (kind == Kind::kFour) to.sum = add_quads(to.sum, high, broadcast_bytes(x + number * inputs + 4));
  }
};

#if STRIDE_SPLITS_WORDS

template <>
struct GroupSum<Activations::kInt16> {
  GroupSum<Activations::kInt8> high, low;
  void begin(Ints offset) { high.begin(zero_ints()), low.begin(offset); }
  Ints whole() const { return add_ints(shift_left32<8>(high.whole()), low.whole()); }
};

template <Kind kind>
struct Chunk<kind, Activations::kInt16> : Chunk<kind, Activations::kInt8> {
  using Bytes = Chunk<kind, Activations::kInt8>;
  using Bytes::Bytes;
  template <int number>
  void add_to(GroupSum<Activations::kInt16>& to, const int8_t* x) const {
    Bytes::template add_to<number>(to.high, x);
    Bytes::template add_to<number>(to.low, x + kGroup);
  }
};

#else

template <>
struct GroupSum<Activations::kInt16> {
  Ints sum;
  void begin(Ints) { sum = zero_ints(); }  // weights are signed again before they are multiplied
  Ints whole() const { return sum; }
};

template <>
struct Chunk<Kind::kFour, Activations::kInt16> {
  Ints pair[4];
  explicit Chunk(Ints word)
      : pair{bit_and(word, broadcast16(15)), bit_and(shift_right16<4>(word), broadcast16(15)),
             bit_and(shift_right16<8>(word), broadcast16(15)), shift_right16<12>(word)} {}
  template <int number>
  void add_to(GroupSum<Activations::kInt16>& to, const int8_t* x) const {
    for (int i = 0; i < 4; i++) to.sum = add_pairs(to.sum, pair[i], broadcast_bytes(x + 16 * number + 4 * i));
  }
};

template <>
struct Chunk<Kind::kEight, Activations::kInt16> {
  Ints even, odd;
  explicit Chunk(Ints word) : even(lower_bytes(flip_signs(word))), odd(upper_bytes(flip_signs(word))) {}
  template <int number>
  void add_to(GroupSum<Activations::kInt16>& to, const int8_t* x) const {
    const int8_t* eight = x + number / 2 * 16 + number % 2 * 4;  // 0 2 4 6 1 3 5 7
    to.sum = add_pairs(to.sum, even, broadcast_bytes(eight));
    to.sum = add_pairs(to.sum, odd, broadcast_bytes(eight + 8));
  }
};

#endif

template <int rows, Kind kind, Activations as>
struct Tile {
  // `row`: the first one; the last one is in the same block of 16. The sums begin with what is in y if it `adds`.
  static void run(const uint8_t* w, const Quantised& x, int64_t row, float* y, int64_t y_stride, bool adds) {
    Floats total[rows];
    for (int r = 0; r < rows; r++) total[r] = adds ? load(y + r * y_stride) : zeros();
    const int64_t first = x.at(row, 0);
    const int8_t* numbers = x.numbers + first * group_bytes(as);
    const float *scales = x.scales + first, *sums = x.sums + first;
    const int32_t* offsets = x.offsets + first;
    for (int64_t group = 0; group < x.groups; group++) {
      if constexpr (rows > 2)
        for (int64_t line = 0; line < group_bytes(kind); line += kLine)
          fetch_line(w + kAhead + line);
      GroupSum<as> sum[rows];
      constexpr bool is_offset = kind == Kind::kEight && !kSignedQuads;
      for (int r = 0; r < rows; r++) sum[r].begin(is_offset ? broadcast_bytes(offsets + r) : zero_ints());
      add_chunks<0>(w, numbers, sum);
      const Floats scale = load_halves(w + numbers_bytes(kind));
      for (int r = 0; r < rows; r++)
        total[r] = multiply_add(to_floats(sum[r].whole()), multiply(scale, broadcast(scales[r])), total[r]);
      if constexpr (kind == Kind::kFour) {
        const Floats minimum = load_halves(w + numbers_bytes(kind) + 2 * kLanes);
        for (int r = 0; r < rows; r++) total[r] = multiply_add(minimum, broadcast(sums[r]), total[r]);
      }
      w += group_bytes(kind);
      numbers += kInterleaved * group_bytes(as);
      scales += kInterleaved, sums += kInterleaved, offsets += kInterleaved;
    }
    for (int r = 0; r < rows; r++) store(y + r * y_stride, total[r]);
  }

 private:
  template <int number>
  static void add_chunks(const uint8_t* w, const int8_t* numbers, GroupSum<as> (&sum)[rows]) {
    const Chunk<kind, as> chunk(load_ints(w + number * 4 * kLanes));
#pragma GCC unroll 8
    for (int r = 0; r < rows; r++) chunk.template add_to<number>(sum[r], numbers + r * group_bytes(as));
    if constexpr (number + 1 < chunks_of(kind)) add_chunks<number + 1>(w, numbers, sum);
  }
};

}  // namespace stride
