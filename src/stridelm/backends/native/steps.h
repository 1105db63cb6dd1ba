// Whole steps of some texts: forward, draws, walk, compaction of the cache, the next drafts and their plan, one call a
// step. What the host's steps do in Python (decode/planned.py); the text is the same token for token.
//
// A text's rows in a step are its pending token p, a tree of drafts behind it, and chains of masks off some of these:
//
//     p - d1 - d2 - d3 - m - m
//      \- e1    \- m - m
//
// Masks of an earlier step that the text has not passed yet are of use, too: the sequential head reads what came since.
#pragma once

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "chains.h"
#include "draft_tree.h"
#include "draws.h"
#include "key_values.h"
#include "mask_chain.h"
#include "model.h"
#include "next_step.h"
#include "step_rows.h"
#include "step_text.h"

namespace stride {

// What a step wrote, by place.
struct Sheets {
  int64_t integers, probabilities;  // of each place
  // Numbers of tokens, accepted nodes, nodes and anchors, and of masks per anchor; then the tokens, the accepted nodes,
  // the tree's tokens, parents and sources, the anchors, the likeliest tokens at each token's place.
  int32_t* integer;
  double* probability;  // of each token, each node and each of the likeliest tokens
};

class Steps {
 public:
  // `longest`: positions that the model has.
  Steps(const Model& model, const Cache& cache, const MaskParts& parts, const int64_t* ends, int64_t end_count,
        int64_t places, int64_t longest)
      : model_(model), cache_(cache), parts_(parts), ends_(ends, ends + end_count), texts_(places),
        rows_(model, cache_, parts_), chains_(model, parts_), next_(model, parts_, ends_, longest) {}

  void begin(int64_t place, const TextStart& start) {
    StepText& text = texts_[place] = StepText(start);
    is_between_steps_ = false;
    next_.begin(text, rows_.workspace());
    int64_t texts = 0, others = 0;
    for (const StepText& each : texts_)
      if (each.goes_on()) texts++, others += &each == &text ? 0 : each.rows();
    next_.plan(text, texts, others, rows_.workspace());
  }
  void give_blocks(int64_t place, const int32_t* blocks, int64_t count) {
    texts_[place].blocks.assign(blocks, blocks + count);
    texts_[place].fit();
  }
  // That drafting one depth of a tree takes here.
  double seconds_of_level() const { return next_.seconds_of_level(); }
  double seconds_of_decision() const { return next_.seconds_of_decision(); }
  void end(int64_t place) { texts_[place] = {}; }

  // `waiting`: places whose texts are left out of this step. Their drafts and masks stay for a later one.
  void run(const Sheets& to, const int64_t* waiting, int64_t waiting_count) {
    going_.clear();
    for (size_t place = 0; place < texts_.size(); place++) {
      to.integer[place * to.integers] = 0;
      const bool waits = std::find(waiting, waiting + waiting_count, static_cast<int64_t>(place)) != waiting + waiting_count;
      if (texts_[place].goes_on() && !waits) going_.push_back(&texts_[place]);
    }
    if (going_.empty()) return;
    const auto started = Clock::now();
    if (is_between_steps_) next_.surround(std::chrono::duration<double>(started - forward_ended_).count(), tended_);
    rows_.run(going_);
    forward_ended_ = Clock::now(), is_between_steps_ = true;
    tended_ = std::count_if(going_.begin(), going_.end(),
                            [](const StepText* text) { return text->was_grown || text->mask_rows(); });
    for (StepText* text : going_) {
      walk(*text);
      report(*text, to);
    }
    keep();
    if (next_.has_planned_texts()) plan();
  }

 private:
  using Clock = std::chrono::steady_clock;

  // Draw along the tree, as verify.walk does.
  void walk(StepText& text) {
    text.emitted.clear(), text.path.clear(), text.confidence.clear(), text.likeliest.clear();
    for (int32_t node = kRoot;;) {
      const int64_t row = text.first_row + 1 + node;
      const int64_t drawn = draw(text, row);
      const int32_t token = static_cast<int32_t>(std::max<int64_t>(drawn, 0));  // if none is left, none of its logits counts
      const double logit = drawn < 0 ? NAN : rows_.logits(row)[token];
      text.tokens.push_back(token);
      text.emitted.push_back(token);
      text.confidence.push_back(std::exp(logit - rows_.log_sum(row)));
      if (text.alternatives) find_likeliest(text, row);
      if (std::find(ends_.begin(), ends_.end(), token) != ends_.end()) text.room = 1;
      if (--text.room == 0) return;
      node = text.tree.child(node, token);
      if (node == DraftTree::kNone) return;
      text.path.push_back(node);
    }
  }

