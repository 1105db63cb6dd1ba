// The noise of a draw, as stridelm/sampling.py has it: standard Gumbel noise from SplitMix64, keyed by an answer, a
// position and a token; and, for many tokens at once, how large it can be at most.
#pragma once

#include <cmath>
#include <cstdint>

#include "lanes.h"

namespace stride {

class Noise {
 public:
  // `answer`: sampling.noise_key of a seed and a choice.
  Noise(uint64_t answer, int64_t position) : key_(mix(answer + static_cast<uint64_t>(position) + kGolden)) {}

  double of(int64_t token) const {
    const double share = (static_cast<double>(mix(word(token)) >> 11) + 0.5) * 0x1p-53;
    return -std::log(-std::log(share));
  }

  // No token has more. (One word in 2^53 stands for infinite noise.)
  static constexpr float kMost = 36.1f;

  // What kLanes tokens have at most, to about 0.1 if it is large.
  Floats most_from(int64_t token) const {
    const Ints first = add64(broadcast64(word(token)), load_ints(kSteps));
    const Ints upper = upper_halves(mix(first), mix(add64(first, broadcast64(kGolden * (kLanes / 2)))));
    return most_of(upper);
  }

 private:
  static constexpr uint64_t kGolden = 0x9E3779B97F4A7C15, kFirst = 0xBF58476D1CE4E5B9, kSecond = 0x94D049BB133111EB;
  alignas(64) static constexpr uint64_t kSteps[8] = {0,           kGolden,     2 * kGolden, 3 * kGolden,
                                                     4 * kGolden, 5 * kGolden, 6 * kGolden, 7 * kGolden};

  uint64_t word(int64_t token) const { return (static_cast<uint64_t>(token) + 1) * kGolden + key_; }

  static uint64_t mix(uint64_t word) {
    word = (word ^ (word >> 30)) * kFirst;
    word = (word ^ (word >> 27)) * kSecond;
    return word ^ (word >> 31);
  }
  static Ints mix(Ints words) {
    words = multiply64(xor_shifted64<30>(words), kFirst);
    words = multiply64(xor_shifted64<27>(words), kSecond);
    return xor_shifted64<31>(words);
  }

  // -log(-log u) <= -log(1 - u), and 1 - u is at least what the upper bits of the flipped word say. A float's own bits
  // are its logarithm, between two powers of 2 a line, which is below it by at most 0.09.
  static Floats most_of(Ints upper) {
    const Floats rest = to_floats(shift_right32<1>(flip_bits(upper)));
    constexpr float kLog2 = 0.69314718f, kExponent = 127 + 31;  // a float's offset, and 31 bits are a share
    return multiply_add(to_floats(bits_of(rest)), broadcast(-kLog2 * 0x1p-23f), broadcast(kLog2 * kExponent));
  }

  uint64_t key_;
};

}  // namespace stride
