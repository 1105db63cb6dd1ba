// STAND-IN until TreeGrowth takes candidates.
#pragma once
#include <numeric>
#include "candidates.h"
#include "draft_tree.h"
#include "draws.h"
#include "mask_chain.h"
namespace stride {
struct GrowthRules {
  DrawRules draws;
  int64_t branches;
  double floor;
  const std::vector<int32_t>& text;
  const std::vector<int64_t>& ends;
};
class ChainGrowth {
 public:
  void grow(const MaskChain& chain, const Model& model, const MaskParts& parts, const GrowthRules& rules, Workspace& work, DraftTree& to) {
    const int64_t width = model.shape.width, size = parts.head.size, wide = model.head.groups * kGroup;
    struct Bud { int32_t node; int64_t token; double path; std::vector<float> state; };
    std::vector<Bud> buds{{kRoot, rules.text.back(), 1.0, chain.state}};
    for (int64_t at = chain.used; at < chain.depth && !buds.empty(); at++) {
      std::vector<Bud> children;
      const int64_t count = std::min<int64_t>(16, chain.counts[at]);
      std::vector<int64_t> order(chain.counts[at]);
      std::iota(order.begin(), order.end(), 0);
      const float* all = &chain.logits[at * MaskChain::kCandidates];
      std::partial_sort(order.begin(), order.begin() + count, order.end(), [&](int64_t a, int64_t b) { return all[a] > all[b]; });
      for (Bud& bud : buds) {
        std::vector<float> added(wide), next(size), scores(count);
        std::vector<int64_t> tokens(count);
        SequentialStep(model, parts.head, work).run(1, &chain.outputs[at * width], &bud.token, bud.state.data(), added.data(), next.data());
        for (int64_t i = 0; i < count; i++) tokens[i] = chain.tokens[at * MaskChain::kCandidates + order[i]], scores[i] = all[order[i]];
        add_scores(model.head, tokens.data(), count, added.data(), 1, scores.data());
        std::vector<int64_t> best(count);
        std::iota(best.begin(), best.end(), 0);
        std::stable_sort(best.begin(), best.end(), [&](int64_t a, int64_t b) { return scores[a] > scores[b]; });
        double total = 0;
        for (float s : scores) total += std::exp(s - scores[best[0]]);
        for (int64_t i = 0; i < std::min(rules.branches, count); i++) {
          const double score = std::exp(scores[best[i]] - scores[best[0]]) / total, path = bud.path * score;
          if (path < rules.floor) continue;
          to.add(static_cast<int32_t>(tokens[best[i]]), bud.node, kFromMasks, score);
          if (std::find(rules.ends.begin(), rules.ends.end(), tokens[best[i]]) == rules.ends.end())
            children.push_back({static_cast<int32_t>(to.size() - 1), tokens[best[i]], path, next});
        }
      }
      std::stable_sort(children.begin(), children.end(), [](const Bud& a, const Bud& b) { return a.path > b.path; });
      if (static_cast<int64_t>(children.size()) > rules.branches) children.resize(rules.branches);
      buds = std::move(children);
    }
  }
};
}  // namespace stride