  int64_t draw(const StepText& text, int64_t row) {
    const ScoredRow scored = rows_.scored(row);
    if (!text.is_sampled() && text.biases.empty()) return scored.best();
    return text.biases.with(rows_.logits(row), [&] {
      return drawer_.draw(scored.logits, scored.vocabulary, text.draws, text.length());
    });
  }

  void find_likeliest(StepText& text, int64_t row) {
    const int64_t count = text.alternatives;
    found_.resize(count), logits_.resize(count);
    find_candidates(rows_.scored(row), count, found_.data(), logits_.data());
    const auto first = static_cast<std::ptrdiff_t>(text.likeliest.size());
    for (int64_t i = 0; i < count; i++)
      text.likeliest.emplace_back(std::exp(logits_[i] - rows_.log_sum(row)), static_cast<int32_t>(found_[i]));
    std::sort(text.likeliest.begin() + first, text.likeliest.end(), [](const auto& a, const auto& b) {
      return a.first > b.first || (a.first == b.first && a.second < b.second);
    });
  }

  void report(const StepText& text, const Sheets& to) const {
    const int64_t place = &text - texts_.data();
    int32_t* at = to.integer + place * to.integers;
    for (size_t count : {text.emitted.size(), text.path.size(), text.tree.tokens.size(), text.plan.anchors.size(),
                         static_cast<size_t>(text.plan.masks)})
      *at++ = static_cast<int32_t>(count);
    for (const auto* values : {&text.emitted, &text.path, &text.tree.tokens, &text.tree.parents, &text.tree.sources,
                               &text.plan.anchors})
      at = std::copy(values->begin(), values->end(), at);
    double* chance = to.probability + place * to.probabilities;
    for (const auto* values : {&text.confidence, &text.tree.scores})
      chance = std::copy(values->begin(), values->end(), chance);
    for (const auto& [probability, token] : text.likeliest) *chance++ = probability, *at++ = token;
  }

  // Keys and values of the accepted rows move together behind those that were there.
  void keep() {
    to_.clear(), from_.clear();
    for (StepText* text : going_) {
      for (size_t i = 0; i < text->path.size(); i++) {
        const int64_t first = text->cached + 1, to = first + static_cast<int64_t>(i), from = first + text->path[i];
        if (to != from) to_.push_back(text->slot(to)), from_.push_back(text->slot(from));
      }
      text->cached += static_cast<int64_t>(text->emitted.size());
    }
    if (to_.empty()) return;
    const Shape& shape = model_.shape;
    const Heads heads{shape.layers, shape.key_heads, shape.heads / shape.key_heads, shape.head_size};
    const auto move = cache_.has_bytes() ? move_slots<int8_t> : move_slots<Half>;
    move(heads, cache_, to_.data(), from_.data(), static_cast<int64_t>(to_.size()));
  }

  void plan() {
    int64_t texts = 0, rows = 0;
    for (StepText* text : going_) next_.learn(*text);
    chains_.renew(going_, rows_);
    for (const StepText* text : going_)
      if (text->goes_on()) texts++, rows += text->rows();
    for (StepText* text : going_) {
      if (!text->goes_on()) continue;
      rows -= text->rows();
      next_.plan(*text, texts, rows, rows_.workspace());
      rows += text->rows();
    }
  }

  const Model& model_;
  const Cache cache_;
  const MaskParts parts_;
  const std::vector<int64_t> ends_;
  std::vector<StepText> texts_;
  std::vector<StepText*> going_;  // texts that go on
  StepRows rows_;
  Chains chains_;
  NextStep next_;
  Drawer drawer_;
  Clock::time_point forward_ended_;
  int64_t tended_ = 0;  // texts in the last forward that had masks or drafts from them
  bool is_between_steps_ = false;  // nothing but steps since the last forward: no prompt was read, no user thought
  std::vector<int64_t> to_, from_;  // slots of the cache
  std::vector<int64_t> found_;
  std::vector<float> logits_;
};

}  // namespace stride
