// What a program says to be compared with another processor's: of each result a line with its number of bytes and its
// name, and then the bytes.
#pragma once

#include <cstdint>
#include <cstdio>
#include <limits>
#include <string>
#include <type_traits>
#include <vector>

// A NaN is a NaN: processors differ in its sign and what else it carries.
template <class Number>
Number with_one_nan(Number number) {
  if constexpr (std::is_floating_point_v<Number>)
    if (number != number) return std::numeric_limits<Number>::quiet_NaN();
  return number;
}

template <class Number>
void say(const std::string& name, const Number* numbers, int64_t count) {
  std::vector<Number> said(numbers, numbers + count);
  for (Number& number : said) number = with_one_nan(number);
  std::printf("%zu %s\n", said.size() * sizeof(Number), name.c_str());
  std::fwrite(said.data(), sizeof(Number), said.size(), stdout);
}
template <class Number>
void say(const std::string& name, const std::vector<Number>& numbers) {
  say(name, numbers.data(), static_cast<int64_t>(numbers.size()));
}
