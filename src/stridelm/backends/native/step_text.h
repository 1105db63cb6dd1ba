// A text while steps write it: what it asks, where it stands, and the next step's drafts and masks.
#pragma once

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

#include "draft_tree.h"
#include "draws.h"
#include "follower.h"
#include "key_values.h"
#include "mask_chain.h"
#include "prior.h"
#include "step_plan.h"
#include "worth.h"

namespace stride {

// What a text asks of its steps: stepper.OwnPlan.
struct PlanRules {
  int64_t masks;     // longest chain; 0: no drafts from masks
  int64_t nodes;     // maximum number of drafts
  int64_t branches;  // of the trees that are grown from masks
  int64_t look_up;   // longest draft from look-up; 0: none
  int64_t follow;    // longest draft from the prediction
  Costs costs;       // no table: one token at a time
  Prior prior[2];    // of greedy and of sampled texts
};

// A text that continues.
struct TextStart {
  int64_t cached, room, length, prompt_length, block_count, prediction_length;  // length: with the pending token
  int64_t alternatives;  // how many likeliest tokens are reported for each
  const int32_t* tokens;
  const int32_t* blocks;
  const int32_t* prediction;
  int64_t biased_count;
  const int64_t* biased;
  const float* biases;
  DrawRules draws;
  PlanRules plan;
};

struct StepText {
  bool is_here = false;
  std::vector<int32_t> tokens;  // the last one is pending
  std::vector<int32_t> blocks;
  int64_t cached = 0, room = 0, alternatives = 0;
  DrawRules draws{};
  Biases biases;
  PlanRules rules{};
  Follower follower;

  DraftTree tree;               // what the next step verifies
  StepPlan plan;                // where its masks hang
  bool defers = false;          // whether the masks' logits are left out of the forward
  DraftTree from_masks, found;  // what was proposed for the next step: by masks; by look-up or from the prediction
  bool was_grown = false;       // whether masks were asked for these
  MaskChain chain;
  Ease ease;
  int64_t rested = kLookAgain;  // tokens since drafts from masks were last seen

  int64_t first_row = 0, first_mask = 0;  // in the current step
  std::vector<int32_t> emitted, path;     // path: the accepted nodes
  std::vector<double> confidence;
  std::vector<std::pair<double, int32_t>> likeliest;  // of each emitted token's row, best first: probability and token

  // Tokens after which a text gets masks again, to see whether it has become easier; and at its beginning.
  static constexpr int64_t kLookAgain = 64;

  StepText() = default;
  explicit StepText(const TextStart& start)
      : is_here(true), tokens(start.tokens, start.tokens + start.length), blocks(start.blocks, start.blocks + start.block_count),
        cached(start.cached), room(start.room), alternatives(start.alternatives), draws(start.draws), biases(start.biased, start.biases, start.biased_count), rules(start.plan),
        ease(prior().ease) {
    if (start.prediction_length) follower.begin(start.prediction, start.prediction_length, tokens, start.prompt_length);
  }

  bool goes_on() const { return is_here && room > 0; }
  bool is_sampled() const { return draws.temperature > 0; }
  const Prior& prior() const { return rules.prior[is_sampled()]; }
  bool is_planned() const { return rules.costs.table != nullptr; }
  int64_t length() const { return static_cast<int64_t>(tokens.size()); }
  int64_t mask_rows() const { return static_cast<int64_t>(plan.anchors.size()) * plan.masks; }
  int64_t real_rows() const { return 1 + tree.size(); }
  int64_t rows() const { return real_rows() + mask_rows(); }
  // Rows behind the pending one that the text's blocks have room for.
  int64_t free_rows() const { return static_cast<int64_t>(blocks.size()) * kBlock - cached - 1; }
  // Leave out drafts and masks that the blocks have no room for.
  void fit() {
    tree.resize(std::min(tree.size(), free_rows()));
    auto& anchors = plan.anchors;
    const auto is_gone = [&](int32_t anchor) { return anchor >= tree.size(); };
    anchors.erase(std::remove_if(anchors.begin(), anchors.end(), is_gone), anchors.end());
    const int64_t fitting = plan.masks ? (free_rows() - tree.size()) / plan.masks : 0;
    anchors.resize(std::min(static_cast<int64_t>(anchors.size()), fitting));
    if (anchors.empty()) plan.masks = 0;
  }
  int64_t slot(int64_t at) const { return blocks[at / kBlock] * kBlock + at % kBlock; }
};

}  // namespace stride
