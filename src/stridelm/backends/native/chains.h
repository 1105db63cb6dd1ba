// The chains of masks that the next drafts come from, after a step: those nearest to where the path ended, or older ones.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "head.h"
#include "mask_chain.h"
#include "model.h"
#include "step_rows.h"
#include "step_text.h"
#include "team.h"

namespace stride {

class Chains {
 public:
  Chains(const Model& model, const MaskParts& parts) : model_(model), parts_(parts) {}

  void renew(const std::vector<StepText*>& texts, StepRows& rows) {
    wanted_.clear(), late_.clear();
    for (StepText* text : texts) renew(*text, rows);
    const int64_t width = model_.shape.width;
    if (!late_.empty()) head_.run(model_, late_.data(), static_cast<int64_t>(late_.size()) / width);
    if (!wanted_.empty()) find_candidates(rows);
    for (StepText* text : texts) {
      if (text->chain.left() <= 0) text->chain.clear();
      else text->chain.read_passed(model_, parts_, text->tokens, rows.workspace());
    }
  }

 private:
  // As sampling.GREEDY_CANDIDATES and DRAFT_CANDIDATES: noise lifts tokens from further down.
  static constexpr int64_t kCandidates = 16, kSampledCandidates = 64;

  // A place of a chain whose candidates are wanted; its logits are a row of the step, or scored late.
  struct Wanted {
    MaskChain* chain;
    int64_t place, row;
    bool is_late;
  };

  void renew(StepText& text, const StepRows& rows) {
    const int64_t written = static_cast<int64_t>(text.emitted.size());
    if (!text.goes_on()) return text.chain.clear();
    const int64_t passed = nearest_anchor(text);
    if (passed < 0) return text.chain.pass(written);
    const auto& anchors = text.plan.anchors;
    const int32_t anchor = passed == 0 ? kRoot : text.path[passed - 1];
    const int64_t chain = std::find(anchors.begin(), anchors.end(), anchor) - anchors.begin();
    const int64_t first = text.first_mask + chain * text.plan.masks, width = model_.shape.width;
    const int64_t candidates = text.is_sampled() ? kSampledCandidates : std::max(kCandidates, text.rules.branches);
    text.chain.begin(parts_, rows.hidden(first), text.plan.masks, width, std::min(candidates, model_.vocabulary));
    text.chain.pass(written - passed - 1);
    for (int64_t at = text.chain.used; at < text.chain.depth; at++) {
      const bool is_late = text.defers || at >= text.plan.masks;
      wanted_.push_back({&text.chain, at, is_late ? static_cast<int64_t>(late_.size()) / width : first + at, is_late});
      const float* output = &text.chain.outputs[at * width];
      if (is_late) late_.insert(late_.end(), output, output + width);
    }
  }
  // The number of accepted nodes up to the last one on the path that masks hang off; -1 if there is none.
  static int64_t nearest_anchor(const StepText& text) {
    const auto& anchors = text.plan.anchors;
    for (int64_t at = static_cast<int64_t>(text.path.size()); at >= 0; at--)
      if (std::find(anchors.begin(), anchors.end(), at ? text.path[at - 1] : kRoot) != anchors.end()) return at;
    return -1;
  }
  void find_candidates(const StepRows& rows) {
    const int wanted = static_cast<int>(std::min<int64_t>(model_.shape.threads, static_cast<int64_t>(wanted_.size())));
    Team::instance().run(wanted, [&](int thread, int threads) {
      for (size_t i = thread; i < wanted_.size(); i += threads) {
        const Wanted& each = wanted_[i];
        each.chain->find_candidates(each.place, each.is_late ? head_.row(each.row) : rows.scored(each.row));
      }
    });
  }

  const Model& model_;
  const MaskParts& parts_;
  std::vector<Wanted> wanted_;
  std::vector<float> late_;
  HeadRows head_;
};

}  // namespace stride
