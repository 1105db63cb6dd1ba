// The rows of a step: pending tokens, trees of drafts and masks of all texts, and what the forward computes for them.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "forward.h"
#include "head.h"
#include "model.h"
#include "step_text.h"
#include "workspace.h"

namespace stride {

class StepRows {
 public:
  StepRows(const Model& model, const Cache& cache, const MaskParts& parts) : model_(model), cache_(cache), parts_(parts) {}

  // Run the forward of the next step of these texts.
  void run(std::vector<StepText*>& texts) {
    lay_out(texts);
    Forward::run(model_, cache_, step_, work_);
  }
  Workspace& workspace() { return work_; }

  // Of a row that was scored: its logits, and the logarithm of the sum of their exponentials.
  ScoredRow scored(int64_t row) const {
    const int64_t at = scored_at_[row];
    return {logits_.data() + at * model_.head.outputs(), work_.log_sums.data() + at * work_.log_sum_parts, model_.vocabulary};
  }
  float* logits(int64_t row) { return logits_.data() + scored_at_[row] * model_.head.outputs(); }
  double log_sum(int64_t row) const { return log_sums_[scored_at_[row]]; }
  // The output head's input of a row, in a step with masks.
  const float* hidden(int64_t row) const { return hidden_.data() + row * model_.shape.width; }

 private:
  // Real rows first, then all masks.
  void lay_out(std::vector<StepText*>& texts) {
    int64_t real = 0, rows = 0;
    for (StepText* text : texts) text->first_row = real, real += text->real_rows();
    rows = real;
    for (StepText* text : texts) text->first_mask = rows, rows += text->mask_rows();
    ids_.resize(real), positions_.resize(rows), sequence_.resize(rows), place_.resize(rows), parent_.resize(rows);
    embedded_.resize((rows - real) * model_.shape.width);
    starts_.clear(), tables_.clear(), blocks_.clear(), scored_.clear(), wanted_.resize(rows);
    scored_at_.assign(rows, -1);
    for (int64_t row = 0; row < rows; row++) wanted_[row] = static_cast<int32_t>(row);
    for (int64_t row = 0; row < real; row++) score(row);
    for (size_t number = 0; number < texts.size(); number++) lay_out(*texts[number], static_cast<int32_t>(number), real);
    const int64_t scored = static_cast<int64_t>(scored_.size());
    const bool has_masks = rows > real;
    ensure(logits_, scored * model_.head.outputs());
    ensure(log_sums_, scored);
    if (has_masks) ensure(hidden_, rows * model_.shape.width);
    step_ = {rows, real, static_cast<int64_t>(texts.size()), has_masks ? rows : real, scored, 0,
             ids_.data(), embedded_.data(), positions_.data(), sequence_.data(), place_.data(), parent_.data(),
             starts_.data(), blocks_.data(), tables_.data(), wanted_.data(), scored_.data(), nullptr,
             logits_.data(), log_sums_.data(), has_masks ? hidden_.data() : nullptr, nullptr};
  }
  void lay_out(const StepText& text, int32_t number, int64_t real) {
    starts_.push_back(static_cast<int32_t>(text.cached));
    tables_.push_back(static_cast<int32_t>(blocks_.size()));
    blocks_.insert(blocks_.end(), text.blocks.begin(), text.blocks.end());
    const int64_t first = text.first_row;
    put(first, number, 0, -1, text.cached);
    ids_[first] = text.tokens.back();
    for (int64_t node = 0; node < text.tree.size(); node++) {
      const int64_t parent = first + 1 + text.tree.parents[node];
      put(first + 1 + node, number, 1 + node, parent, positions_[parent] + 1);
      ids_[first + 1 + node] = text.tree.tokens[node];
    }
    int64_t row = text.first_mask, place = text.real_rows();
    for (int32_t anchor : text.plan.anchors) {
      int64_t parent = first + 1 + anchor;
      for (int64_t depth = 0; depth < text.plan.masks; depth++, row++, place++) {
        put(row, number, place, parent, positions_[parent] + 1);
        std::copy_n(parts_.embedding + depth * model_.shape.width, model_.shape.width,
                    embedded_.data() + (row - real) * model_.shape.width);
        if (!text.defers) score(row);
        parent = row;
      }
    }
  }
  void put(int64_t row, int32_t number, int64_t place, int64_t parent, int64_t position) {
    sequence_[row] = number, place_[row] = static_cast<int32_t>(place);
    parent_[row] = static_cast<int32_t>(parent), positions_[row] = static_cast<int32_t>(position);
  }
  void score(int64_t row) {
    scored_at_[row] = static_cast<int32_t>(scored_.size());
    scored_.push_back(static_cast<int32_t>(row));
  }

  const Model& model_;
  const Cache& cache_;
  const MaskParts& parts_;
  Workspace work_;
  Step step_{};
  std::vector<int64_t> ids_;
  std::vector<int32_t> positions_, sequence_, place_, parent_, starts_, blocks_, tables_, wanted_, scored_, scored_at_;
  std::vector<float> embedded_, logits_, log_sums_, hidden_;
};

}  // namespace stride
