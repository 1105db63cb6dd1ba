// The largest numbers of a long row, such as logits.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <limits>
#include <vector>

#include "lanes.h"

namespace stride {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

// Keeps its memory from row to row. The row itself stays where it is. NaNs count as missing.
class Peaks {
 public:
  void look(const float* x, int64_t size) {
    x_ = x, size_ = size, has_nan_ = false;
    best_of_blocks_.clear();
    Floats all = broadcast(-kInfinity), most = all;
    each_vector([&](int64_t i, Floats numbers) {
      most = maximum(numbers, most);  // of a NaN and a number, the second
      has_nan_ |= any_nan(numbers, numbers);
      if (i / kLanes % kTile != kTile - 1 && i + kLanes < size) return;
      best_of_blocks_.resize(best_of_blocks_.size() + kLanes);
      store(&best_of_blocks_[best_of_blocks_.size() - kLanes], most);
      all = maximum(all, most);
      most = broadcast(-kInfinity);
    });
    best_ = largest_of(all);
  }

  int64_t size() const { return size_; }
  float operator[](int64_t i) const { return x_[i]; }
  float best() const { return best_; }
  bool has_nan() const { return has_nan_; }

  // The first of the largest numbers.
  int64_t first_best() const {
    const Floats best = broadcast(best_);
    for (int64_t i = 0; i < size_; i += kLanes)
      if (const uint32_t lanes = at_least(load_first(x_ + i, size_ - i, -kInfinity), best))
        return i + __builtin_ctz(lanes);
    return 0;  // all are NaNs
  }

  // The `count`-th largest number; -infinity if there are not as many.
  float largest(int64_t count) {
    places_.clear();
    each_from(bound_of_largest(count), [&](int64_t i) { places_.push_back(i); });
    if (static_cast<int64_t>(places_.size()) < count) return -kInfinity;
    found_.clear();
    for (int64_t place : places_) found_.push_back(x_[place]);
    return select(count);
  }

  // The indices of the `count` largest numbers, in rising order; of equal ones the first.
  void top(int64_t count, int64_t* places) {
    const float least = largest(count);
    int64_t equal = count, found = 0;
    for (int64_t place : places_) equal -= x_[place] > least;
    for (int64_t place : places_)
      if (x_[place] > least || (x_[place] == least && equal-- > 0)) places[found++] = place;
    for (int64_t i = 0; found < count; i++)  // there is nothing else than NaNs
      if (x_[i] != x_[i]) places[found++] = i;
  }

  // Visit each number that is at least `least`, by its index, in rising order.
  template <class Visit>
  void each_from(float least, Visit visit) const {
    const Floats bound = broadcast(least);
    each_vector([&](int64_t i, Floats numbers) {
      for (uint32_t lanes = at_least(numbers, bound); lanes != 0; lanes &= lanes - 1) {
        const int64_t at = i + __builtin_ctz(lanes);
        if (at < size_) visit(at);
      }
    });
  }

  // Visit a vector of numbers after the other, by its first index; the last one is filled up with -infinity.
  template <class Visit>
  void each_vector(Visit visit) const {
    int64_t i = 0;
    for (; i + kLanes <= size_; i += kLanes) visit(i, load(x_ + i));
    if (i < size_) visit(i, load_first(x_ + i, size_ - i, -kInfinity));
  }

 private:
  // A block is the numbers of one lane in this many vectors: no vector need be taken apart.
  static constexpr int64_t kTile = 32;

  // None of the `count` largest numbers is below it: as many blocks have numbers that are not. A few times as many
  // blocks are enough to come near.
  float bound_of_largest(int64_t count) {
    int64_t size = static_cast<int64_t>(best_of_blocks_.size());
    if (count > size) return -kInfinity;
    found_ = best_of_blocks_;
    for (; size % 2 == 0 && size >= 8 * count; size /= 2)
      for (int64_t i = 0; i < size / 2; i++) found_[i] = std::max(found_[i], found_[i + size / 2]);
    found_.resize(size);
    return select(count);
  }

  float select(int64_t count) {
    std::nth_element(found_.begin(), found_.begin() + (count - 1), found_.end(), std::greater<float>());
    return found_[count - 1];
  }

  const float* x_ = nullptr;
  int64_t size_ = 0;
  float best_ = -kInfinity;
  bool has_nan_ = false;
  std::vector<float> best_of_blocks_, found_;
  std::vector<int64_t> places_;
};

}  // namespace stride
