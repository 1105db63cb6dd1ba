// The structs of the C interface: shapes, matrices and the rows of a step (native/library.py mirrors them).
#pragma once

#include <cstdint>

#include "attention.h"
#include "products.h"

namespace stride {

struct Shape {
  int64_t layers, width, heads, key_heads, head_size, inner, window, threads;
  Activations activations;
  float epsilon;
};

struct Layer {
  JoinedMatrix query_key_value;
  Matrix attention_output, gate_up, down;
  const float *attention_norm, *mlp_norm;
  const float *bias, *query_norm, *key_norm;  // null if the family has none
};

// Low-rank parts for mask rows. `down` of all parts that read the same input is one matrix. `up` is one matrix per
// part; its panels are added to every `step`-th panel of the product, starting at `first`.
struct Part {
  Matrix up;
  int64_t first, step;
};
struct LowRank {
  Matrix down;
  int64_t parts;
  Part part[3];
};
struct Adapter {
  LowRank query_key_value, attention_output, gate_up, down;
};

struct Model {
  Shape shape;
  const Layer* layers;
  const Adapter* adapters;  // per layer; null without an adapter
  Matrix embedding, head;
  int64_t vocabulary;
  const float* last_norm;
  const float* frequencies;  // of rotary positions: head_size / 2
};

// The sequential head: a recurrent cell that reads, at one depth of a chain, a mask's output and the token before it,
// and computes what to add to the mask's output, and the next state. The input of `read` is both, each scaled to a mean
// square of one, and the state, concatenated.
struct Sequential {
  Matrix read, write;
  const float* bias;
  int64_t size;
};

struct Step {
  int64_t rows, real, sequences, wanted, scored, reads;
  const int64_t* ids;         // per real row
  const float* masks;         // embeddings of the rows from `real` on
  const int32_t* positions;   // per row, as the next three
  const int32_t* sequence;    // the sequence that it belongs to
  const int32_t* place;       // its index among that sequence's rows of the step
  const int32_t* parent;      // a row of the step, or -1
  const int32_t* starts;      // per sequence, the number of tokens in the cache
  const int32_t* blocks;      // the sequences' block tables, concatenated
  const int32_t* tables;      // per sequence, where its table starts
  const int32_t* wanted_rows;
  const int32_t* scored_rows; // indices into the wanted rows
  const int32_t* read_layers; // layers whose inputs are wanted; the number of layers stands for the output head
  float* logits;              // scored x head.panels x lanes
  float* log_sums;            // per scored row, the logarithm of the sum of all e^logit
  float* hidden;              // wanted x width, or null
  float* read;                // reads x rows x width

  int64_t start(int64_t row) const { return starts[sequence[row]]; }
  const int32_t* table(int64_t row) const { return blocks + tables[sequence[row]]; }
  int64_t slot(int64_t row) const {
    const int64_t at = start(row) + place[row];
    return table(row)[at / kBlock] * kBlock + at % kBlock;
  }
};

}  // namespace stride
