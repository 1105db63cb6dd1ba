// From logits to a token: the draw of stridelm/sampling.py, with the same noise, for texts without penalties and
// grammars.
//
// A draw takes the best score plus noise of the tokens that the filters keep. Nearly all tokens are ruled out without a
// logarithm: their score plus the most that their noise can be is below the best so far.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <functional>
#include <vector>

#include "lanes.h"
#include "noise.h"
#include "peaks.h"

namespace stride {

// How a text draws. Temperature 0 is greedy.
struct DrawRules {
  double temperature, top_p, min_p;
  int64_t top_k;
  uint64_t key;  // sampling.noise_key
};

// What a text adds to the logits of some tokens.
class Biases {
 public:
  Biases() = default;
  Biases(const int64_t* tokens, const float* values, int64_t count)
      : tokens_(tokens, tokens + count), values_(values, values + count) {}

  bool empty() const { return tokens_.empty(); }
  int64_t count() const { return static_cast<int64_t>(tokens_.size()); }
  const int64_t* tokens() const { return tokens_.data(); }
  const float* values() const { return values_.data(); }

  // Call `read` while a row of logits has them.
  template <class Read>
  auto with(float* logits, Read read) const {
    std::vector<float> kept(tokens_.size());
    for (size_t i = 0; i < tokens_.size(); i++) kept[i] = logits[tokens_[i]], logits[tokens_[i]] += values_[i];
    const auto found = read();
    for (size_t i = 0; i < tokens_.size(); i++) logits[tokens_[i]] = kept[i];
    return found;
  }

 private:
  std::vector<int64_t> tokens_;
  std::vector<float> values_;
};

// Which tokens the filters keep. A token's score is its logit below the best one, divided by the temperature.
class Filters {
 public:
  void find(Peaks& peaks, const DrawRules& rules) {
    best_ = peaks.best(), temperature_ = static_cast<float>(rules.temperature);
    min_p_ = static_cast<float>(rules.min_p);
    least_ = -kInfinity, cut_ = 0;
    if (0 < rules.top_k && rules.top_k < peaks.size()) least_ = score(peaks.largest(rules.top_k));
    if (rules.top_p < 1) cut_ = find_cut(peaks, static_cast<float>(rules.top_p));
  }

  float score(float logit) const { return (logit - best_) / temperature_; }
  bool keep(int64_t place, float score) const {
    if (score < least_) return false;
    if (cut_ == 0 && min_p_ == 0) return true;
    const float weight = weight_of(score);
    return weight >= min_p_ && (cut_ == 0 || rank(weight / total_, place) >= cut_);
  }
  // No token with a lower logit is kept.
  float least_logit() const {
    float least = least_;
    if (min_p_ > 0) least = std::max(least, std::log(min_p_));
    if (cut_ > 0) least = std::max(least, std::log(share_of(cut_) * total_));
    return logit_of(least);
  }
  // No token of at least this score has a lower logit.
  float logit_of(float score) const {
    return best_ + (score - kRounding * (1 + std::abs(score))) * temperature_ - kRounding * std::abs(best_);
  }
  // About as `score`.
  Floats near_scores(Floats logits) const {
    return multiply(subtract(logits, broadcast(best_)), broadcast(1 / temperature_));
  }

 private:
  static constexpr float kRounding = 1e-5f;
  static constexpr double kTie = 1e-6;
  static constexpr float kNothing = -32;  // e to the power of this score, times all tokens, is less than rounding

  static float weight_of(float score) {
    alignas(64) float lanes[kLanes];
    store(lanes, exponential(broadcast(score)));
    return lanes[0];
  }
  Floats scores(Floats logits) const {
    return divide(subtract(logits, broadcast(best_)), broadcast(temperature_));
  }

  // Larger for larger shares; of equal ones for the first.
  static uint64_t rank(float share, int64_t place) {
    uint32_t bits;
    std::memcpy(&bits, &share, sizeof bits);
    return static_cast<uint64_t>(bits) << 32 | (0xffffffff - static_cast<uint64_t>(place));
  }
  static float share_of(uint64_t rank) {
    const uint32_t bits = static_cast<uint32_t>(rank >> 32);
    float share;
    std::memcpy(&share, &bits, sizeof share);
    return share;
  }

  // The sum of e^score over what top-k has left.
  double sum_weights(const Peaks& peaks) const {
    const Floats least = broadcast(std::max(least_, kNothing));
    double total = 0;
    Floats part = zeros();
    int64_t parts = 0;
    peaks.each_vector([&](int64_t, Floats logits) {
      const Floats s = scores(logits);
      if (at_least(s, least) == 0) return;
      part = add(part, where_at_least(s, least, exponential(s)));
      if (++parts % 16 != 0) return;  // in float only over so many
      total += sum_of(part);
      part = zeros();
    });
    return total + sum_of(part);
  }

