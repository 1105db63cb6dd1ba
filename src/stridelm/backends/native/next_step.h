// What the next step verifies and where its masks hang, from what was accepted so far: the one decision of planned steps.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <utility>
#include <vector>

#include "chain_growth.h"
#include "draft_tree.h"
#include "estimates.h"
#include "look_up.h"
#include "mask_chain.h"
#include "step_plan.h"
#include "step_text.h"

namespace stride {

class NextStep {
 public:
  NextStep(const Model& model, const MaskParts& parts, const std::vector<int64_t>& ends, int64_t longest)
      : model_(model), parts_(parts), ends_(ends), longest_(longest) {
    rates_.begin(std::max<int64_t>(1, parts.places()));
  }

  void begin(StepText& text) {
    text.rates = rates_.for_new_text();
    if (!text.is_planned()) return;
    if (!costs_.table) {
      pace_ = Pace(text.rules.costs.table[1]);
      rate_ = pace_.rate();
    }
    const double level = costs_.table ? costs_.level : text.rules.costs.level;
    costs_ = text.rules.costs;  // the same for all texts of a model
    costs_.level = level;
  }
  bool has_planned_texts() const { return costs_.table != nullptr; }

  // A step wrote so many tokens. Forwards count with the time of the cost curve, since noise of the machine would look
  // like a difference between plans.
  void stepped(int64_t tokens, const std::vector<StepText*>& texts, int64_t rows, int64_t masks) {
    double seconds = costs_.table[std::min(rows, costs_.largest)] + costs_.sequence * static_cast<double>(texts.size() - 1);
    if (masks) seconds += costs_.masks + costs_.mask_row * static_cast<double>(masks);
    for (const StepText* text : texts) {
      seconds += costs_.context * static_cast<double>(text->cached * text->rows());
      if (text->from_masks.size()) seconds += costs_.level;
    }
    pace_.stepped(tokens, seconds);
    texts_ = static_cast<int64_t>(texts.size());
    const double plain = costs_.table[std::min(texts_, costs_.largest)] + costs_.sequence * static_cast<double>(texts_ - 1);
    rate_ = std::max(pace_.rate(), static_cast<double>(texts_) / plain);
  }

  // From all proposals, whether they were run or not: the emitted text is enough to judge them.
  void learn(StepText& text) {
    for (const DraftTree* tree : {&text.from_masks, &text.found}) {
      if (!tree->size()) continue;
      looks_.clear();
      int32_t node = kRoot;
      for (size_t depth = 0; depth < text.emitted.size() && node != DraftTree::kNone; depth++) {
        const int32_t next = tree->child(node, text.emitted[depth]), likeliest = look_at_children(*tree, node, next);
        if (tree == &text.from_masks && likeliest != DraftTree::kNone) {
          const int64_t place = text.first_place + static_cast<int64_t>(depth);
          text.rates.observe(place, likeliest == next), rates_.observe(place, likeliest == next);
        }
        node = next;
      }
      Curve& curve = curves_[text.is_sampled()][tree->sources[0]];
      curve.fade(static_cast<int64_t>(looks_.size()));
      for (const auto& [score, stood] : looks_) curve.observe(score, stood);
    }
  }

  // `others`: rows of the other texts in the step.
  void plan(StepText& text, int64_t others, Workspace& work) {
    text.plan = {}, text.defers = false;
    text.tree.clear(), text.from_masks.clear(), text.found.clear();
    if (!text.goes_on() || !text.is_planned()) return;
    propose(text, work);
    if (!text.tree.size() && text.rules.masks == 0) return;
    look_ahead(text, others);
    text.plan = planner_.choose(text.tree, outlook_);
    text.tree.resize(text.plan.nodes);
    try_again(text);
    keep_useful_anchors(text);
    text.defers = costs_.head + costs_.head_row * static_cast<double>(text.plan.masks) <
                  costs_.head_row * static_cast<double>(text.mask_rows());
  }

 private:
  using Clock = std::chrono::steady_clock;
  static constexpr int64_t kMaxPatience = 256, kTrialMasks = 4;

  // Records what became of a node's children; returns the likeliest of them.
  int32_t look_at_children(const DraftTree& tree, int32_t node, int32_t accepted) {
    int32_t likeliest = DraftTree::kNone;
    for (int32_t each = 0; each < tree.size(); each++) {
      if (tree.parents[each] != node) continue;
      looks_.emplace_back(tree.scores[each], each == accepted);
      if (likeliest == DraftTree::kNone || tree.scores[each] > tree.scores[likeliest]) likeliest = each;
    }
    return likeliest;
  }

  // Drafting some depths took so long. The curve's figure is that of the host, whose trees take several times as long.
  void took(int64_t levels, double seconds) {
    const double each = std::min(seconds / static_cast<double>(std::max<int64_t>(1, levels)), costs_.level);
    costs_.level += (each - costs_.level) / 16;
  }

