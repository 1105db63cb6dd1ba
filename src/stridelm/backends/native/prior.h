// How likely drafts are accepted: what is known before the first token of a text, and how easy the text has been lately.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>

namespace stride {

inline double log_odds(double probability) {
  // In this order NaN, from damaged weights, becomes the least.
  const double within = std::min(probability > 0.001 ? probability : 0.001, 0.999);
  return std::log(within / (1 - within));
}
inline double logistic(double total) { return 1 / (1 + std::exp(-total)); }

// Weights of logistic regressions on log-odds: decode/draft_prior.py says where they come from.
struct Prior {
  double ease;              // how often a draft is accepted, over all texts
  double scored[5];         // of a draft: a constant; per score, ease, place of its chain that was passed, depth
  double unscored[4];       // the same without the score, of chains that do not exist yet
  double found[3];          // of what look-up finds: a constant; per logarithm of the match's length; for a long match
  double agreed[3];         // of a token that both propose: a constant; per chance by the chain, and by look-up
  double chain_against[3];  // of the chain's token where look-up proposes another
  double found_against[3];  // of look-up's

  double of_score(double score, double ease_odds, int64_t used, int64_t depth) const {
    return logistic(scored[0] + scored[1] * log_odds(score) + scored[2] * ease_odds + scored[3] * static_cast<double>(used) +
                    scored[4] * static_cast<double>(depth));
  }
  double of_place(double ease_odds, int64_t used, int64_t depth) const {
    return logistic(unscored[0] + unscored[1] * ease_odds + unscored[2] * static_cast<double>(used) +
                    unscored[3] * static_cast<double>(depth));
  }
  // Of what look-up finds, `ahead` tokens behind a match: if those are accepted, the match is that much longer.
  double of_match(int64_t length, int64_t ahead) const {
    const double counted = std::log(static_cast<double>(std::min(length + ahead, kLongMatch)));
    return logistic(found[0] + found[1] * counted + found[2] * (length >= kLongMatch));
  }
  static double joint(const double* weights, double chain, double found) {
    return logistic(weights[0] + weights[1] * log_odds(chain) + weights[2] * log_odds(found));
  }

  static constexpr int64_t kLongMatch = 8;
};

// How often drafts of a text were accepted lately, if all before them were. What was seen is forgotten with every token,
// whether more is seen or not: so a text that rests is looked at again.
class Ease {
 public:
  Ease() = default;
  explicit Ease(double first) : first_(first) {}
  double odds() const { return log_odds((stood_ + first_ * kWeight) / (seen_ + kWeight)); }
  void observe(int64_t emitted, int64_t seen, int64_t stood) {
    const double keep = std::pow(0.5, static_cast<double>(emitted) / kHalfLife);
    seen_ = keep * seen_ + static_cast<double>(seen), stood_ = keep * stood_ + static_cast<double>(stood);
  }

 private:
  static constexpr double kWeight = 4, kHalfLife = 48;
  double first_ = 0.5, seen_ = 0, stood_ = 0;
};

}  // namespace stride
