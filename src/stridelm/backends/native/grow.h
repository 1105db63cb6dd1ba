// A tree of drafts from one chain of masks, in one call: the same as draft/grow.py grows depth by depth, without the
// cost of its many small arrays.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <numeric>
#include <vector>

#include "candidates.h"
#include "draws.h"
#include "model.h"
#include "sequential.h"
#include "team.h"
#include "workspace.h"

namespace stride {

// What the masks of one chain say.
struct Chain {
  int64_t depth;
  const float* outputs;  // depth x width
  const float* state;    // the sequential head's
};

// The likeliest tokens of a place, among which its drafts are chosen, and their logits.
struct Candidates {
  int64_t count;
  const int64_t* tokens;
  const float* logits;
};

// How a tree is grown from a chain.
struct GrowthRules {
  int64_t before, position;  // the text's last token, and the position of the next one
  int64_t branches;
  double floor;  // nodes less likely to be accepted than this are left out
  DrawRules draws;
  int64_t biased_count;
  const int64_t* biased;
  const float* biases;
  int64_t end_count;
  const int64_t* ends;  // nodes with these tokens get no children
};

// The resulting tree: room for depth x branches x branches nodes. A bud is a node that the sequential head has read, or
// -1, the text itself: room for depth x branches of them.
struct Grown {
  int64_t* nodes;  // number of nodes
  int64_t* buds;
  int64_t* tokens;
  int64_t* parents;
  double* scores;
  int64_t* bud_nodes;
  float* states;  // per bud, the sequential head's state after reading it
};

// Keeps its memory between trees.
class TreeGrowth {
 public:
  // `head`: of size 0 if the masks have none. `find(level)` returns the candidates of the chain's place `level`, which
  // stay until the next call. It is called by one thread at a time, whichever that is, and for no place that no node
  // reaches.
  template <class Find>
  void run(const Model& model, const Sequential& head, const Chain& chain, const GrowthRules& rules, const Grown& to,
           Workspace& work, Find find) {
    model_ = &model, head_ = &head, chain_ = &chain, rules_ = &rules, to_ = &to;
    padded_ = model.head.groups * kGroup;
    *to.nodes = *to.buds = 0;
    buds_.assign(1, {-1, rules.before, 1.0, chain.state});
    added_.assign(rules.branches * padded_, 0.0f);
    SequentialStep step(model, head, work);
    if (head.size > 0) step.prepare(rules.branches);
    Team& team = Team::instance();
    if (static_cast<int64_t>(weights_.size()) < model.shape.threads) weights_.resize(model.shape.threads);
    begin_level(0);
    team.run(static_cast<int>(model.shape.threads), [&](int thread, int threads) {
      for (int64_t level = 0; level < chain.depth && !buds_.empty(); level++) {
        const int64_t rows = static_cast<int64_t>(buds_.size());
        if (thread == threads - 1) set_candidates(find(level));
        if (head.size > 0) step.compute(thread, threads, readings_.data(), rows, added_.data(), padded_);
        team.wait(thread, threads);
        if (head.size > 0) {
          const Share share(candidates_.count, 1, thread, threads);
          add_scores(model.head, candidates_.tokens, share.first, share.last, candidates_.count, added_.data(), rows,
                     weights_[thread], scores_.data());
          team.wait(thread, threads);
        }
        if (thread == 0) branch(level);
        team.wait(thread, threads);
      }
    });
  }

 private:
  // A node, or the text itself (-1), that gets children.
  struct Bud {
    int64_t node, token;
    double path;         // the probability that it and all its ancestors are accepted
    const float* state;  // the sequential head's, before it has read the token
  };

  void begin_level(int64_t level) {
    readings_.clear();
    for (const Bud& bud : buds_) {
      float* next = to_->states + *to_->buds * head_->size;
      readings_.push_back({chain_->outputs + level * model_->shape.width, bud.token, bud.state, next});
      to_->bud_nodes[(*to_->buds)++] = bud.node;
    }
  }

  void set_candidates(const Candidates& found) {
    candidates_ = found;
    scores_.clear();
    for (size_t row = 0; row < buds_.size(); row++) scores_.insert(scores_.end(), found.logits, found.logits + found.count);
  }

  // Choose the children of each bud. The likeliest of them get children at the next depth.
  void branch(int64_t level) {
    children_.clear();
    for (size_t row = 0; row < buds_.size(); row++) {
      float* scores = scores_.data() + row * candidates_.count;
      for (int64_t i = 0; i < candidates_.count && rules_->biased_count > 0; i++) scores[i] += bias_of(candidates_.tokens[i]);
      perturbed_.resize(candidates_.count);
      drawer_.perturb(candidates_.tokens, scores, candidates_.count, rules_->draws, rules_->position + level,
                      perturbed_.data());
      add_children(buds_[row], readings_[row].next);
    }
    const auto is_likelier = [](const Bud& a, const Bud& b) { return a.path != b.path ? a.path > b.path : a.node < b.node; };
    std::sort(children_.begin(), children_.end(), is_likelier);
    if (static_cast<int64_t>(children_.size()) > rules_->branches) children_.resize(rules_->branches);
    std::swap(buds_, children_);
    if (level + 1 < chain_->depth) begin_level(level + 1);
  }

  void add_children(const Bud& bud, const float* state) {
    const int64_t count = candidates_.count, wanted = std::min(rules_->branches, count);
    order_.resize(count);
    std::iota(order_.begin(), order_.end(), 0);
    std::partial_sort(order_.begin(), order_.begin() + wanted, order_.end(), [&](int64_t a, int64_t b) {
      return perturbed_[a] != perturbed_[b] ? perturbed_[a] > perturbed_[b] : a < b;
    });
    const double best = perturbed_[order_[0]];
    if (best == -std::numeric_limits<double>::infinity()) return;
    double total = 0;
    for (double each : perturbed_) total += std::exp(each - best);
    for (int64_t i = 0; i < wanted; i++) {
      const int64_t token = candidates_.tokens[order_[i]];
      const double score = std::exp(perturbed_[order_[i]] - best) / total, path = bud.path * score;
      if (score == 0 || !(path >= rules_->floor)) continue;
      const int64_t node = (*to_->nodes)++;
      to_->tokens[node] = token, to_->parents[node] = bud.node, to_->scores[node] = score;
      if (!is_end(token)) children_.push_back({node, token, path, state});
    }
  }

  bool is_end(int64_t token) const {
    return std::find(rules_->ends, rules_->ends + rules_->end_count, token) != rules_->ends + rules_->end_count;
  }
  float bias_of(int64_t token) const {
    for (int64_t i = 0; i < rules_->biased_count; i++)
      if (rules_->biased[i] == token) return rules_->biases[i];
    return 0;
  }

  const Model* model_ = nullptr;
  const Sequential* head_ = nullptr;
  const Chain* chain_ = nullptr;
  const GrowthRules* rules_ = nullptr;
  const Grown* to_ = nullptr;
  int64_t padded_ = 0;
  Candidates candidates_{};
  Drawer drawer_;
  std::vector<Bud> buds_, children_;
  std::vector<Reading> readings_;
  std::vector<float> added_, scores_;
  std::vector<std::vector<float>> weights_;  // per thread, a token's
  std::vector<double> perturbed_;
  std::vector<int64_t> order_;
};

}  // namespace stride
