// The C interface of the kernels, bound by ctypes in native/library.py.
#include <cstdint>
#include <vector>

#include "candidates.h"
#include "draws.h"
#include "forward.h"
#include "grow.h"
#include "key_values.h"
#include "lanes.h"
#include "model.h"
#include "peaks.h"
#include "products.h"
#include "sequential.h"
#include "steps.h"
#include "team.h"
#include "workspace.h"

using namespace stride;

namespace {

Drawer& drawer() {
  static thread_local Drawer drawer;
  return drawer;
}

struct LogitRows {
  const float* logits;
  int64_t vocabulary, stride, candidates;
};

class GrowthFromLogits {
 public:
  void run(const Model& model, const Sequential& head, const Chain& chain, const LogitRows& rows,
           const GrowthRules& rules, const Grown& to, Workspace& work) {
    tokens_.resize(rows.candidates), logits_.resize(rows.candidates);
    growth_.run(model, head, chain, rules, to, work, [&](int64_t level) {
      peaks_.look(rows.logits + level * rows.stride, rows.vocabulary);
      peaks_.top(rows.candidates, tokens_.data());
      for (int64_t i = 0; i < rows.candidates; i++) logits_[i] = peaks_[tokens_[i]];
      return Candidates{rows.candidates, tokens_.data(), logits_.data()};
    });
  }

 private:
  TreeGrowth growth_;
  Peaks peaks_;
  std::vector<int64_t> tokens_;
  std::vector<float> logits_;
};

// An outlook as a caller from outside gives it: see step_plan.h.
struct PlanQuestion {
  double rate, masks, mask_row;
  int64_t pending, option_count, left_count;
  const double *seconds, *left, *fresh;  // fresh: of each option, as many numbers as it has masks
  const int64_t* options;
};

}  // namespace

