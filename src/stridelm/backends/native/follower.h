// The position of an answer in its prediction, and what follows there. The same as draft/prediction.py.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "draft_tree.h"

namespace stride {

class Follower {
 public:
  bool has_prediction() const { return !prediction_.empty(); }

  void begin(const int32_t* prediction, int64_t length, const std::vector<int32_t>& text, int64_t prompt_length) {
    prediction_.assign(prediction, prediction + length);
    read_ = prompt_length;
    // A prompt may end with the answer's beginning; shorter matches are chance.
    if (prompt_length < kLongestMatch) return;
    if (const Match match = find(text, prompt_length, 0); match.length == kLongestMatch)
      next_ = match.first + 1, run_ = kLongestMatch, is_at_start_ = false;
  }

  // Read the new tokens.
  void follow(const std::vector<int32_t>& text) {
    for (; read_ < static_cast<int64_t>(text.size()); read_++) {
      if (run_ && next_ < size() && prediction_[next_] == text[read_]) {
        next_++, run_++, stood_++;
      } else {
        lost_ += run_ > 0;
        find_again(text, read_ + 1);
      }
      is_at_start_ = false;
    }
  }

  // The tokens that follow, at most as many as have matched in a row.
  void propose(int64_t longest, DraftTree& to) const {
    to.clear();
    const int64_t count = std::min(std::min(run_, longest), size() - next_);
    const double typical = static_cast<double>(kFirstRun + stood_) / static_cast<double>(1 + lost_);
    for (int64_t i = 0; i < count; i++) {
      const double run = std::min(static_cast<double>(run_ + i), typical);
      const double score = i == 0 && is_at_start_ ? kFirst : run / (run + 1);
      to.add(prediction_[next_ + i], static_cast<int32_t>(i) - 1, kFromPrediction, score);
    }
  }

 private:
  static constexpr int64_t kShortestMatch = 2, kLongestMatch = 16, kFirstRun = 8;
  static constexpr double kFirst = 0.5;  // that an answer begins with the prediction's first token
  struct Match {
    int64_t length = 0, first = -1, ahead = -1, last = -1;  // ends of the longest matches: the first, the first from some
                                                            // position on, the last
  };

  int64_t size() const { return static_cast<int64_t>(prediction_.size()); }

  // The longest matches of the ending of the text's first `length` tokens, before the prediction's last token.
  Match find(const std::vector<int32_t>& text, int64_t length, int64_t from) const {
    const int64_t most = std::min(length, kLongestMatch);
    Match best;
    for (int64_t end = 0; end + 1 < size(); end++) {
      int64_t same = 0;
      while (same < std::min(most, end + 1) && prediction_[end - same] == text[length - 1 - same]) same++;
      if (same == 0 || same < best.length) continue;
      if (same > best.length) best = {same, end, -1, end};
      if (best.ahead < 0 && end >= from) best.ahead = end;
      best.last = end;
    }
    return best;
  }
  // The position after the longest match; of several, the nearest one after where the position was lost, since edits keep
  // the order of what they leave.
  void find_again(const std::vector<int32_t>& text, int64_t length) {
    const Match match = find(text, length, next_);
    if (match.length < kShortestMatch) {
      run_ = 0;
      return;
    }
    next_ = (match.ahead >= 0 ? match.ahead : match.last) + 1;
    run_ = 1;
  }

  std::vector<int32_t> prediction_;
  int64_t read_ = 0, next_ = 0, run_ = kFirstRun, stood_ = 0, lost_ = 0;
  bool is_at_start_ = true;
};

}  // namespace stride
