// The operations of lanes.h one by one, and what lies between the products.
#pragma once

#include <cmath>
#include <string>
#include <vector>

#include "elementwise.h"
#include "key_values.h"
#include "lanes.h"
#include "noise.h"
#include "random_model.h"
#include "said.h"

// Floats of all kinds, those on the borders of what operations do among them: a multiple of the lanes.
inline std::vector<float> floats_of_all_kinds() {
  std::vector<float> found{0.0f,     -0.0f,    0.5f,     1.5f,     2.5f,      -0.5f,     -2.5f,      1e-45f,      6e-8f,   2.9e-8f,
                           65504.0f, 65519.0f, 65520.0f, 1e38f,    -1e38f,    INFINITY,  -INFINITY,  NAN,         0x1p31f, -0x1p31f,
                           0x1p30f,  -2.2e9f,  127.5f,   -128.5f,  32767.5f,  -32768.5f, 0x1.002p0f, 0x1.006p0f,  88.0f,   88.5f,
                           -87.0f,   -87.5f,   1e-34f,   0x1p-14f, 0x1p-25f,  0x1.8p-25f, 1.0f,      -1.0f,       3e-39f,  -126.5f};
  Random random(4);
  while (found.size() < 4096) found.push_back(random.below(2) ? random.any_float() : 40 * random.number());
  return found;
}

