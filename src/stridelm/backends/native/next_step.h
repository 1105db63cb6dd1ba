// What the next step verifies and where its masks hang, from what was accepted so far: the one decision of planned steps.
//
// bench/replay/expected.py is the same for chains, and judges it. Resting needs no rule of its own: if masks are not worth
// their time at a text's ease, a single row is the best plan. Looking again does, since without masks nothing is learned.
#pragma once

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdint>
#include <map>
#include <utility>
#include <vector>

#include "chain_growth.h"
#include "draft_tree.h"
#include "look_up.h"
#include "mask_chain.h"
#include "prior.h"
#include "step_plan.h"
#include "step_text.h"
#include "worth.h"

namespace stride {

class NextStep {
 public:
  NextStep(const Model& model, const MaskParts& parts, const std::vector<int64_t>& ends, int64_t longest)
      : model_(model), parts_(parts), ends_(ends), longest_(longest) {}

  void begin(const StepText& text, Workspace& work) {
    if (!text.is_planned()) return;
    if (!has_planned_texts() || is_other(text.rules.costs)) take(text.rules.costs);
    if (text.rules.masks && !has_tried_levels_) costs_.level = try_levels(text.rules.branches, work);
    has_tried_levels_ |= text.rules.masks > 0;
  }
  double seconds_of_level() const { return costs_.level; }
  // On average, beyond drafting from masks; 0 before there was any.
  double seconds_of_decision() const { return decisions_ ? deciding_ / static_cast<double>(decisions_) : 0; }
  // What lay between two forwards took so long, drafting included; so many texts had masks or drafts from them.
  void surround(double seconds, int64_t texts) {
    const double rest = seconds - drafting_ - apart_, tending = (rest - costs_.around) / static_cast<double>(std::max<int64_t>(1, texts));
    drafting_ = apart_ = 0;
    if (texts) approach(costs_.tending, tending);
    else approach(costs_.around, rest);
  }
  bool has_planned_texts() const { return costs_.table != nullptr; }

  // From all that masks proposed, whether it was run or not: the emitted text is enough to judge it.
  void learn(StepText& text) {
    const int64_t written = static_cast<int64_t>(text.emitted.size());
    int64_t drafted = 0, stood = 0;
    bool stands = true;
    for (int32_t node = first_choice(text.from_masks, kRoot); node != DraftTree::kNone && drafted < written;
         node = first_choice(text.from_masks, node), drafted++) {
      stands = stands && text.from_masks.tokens[node] == text.emitted[drafted];
      stood += stands;
    }
    // A chain whose first choice was too unlikely to be drafted counts as one that did not stand.
    const bool was_asked = text.was_grown && drafted == 0;
    text.ease.observe(written, was_asked ? 1 : std::min(stood + 1, drafted), stood);
    text.rested = text.was_grown ? 0 : text.rested + written;
  }

  // `texts`: how many are written together; `others`: rows of the other ones in the step.
  void plan(StepText& text, int64_t texts, int64_t others, Workspace& work) {
    text.plan = {}, text.defers = text.was_grown = false;
    text.tree.clear(), text.from_masks.clear(), text.found.clear();
    if (!text.goes_on() || !text.is_planned()) return;
    const double drafted = drafting_;
    const auto started = Clock::now();
    decide(text, texts, others, work);
    deciding_ += std::chrono::duration<double>(Clock::now() - started).count() - (drafting_ - drafted), decisions_++;
  }

 private:
  using Clock = std::chrono::steady_clock;
  static constexpr int64_t kMasksToLook = 2;
  static constexpr int64_t kAlike = 256, kExactly = 8;  // lengths that are one; up to so many texts together are not
  static constexpr double kFloor = 0.2, kLeastFloor = 0.005;
  // Beside many texts drafts gain little and cost nearly as much: only those that pay clearly are run.
  static constexpr int64_t kFew = 2;
  static constexpr double kDear = 1.2;
  static constexpr double kAround = 1e-4, kTending = 5e-5;
  static constexpr double kCaution = 0.93;  // what masks will bring is an estimate, the time that they take is not

  void decide(StepText& text, int64_t texts, int64_t others, Workspace& work) {
    propose(text, worth_for(text, texts).pace(), work);
    if (!text.tree.size() && text.rules.masks == 0) return;
    const Worth& worth = worth_for(text, texts);
    look_ahead(text, worth, texts, others);
    text.plan = planner_.choose(text.tree, outlook_);
    text.tree.resize(text.plan.nodes);
    if (worth.can_pay()) look_again(text);
    keep_useful_anchors(text);
    text.defers = costs_.head + costs_.head_row * static_cast<double>(text.plan.masks) <
                  costs_.head_row * static_cast<double>(text.mask_rows());
  }

