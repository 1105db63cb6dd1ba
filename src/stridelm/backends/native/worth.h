// What masks are worth that a step leaves behind: average-reward dynamic programming over the places that are left.
//
// The state between two steps is a chain: the places that it proposes tokens for, and how many of them the text has
// passed; or no chain. A step takes the choice with the largest
//
//     expected tokens - pace x seconds + expected worth of the chain that is left then
//
// and the pace is the one at which having no chain is worth nothing: the tokens per second of the best choices for a text
// of some ease. Solved for some values of ease; bench/replay/worth.py is the same in Python.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <vector>

#include "mask_chain.h"
#include "prior.h"

namespace stride {

// Seconds of a forward on this machine: decode/cost.py measures them.
struct Costs {
  const double* table;  // by number of real rows, up to `largest`
  int64_t largest;
  double masks, mask_row, context, sequence, head, head_row, level;
  double around;   // beside a step's forward: draws, plans, and the host between two steps
  double tending;  // beside its forward and drafting, for each text with masks: their candidates, what they pass

  double rows(int64_t count) const { return table[std::min(count, largest)]; }
  double operator()(int64_t real, int64_t mask_rows) const {
    return rows(real + mask_rows) + (mask_rows ? masks + tending + mask_row * static_cast<double>(mask_rows) : 0);
  }
};

class Worth {
 public:
  // What `look` solves. `texts`: that are written together. Each has its share of the time of a plain step, and pays for
  // its further rows. `length`: tokens of the text.
  void begin(const Prior& prior, const MaskParts& parts, int64_t longest, const Costs& costs, int64_t texts,
             int64_t length) {
    options_.clear();
    for (int64_t count : {1, 2, 3, 4, 6, 8, 12, 16})
      if (options_.empty() || options_.back() < longest) options_.push_back(std::min(count, longest));
    if (longest == 0) options_.clear();
    places_ = parts.reach(longest), texts_ = texts, costs_ = costs, prior_ = prior;
    row_ = costs.context * static_cast<double>(length);
    reach_.clear();
    for (int64_t count : options_) reach_.push_back(parts.reach(count));
    most_drafts_ = std::min<int64_t>(places_, costs.rows(8) < kCheapRows * costs.rows(1) ? kMostDrafts : 4);
    // A solution for other costs is near the new one: it is found again in a few rounds.
    for (std::vector<double>& table : tables_) table.resize((places_ + 1) * (places_ + 1), 0.0);
    now_.resize((places_ + 1) * (places_ + 1));
    seconds_.clear();
    for (int64_t drafts = 0; drafts <= most_drafts_; drafts++) {
      seconds_.push_back(seconds(drafts, 0));
      for (int64_t masks : options_) seconds_.push_back(seconds(drafts, masks));
    }
    is_solved_.fill(false), looks_ = 0;
  }

  // For a text of this ease, until the next call.
  void look(double ease_odds) {
    looks_++;
    int high = 1;
    while (high < kEases - 1 && log_odds(kGrid[high]) < ease_odds) high++;
    for (int needed : {high - 1, high, kEasy})
      if (!is_solved_[needed]) solve(needed);
    const double low = log_odds(kGrid[high - 1]);
    const double share = std::clamp((ease_odds - low) / (log_odds(kGrid[high]) - low), 0.0, 1.0);
    for (size_t i = 0; i < now_.size(); i++) now_[i] = (1 - share) * tables_[high - 1][i] + share * tables_[high][i];
    pace_ = (1 - share) * paces_[high - 1] + share * paces_[high];
  }
  // Whether these costs, as far as they are measured while texts are written, are still about those it began with.
  bool is_about(const Costs& costs) const {
    const auto is_near = [&](double then, double now) {
      return std::abs(now - then) <= std::max(kDrift * then, kLittle * costs.rows(1));
    };
    const bool is_new = looks_ < 2 * kPatience;  // each decision looks twice; estimates that still move are let settle
    return costs_.table && (is_new || (is_near(costs_.level, costs.level) && is_near(costs_.around, costs.around) &&
                                       is_near(costs_.tending, costs.tending)));
  }
  double pace() const { return pace_; }  // tokens per second of all texts
  // Whether masks pay in easy texts: by so much that looks at them in all texts are worth their time.
  bool can_pay() const { return paces_[kEasy] * seconds(0, 0) > kGain; }
  // By places that the text has passed: what a chain of so many places is worth.
  const double* chain(int64_t places) const { return now_.data() + places * (places_ + 1); }
  // Numbers of masks per chain, and the places that these propose tokens for.
  const std::vector<int64_t>& options() const { return options_; }
  const std::vector<int64_t>& reach() const { return reach_; }

