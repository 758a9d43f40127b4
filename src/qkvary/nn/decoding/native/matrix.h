// Products of a matrix with a few rows of numbers, at the pace at which memory gives the weights.
//
// Weights are read in the order in which they lie, one row of them after the other: several rows at
// once would be several places in memory. Sums over the lanes wait until there is one for each lane.

#pragma once

#include <vector>

#include "ahead.h"
#include "products.h"
#include "shorts.h"
#include "vectors.h"

extern "C" {

// [width, inner], contiguous: numbers of the network's type, or 8-bit codes where there are
// scales, one for each 64 of a row. Null where there is none. Mirrored in step.py.
struct Matrix {
  const void *weight, *bias;
  const float *scales;
  int64_t width, inner;
};

}  // extern "C"

namespace products {
namespace {

using namespace vectors;

constexpr int MOST_ROWS = 4;  // Maximum number of rows that a loaded weight is multiplied with.

template <int BYTES>
inline void fetch(const void *place, Reach reach) {
  const char *line = static_cast<const char *>(place);
#pragma GCC unroll 8
  for (int i = 0; i < BYTES; i += LINE) {
    if (reach.near) __builtin_prefetch(line + reach.near + i, 0, 3);
    if (reach.far) __builtin_prefetch(line + reach.far + i, 0, 2);
  }
}

// How x is stored: one float per lane (Single), or two bfloat16 per lane for paired products.
struct Single {
  using Type = float;
  static constexpr int LANES = W;
  template <class S>
  static Vec read(const S *from) {
    return load(from);
  }
  static Vec add(Vec sum, Vec a, Vec b) { return sum + a * b; }
};
#if defined(QKVARY_PAIRS)
struct Paired {
  using Type = Bfloat16;
  static constexpr int LANES = 2 * W;
  static Vec read(const Bfloat16 *from) { return load(reinterpret_cast<const float *>(from)); }
  static Vec add(Vec sum, Vec a, Vec b) { return Pairs::add(sum, a, b); }
};
#endif

// A row of weights times N rows of x, which follow each other at a distance of `inner`.
template <int N, class P, class S>
inline void multiply_row(Vec *sums, const S *row, const typename P::Type *x, int64_t inner,
                         Reach reach) {
  constexpr int U = MOST_ROWS / N, LANES = P::LANES;
  Vec parts[U][N] = {};
  int64_t c = 0;
  for (; c + U * LANES <= inner; c += U * LANES) {
    fetch<U * LANES * sizeof(S)>(row + c, reach);
#pragma GCC unroll 4
    for (int u = 0; u < U; ++u) {
      const Vec weight = P::read(row + c + u * LANES);
#pragma GCC unroll 4
      for (int n = 0; n < N; ++n)
        parts[u][n] = P::add(parts[u][n], weight, P::read(x + n * inner + c + u * LANES));
    }
  }
  for (; c < inner; c += W) {
    const Vec weight = load_first(row + c, inner - c);
    for (int n = 0; n < N; ++n) parts[0][n] += weight * load_first(x + n * inner + c, inner - c);
  }
  for (int n = 0; n < N; ++n) {
    sums[n * W] = parts[0][n];
    for (int u = 1; u < U; ++u) sums[n * W] += parts[u][n];
  }
}

template <int N>
inline void multiply_codes(Vec *sums, const int8_t *row, const float *scales, const float *x,
                           int64_t inner, Reach reach) {
  Vec total[N] = {};
  const auto add = [&](int64_t c, auto load_codes, auto load_numbers) {
    Vec parts[N] = {};
#pragma GCC unroll 16
    for (int64_t k = 0; k < CODES; k += W) {
      const Vec weight = load_codes(row + c + k, inner - c - k);
#pragma GCC unroll 4
      for (int n = 0; n < N; ++n)
        parts[n] += weight * load_numbers(x + n * inner + c + k, inner - c - k);
    }
    for (int n = 0; n < N; ++n) total[n] += parts[n] * scales[c / CODES];
  };
  int64_t c = 0;
  for (; c + CODES <= inner; c += CODES) {
    fetch<CODES>(row + c, reach);
    const auto whole = [](const auto *from, int64_t) { return load(from); };
    add(c, whole, whole);
  }
  const auto some = [](const auto *from, int64_t count) {
    return count > 0 ? load_first(from, count) : Vec{};
  };
  if (c < inner) add(c, some, some);
  for (int n = 0; n < N; ++n) sums[n * W] = total[n];
}

// A row of a matrix as numbers.
template <class S>
void read_row(const Matrix &m, int64_t row, float *to) {
  const int64_t groups = (m.inner + CODES - 1) / CODES;
  for (int64_t c = 0; c < m.inner; ++c) {
    const int64_t at = row * m.inner + c;
    const float scale = m.scales ? m.scales[row * groups + c / CODES] : 0;
    to[c] = m.scales ? static_cast<const int8_t *>(m.weight)[at] * scale
                     : to_float(static_cast<const S *>(m.weight)[at]);
  }
}

#if defined(QKVARY_SHORTS)
template <int N>
inline void multiply_codes(Vec *sums, const int8_t *row, const float *scales, const Short *x,
                           int64_t inner, Reach reach) {
  const int64_t groups = (inner + CODES - 1) / CODES;
  Vec total[N] = {};
  for (int64_t g = 0; g < groups; ++g, row += CODES) {
    fetch<CODES>(row, reach);
    int8_t some[CODES] = {};
    const int8_t *codes = row;
    if (__builtin_expect(inner - g * CODES < CODES, 0))
      codes = static_cast<int8_t *>(std::memcpy(some, row, inner - g * CODES));
    Ints parts[N] = {};
#pragma GCC unroll 8
    for (int64_t k = 0; k < CODES; k += 2 * W) {
      const Shorts weight = load_shorts(codes + k);
#pragma GCC unroll 4
      for (int n = 0; n < N; ++n)
        parts[n] = add_pairs(parts[n], weight, load_shorts(x[n * groups + g].numbers + k));
    }
#pragma GCC unroll 4
    for (int n = 0; n < N; ++n)
      total[n] += __builtin_convertvector(parts[n], Vec) * scales[g] * x[n * groups + g].scale;
  }
  for (int n = 0; n < N; ++n) sums[n * W] = total[n];
}
#endif

// Outputs `first` to `last` of y = W x + b for N rows, which are `inner` and `width` apart.
template <int N, class P, class S, class B>
[[gnu::noinline]] void multiply_rows(const Matrix &m, int64_t first, int64_t last,
                                     const typename P::Type *x, float *y, Reach reach) {
  const S *weight = static_cast<const S *>(m.weight);
  const B *bias = static_cast<const B *>(m.bias);
  const int64_t groups = (m.inner + CODES - 1) / CODES;
  for (int64_t o = first; o < last; o += W) {
    const int64_t count = last - o < W ? last - o : W;
    Vec sums[N * W];
    for (int64_t i = 0; i < count; ++i) {
      const S *row = weight + (o + i) * m.inner;
      if constexpr (std::is_same_v<S, int8_t>)
        multiply_codes<N>(sums + i, row, m.scales + (o + i) * groups, x, m.inner, reach);
      else
        multiply_row<N, P>(sums + i, row, x, m.inner, reach);
    }
    for (int64_t i = count; i < W; ++i)
      for (int n = 0; n < N; ++n) sums[n * W + i] = Vec{};
    for (int n = 0; n < N; ++n) {
      Vec total = sum_lanes<W>(sums + n * W);
      if (bias) total += load_first(bias + o, count);
      std::memcpy(y + n * m.width + o, &total, count * sizeof(float));
    }
  }
}

// The same for any number of rows; weights that several blocks of rows read stay in a cache.
template <class P, class S, class B>
void multiply_as(const Matrix &m, int64_t first, int64_t last, const typename P::Type *x,
                 int64_t stride, float *y, int64_t rows, Reach reach) {
  const int64_t band = rows > MOST_ROWS ? W : last - first;
  for (int64_t o = first; o < last; o += band) {
    const int64_t end = last - o < band ? last : o + band;
    for (int64_t row = 0; row < rows;) {
      const auto *in = x + row * stride;
      float *out = y + row * m.width;
      if (rows - row >= 4) multiply_rows<4, P, S, B>(m, o, end, in, out, reach), row += 4;
      else if (rows - row >= 2) multiply_rows<2, P, S, B>(m, o, end, in, out, reach), row += 2;
      else multiply_rows<1, P, S, B>(m, o, end, in, out, reach), row += 1;
    }
  }
}

// A thread's memory for a number of values of a type.
template <class T>
T *fit(int64_t size) {
  static thread_local std::vector<T> kept;
  if (static_cast<int64_t>(kept.size()) < size) kept.resize(size);
  return kept.data();
}

template <class S, class B>
void multiply(const Matrix &m, int64_t first, int64_t last, const float *x, float *y, int64_t rows,
              Reach reach) {
#if defined(QKVARY_PAIRS)
  if constexpr (std::is_same_v<S, Bfloat16>) {
    auto *rounded = fit<Bfloat16>(rows * m.inner);
    for (int64_t i = 0; i < rows * m.inner; ++i) put(rounded + i, x[i]);
    return multiply_as<Paired, S, B>(m, first, last, rounded, m.inner, y, rows, reach);
  }
#endif
#if defined(QKVARY_SHORTS)
  if constexpr (std::is_same_v<S, int8_t> && !std::is_same_v<B, float>) {
    const int64_t groups = (m.inner + CODES - 1) / CODES;
    auto *shorts = fit<Short>(rows * groups);
    for (int64_t i = 0; i < rows * groups; ++i) {
      const int64_t from = i % groups * CODES;
      shorts[i].assign(x + i / groups * m.inner + from, std::min(CODES, m.inner - from));
    }
    return multiply_as<Short, S, B>(m, first, last, shorts, groups, y, rows, reach);
  }
#endif
  multiply_as<Single, S, B>(m, first, last, x, m.inner, y, rows, reach);
}

// W numbers of a row of weights, from column c on, or `count` of them at the end of the row.
template <class S>
inline Vec load_weights(const Matrix &m, int64_t row, int64_t c, int64_t count) {
  const Vec v = load_first(static_cast<const S *>(m.weight) + row * m.inner + c, count);
  if constexpr (!std::is_same_v<S, int8_t>) return v;
  return v * m.scales[row * ((m.inner + CODES - 1) / CODES) + c / CODES];
}

// Columns `first` to `last` of y = x W for N rows, whose distances are `width` and `inner`: rows of
// weights, each times a number of x. What they add up to stays in registers, U vectors at a time.
template <int N, int U, class S>
[[gnu::noinline]] void add_rows(const Matrix &m, int64_t first, int64_t last, const float *x,
                                float *y, Reach reach) {
  const S *weight = static_cast<const S *>(m.weight);
  int64_t c = first;
  for (; c + U * W <= last; c += U * W) {
    Vec sums[N][U] = {};
    for (int64_t row = 0; row < m.width; ++row) {
      fetch<U * W * sizeof(S)>(weight + row * m.inner + c, reach);
#pragma GCC unroll 8
      for (int u = 0; u < U; ++u) {
        const Vec own = load_weights<S>(m, row, c + u * W, W);
#pragma GCC unroll 4
        for (int n = 0; n < N; ++n)
          sums[n][u] = add_product(sums[n][u], own, all(x[n * m.width + row]));
      }
    }
    for (int n = 0; n < N; ++n)
      for (int u = 0; u < U; ++u) store(y + n * m.inner + c + u * W, sums[n][u]);
  }
  for (; c < last; c += W) {
    const int64_t count = last - c < W ? last - c : W;
    Vec sums[N] = {};
    for (int64_t row = 0; row < m.width; ++row) {
      const Vec own = load_weights<S>(m, row, c, count);
      for (int n = 0; n < N; ++n) sums[n] = add_product(sums[n], own, all(x[n * m.width + row]));
    }
    for (int n = 0; n < N; ++n)
      std::memcpy(y + n * m.inner + c, sums + n, count * sizeof(float));
  }
}

// The same for any number of rows.
template <class S>
void multiply_transposed(const Matrix &m, int64_t first, int64_t last, const float *x, float *y,
                         int64_t rows, Reach reach) {
  for (; rows >= 4; rows -= 4, x += 4 * m.width, y += 4 * m.inner)
    add_rows<4, 4, S>(m, first, last, x, y, reach);
  for (; rows > 0; --rows, x += m.width, y += m.inner)
    add_rows<1, 8, S>(m, first, last, x, y, reach);
}

// Rows `from` to `from + count` of a matrix without a bias.
template <class S>
Matrix some_rows(const Matrix &m, int64_t from, int64_t count) {
  const int64_t size = m.scales ? 1 : sizeof(S), groups = (m.inner + CODES - 1) / CODES;
  const char *weight = static_cast<const char *>(m.weight) + from * m.inner * size;
  return {weight, nullptr, m.scales ? m.scales + from * groups : nullptr, count, m.inner};
}

}  // namespace
}  // namespace products
