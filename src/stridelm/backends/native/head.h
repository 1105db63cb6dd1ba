// The output head: logits of some rows, the sums of their exponentials, and the likeliest tokens.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <utility>
#include <vector>

#include "elementwise.h"
#include "model.h"
#include "products.h"
#include "team.h"
#include "workspace.h"

namespace stride {

// Logits are always computed from 16-bit rows.
constexpr Activations kHeadActivations = Activations::kInt16;

// A thread's share of the head. The sums go by parts of the vocabulary that do not depend on the number of threads.
inline void score_share(const Model& model, const Quantised& x, int64_t rows, Share share, float* logits,
                        LogSum* log_sums, int64_t parts) {
  const int64_t outputs = model.head.outputs();
  for (; share.first < share.last; share.first += kLogSumPanels) {
    const int64_t last = std::min(share.first + kLogSumPanels, share.last), first = share.first * kLanes;
    product(model.head, kHeadActivations, share.first, last, x, 0, rows, {logits, outputs});
    const int64_t size = std::min(last * kLanes, model.vocabulary) - first;
    for (int64_t i = 0; i < rows; i++)
      log_sums[i * parts + share.first / kLogSumPanels] =
          LogSum::of(logits + i * outputs + first, std::max<int64_t>(size, 0));
  }
}

// A row of logits, and the largest of each part of it, so that most parts need not be read again.
struct ScoredRow {
  const float* logits;
  const LogSum* parts;
  int64_t vocabulary;

  static constexpr int64_t kPart = kLogSumPanels * kLanes;
  int64_t part_count() const { return (vocabulary + kPart - 1) / kPart; }

  // The best token; of equal ones the first.
  int64_t best() const {
    int64_t part = 0;
    for (int64_t i = 1; i < part_count(); i++)
      if (parts[i].largest > parts[part].largest) part = i;
    const int64_t first = part * kPart, last = std::min(first + kPart, vocabulary);
    const float* found = std::find(logits + first, logits + last, parts[part].largest);
    return found == logits + last ? 0 : found - logits;  // 0 if no logit is a number: its probability is none either
  }
};

// Logits outside of a forward, for outputs of masks that turned out to be needed.
class HeadRows {
 public:
  // `hidden`: rows x width, as the last norm leaves them.
  void run(const Model& model, const float* hidden, int64_t rows) {
    const int64_t width = model.shape.width, outputs = model.head.outputs();
    parts_ = (model.head.panels + kLogSumPanels - 1) / kLogSumPanels;
    vocabulary_ = model.vocabulary, outputs_ = outputs;
    ensure(logits_, rows * outputs);
    ensure(log_sums_, rows * parts_);
    ensure(padded_, rows * padded(width));
    quantised_.prepare(rows, width);
    Team::instance().run(static_cast<int>(model.shape.threads), [&](int thread, int threads) {
      const Quantised x = quantised_.rows(width);
      const Share own(rows, kInterleaved, thread, threads);
      for (int64_t row = own.first; row < own.last; row++) {
        float* to = padded_.data() + row * padded(width);
        std::copy_n(hidden + row * width, width, to);
        pad_with_zeros(to, width);
        quantise_row(to, kHeadActivations, x, row);
      }
      Team::instance().wait(thread, threads);
      score_share(model, x, rows, Share(model.head.panels, kLogSumPanels, thread, threads), logits_.data(),
                  log_sums_.data(), parts_);
    });
  }
  ScoredRow row(int64_t i) const { return {logits_.data() + i * outputs_, log_sums_.data() + i * parts_, vocabulary_}; }

 private:
  std::vector<float> logits_, padded_;
  std::vector<LogSum> log_sums_;
  QuantisedMemory quantised_;
  int64_t parts_ = 0, outputs_ = 0, vocabulary_ = 0;
};

// The `count` likeliest tokens of a row and their logits, in any order.
inline void find_candidates(const ScoredRow& row, int64_t count, int64_t* tokens, float* logits) {
  static thread_local std::vector<std::pair<float, int64_t>> found;
  found.clear();
  const auto worse = [](const auto& a, const auto& b) { return a.first > b.first; };
  const auto is_full = [&] { return static_cast<int64_t>(found.size()) == count; };
  const auto look = [&](int64_t i) {
    if (!is_full()) {
      found.emplace_back(row.logits[i], i);
      std::push_heap(found.begin(), found.end(), worse);
    } else if (row.logits[i] > found.front().first) {
      std::pop_heap(found.begin(), found.end(), worse);
      found.back() = {row.logits[i], i};
      std::push_heap(found.begin(), found.end(), worse);
    }
  };
  // The part with the best token first: then most others hold nothing that is better than what is found there.
  const int64_t best = row.best() / ScoredRow::kPart;
  for (int64_t order = 0; order < row.part_count(); order++) {
    const int64_t part = order == 0 ? best : order <= best ? order - 1 : order;
    if (is_full() && row.parts[part].largest <= found.front().first) continue;
    const int64_t last = std::min((part + 1) * ScoredRow::kPart, row.vocabulary);
    int64_t i = part * ScoredRow::kPart;
    for (; i + kLanes <= last; i += kLanes) {
      if (is_full() && !any_above(load(row.logits + i), broadcast(found.front().first))) continue;
      for (int64_t j = i; j < i + kLanes; j++) look(j);
    }
    for (; i < last; i++) look(i);
  }
  for (size_t i = 0; i < found.size(); i++) logits[i] = found[i].first, tokens[i] = found[i].second;
}

}  // namespace stride
