// What steps learn from the text: how often drafts are accepted, by score and by depth, and how fast text is written.
// The same as draft/calibration.py and decode/rates.py.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <vector>

namespace stride {

// One drafter's acceptance by score, on the scale of log-odds.
class Curve {
 public:
  double accepted(double score) {
    if (!seen_) return within(score);
    if (!fitted_) fit();
    const Place at = place(score);
    return probability(values_[at.knot] + at.share * (values_[at.knot + 1] - values_[at.knot]));
  }
  // Nodes that were looked at in one step: call `fade` with their number, then `observe` for each.
  void fade(int64_t looks) {
    const double kept = std::pow(kKept, static_cast<double>(looks));
    for (double& each : looked_at_) each *= kept;
    for (double& each : stood_) each *= kept;
  }
  void observe(double score, bool stood) {
    const Place at = place(score);
    looked_at_[at.knot] += 1 - at.share, looked_at_[at.knot + 1] += at.share;
    if (stood) stood_[at.knot] += 1 - at.share, stood_[at.knot + 1] += at.share;
    seen_ = true, fitted_ = false;
  }

 private:
  static constexpr int kKnots = 11;
  static constexpr double kLeast = 0.001, kMost = 0.999, kStrength = 10.0;
  static inline const double kKept = std::pow(0.5, 1.0 / 300), kEnd = std::log(kMost / kLeast);
  static inline const double kGap = 2 * kEnd / (kKnots - 1);
  struct Place {
    int knot;
    double share;
  };

  static double within(double score) { return score > kLeast ? std::min(score, kMost) : kLeast; }
  static double probability(double log_odds) { return 1 / (1 + std::exp(-log_odds)); }
  static double log_odds(double score) { return std::log(within(score) / (1 - within(score))); }
  static Place place(double score) {
    const double at = (log_odds(score) + kEnd) / kGap;
    const int knot = std::clamp(static_cast<int>(at), 0, kKnots - 2);
    return {knot, at - knot};
  }
  // A knot's prior mean is its own score; neighbours that contradict each other are pooled, so that the curve rises.
  void fit() {
    struct Pool {
      double mean, weight;
      int count;
    };
    std::array<Pool, kKnots> pools;
    int size = 0;
    for (int knot = 0; knot < kKnots; knot++) {
      const double prior = kStrength * probability(-kEnd + knot * kGap);
      Pool pool{(prior + stood_[knot]) / (kStrength + looked_at_[knot]), 1 + looked_at_[knot], 1};
      for (; size && pools[size - 1].mean >= pool.mean; size--) {
        const Pool& before = pools[size - 1];
        const double weight = before.weight + pool.weight;
        pool = {(before.mean * before.weight + pool.mean * pool.weight) / weight, weight, before.count + pool.count};
      }
      pools[size++] = pool;
    }
    for (int i = 0, knot = 0; i < size; i++)
      for (int each = 0; each < pools[i].count; each++) values_[knot++] = log_odds(pools[i].mean);
    fitted_ = true;
  }

  std::array<double, kKnots> looked_at_{}, stood_{}, values_{};
  bool seen_ = false, fitted_ = false;
};

// How often the first choice of a mask was accepted if all before it were, by depth of the mask. A depth with few
// observations follows the others: an easy text is easy at every depth.
class DepthRates {
 public:
  void begin(int64_t depths) {
    priors_.assign(depths, kPrior);
    stood_.assign(depths, 0), seen_.assign(depths, 0);
  }
  // The same rates as priors, but not below the default: otherwise, after hard texts, an easy one would be missed.
  DepthRates for_new_text() const {
    DepthRates next;
    next.begin(static_cast<int64_t>(priors_.size()));
    for (size_t depth = 0; depth < priors_.size(); depth++) next.priors_[depth] = std::max(kPrior, value(depth));
    return next;
  }
  void observe(int64_t depth, bool stood) {
    for (double& each : stood_) each *= kKept;
    for (double& each : seen_) each *= kKept;
    stood_[depth] += stood, seen_[depth] += 1;
  }
  double value(size_t depth) const {
    double expected = kWeight, all = kWeight;
    for (size_t i = 0; i < priors_.size(); i++) expected += priors_[i] * seen_[i], all += stood_[i];
    const double prior = std::min(kMost, all / expected * priors_[depth]);
    return (stood_[depth] + kWeight * prior) / (seen_[depth] + kWeight);
  }

 private:
  static constexpr double kPrior = 0.7, kWeight = 6.0, kMost = 0.98;
  static inline const double kKept = std::pow(0.5, 1.0 / 120);
  std::vector<double> priors_, stood_, seen_;
};

// Tokens per second, by the times that the cost curve gives.
class Pace {
 public:
  explicit Pace(double plain_seconds) : plain_(plain_seconds), seconds_(4 * plain_seconds) {}
  // What time is worth: the current pace, or plain decoding's if that is faster.
  double rate() const { return std::max(tokens_ / seconds_, 1 / plain_); }
  void stepped(int64_t tokens, double seconds) {
    tokens_ = kKept * tokens_ + static_cast<double>(tokens);
    seconds_ = kKept * seconds_ + seconds;
  }

 private:
  static constexpr double kKept = 1 - 1.0 / 32;
  double plain_, tokens_ = 4, seconds_;
};

}  // namespace stride
