// Which drafts a step verifies, and where its masks hang: the same as decode/planner.py, for steps that run here.
//
// A step is worth the tokens that it is expected to emit, and what its masks are expected to add to the next step; it
// costs its time, at the current rate of tokens per second. The best plan wins; one row alone is always among them.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <vector>

#include "draft_tree.h"

namespace stride {

// What a plan is chosen by.
struct Outlook {
  double rate;            // tokens per second at the current pace
  const double* seconds;  // by rows of this text: of the whole step, masks as real rows
  int64_t pending;
  double masks, mask_row;  // seconds of any masks at all, and of one of them beyond a real row
  struct Option {
    int64_t masks, places;  // of a chain; the places that it proposes tokens for
    const double* fresh;    // by tokens since its anchor, up to `places`: what it is worth
  };
  std::vector<Option> options;
  std::vector<double> left;  // by tokens accepted in this step: what the last chain is still worth; then the last entry
};

struct StepPlan {
  int64_t nodes = 0, masks = 0;
  std::vector<int32_t> anchors;  // nodes, or kRoot
  double worth = -std::numeric_limits<double>::infinity();
};

class Planner {
 public:
  // `tree`: its nodes in decreasing order of the probability of their paths.
  const StepPlan& choose(const DraftTree& tree, const Outlook& outlook) {
    tree_ = &tree, outlook_ = &outlook;
    best_ = {};
    const int64_t count = tree.size();
    measure(tree);
    double most_to_come = *std::max_element(left_.begin(), left_.end());
    for (const Outlook::Option& option : outlook.options)
      for (int64_t since = 0; since < option.places; since++) most_to_come = std::max(most_to_come, option.fresh[since]);
    double emitted = 1, still = 0;
    for (double path : paths_) still += path;
    ends_.assign(1, 1.0);
    for (int64_t nodes = 0; nodes <= count; nodes++) {
      if (nodes) add_node(nodes - 1, emitted, still);
      const double base = emitted - outlook.rate * outlook.seconds[outlook.pending + nodes];
      anchor(nodes, base);
      // No later plan takes less time, so none can be worth more than this.
      if (base + still + most_to_come <= best_.worth) break;
    }
    return best_;
  }

 private:
  static constexpr int64_t kAllSets = 5;  // up to this many places every set of anchors is tried
  static constexpr int32_t kNever = 1 << 20;

  void measure(const DraftTree& tree) {
    const int64_t count = tree.size();
    paths_.resize(count), left_.resize(count + 1), above_.assign((count + 1) * (count + 1), kNever);
    left_[0] = outlook_->left[0];
    above_[0] = 0;
    for (int64_t node = 0; node < count; node++) {
      const int64_t parent = tree.parents[node] + 1, place = node + 1;
      paths_[node] = tree.scores[node] * (parent == 0 ? 1.0 : paths_[parent - 1]);
      for (int64_t anchor = 0; anchor <= count; anchor++)
        distance(anchor, place) = distance(anchor, parent) < kNever ? distance(anchor, parent) + 1 : kNever;
      distance(place, place) = 0;
      const size_t depth = static_cast<size_t>(distance(0, place));
      left_[place] = outlook_->left[std::min(depth, outlook_->left.size() - 1)];
    }
  }
  // Tokens from an anchor to an end below it.
  int32_t& distance(int64_t anchor, int64_t end) { return above_[anchor * (tree_->size() + 1) + end]; }

  void add_node(int64_t node, double& emitted, double& still) {
    const double path = paths_[node];
    double& parent = ends_[tree_->parents[node] + 1];
    parent = std::max(0.0, parent - path);
    ends_.push_back(path);
    emitted += path, still -= path;
  }

  void anchor(int64_t nodes, double base) {
    const int64_t places = nodes + 1;
    double bare = base;
    for (int64_t end = 0; end < places; end++) bare += ends_[end] * left_[end];
    if (bare > best_.worth) best_ = {nodes, 0, {}, bare};
    if (outlook_->options.empty()) return;
    if (places <= kAllSets) {
      for (uint32_t set = 1; set < 1u << places; set++) try_set(nodes, base, [&](int64_t at) { return set >> at & 1; });
      return;
    }
    for (int64_t only = 0; only < places; only++) try_set(nodes, base, [&](int64_t at) { return at == only; });
    order_.resize(places);
    for (int64_t i = 0; i < places; i++) order_[i] = i;
    std::stable_sort(order_.begin(), order_.end(), [&](int64_t a, int64_t b) { return ends_[a] > ends_[b]; });
    rank_.resize(places);
    for (int64_t i = 0; i < places; i++) rank_[order_[i]] = i;
    for (int64_t size = 2; size <= places; size++) try_set(nodes, base, [&](int64_t at) { return rank_[at] < size; });
  }

  template <class Contains>
  void try_set(int64_t nodes, double base, Contains contains) {
    const int64_t places = nodes + 1, first = outlook_->pending + nodes;
    int64_t size = 0;
    since_.assign(places, kNever);
    for (int64_t anchor = 0; anchor < places; anchor++) {
      if (!contains(anchor)) continue;
      size++;
      for (int64_t end = anchor; end < places; end++) since_[end] = std::min(since_[end], distance(anchor, end));
    }
    for (const Outlook::Option& option : outlook_->options) {
      const int64_t rows = size * option.masks;
      double worth = base - outlook_->rate * (outlook_->seconds[first + rows] - outlook_->seconds[first] +
                                              outlook_->masks + outlook_->mask_row * rows);
      for (int64_t end = 0; end < places; end++)
        worth += ends_[end] * std::max(left_[end], since_[end] < option.places ? option.fresh[since_[end]] : 0.0);
      if (worth <= best_.worth) continue;
      best_.nodes = nodes, best_.masks = option.masks, best_.worth = worth;
      best_.anchors.clear();
      for (int64_t at = 0; at < places; at++)
        if (contains(at)) best_.anchors.push_back(static_cast<int32_t>(at) - 1);
    }
  }

  const DraftTree* tree_ = nullptr;
  const Outlook* outlook_ = nullptr;
  StepPlan best_;
  std::vector<double> paths_, ends_, left_;
  std::vector<int32_t> above_, since_;
  std::vector<int64_t> order_, rank_;
};

}  // namespace stride
