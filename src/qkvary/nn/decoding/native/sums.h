// A token of linear attention: sums over all tokens so far replace stored tokens.
//
// A matrix of sums is read once. As its rows are read, the token is added to them, and the queries
// of all heads of a group take their products with them.

#pragma once

#include <algorithm>

#include "matrix.h"
#include "rows.h"

extern "C" {

enum Features : int64_t { NO_SUMS = 0, ELU = 1, RELU = 2, SOFTMAX = 3, IDENTITY = 4 };

// The state before a token and after it: sums of features times values, [rows, groups, features,
// dim], and of features, null where weights are not divided. Mirrored in native.py.
struct Sums {
  const float *values, *keys;
  float *values_after, *keys_after;
  const void *decay;         // The logit of each group's factor; null for none.
  int64_t decay_is_learned;  // A parameter of the network; else floats.
  int64_t decays_keys;
  int64_t features;  // Which map; NO_SUMS for softmax attention, which has no state.
  double scale;      // Of queries.
};

}  // extern "C"

namespace products {
namespace {

constexpr float LEAST_SUM = 1e-6f;  // Smaller sums of weights count as this.
constexpr int SUM_VECTORS = W == 16 ? 4 : 2;

// Features of a head in place of its channels.
inline void map_features(float *x, int64_t n, int64_t features) {
  const auto map = [&](auto function) {
    each(x, x, n, [&](Vec v, Vec) { return function(v); });
  };
  // The second operand of `smaller` decides where one is NaN.
  const auto exponential = [](Vec v) { return power_of_two(smaller(Vec{}, v) * LOG2_E); };
  if (features == ELU) map([&](Vec v) { return v > 0.0f ? v + 1.0f : exponential(v); });
  if (features == RELU) map([](Vec v) { return v > 0.0f ? v : Vec{}; });
  if (features != SOFTMAX) return;
  const float most = *std::max_element(x, x + n);
  map([&](Vec v) { return exponential(v - most); });
  const float total = add_up(n, [&](int64_t c) { return x[c]; });
  map([&](Vec v) { return v / total; });
}

struct Added {
  const float *before, *key, *value;
  float *after, decay;
  int64_t features, dim;
};

// What R queries read of N vectors of each row, from column c on, or of those that are left there.
// The first queries add the token.
template <int R, int N, bool ADDS, bool WHOLE>
void read_sums(const Added &sums, int64_t c, const float *queries, float *mixed) {
  const int64_t left = sums.dim - c, n = sums.features;
  const auto get = [&](const float *from) { return WHOLE ? load(from) : load_first(from, left); };
  const auto put = [&](float *to, Vec v) { std::memcpy(to, &v, WHOLE ? sizeof v : 4 * left); };
  Vec value[N], totals[R][N] = {};
  for (int k = 0; k < N; ++k) value[k] = get(sums.value + c + k * W);
  for (int64_t i = 0; i < n; ++i) {
    const int64_t at = i * sums.dim + c;
#pragma GCC unroll 4
    for (int k = 0; k < N; ++k) {
      Vec sum = get((ADDS ? sums.before : sums.after) + at + k * W);
      if (ADDS) sum = add_product(sums.key[i] * value[k], sum, all(sums.decay));
      if (ADDS) put(sums.after + at + k * W, sum);
#pragma GCC unroll 4
      for (int r = 0; r < R; ++r)
        totals[r][k] = add_product(totals[r][k], sum, all(queries[r * n + i]));
    }
  }
  for (int r = 0; r < R; ++r)
    for (int k = 0; k < N; ++k) put(mixed + r * sums.dim + c + k * W, totals[r][k]);
}

template <int R, bool ADDS>
void read_columns(const Added &sums, const float *queries, float *mixed) {
  constexpr int N = SUM_VECTORS;
  int64_t c = 0;
  for (; c + N * W <= sums.dim; c += N * W) read_sums<R, N, ADDS, true>(sums, c, queries, mixed);
  for (; c + W <= sums.dim; c += W) read_sums<R, 1, ADDS, true>(sums, c, queries, mixed);
  if (c < sums.dim) read_sums<R, 1, ADDS, false>(sums, c, queries, mixed);
}

// Adds a token to the sums of a group, and computes the mixtures of its queries from the sums. Key
// and queries are overwritten by their features.
template <class S>
void add_token(const Sums &sums, int64_t index, int64_t group, float *key, const float *value,
               float *queries, int64_t count, int64_t dim, bool is_real, float *mixed) {
  float decay = 1;
  if (sums.decay) {
    const float logit = sums.decay_is_learned ? to_float(static_cast<const S *>(sums.decay)[group])
                                              : static_cast<const float *>(sums.decay)[group];
    decay = static_cast<float>(1 / (1 + std::exp(-static_cast<double>(logit))));
  }
  map_features(key, dim, sums.features);
  if (!is_real) std::fill(key, key + dim, 0.0f);
  for (int64_t q = 0; q < count; ++q) map_features(queries + q * dim, dim, sums.features);
  for (int64_t i = 0; i < count * dim; ++i) queries[i] *= static_cast<float>(sums.scale);
  const Added added{sums.values + index * dim * dim, key, value,
                    sums.values_after + index * dim * dim, decay, dim, dim};
  int64_t q = 0;
  const auto read = [&](auto rows, auto adds) {
    read_columns<rows, adds>(added, queries + q * dim, mixed + q * dim);
    q += rows;
  };
  const auto read_some = [&](auto adds) {
    if (count - q >= 4) read(std::integral_constant<int, 4>{}, adds);
    else if (count - q >= 2) read(std::integral_constant<int, 2>{}, adds);
    else read(std::integral_constant<int, 1>{}, adds);
  };
  read_some(std::true_type{});
  while (q < count) read_some(std::false_type{});
  if (!sums.keys) return;
  const float *before = sums.keys + index * dim;
  float *after = sums.keys_after + index * dim;
  const float kept = sums.decays_keys ? decay : 1;
  for (int64_t i = 0; i < dim; ++i) after[i] = key[i] + before[i] * kept;
  for (q = 0; q < count; ++q) {
    const float total = add_up(dim, [&](int64_t i) { return queries[q * dim + i] * after[i]; });
    const float divisor = total < LEAST_SUM ? LEAST_SUM : total;
    for (int64_t c = 0; c < dim; ++c) mixed[q * dim + c] /= divisor;
  }
}

}  // namespace
}  // namespace products