inline void say_lanes() {
  const std::vector<float> x = floats_of_all_kinds();
  const int64_t count = static_cast<int64_t>(x.size());
  const std::vector<float> y(x.rbegin(), x.rend());
  const auto each_vector = [&](const std::string& name, const auto& operation) {
    std::vector<float> found(count);
    for (int64_t i = 0; i < count; i += kLanes) store(&found[i], operation(load(&x[i]), load(&y[i]), i));
    say("lanes " + name, found);
  };
  const auto as_floats = [](Ints a) {
    alignas(64) float found[kLanes];
    eight::store_ints(found, a);
    return load(found);
  };
  each_vector("add", [](Floats a, Floats b, int64_t) { return add(a, b); });
  each_vector("subtract", [](Floats a, Floats b, int64_t) { return subtract(a, b); });
  each_vector("multiply", [](Floats a, Floats b, int64_t) { return multiply(a, b); });
  each_vector("divide", [](Floats a, Floats b, int64_t) { return divide(a, b); });
  each_vector("multiply_add", [](Floats a, Floats b, int64_t) { return multiply_add(a, b, add(a, broadcast(0.3f))); });
  each_vector("maximum", [](Floats a, Floats b, int64_t) { return maximum(a, b); });
  each_vector("minimum", [](Floats a, Floats b, int64_t) { return minimum_of(a, b); });
  each_vector("absolute", [](Floats a, Floats, int64_t) { return eight::absolute(a); });
  each_vector("round", [](Floats a, Floats, int64_t) { return round(a); });
  each_vector("exponential", [](Floats a, Floats, int64_t) { return exponential(a); });
  each_vector("where_at_least", [](Floats a, Floats b, int64_t) { return where_at_least(a, b, b); });
  each_vector("to_floats", [](Floats a, Floats, int64_t) { return to_floats(bits_of(a)); });
  each_vector("to_ints", [&](Floats a, Floats, int64_t) { return to_floats(to_ints(a)); });
  each_vector("load_first", [&](Floats, Floats, int64_t i) { return load_first(&x[i], i / kLanes % (kLanes + 1), 0.25f); });
  each_vector("load_halves", [&](Floats, Floats, int64_t i) { return load_halves(&x[i / 2]); });
  each_vector("load_bytes", [&](Floats, Floats, int64_t i) {
    const auto* bytes = reinterpret_cast<const uint8_t*>(&x[i]);
    return add(load_bytes(bytes), multiply(broadcast(1000), load_bytes(reinterpret_cast<const int8_t*>(bytes))));
  });
  each_vector("noise", [](Floats, Floats, int64_t i) { return Noise(7, 5).most_from(i); });
  // Of integers, which are said as such.
  const auto each_int = [&](const std::string& name, const auto& operation) {
    std::vector<int32_t> found(count);
    for (int64_t i = 0; i < count; i += kLanes) eight::store_ints(&found[i], operation(load_ints(&x[i]), load_ints(&y[i])));
    say("lanes " + name, found);
  };
  each_int("integers of floats", [&](Ints a, Ints) { return to_ints(as_floats(a)); });
  each_int("shifts", [](Ints a, Ints b) { return bit_and(shift_right16<4>(a), flip_bits(shift_right32<1>(b))); });
  each_int("words", [](Ints a, Ints b) { return eight::to_words(a, b); });
  each_int("bytes", [](Ints a, Ints b) { return eight::to_bytes(a, b); });
  each_int("words added", [](Ints a, Ints b) { return eight::add_saturated16(a, b); });
  each_int("words subtracted", [](Ints a, Ints b) { return eight::subtract16(a, eight::shift_left16<8>(b)); });
  each_int("upper bytes", [](Ints a, Ints) { return flip_signs(eight::upper_bytes(a)); });
  each_int("64 bits", [](Ints a, Ints b) { return add64(multiply64(xor_shifted64<27>(a), 0x94D049BB133111EB), b); });
  each_int("upper halves", [](Ints a, Ints b) { return upper_halves(a, b); });
  each_int("broadcasts", [&](Ints a, Ints b) { return add64(a, bit_and(b, broadcast8(77))); });

  std::vector<uint32_t> masks;
  std::vector<float> numbers;
  std::vector<int32_t> sums;
  std::vector<uint16_t> halves(count);
  std::vector<int32_t> nearest;
  for (int64_t i = 0; i < count; i += kLanes) {
    const Floats a = load(&x[i]), b = load(&y[i]);
    for (uint32_t mask : {at_least(a, b), static_cast<uint32_t>(any_above(a, b)), static_cast<uint32_t>(any_nan(a, b))})
      masks.push_back(mask);
    for (float number : {eight::largest_number(a), largest_of(a), sum_of(a)}) numbers.push_back(number);
    sums.push_back(eight::sum_of_ints(bits_of(a)));
    store_halves(&halves[i], where_at_least(a, a, a));  // without NaNs
  }
  for (float each : x)
    if (std::abs(each) < 1e9f) nearest.push_back(to_int(each));
  say("lanes masks", masks), say("lanes numbers", numbers), say("lanes sums", sums);
  say("lanes halves", halves), say("lanes nearest", nearest);
  std::vector<float> all_halves(65536);
  for (int64_t bits = 0; bits < 65536; bits++) all_halves[bits] = to_float(static_cast<Half>(bits));
  say("lanes all halves", all_halves);
}

inline void say_elementwise() {
  Random random(5);
  for (const int64_t size : {1, 7, 8, 9, 31, 64, 576, 600}) {
    const std::vector<float> x = random.numbers(size, 3), weight = random.numbers(size, 0.3f, 1);
    const std::string name = "elementwise " + std::to_string(size);
    std::vector<float> to(size);
    normalise(x.data(), weight.data(), size, 1e-5f, to.data());
    say(name + ", normalised", to);
    to = x;
    rotate(to.data(), weight.data(), &weight[size / 2], size / 2);
    say(name + ", rotated", to);
    const LogSum sums[] = {LogSum::of(x.data(), size), LogSum::of(weight.data(), size)};
    say(name + ", log-sum-exp", std::vector<float>{sums[0].largest, sums[0].total, sums[1].total, LogSum::combined(sums, 2)});
    std::vector<int8_t> bytes(size);
    const float scale = to_bytes(x.data(), size, bytes.data());
    say(name + ", bytes", bytes), say(name + ", their scale", &scale, 1);
  }
  std::vector<double> noise;
  for (int64_t token = 0; token < 2000; token++) noise.push_back(Noise(random.word(), token).of(token));
  say("noise", noise);
}
