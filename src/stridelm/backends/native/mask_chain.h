// What the masks of one chain predict, and how many of its places the text has passed since.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "grow.h"
#include "head.h"
#include "model.h"
#include "sequential.h"
#include "workspace.h"

namespace stride {

// An adapter without its low-rank parts, which belong to the model's layers.
struct MaskParts {
  int64_t masks;           // of the longest chain
  const float* embedding;  // masks x width
  int64_t tail, tail_size;  // places that the last of these masks proposes tokens for, too; and the inner width
  const float* tail_up;     // tail x tail_size x width
  const float* tail_down;   // tail x width x tail_size
  Sequential head;          // size 0: there is none

  int64_t places() const { return masks + tail; }
  // Number of places that a chain of so many masks proposes tokens for.
  int64_t reach(int64_t count) const { return count == masks ? places() : count; }

  // The outputs for the places behind the last mask: tail x width.
  void foretell(const float* hidden, int64_t width, float* to) const {
    std::vector<float> inner(tail_size);
    for (int64_t place = 0; place < tail; place++, to += width) {
      for (int64_t i = 0; i < tail_size; i++) {
        const float x = dot(tail_up + (place * tail_size + i) * width, hidden, width);
        inner[i] = x / (1 + std::exp(-x));
      }
      for (int64_t i = 0; i < width; i++)
        to[i] = hidden[i] + dot(tail_down + (place * width + i) * tail_size, inner.data(), tail_size);
    }
  }

 private:
  static float dot(const float* a, const float* b, int64_t size) {
    Floats sum = zeros();
    int64_t i = 0;
    for (; i + kLanes <= size; i += kLanes) sum = multiply_add(load(a + i), load(b + i), sum);
    float total = sum_of(sum);
    for (; i < size; i++) total += a[i] * b[i];
    return total;
  }
};

struct MaskChain {
  int64_t depth = 0, used = 0;  // places, and how many of them the text has passed
  std::vector<float> outputs;   // depth x width
  int64_t most = 0;             // candidates of a place
  std::vector<int64_t> tokens;  // depth x most: the likeliest tokens
  std::vector<float> logits;    // of these tokens
  std::vector<float> state;             // the sequential head's, before it reads the token in front of place `used`
  int64_t read = 0;                     // number of places whose tokens it has read

  int64_t left() const { return depth - used; }
  void clear() { depth = used = read = 0; }

  void begin(const MaskParts& parts, const float* hidden, int64_t masks, int64_t width, int64_t candidates) {
    depth = parts.reach(masks), used = read = 0, most = candidates;
    outputs.resize(depth * width);
    std::copy_n(hidden, masks * width, outputs.data());
    if (depth > masks) parts.foretell(hidden + (masks - 1) * width, width, outputs.data() + masks * width);
    tokens.resize(depth * most), logits.resize(depth * most);
    state.assign(parts.head.size, 0.0f);
  }
  // The text has passed some more places.
  void pass(int64_t count) { used += count; }

  void find_candidates(int64_t place, const ScoredRow& row) {
    stride::find_candidates(row, most, &tokens[place * most], &logits[place * most]);
  }
  Candidates candidates(int64_t place) const { return {most, &tokens[place * most], &logits[place * most]}; }

  // Let the sequential head read the tokens at the places that were passed. `text`: all of it; its last token comes
  // right before place `used`.
  void read_passed(const Model& model, const MaskParts& parts, const std::vector<int32_t>& text, Workspace& work) {
    if (!parts.head.size) return;
    const int64_t width = model.shape.width;
    std::vector<float> added(width), next(parts.head.size);
    for (; read < used; read++) {
      const int64_t before = text[text.size() - 1 - (used - read)];
      SequentialStep(model, parts.head, work)
          .run(1, &outputs[read * width], &before, state.data(), added.data(), next.data());
      state.swap(next);
    }
  }
};

}  // namespace stride
