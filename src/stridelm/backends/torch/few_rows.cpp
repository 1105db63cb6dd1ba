// Products of a few rows with a large matrix in float32, as fast as the matrix can be read from memory.
//
// One row of a product reads the whole matrix and does one multiplication per value read: memory is the limit, and the
// arithmetic units idle. Up to a dozen rows can use each value while it is in a register, for nearly the same time. The
// libraries behind torch do not: they copy the matrix into an order of their own as soon as there are two rows.
//
// The matrix is stored once in panels of WIDTH columns, each panel row by row, so that a product reads memory
// sequentially. Every sum runs over the inputs in order, in one accumulator: the result of a row does not depend on the
// number of other rows, bit for bit.

#include <algorithm>

#if !defined(__AVX2__)
#error "made for AVX2 and later"
#endif

namespace {

#if defined(__AVX512F__)
constexpr int LANES = 16;
constexpr int ROWS = 12;  // 12 rows x 2 vectors of sums, 2 of weights, 1 of input: 27 of 32 registers
#else
constexpr int LANES = 8;
constexpr int ROWS = 6;  // 12 + 2 + 1 of 16 registers
#endif
constexpr int VECTORS = 2;
constexpr int WIDTH = LANES * VECTORS;
constexpr int AHEAD = 1024;  // values to prefetch: a page, where the hardware prefetcher stops

typedef float Vector __attribute__((vector_size(LANES * sizeof(float)), aligned(sizeof(float))));

// Some rows of a larger matrix: all of them in their order, or those that `index` names.
struct Rows {
  float* first;
  long stride;
  const long* index;
  float* at(long row) const { return first + (index ? index[row] : row) * stride; }
};

// `R` rows times one panel. `columns` of it are wanted, the rest is padding.
template <int R, bool ADD>
void tile(Rows x, Rows y, long row, const float* panel, long inputs, long columns) {
  const float* in[R];
  for (int r = 0; r < R; ++r) in[r] = x.at(row + r);
  Vector sum[R][VECTORS] = {};
  for (long k = 0; k < inputs; ++k, panel += WIDTH) {
    Vector weight[VECTORS];
#pragma GCC unroll 16
    for (int v = 0; v < VECTORS; ++v) {
      weight[v] = *reinterpret_cast<const Vector*>(panel + v * LANES);
      __builtin_prefetch(panel + v * LANES + AHEAD);
    }
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) {
      const Vector value = in[r][k] - Vector{};
#pragma GCC unroll 16
      for (int v = 0; v < VECTORS; ++v) sum[r][v] += value * weight[v];
    }
  }
  for (int r = 0; r < R; ++r) {
    float* out = y.at(row + r);
    for (int v = 0; v < VECTORS; ++v) {
      Vector* place = reinterpret_cast<Vector*>(out + v * LANES);
      if ((v + 1) * LANES <= columns) {
        *place = ADD ? *place + sum[r][v] : sum[r][v];
      } else {
        for (long c = v * LANES; c < columns; ++c) out[c] = (ADD ? out[c] : 0) + sum[r][v][c - v * LANES];
      }
    }
  }
}

template <int R, bool ADD>
void rest(Rows x, Rows y, long row, long rows, const float* panel, long inputs, long columns) {
  if (rows == R) {
    tile<R, ADD>(x, y, row, panel, inputs, columns);
  } else if constexpr (R > 1) {
    rest<R - 1, ADD>(x, y, row, rows, panel, inputs, columns);
  }
}

template <bool ADD>
void all_rows(Rows x, Rows y, long rows, const float* panel, long inputs, long columns) {
  long row = 0;
  for (; row + ROWS <= rows; row += ROWS) tile<ROWS, ADD>(x, y, row, panel, inputs, columns);
  rest<ROWS - 1, ADD>(x, y, row, rows - row, panel, inputs, columns);
}

long panels_of(long columns) { return (columns + WIDTH - 1) / WIDTH; }

}  // namespace

extern "C" {

int panel_width() { return WIDTH; }

// y = x W for `outputs` columns of W.
void product(float* x, long rows, long inputs, const float* panels, float* y, long y_stride, long outputs, int threads) {
  const long count = panels_of(outputs);
#pragma omp parallel for num_threads(threads) schedule(static)
  for (long p = 0; p < count; ++p) {
    const Rows out{y + p * WIDTH, y_stride, nullptr};
    const long columns = std::min<long>(WIDTH, outputs - p * WIDTH);
    all_rows<false>({x, inputs, nullptr}, out, rows, panels + p * inputs * WIDTH, inputs, columns);
  }
}

// y[index] += low[index] U, once per part: part i reads columns `low_first[i]` and on of `low`, `rank` of them, and adds
// to `counts[i]` columns of y from `firsts[i]` on. `low` may lie in y, behind all of these columns.
void add_low_rank(float* low, float* y, long y_stride, const long* index, long rows, long rank, long parts,
                  const float* const* panels, const long* low_first, const long* firsts, const long* counts,
                  int threads) {
#pragma omp parallel num_threads(threads)
  for (long i = 0; i < parts; ++i) {
#pragma omp for schedule(static) nowait
    for (long p = 0; p < panels_of(counts[i]); ++p) {
      const Rows in{low + low_first[i], y_stride, index};
      const Rows out{y + firsts[i] + p * WIDTH, y_stride, index};
      const long columns = std::min<long>(WIDTH, counts[i] - p * WIDTH);
      all_rows<true>(in, out, rows, panels[i] + p * rank * WIDTH, rank, columns);
    }
  }
}
}
