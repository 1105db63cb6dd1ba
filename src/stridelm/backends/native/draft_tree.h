// Trees of drafts, and one tree of several: the same as types.DraftTree and draft/merge.py.
#pragma once

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <vector>

namespace stride {

constexpr int32_t kRoot = -1;  // the parent of a node that follows the text itself

enum Source : int32_t { kFromMasks, kFromLookUp, kFromPrediction };

// Parents come before their children.
struct DraftTree {
  std::vector<int32_t> tokens, parents, sources;
  std::vector<double> scores;  // per node, the probability that it is accepted if its parent is

  int64_t size() const { return static_cast<int64_t>(tokens.size()); }
  void clear() { tokens.clear(), parents.clear(), sources.clear(), scores.clear(); }
  void add(int32_t token, int32_t parent, Source source, double score) {
    tokens.push_back(token), parents.push_back(parent), sources.push_back(source), scores.push_back(score);
  }
  void resize(int64_t nodes) { tokens.resize(nodes), parents.resize(nodes), sources.resize(nodes), scores.resize(nodes); }
  // The child of a node, or of kRoot, that holds a token; -2 if there is none.
  int32_t child(int32_t node, int32_t token) const {
    for (size_t i = 0; i < tokens.size(); i++)
      if (parents[i] == node && tokens[i] == token) return static_cast<int32_t>(i);
    return kNone;
  }
  int64_t depth(int32_t node) const {
    int64_t found = 0;
    for (; node != kRoot; node = parents[node]) found++;
    return found;
  }
  static constexpr int32_t kNone = -2;
};

// Merges proposals: equal paths become one, with the higher of the two estimates; the likeliest nodes come first, so that
// the first so many of them are the best tree of that size.
class TreeMerger {
 public:
  void clear() { all_.clear(); }

  // `chances`: per node, the probability that it is accepted if its parent is.
  void add(const DraftTree& tree, const std::vector<double>& chances) {
    named_.assign(tree.size(), kRoot);
    for (int64_t node = 0; node < tree.size(); node++) {
      const int32_t parent = tree.parents[node] == kRoot ? kRoot : named_[tree.parents[node]];
      const Source source = static_cast<Source>(tree.sources[node]);
      named_[node] = put(parent, tree.tokens[node], source, chances[node]);
    }
  }

  // The `most` likeliest nodes, with their probabilities as scores.
  void finish(int64_t most, DraftTree& to) {
    const int64_t count = all_.size();
    reached_.resize(count), order_.resize(count), named_.assign(count, kRoot);
    scale_siblings();
    for (int64_t node = 0; node < count; node++)
      reached_[node] = all_.scores[node] * (all_.parents[node] == kRoot ? 1.0 : reached_[all_.parents[node]]);
    std::iota(order_.begin(), order_.end(), 0);
    std::stable_sort(order_.begin(), order_.end(), [&](int32_t a, int32_t b) { return reached_[a] > reached_[b]; });
    to.clear();
    for (int64_t i = 0; i < std::min(count, most); i++) {
      const int32_t node = order_[i], parent = all_.parents[node];
      named_[node] = static_cast<int32_t>(i);
      to.add(all_.tokens[node], parent == kRoot ? kRoot : named_[parent], static_cast<Source>(all_.sources[node]),
             all_.scores[node]);
    }
  }

 private:
  int32_t put(int32_t parent, int32_t token, Source source, double estimate) {
    const int32_t known = all_.child(parent, token);
    if (known == DraftTree::kNone) {
      all_.add(token, parent, source, estimate);
      return static_cast<int32_t>(all_.size() - 1);
    }
    // Masks often propose what the prediction says: what it says counts as its own.
    const bool is_told = source == kFromPrediction && estimate == all_.scores[known];
    if (estimate > all_.scores[known] || is_told) all_.sources[known] = source, all_.scores[known] = estimate;
    return known;
  }
  // Only one of several siblings can be accepted.
  void scale_siblings() {
    sums_.assign(all_.size() + 1, 0.0);
    for (int64_t node = 0; node < all_.size(); node++) sums_[all_.parents[node] + 1] += all_.scores[node];
    for (int64_t node = 0; node < all_.size(); node++) all_.scores[node] /= std::max(1.0, sums_[all_.parents[node] + 1]);
  }

  DraftTree all_;
  std::vector<int32_t> named_, order_;
  std::vector<double> reached_, sums_;
};

}  // namespace stride