  // All texts of a model have the same costs, unless somebody tries others.
  bool is_other(const Costs& costs) const {
    const auto numbers = [](const Costs& of) {
      return std::array{of.masks, of.mask_row, of.context, of.sequence, of.head, of.head_row};
    };
    return costs.largest != costs_.largest || numbers(costs) != numbers(costs_) ||
           !std::equal(table_.begin(), table_.end(), costs.table);
  }
  void take(const Costs& costs) {
    const double around = costs_.around, tending = costs_.tending;
    costs_ = costs, costs_.around = around, costs_.tending = tending, has_tried_levels_ = false;
    table_.assign(costs.table, costs.table + costs.largest + 1);
    costs_.table = table_.data();
    worths_.clear();
  }

  // The likeliest child of a node.
  static int32_t first_choice(const DraftTree& tree, int32_t node) {
    int32_t likeliest = DraftTree::kNone;
    for (int32_t each = 0; each < tree.size(); each++)
      if (tree.parents[each] == node && (likeliest == DraftTree::kNone || tree.scores[each] > tree.scores[likeliest]))
        likeliest = each;
    return likeliest;
  }

  // Seconds of one depth of a tree that is drafted from masks: the best of some trials, on a chain without content.
  double try_levels(int64_t branches, Workspace& work) {
    constexpr int64_t kLevels = 3, kTrials = 6;
    StepText text;
    text.tokens.assign(1, 0), text.rules.branches = branches;
    const std::vector<float> outputs(parts_.masks * model_.shape.width, 0.0f);
    text.chain.begin(parts_, outputs.data(), std::min(kLevels, parts_.masks), model_.shape.width,
                     std::min<int64_t>(16, model_.vocabulary));
    for (size_t i = 0; i < text.chain.tokens.size(); i++)
      text.chain.tokens[i] = static_cast<int64_t>(i) % text.chain.most, text.chain.logits[i] = 0;
    double best = costs_.level;
    DraftTree tree;
    for (int64_t trial = 0; trial < kTrials; trial++) {
      text.was_grown = true;
      const auto started = Clock::now();
      const int64_t levels = growth_.grow(text, model_, parts_.head, {}, 0.0, work, tree);
      const double seconds = std::chrono::duration<double>(Clock::now() - started).count();
      best = std::min(best, seconds / static_cast<double>(std::max<int64_t>(1, levels)));
    }
    return best;
  }

  // One measurement changes an estimate by an eighth at most: the system may have held up any of them.
  static void approach(double& estimate, double measured) {
    estimate += (std::clamp(measured, estimate / 2, 2 * estimate) - estimate) / 8;
  }
  // Drafting some depths took so long, in a step: its weights come from memory then.
  void took(int64_t levels, double seconds) {
    drafting_ += seconds;
    const double each = seconds / static_cast<double>(std::max<int64_t>(1, levels));
    approach(costs_.level, each);
  }

  // At the text's ease. Solved when first needed, in some 0.2 ms, and again, in less, if costs turn out otherwise.
  const Worth& worth_for(const StepText& text, int64_t texts) {
    int64_t together = std::min(texts, kExactly);
    while (together < texts) together *= 2;
    const int64_t lengths = text.length() / kAlike;
    Worth& worth = worths_[{together, lengths, 2 * text.rules.masks + text.is_sampled()}];
    const auto started = Clock::now();
    if (!worth.is_about(costs_))
      worth.begin(text.prior(), parts_, text.rules.masks, costs_, together, lengths * kAlike + kAlike / 2);
    worth.look(text.ease.odds());
    apart_ += std::chrono::duration<double>(Clock::now() - started).count();
    return worth;
  }

