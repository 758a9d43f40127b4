// Operations of a step on rows of numbers other than products: norms, activations, rotations.

#pragma once

#include <cmath>

#include "vectors.h"

extern "C" {

// Mirrored in step.py.
struct Norm {
  const void *weight, *bias;  // Null where there is none.
  int64_t kind;               // 0: none, 1: of mean and deviation, 2: of the root mean square.
  double epsilon;
};

}  // extern "C"

namespace products {
namespace {

using namespace vectors;

// Sums that do not wait for each other.
template <class F>
double add_up(int64_t n, const F &term) {
  double sums[8] = {};
  int64_t c = 0;
  for (; c + 8 <= n; c += 8)
    for (int i = 0; i < 8; ++i) sums[i] += term(c + i);
  for (; c < n; ++c) sums[0] += term(c);
  double total = 0;
  for (const double sum : sums) total += sum;
  return total;
}

template <class S>
void normalise(const Norm &norm, const float *x, float *y, int64_t width) {
  const double mean = norm.kind == 1 ? add_up(width, [&](int64_t c) { return x[c]; }) / width : 0;
  const double square = add_up(width, [&](int64_t c) { return (x[c] - mean) * (x[c] - mean); });
  const double factor = 1.0 / std::sqrt(square / width + norm.epsilon);
  const S *weight = static_cast<const S *>(norm.weight);
  const S *bias = static_cast<const S *>(norm.bias);
  for (int64_t c = 0; c < width; ++c) {
    const float scaled = static_cast<float>((x[c] - mean) * factor);
    y[c] = scaled * (weight ? to_float(weight[c]) : 1.0f) + (bias ? to_float(bias[c]) : 0.0f);
  }
}

constexpr float LOG2_E = 1.44269504088896341f;

inline Vec size_of(Vec x) { return (Vec)((Words)x & 0x7fffffffu); }

// x P(X <= x) of a normal X, from the rational fit of erfc of Press et al., Numerical Recipes,
// whose relative error is below 1.2e-7 everywhere.
inline Vec gelu(Vec x) {
  const Vec z = size_of(x) * 0.70710678118654752f;
  const Vec t = 1.0f / (1.0f + 0.5f * z);
  Vec p = all(0.17087277f);
  for (const float c : {-0.82215223f, 1.48851587f, -1.13520398f, 0.27886807f, -0.18628806f,
                        0.09678418f, 0.37409196f, 1.00002368f, -1.26551223f})
    p = p * t + c;
  const Vec tail = 0.5f * t * power_of_two(smaller((p - z * z) * LOG2_E, Vec{}));
  return x * (x > 0.0f ? 1.0f - tail : tail);
}

inline Vec silu(Vec x) {
  const Vec small = power_of_two(size_of(x) * -LOG2_E);
  return x * (x > 0.0f ? all(1.0f) : small) / (1.0f + small);
}

// An activation of n numbers, each paired with another. What follows them is another thread's.
template <class F>
inline void each(float *x, const float *beside, int64_t n, F function) {
  int64_t c = 0;
  for (; c + W <= n; c += W) store(x + c, function(load(x + c), load(beside + c)));
  if (c == n) return;
  Vec own = {}, other = {};
  std::memcpy(&own, x + c, 4 * (n - c));
  std::memcpy(&other, beside + c, 4 * (n - c));
  own = function(own, other);
  std::memcpy(x + c, &own, 4 * (n - c));
}

// Turns the trailing channels of a head; the first half of them pairs with the second.
inline void turn(float *head, int64_t dim, int64_t pairs, const float *cos, const float *sin,
                 float sign) {
  float *first = head + dim - 2 * pairs, *second = head + dim - pairs;
  for (int64_t i = 0; i < pairs; ++i) {
    const float a = first[i], b = second[i], s = sin[i] * sign;
    first[i] = a * cos[i] - b * s;
    second[i] = b * cos[i] + a * s;
  }
}

}  // namespace
}  // namespace products