  // The rank of the last token that top-p keeps: the largest shares that sum up to `most`. They are looked for among
  // the likeliest tokens first; only where the sum passes `most` are they put in order.
  uint64_t find_cut(const Peaks& peaks, float most) {
    total_ = static_cast<float>(sum_weights(peaks));
    double before = 0;
    float upper = kInfinity;
    for (float lower : {-2.0f, -4.0f, -6.0f, -8.0f, -12.0f, -16.0f, -kInfinity}) {
      lower = std::max(lower, least_);
      ranks_.clear();
      peaks.each_from(logit_of(lower), [&](int64_t place) {
        const float s = score(peaks[place]);
        if (lower <= s && s < upper) ranks_.push_back(rank(weight_of(s) / total_, place));
      });
      const double sum = sum_shares(0, ranks_.size());
      if (before + sum > most - kTie)
        if (const uint64_t cut = cut_among(before, most)) return cut;
      before += sum, upper = lower;
      if (lower == least_) break;
    }
    return 0;
  }

  double sum_shares(size_t first, size_t last) const {
    double sum = 0;
    for (size_t i = first; i < last; i++) sum += share_of(ranks_[i]);
    return sum;
  }

  // The same among `ranks_`, of which the shares in front of them sum up to `before`; 0 if all are kept.
  uint64_t cut_among(double before, float most) {
    const auto at = [&](size_t i) { return ranks_.begin() + static_cast<std::ptrdiff_t>(i); };
    size_t first = 0, last = ranks_.size();
    while (last - first > 16) {
      const size_t middle = (first + last) / 2;
      std::nth_element(at(first), at(middle), at(last), std::greater<uint64_t>());
      const double sum = before + sum_shares(first, middle);
      if (sum > most + kTie) last = middle;
      else if (sum < most - kTie) first = middle, before = sum;
      else break;
    }
    std::sort(at(first), at(last), std::greater<uint64_t>());
    for (size_t i = first; i < last; i++) {
      const float share = share_of(ranks_[i]);
      before += share;
      if (static_cast<float>(before) - share >= most) return ranks_[i] + 1;
    }
    return last < ranks_.size() ? ranks_[last - 1] : 0;
  }

  float best_ = 0, temperature_ = 1, min_p_ = 0, least_ = -kInfinity, total_ = 1;
  uint64_t cut_ = 0;
  std::vector<uint64_t> ranks_;
};

// Keeps its memory between draws: one per thread.
class Drawer {
 public:
  // The token at `position`, from a row of logits; -1 if all are -infinity. A row with a NaN has no right token;
  // its tokens' confidence is NaN, too, by which they are refused.
  int64_t draw(const float* logits, int64_t vocabulary, const DrawRules& rules, int64_t position) {
    peaks_.look(logits, vocabulary);
    if (peaks_.has_nan()) return 0;
    const float best = peaks_.best();
    if (best == -kInfinity) return -1;
    const int64_t first = peaks_.first_best();
    if (rules.temperature == 0 || best == kInfinity) return first;
    filters_.find(peaks_, rules);
    return best_with_noise(first, Noise(rules.key, position));
  }

  // The scores of some tokens for the same draw, as sampling.perturbed_among has them: -infinity for what the filters
  // drop, the logits themselves at temperature 0.
  void perturb(const int64_t* tokens, const float* logits, int64_t count, const DrawRules& rules, int64_t position,
               double* scores) {
    peaks_.look(logits, count);
    std::copy_n(logits, count, scores);
    const bool is_odd = peaks_.has_nan() || std::abs(peaks_.best()) == kInfinity;
    if (is_odd) std::fill_n(scores, count, -kInfinity);
    if (is_odd || rules.temperature == 0) return;
    filters_.find(peaks_, rules);
    const Noise noise(rules.key, position);
    for (int64_t i = 0; i < count; i++) {
      const float score = filters_.score(logits[i]);
      scores[i] = score > -kInfinity && filters_.keep(i, score) ? score + noise.of(tokens[i]) : -kInfinity;
    }
  }

 private:
  // The first token is the likeliest: the best with noise is seldom far below it.
  int64_t best_with_noise(int64_t first, const Noise& noise) const {
    int64_t found = first;
    double best = noise.of(first);
    const auto try_token = [&](int64_t token) {
      const float score = filters_.score(peaks_[token]);
      if (!filters_.keep(token, score)) return;
      const double with_noise = score + noise.of(token);
      if (with_noise < best || (with_noise == best && token > found)) return;
      found = token, best = with_noise;
    };
    const float least = filters_.least_logit();
    Floats floor, bound;
    const auto raise = [&] {
      floor = broadcast(std::max(least, filters_.logit_of(static_cast<float>(best) - Noise::kMost)));
      bound = broadcast(static_cast<float>(best) - kRounding);
    };
    raise();
    peaks_.each_vector([&](int64_t i, Floats logits) {
      uint32_t lanes = at_least(logits, floor);
      if (lanes == 0) return;
      lanes &= at_least(add(filters_.near_scores(logits), noise.most_from(i)), bound);
      if (lanes == 0) return;
      for (; lanes != 0; lanes &= lanes - 1) try_token(i + __builtin_ctz(lanes));
      raise();
    });
    return found;
  }

  static constexpr float kRounding = 1e-3f;

  Peaks peaks_;
  Filters filters_;
};

}  // namespace stride
