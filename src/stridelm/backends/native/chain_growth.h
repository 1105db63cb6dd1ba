// A tree of drafts from a text's chain of masks.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "draft_tree.h"
#include "grow.h"
#include "mask_chain.h"
#include "model.h"
#include "step_text.h"
#include "workspace.h"

namespace stride {

// Keeps its memory between trees.
class ChainGrowth {
 public:
  // `ends`: tokens that end a text; `floor`: nodes less likely to be accepted than this are left out.
  // Returns the number of depths that were looked at.
  int64_t grow(const StepText& text, const Model& model, const Sequential& head, const std::vector<int64_t>& ends,
            double floor, Workspace& work, DraftTree& to) {
    const MaskChain& chain = text.chain;
    const int64_t branches = text.rules.branches, most = chain.left() * branches;
    const Chain places{chain.left(), &chain.outputs[chain.used * model.shape.width], chain.state.data()};
    const GrowthRules rules{text.tokens.back(), text.length(), branches, floor, text.draws,
                            text.biases.count(), text.biases.tokens(), text.biases.values(),
                            static_cast<int64_t>(ends.size()), ends.data()};
    tokens_.resize(most * branches), parents_.resize(most * branches), scores_.resize(most * branches);
    buds_.resize(most), states_.resize(most * std::max<int64_t>(1, head.size));
    int64_t nodes = 0, buds = 0;
    const Grown grown{&nodes, &buds, tokens_.data(), parents_.data(), scores_.data(), buds_.data(), states_.data()};
    int64_t levels = 0;
    growth_.run(model, head, places, rules, grown, work, [&](int64_t level) {
      levels = level + 1;
      return chain.candidates(chain.used + level);
    });
    to.clear();
    for (int64_t node = 0; node < nodes; node++)
      to.add(static_cast<int32_t>(tokens_[node]), static_cast<int32_t>(parents_[node]), kFromMasks, scores_[node]);
    return levels;
  }

 private:
  TreeGrowth growth_;
  std::vector<int64_t> tokens_, parents_, buds_;
  std::vector<double> scores_;
  std::vector<float> states_;
};

}  // namespace stride