  // All proposals in one tree.
  void propose(StepText& text, Workspace& work) {
    const PlanRules& rules = text.rules;
    text.first_place = text.chain.used;
    if (text.chain.left() > 0) {
      // Nodes less likely to be accepted than this do not pay for their row and for being drafted.
      const double row = (costs_.table[9] - costs_.table[1]) / 8;
      const double floor = std::clamp(rate_ * (row + costs_.level), 0.005, 0.5);
      const auto started = Clock::now();
      const int64_t levels = growth_.grow(text, model_, parts_.head, ends_, floor, work, text.from_masks);
      took(levels, std::chrono::duration<double>(Clock::now() - started).count());
    }
    if (rules.look_up > 0) look_up(text.tokens, rules.look_up, text.found);
    int64_t most = rules.nodes;
    if (text.follower.has_prediction() && rules.follow > 0) {
      text.follower.follow(text.tokens);
      text.follower.propose(rules.follow, predicted_);
      // Only one of the two: they read the same text, and if they differ, only one can be right.
      if (!text.found.size() || (predicted_.size() && predicted_.scores[0] >= text.found.scores[0]))
        std::swap(text.found, predicted_);
      most = std::max(most, text.found.size());
    }
    merger_.clear();
    for (const DraftTree* tree : {&text.from_masks, &text.found})
      merger_.add(*tree, [&](Source source, double score) { return curves_[text.is_sampled()][source].accepted(score); });
    merger_.finish(most, text.tree);
    // Drafts must lie within the answer's room and the text's blocks.
    int64_t nodes = 0;
    while (nodes < std::min(text.tree.size(), text.free_rows()) && text.tree.depth(static_cast<int32_t>(nodes)) < text.room)
      nodes++;
    text.tree.resize(nodes);
  }

  void look_ahead(const StepText& text, int64_t others) {
    const int64_t longest = text.rules.masks, places = parts_.reach(longest), nodes = text.tree.size();
    seconds_.resize(2 + nodes + places + (nodes + 1) * longest);
    for (size_t rows = 0; rows < seconds_.size(); rows++)
      seconds_[rows] = costs_.table[std::min(others + static_cast<int64_t>(rows), costs_.largest)] +
                       costs_.context * static_cast<double>(text.length()) * static_cast<double>(rows) +
                       costs_.sequence * static_cast<double>(texts_ - 1);
    outlook_.rate = rate_, outlook_.seconds = seconds_.data(), outlook_.pending = 1, outlook_.gains = &gains_;
    outlook_.masks = costs_.masks, outlook_.mask_row = costs_.mask_row;
    outlook_.options.clear(), outlook_.reach.clear(), outlook_.left.assign(1, 0.0);
    if (longest == 0 || is_predicted(text.tree)) return;
    for (int64_t depth = 0; depth < places; depth++) {
      acceptance_[depth] = text.rates.value(depth);
      row_seconds_[depth] = seconds_[2 + depth] - seconds_[1 + depth] + costs_.level;
    }
    gains_.find(acceptance_, places, row_seconds_, rate_);
    for (int64_t option : {2, 3, 4, 6, 8, 12, 16}) {
      const int64_t masks = std::min<int64_t>(option, longest);
      if (!outlook_.options.empty() && outlook_.options.back() == masks) break;
      outlook_.options.push_back(masks), outlook_.reach.push_back(parts_.reach(masks));
    }
    if (text.chain.left() <= 0) return;
    outlook_.left.clear();
    for (int64_t at = text.chain.used + 1; at <= text.chain.depth; at++)
      outlook_.left.push_back(gains_.by[text.chain.depth][at]);
    outlook_.left.push_back(0.0);
  }
  // If a prediction covers what comes next, masks are wasted rows.
  static bool is_predicted(const DraftTree& tree) {
    for (int64_t node = 0; node < tree.size(); node++)
      if (tree.parents[node] == kRoot && tree.sources[node] == kFromPrediction && tree.scores[node] > 0.5) return true;
    return false;
  }

  // A text without masks shows nothing of how well they would do: give it some now and then, ever more rarely.
  static void try_again(StepText& text) {
    if (text.rules.masks == 0 || text.chain.left() > 0) return;
    if (!text.plan.anchors.empty()) {
      text.without_masks = 0, text.patience = StepText::kPatience;
    } else if (++text.without_masks > text.patience) {
      text.without_masks = 0, text.patience = std::min(2 * text.patience, kMaxPatience);
      text.plan.anchors.assign(1, kRoot), text.plan.masks = std::min(kTrialMasks, text.rules.masks);
    }
  }
  // Masks are of use if there is room for a draft behind the token that the anchor gives, and for the chain's rows.
  void keep_useful_anchors(StepText& text) const {
    const int64_t masks = text.plan.masks;
    if (!masks) return;
    const int64_t deepest = std::min(text.room - 3, longest_ - text.length() - masks);
    auto& anchors = text.plan.anchors;
    const auto is_useless = [&](int32_t anchor) { return text.tree.depth(anchor) > deepest; };
    anchors.erase(std::remove_if(anchors.begin(), anchors.end(), is_useless), anchors.end());
    const int64_t fitting = std::max<int64_t>(0, text.free_rows() - text.tree.size()) / masks;
    anchors.resize(std::min(static_cast<int64_t>(anchors.size()), fitting));
    if (anchors.empty()) text.plan.masks = 0;
  }

  const Model& model_;
  const MaskParts& parts_;
  const std::vector<int64_t>& ends_;  // tokens that end a text
  const int64_t longest_;  // positions that the model has
  Costs costs_{};          // none as long as all texts take one token at a time
  int64_t texts_ = 1;
  double rate_ = 0;  // tokens per second that time is worth
  Curve curves_[2][kSources];  // of greedy and of sampled texts
  DepthRates rates_;
  Pace pace_{1.0};
  std::vector<std::pair<double, bool>> looks_;
  DraftTree predicted_;
  ChainGrowth growth_;
  TreeMerger merger_;
  Planner planner_;
  Outlook outlook_{};
  Gains gains_{};
  std::vector<double> seconds_;
  double acceptance_[kMaxMasks], row_seconds_[kMaxMasks];
};

}  // namespace stride
