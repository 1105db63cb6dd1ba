// Look-up: where the text's last tokens occurred before, and what followed there. The same as draft/ngram.py.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "draft_tree.h"

namespace stride {

// Propose what followed the latest of the longest earlier matches of the text's ending, at most so many tokens.
inline void look_up(const std::vector<int32_t>& text, int64_t most, DraftTree& to) {
  constexpr int64_t kShortest = 2;  // a single token occurs almost everywhere
  to.clear();
  const int64_t length = static_cast<int64_t>(text.size());
  const int64_t compared = std::max(most, kShortest);
  int64_t best = 0, after = 0;
  for (int64_t end = length - 2; end >= 0; end--) {
    if (text[end] != text[length - 1]) continue;
    int64_t same = 1;
    while (same < std::min(compared, end + 1) && text[end - same] == text[length - 1 - same]) same++;
    if (same > best) best = same, after = end + 1;
    if (best == compared) break;
  }
  if (best < kShortest) return;
  // A longer match gets a longer draft: short matches are often chance, and every row costs.
  const int64_t count = std::min(std::min(most, best), length - after);
  for (int64_t i = 0; i < count; i++)
    to.add(text[after + i], static_cast<int32_t>(i) - 1, kFromLookUp, 1.0 - 1.0 / static_cast<double>(best + i));
}

}  // namespace stride