 private:
  static constexpr int kEases = 8, kEasy = 6, kRounds = 60, kPatience = 16;
  static constexpr int64_t kMostDrafts = 8;
  static constexpr double kGrid[kEases] = {0.2, 0.35, 0.5, 0.6, 0.7, 0.8, 0.88, 0.94};
  static constexpr double kConverged = 1e-3, kCheapRows = 1.5, kGain = 1.05, kDrift = 0.4, kLittle = 0.01;

  double seconds(int64_t drafts, int64_t masks) const {
    const double plain = costs_(texts_, 0) + costs_.sequence * static_cast<double>(texts_ - 1) + costs_.around;
    return costs_(texts_ + drafts, masks) - costs_.rows(texts_) + plain / static_cast<double>(texts_) +
           row_ * static_cast<double>(1 + drafts + masks) + costs_.level * static_cast<double>(drafts);
  }
  double& at(std::vector<double>& table, int64_t places, int64_t used) const { return table[places * (places_ + 1) + used]; }

  void solve(int ease) {
    const double ease_odds = log_odds(kGrid[ease]);
    std::vector<double>& worth = tables_[ease];
    double& pace = paces_[ease];
    is_solved_[ease] = true;
    reached_.assign((places_ + 1) * (most_drafts_ + 1), 1.0);
    for (int64_t used = 0; used < places_; used++)
      for (int64_t depth = 0; depth < most_drafts_; depth++)
        reached(used, depth + 1) = reached(used, depth) * prior_.of_place(ease_odds, used, depth);
    pace = 1 / seconds(0, 0);
    std::vector<double> next(worth.size());
    for (int round = 0; round < kRounds; round++) {
      pace = find_pace(worth, pace);
      double change = 0;
      for (int64_t places : reach_)
        for (int64_t used = 0; used < places; used++) {
          const double renewed = std::max(0.0, best(worth, places, used, pace));
          change = std::max(change, std::abs(renewed - at(worth, places, used)));
          at(next, places, used) = renewed;
        }
      std::swap(worth, next);
      if (change < kConverged) return;
    }
  }
  double& reached(int64_t used, int64_t drafts) { return reached_[used * (most_drafts_ + 1) + drafts]; }

  // At which the best step without a chain is worth just its time.
  double find_pace(std::vector<double>& worth, double pace) const {
    for (int i = 0; i < 20; i++) {
      double most = 1 - pace * seconds_[0], time = seconds_[0];
      for (size_t option = 0; option < options_.size(); option++) {
        const double taken = seconds_[option + 1], each = 1 + at(worth, reach_[option], 0) - pace * taken;
        if (each > most) most = each, time = taken;
      }
      pace += most / time;
      if (std::abs(most) < 1e-9) break;
    }
    return pace;
  }

  double best(std::vector<double>& worth, int64_t places, int64_t used, double pace) {
    double found = -1;
    for (int64_t drafts = 0; drafts <= std::min(most_drafts_, places - used); drafts++) {
      double tokens = 0, shares[kMostDrafts + 1];
      // By drafts that stood: what the chain that there is will still be worth, and of all fewer, if masks hang there.
      double kept[kMostDrafts + 2] = {};
      for (int64_t stood = 0; stood <= drafts; stood++) {
        tokens += reached(used, stood), shares[stood] = share(used, stood, drafts);
        const double still = used + stood + 1 < places ? shares[stood] * at(worth, places, used + stood + 1) : 0;
        kept[stood + 1] = kept[stood] + still;
      }
      const double* seconds = &seconds_[drafts * (options_.size() + 1)];
      found = std::max(found, tokens + kept[drafts + 1] - pace * seconds[0]);
      for (size_t option = 0; option < options_.size(); option++) {
        const double* renewed = &at(worth, reach_[option], 0);
        double most_left = 0;
        for (int64_t anchor = 0; anchor <= drafts; anchor++) {
          double left = kept[anchor];
          for (int64_t stood = anchor; stood <= std::min(drafts, anchor + reach_[option] - 1); stood++)
            left += shares[stood] * renewed[stood - anchor];
          most_left = std::max(most_left, left);
        }
        found = std::max(found, tokens + most_left - pace * seconds[option + 1]);
      }
    }
    return found;
  }
  // The probability that exactly so many of the drafts stand.
  double share(int64_t used, int64_t stood, int64_t drafts) {
    return reached(used, stood) - (stood < drafts ? reached(used, stood + 1) : 0);
  }

  std::vector<int64_t> options_, reach_;
  std::vector<double> seconds_;  // of a step, by its drafts, and by no masks and each option
  int64_t places_ = 0, most_drafts_ = 0, texts_ = 1;
  Costs costs_{};  // without a table before it began
  Prior prior_{};
  std::array<bool, kEases> is_solved_{};
  int64_t looks_ = 0;  // since it began
  double row_ = 0;  // what a row takes to read the text
  std::vector<double> tables_[kEases], now_, reached_;
  double paces_[kEases] = {}, pace_ = 0;
};

}  // namespace stride