  // All proposals in one tree.
  void propose(StepText& text, double pace, Workspace& work) {
    const PlanRules& rules = text.rules;
    if (text.chain.left() > 0) {
      // Nodes less likely to be accepted than this do not pay for their row and for being drafted.
      const double row = (costs_.rows(9) - costs_.rows(1)) / 8 + costs_.context * static_cast<double>(text.length());
      const double floor = std::clamp(pace * (row + costs_.level), kLeastFloor, kFloor);
      text.was_grown = true;
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
    judge(text);
    merger_.clear();
    merger_.add(text.from_masks, drafted_), merger_.add(text.found, found_);
    merger_.finish(most, text.tree);
    // Drafts must lie within the answer's room and the text's blocks.
    int64_t nodes = 0;
    while (nodes < std::min(text.tree.size(), text.free_rows()) && text.tree.depth(static_cast<int32_t>(nodes)) < text.room)
      nodes++;
    text.tree.resize(nodes);
  }

  // The probabilities that proposals are accepted if their parents are.
  void judge(const StepText& text) {
    const Prior& prior = text.prior();
    const DraftTree &drafted = text.from_masks, &found = text.found;
    const double ease = text.ease.odds();
    drafted_.resize(drafted.size()), found_.resize(found.size());
    for (int32_t node = 0; node < drafted.size(); node++)
      drafted_[node] = prior.of_score(drafted.scores[node], ease, text.chain.used, drafted.depth(node) - 1);
    const int64_t matched = found.size() ? match_length(found.scores[0]) : 0;
    for (int64_t ahead = 0; ahead < found.size(); ahead++)
      found_[ahead] = found.sources[ahead] == kFromPrediction ? found.scores[ahead] : prior.of_match(matched, ahead);
    // What both propose is likelier than either says, and where they part, less so.
    int32_t node = kRoot;
    for (int64_t ahead = 0; ahead < found.size(); ahead++) {
      const int32_t first = first_choice(drafted, node);
      if (first == DraftTree::kNone) return;
      const double chain = drafted_[first], other = found_[ahead];
      if (drafted.tokens[first] != found.tokens[ahead]) {
        drafted_[first] = Prior::joint(prior.chain_against, chain, other);
        found_[ahead] = Prior::joint(prior.found_against, chain, other);
        return;
      }
      drafted_[first] = found_[ahead] = Prior::joint(prior.agreed, chain, other);
      node = first;
    }
  }
  // Look-up's score of its first draft is 1 - 1 / the length of its match.
  static int64_t match_length(double score) { return std::lround(1 / (1 - score)); }

  void look_ahead(const StepText& text, const Worth& worth, int64_t texts, int64_t others) {
    const int64_t longest = text.rules.masks, nodes = text.tree.size();
    seconds_.resize(2 + nodes + (nodes + 1) * longest);
    for (size_t rows = 0; rows < seconds_.size(); rows++)
      seconds_[rows] = costs_.rows(others + static_cast<int64_t>(rows)) +
                       costs_.context * static_cast<double>(text.length()) * static_cast<double>(rows) +
                       costs_.sequence * static_cast<double>(texts - 1);
    outlook_.rate = worth.pace() * (texts > kFew ? kDear : 1.0), outlook_.seconds = seconds_.data(), outlook_.pending = 1;
    outlook_.masks = costs_.masks + costs_.tending, outlook_.mask_row = costs_.mask_row;
    outlook_.options.clear(), outlook_.left.assign(1, 0.0);
    if (longest == 0 || is_predicted(text.tree)) return;
    fresh_.clear();
    for (int64_t places : worth.reach())
      for (int64_t since = 0; since < places; since++) fresh_.push_back(kCaution * worth.chain(places)[since]);
    const double* fresh = fresh_.data();
    for (size_t i = 0; i < worth.options().size(); i++) {
      outlook_.options.push_back({worth.options()[i], worth.reach()[i], fresh});
      fresh += worth.reach()[i];
    }
    if (text.chain.left() <= 0) return;
    outlook_.left.clear();
    for (int64_t used = text.chain.used + 1; used < text.chain.depth; used++)
      outlook_.left.push_back(kCaution * worth.chain(text.chain.depth)[used]);
    outlook_.left.push_back(0.0);
  }
  // If a prediction covers what comes next, masks are wasted rows.
  static bool is_predicted(const DraftTree& tree) {
    for (int64_t node = 0; node < tree.size(); node++)
      if (tree.parents[node] == kRoot && tree.sources[node] == kFromPrediction && tree.scores[node] > 0.5) return true;
    return false;
  }

  // A text without masks shows nothing of how well they would do: give it some at its beginning, and now and then.
  static void look_again(StepText& text) {
    if (text.rules.masks == 0 || text.rested < StepText::kLookAgain || !text.plan.anchors.empty()) return;
    const int64_t nodes = text.tree.size();
    if ((nodes && text.tree.sources[0] != kFromMasks) || text.chain.left() > nodes + 1) return;
    text.plan.anchors.assign(1, static_cast<int32_t>(nodes) - 1);
    text.plan.masks = std::min(kMasksToLook, text.rules.masks);
  }
  // Masks are of use if there is room for a draft behind the token that the anchor gives, and for the chain's rows.
  void keep_useful_anchors(StepText& text) const {
    const int64_t masks = text.plan.masks;
    if (!masks) return;
    const int64_t deepest = std::min(text.room - 3, longest_ - text.length() - masks);
    auto& anchors = text.plan.anchors;
    const auto is_useless = [&](int32_t anchor) { return text.tree.depth(anchor) > deepest; };
    anchors.erase(std::remove_if(anchors.begin(), anchors.end(), is_useless), anchors.end());
    text.fit();
  }

  const Model& model_;
  const MaskParts& parts_;
  const std::vector<int64_t>& ends_;  // tokens that end a text
  const int64_t longest_;             // positions that the model has
  Costs costs_{{}, {}, {}, {}, {}, {}, {}, {}, {}, kAround, kTending};  // no table: all texts take one token at a time
  double drafting_ = 0, apart_ = 0;   // seconds since the last forward: of drafting, and of what is done once
  double deciding_ = 0;               // seconds of all decisions so far
  int64_t decisions_ = 0;
  std::vector<double> table_;         // theirs
  bool has_tried_levels_ = false;
  std::map<std::array<int64_t, 3>, Worth> worths_;  // by texts together, their length, and masks and kind of text
  DraftTree predicted_;
  std::vector<double> drafted_, found_, fresh_, seconds_;
  ChainGrowth growth_;
  TreeMerger merger_;
  Planner planner_;
  Outlook outlook_{};
};

}  // namespace stride
