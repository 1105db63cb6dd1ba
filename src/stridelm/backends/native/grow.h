// A greedy tree of drafts from one chain of masks, in one call: the same as draft/grow.py does depth by depth, without
// the cost of its many small arrays.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <numeric>
#include <vector>

#include "candidates.h"
#include "model.h"
#include "sequential.h"
#include "workspace.h"

namespace stride {

class TreeGrowth {
 public:
  TreeGrowth(const Model& model, const Sequential& head, const Chain& chain, const Grown& to, Workspace& work)
      : model_(model), head_(head), chain_(chain), to_(to), work_(work), padded_(model.head.groups * kGroup) {}

  void run() {
    *to_.nodes = *to_.buds = 0;
    std::vector<Bud> buds{{-1, chain_.before, 1.0, chain_.state}};
    for (int64_t level = 0; level < chain_.depth && !buds.empty(); level++) buds = grow(level, buds);
  }

 private:
  // A node, or the text itself (-1), that gets children.
  struct Bud {
    int64_t node, token;
    double path;         // the probability that it and all its ancestors are accepted
    const float* state;  // the sequential head's, before it has read the token
  };

  std::vector<Bud> grow(int64_t level, const std::vector<Bud>& buds) {
    const int64_t rows = static_cast<int64_t>(buds.size()), width = model_.shape.width;
    const float* next = read(level, buds);
    tokens_.resize(chain_.candidates);
    top(chain_.logits + level * chain_.logits_stride, chain_.vocabulary, chain_.candidates, tokens_.data());
    scores_.resize(rows * chain_.candidates);
    for (int64_t i = 0; i < chain_.candidates; i++) {
      const float score = chain_.logits[level * chain_.logits_stride + tokens_[i]] + bias_of(tokens_[i]);
      for (int64_t row = 0; row < rows; row++) scores_[row * chain_.candidates + i] = score;
    }
    padded_added_.assign(rows * padded_, 0.0f);
    for (int64_t row = 0; row < rows; row++)
      std::copy_n(added_.data() + row * width, width, padded_added_.data() + row * padded_);
    add_scores(model_.head, tokens_.data(), chain_.candidates, padded_added_.data(), rows, scores_.data());

    std::vector<Bud> children;
    for (int64_t row = 0; row < rows; row++) {
      to_.bud_nodes[(*to_.buds)++] = buds[row].node;
      branch(buds[row], scores_.data() + row * chain_.candidates, next + row * head_.size, children);
    }
    // The likeliest nodes get children at the next depth.
    std::stable_sort(children.begin(), children.end(), [](const Bud& a, const Bud& b) { return a.path > b.path; });
    if (static_cast<int64_t>(children.size()) > chain_.branches) children.resize(chain_.branches);
    return children;
  }

  // The sequential head reads every bud's token: computes what it adds to the mask's output, and its next states.
  const float* read(int64_t level, const std::vector<Bud>& buds) {
    const int64_t rows = static_cast<int64_t>(buds.size()), width = model_.shape.width;
    outputs_.resize(rows * width), added_.resize(rows * width), states_.resize(rows * head_.size), before_.resize(rows);
    for (int64_t row = 0; row < rows; row++) {
      std::copy_n(chain_.outputs + level * width, width, outputs_.data() + row * width);
      std::copy_n(buds[row].state, head_.size, states_.data() + row * head_.size);
      before_[row] = buds[row].token;
    }
    float* next = to_.states + *to_.buds * head_.size;
    SequentialStep(model_, head_, work_).run(rows, outputs_.data(), before_.data(), states_.data(), added_.data(), next);
    return next;
  }

  void branch(const Bud& bud, const float* scores, const float* state, std::vector<Bud>& children) {
    const int64_t count = chain_.candidates;
    order_.resize(count);
    std::iota(order_.begin(), order_.end(), 0);
    std::stable_sort(order_.begin(), order_.end(), [&](int64_t a, int64_t b) { return scores[a] > scores[b]; });
    const double best = scores[order_[0]];
    if (best == -std::numeric_limits<double>::infinity()) return;
    double total = 0;
    for (int64_t i = 0; i < count; i++) total += std::exp(scores[i] - best);
    for (int64_t i = 0; i < std::min(chain_.branches, count); i++) {
      const int64_t token = tokens_[order_[i]];
      const double score = std::exp(scores[order_[i]] - best) / total, path = bud.path * score;
      if (path < chain_.floor) continue;
      const int64_t node = (*to_.nodes)++;
      to_.tokens[node] = token, to_.parents[node] = bud.node, to_.scores[node] = score;
      const bool is_end = std::find(chain_.ends, chain_.ends + chain_.end_count, token) != chain_.ends + chain_.end_count;
      if (!is_end) children.push_back({node, token, path, state});
    }
  }

  float bias_of(int64_t token) const {
    for (int64_t i = 0; i < chain_.biased_count; i++)
      if (chain_.biased[i] == token) return chain_.biases[i];
    return 0;
  }

  const Model& model_;
  const Sequential& head_;
  const Chain& chain_;
  const Grown& to_;
  Workspace& work_;
  const int64_t padded_;
  std::vector<int64_t> tokens_, before_, order_;
  std::vector<float> scores_, added_, padded_added_, outputs_, states_;
};

}  // namespace stride