extern "C" {

int64_t stride_lanes() { return kLanes; }
// Of the structures that a caller fills in, in the order of library.py.
void stride_sizes(int64_t* to) {
  for (size_t size : {sizeof(Model), sizeof(Cache), sizeof(Step), sizeof(MaskParts), sizeof(TextStart), sizeof(Sheets),
                      sizeof(GrowthRules), sizeof(Grown), sizeof(PlanQuestion)})
    *to++ = static_cast<int64_t>(size);
}

void* stride_workspace() { return new Workspace; }
void stride_free_workspace(void* workspace) { delete static_cast<Workspace*>(workspace); }

void stride_forward(const Model* model, const Cache* cache, const Step* step, void* workspace) {
  Forward::run(*model, *cache, *step, *static_cast<Workspace*>(workspace));
}

// Any matrix times some rows of floats, each a whole number of groups long.
void stride_product(const Matrix* matrix, int64_t activations, int64_t threads, const float* x, int64_t rows, float* y) {
  const int64_t size = matrix->groups * kGroup;
  QuantisedMemory memory;
  memory.prepare(rows, size);
  const Quantised quantised = memory.rows(size);
  const Activations as = taken_by(matrix->kind, static_cast<Activations>(activations));
  for (int64_t row = 0; row < rows; row++) quantise_row(x + row * size, as, quantised, row);
  Team::instance().run(static_cast<int>(threads), [&](int thread, int count) {
    const Share share(matrix->panels, 1, thread, count);
    product(*matrix, as, share.first, share.last, quantised, 0, rows, {y, matrix->outputs()});
  });
}

void stride_read_chain(const Model* model, const Sequential* head, void* workspace, int64_t rows, const float* outputs,
                       const int64_t* before, const float* states, float* added, float* next_states) {
  SequentialStep(*model, *head, *static_cast<Workspace*>(workspace)).run(rows, outputs, before, states, added, next_states);
}

// Some outputs' weights as floats, each a whole number of groups long.
void stride_unpack(const Matrix* matrix, const int64_t* outputs, int64_t count, float* to) {
  for (int64_t i = 0; i < count; i++) unpack_output(*matrix, outputs[i], to + i * matrix->groups * kGroup);
}

void stride_add_scores(const Matrix* matrix, const int64_t* outputs, int64_t count, const float* x, int64_t rows,
                       float* scores) {
  std::vector<float> weights;
  add_scores(*matrix, outputs, 0, count, count, x, rows, weights, scores);
}

void stride_top(const float* x, int64_t size, int64_t count, int64_t* places) {
  static thread_local Peaks peaks;
  peaks.look(x, size);
  peaks.top(count, places);
}

// The token at `position` of a text, from a row of logits; -1 if all are -infinity.
int64_t stride_draw(const float* logits, int64_t vocabulary, const DrawRules* rules, int64_t position) {
  return drawer().draw(logits, vocabulary, *rules, position);
}

void stride_perturb(const int64_t* tokens, const float* logits, int64_t count, const DrawRules* rules, int64_t position,
                    double* scores) {
  drawer().perturb(tokens, logits, count, *rules, position, scores);
}

// The candidates are found in rows of logits, a row per place.
void stride_grow(const Model* model, const Sequential* head, const Chain* chain, const LogitRows* rows,
                 const GrowthRules* rules, const Grown* to, void* workspace) {
  static thread_local GrowthFromLogits growth;
  growth.run(*model, *head, *chain, *rows, *rules, *to, *static_cast<Workspace*>(workspace));
}

void stride_move(const Shape* shape, const Cache* cache, const int64_t* to, const int64_t* from, int64_t count) {
  const Heads heads{shape->layers, shape->key_heads, shape->heads / shape->key_heads, shape->head_size};
  const auto move = cache->has_bytes() ? move_slots<int8_t> : move_slots<Half>;
  move(heads, *cache, to, from, count);
}

void* stride_steps(const Model* model, const Cache* cache, const MaskParts* masks, const int64_t* ends, int64_t end_count,
                   int64_t places, int64_t longest) {
  return new Steps(*model, *cache, *masks, ends, end_count, places, longest);
}
void stride_free_steps(void* steps) { delete static_cast<Steps*>(steps); }
void stride_begin(void* steps, int64_t place, const TextStart* text) { static_cast<Steps*>(steps)->begin(place, *text); }
void stride_give_blocks(void* steps, int64_t place, const int32_t* blocks, int64_t count) {
  static_cast<Steps*>(steps)->give_blocks(place, blocks, count);
}
void stride_end(void* steps, int64_t place) { static_cast<Steps*>(steps)->end(place); }
double stride_seconds_of_level(const void* steps) { return static_cast<const Steps*>(steps)->seconds_of_level(); }
double stride_seconds_of_decision(const void* steps) { return static_cast<const Steps*>(steps)->seconds_of_decision(); }
void stride_run_step(void* steps, const Sheets* sheets, const int64_t* waiting, int64_t waiting_count) {
  static_cast<Steps*>(steps)->run(*sheets, waiting, waiting_count);
}

// Parts of a step by themselves, to be compared with the host's.
// The best token of a row of logits, the likeliest ones, and the logarithm of the sum of all exponentials.
int64_t stride_candidates(const float* logits, int64_t vocabulary, int64_t count, int64_t* tokens, float* found,
                          float* log_sum) {
  std::vector<LogSum> parts;
  for (int64_t first = 0; first < vocabulary; first += ScoredRow::kPart)
    parts.push_back(LogSum::of(logits + first, std::min(ScoredRow::kPart, vocabulary - first)));
  const ScoredRow row{logits, parts.data(), vocabulary};
  find_candidates(row, count, tokens, found);
  *log_sum = LogSum::combined(parts.data(), static_cast<int64_t>(parts.size()));
  return row.best();
}
// Proposals come as a chain; these return its length.
int64_t stride_look_up(const int32_t* text, int64_t length, int64_t most, int32_t* tokens, double* scores) {
  DraftTree found;
  look_up({text, text + length}, most, found);
  std::copy(found.tokens.begin(), found.tokens.end(), tokens);
  std::copy(found.scores.begin(), found.scores.end(), scores);
  return found.size();
}
int64_t stride_follow(const int32_t* prediction, int64_t prediction_length, const int32_t* text, int64_t length,
                      int64_t prompt_length, int64_t most, int32_t* tokens, double* scores) {
  const std::vector<int32_t> all(text, text + length);
  Follower follower;
  follower.begin(prediction, prediction_length, all, prompt_length);
  follower.follow(all);
  DraftTree found;
  follower.propose(most, found);
  std::copy(found.tokens.begin(), found.tokens.end(), tokens);
  std::copy(found.scores.begin(), found.scores.end(), scores);
  return found.size();
}
// Of a draft from masks with its score, and without; of one from look-up; and of one that both propose.
void stride_chances(const Prior* prior, double score, double ease, int64_t used, int64_t depth, int64_t length,
                    int64_t ahead, double* to) {
  to[0] = prior->of_score(score, log_odds(ease), used, depth);
  to[1] = prior->of_place(log_odds(ease), used, depth);
  to[2] = prior->of_match(length, ahead);
  to[3] = Prior::joint(prior->agreed, to[0], to[2]);
}
// Pace, and what chains of each length are worth by the places passed: (places + 1) x (places + 1).
double stride_worth(const Prior* prior, int64_t masks, const Costs* costs, int64_t texts, int64_t length,
                    double ease, double* tokens) {
  MaskParts parts{};
  parts.masks = masks;
  Worth worth;
  worth.begin(*prior, parts, masks, *costs, texts, length);
  worth.look(log_odds(ease));
  for (int64_t places = 0; places <= masks; places++)
    std::copy_n(worth.chain(places), masks + 1, tokens + places * (masks + 1));
  return worth.pace();
}
void stride_choose(int64_t nodes, const int32_t* parents, const double* scores, const PlanQuestion* question,
                   int64_t* chosen, int32_t* anchors, double* worth) {
  DraftTree tree;
  for (int64_t node = 0; node < nodes; node++) tree.add(0, parents[node], kFromMasks, scores[node]);
  Outlook outlook{question->rate, question->seconds, question->pending, question->masks, question->mask_row, {}, {}};
  const double* fresh = question->fresh;
  for (int64_t i = 0; i < question->option_count; fresh += question->options[i++])
    outlook.options.push_back({question->options[i], question->options[i], fresh});
  outlook.left.assign(question->left, question->left + question->left_count);
  Planner planner;
  const StepPlan& plan = planner.choose(tree, outlook);
  chosen[0] = plan.nodes, chosen[1] = static_cast<int64_t>(plan.anchors.size()), chosen[2] = plan.masks;
  std::copy(plan.anchors.begin(), plan.anchors.end(), anchors);
  *worth = plan.worth;
}

}  // extern "C"
