// Both products of a tile with a few rows, and the softmax between them.
//
// A vector holds R rows times C neighbouring channels or tokens, R C = W, so that few rows fill it
// as well as many do: a product takes C channels of a key, the same for all rows. Whole rows have
// vectors of channels of their own until they are scored.

#pragma once

#include <algorithm>

#include "ahead.h"
#include "vectors.h"

namespace products {
namespace {

using namespace vectors;

constexpr int MIX_ROWS = W == 16 ? 4 : 2;
constexpr int MIX_VECTORS = 4;
constexpr int MIX_TOKENS = 4;
constexpr int FETCHES = 4;  // Of a product of W channels.

inline const float *at(const char *p) { return reinterpret_cast<const float *>(p); }

// What a word of a vector is: a number, or two of bfloat16 whose products are added up at once.
struct Numbers {
  static Vec multiply(Vec a, Vec b) { return a * b; }
  static Vec add(Vec sum, Vec a, Vec b) { return sum + a * b; }
};

#if defined(QKVARY_AVX512) && defined(__AVX512BF16__)
#define QKVARY_PAIRS 1
struct Pairs {
  static Vec multiply(Vec a, Vec b) { return add(Vec{}, a, b); }
  static Vec add(Vec sum, Vec a, Vec b) {
    return (Vec)_mm512_dpbf16_ps((__m512)sum, (__m512bh)a, (__m512bh)b);
  }
};
#endif

// Keeps compilers from deriving an address or distance from others: that would need more registers.
template <class T>
inline void keep_apart(T &p) {
  asm("" : "+r"(p));
}

// Scores of T tokens and G blocks of R rows, one block after the other: vectors of R rows times C
// tokens. Two blocks share what is read of a key.
template <int R, int G, int T, class P>
[[gnu::always_inline]] inline void score_tokens(float *scores, int64_t block, const float *query,
                                                const char *keys, int64_t stride, int64_t width,
                                                Ahead &ahead, int64_t share) {
  constexpr int C = W / R, SHARE = T < 4 ? T : 4, STEPS = std::min(R, FETCHES);
  int64_t triple = 3 * stride;
  keep_apart(triple);
  Vec sums[G * T];
#pragma GCC unroll 32
  for (int i = 0; i < G * T; ++i) sums[i] = Vec{};
  // Four tokens share a pointer.
  const char *four[T / SHARE];
#pragma GCC unroll 4
  for (int k = 0; k < T / SHARE; ++k) four[k] = keys + SHARE * k * stride;
  for (int64_t c = 0; c < width; c += W) {
#pragma GCC unroll 16
    for (int i = 0; i < R; ++i) {
      if (i % (R / STEPS) == 0) ahead.fetch(share);
      Vec rows[G];
#pragma GCC unroll 2
      for (int g = 0; g < G; ++g) rows[g] = load(query + g * R * width + c * R + i * W);
#pragma GCC unroll 4
      for (int k = 0; k < T / SHARE; ++k) {
        const char *token = four[k];
        four[k] += C * 4;
        keep_apart(four[k]);
        const int64_t offsets[] = {0, stride, 2 * stride, triple};
#pragma GCC unroll 4
        for (int j = 0; j < SHARE; ++j) {
          const Vec key = repeat<C>(at(token + offsets[j]));
#pragma GCC unroll 2
          for (int g = 0; g < G; ++g) {
            Vec &sum = sums[g * T + SHARE * k + j];
            sum = P::add(sum, key, rows[g]);
          }
        }
      }
    }
  }
#pragma GCC unroll 2
  for (int g = 0; g < G; ++g)
#pragma GCC unroll 16
    for (int i = 0; i < T / C; ++i)
      store(scores + g * block + i * W, sum_lanes<C>(sums + g * T + i * C));
}

// The same for any number of vectors of tokens, of `width` words each. Latency is hidden best by as
// many independent sums as fit the registers.
template <int R, int G, class P>
[[gnu::noinline]] void score(float *scores, const float *query, const char *keys, int64_t stride,
                             int64_t width, int64_t tokens, Ahead &fetched) {
  constexpr int T = W / G, MORE = W == 16 && G == 2 ? 12 : T;
  Ahead ahead = fetched;
  const int64_t share = ahead.share(tokens / T * (width / W) * std::min(R, FETCHES));
  int64_t t = 0;
  if constexpr (MORE != T)
    for (; tokens - t >= 2 * MORE || (tokens - t) % T; t += MORE)
      score_tokens<R, G, MORE, P>(scores + t * R, tokens * R, query, keys + t * stride, stride,
                                  width, ahead, share * MORE / T / LINE * LINE);
  for (; t < tokens; t += T)
    score_tokens<R, G, T, P>(scores + t * R, tokens * R, query, keys + t * stride, stride, width,
                             ahead, share);
  fetched = ahead;
}

// The same for R rows of N vectors without rearranging: whole keys with whole rows, token by token, so
// memory is read in its order and nothing has to be spread over a vector.
template <int R, int N, class S, class P>
[[gnu::noinline]] void score_rows(float *scores, const float *query, const char *keys,
                                  int64_t stride, int64_t tokens, Ahead &fetched) {
  static_assert(R == 1 || R == 2 || R == 4, "sums of whole tokens fill four vectors");
  Ahead ahead = fetched;
  const int64_t share = ahead.share(tokens * R / 4);
  Vec rows[R * N];
#pragma GCC unroll 32
  for (int i = 0; i < R * N; ++i) {
    rows[i] = load(query + i * W);
    if constexpr (R * N <= W) hold(rows[i]);
  }
  for (int64_t t = 0; t < tokens; t += W / R, scores += W) {
    Vec fours[W / 4];
#pragma GCC unroll 4
    for (int i = 0; i < W / 4; ++i) {
      Vec sums[4];
      ahead.fetch(share);
#pragma GCC unroll 4
      for (int j = 0; j < 4 / R; ++j, keys += stride) {
        Vec key[N];
        load_row<N>(key, reinterpret_cast<const S *>(keys));
        if constexpr (R > 1)
          for (int n = 0; n < N; ++n) hold(key[n]);
#pragma GCC unroll 4
        for (int r = 0; r < R; ++r) {
          Vec &sum = sums[j * R + r];
          sum = P::multiply(key[0], rows[r * N]);
#pragma GCC unroll 8
          for (int n = 1; n < N; ++n) sum = P::add(sum, key[n], rows[r * N + n]);
        }
      }
      fours[i] = sum_fours(sums);
      // Few sums at a time: queries fill the registers.
      if constexpr (R > 1) hold(fours[i]);
    }
    store(scores, rows_first<R>(sum_sums<W>(fours), Lanes{}));
  }
  fetched = ahead;
}

// Scores or weights of R rows times a factor of each token.
template <int R>
void scale_tokens(float *scores, const float *factors, int64_t tokens) {
  constexpr int C = W / R;
  for (int64_t t = 0; t < tokens; t += C, scores += W)
    store(scores, load(scores) * repeat<C>(factors + t));
}

// Adds weighted values to the outputs of Q rows; `weights` are laid out as scores are.
template <int R, int Q, int N, class S>
[[gnu::noinline]] void mix(float *outputs, int64_t output_stride, const float *weights,
                           const char *values, int64_t stride, int64_t tokens, Ahead &fetched,
                           int64_t share) {
  constexpr int C = W / R, U = MIX_TOKENS, SUMS = std::max(1, MIX_ROWS / Q);
  Ahead ahead = fetched;
  Vec sums[SUMS * Q * N];
#pragma GCC unroll 16
  for (int i = 0; i < SUMS * Q * N; ++i)
    sums[i] = i < Q * N ? load(outputs + i / N * output_stride + i % N * W) : Vec{};
  for (int64_t t = 0; t < tokens; t += U) {
    const float *p = weights + t / C * W + t % C;
    ahead.fetch(share);
#pragma GCC unroll 4
    for (int u = 0; u < U; ++u, values += stride) {
      Vec v[N];
      load_row<N>(v, reinterpret_cast<const S *>(values));
      // Read once for all rows: processors add up in a step more than they read.
      if constexpr (Q > 1)
        for (int n = 0; n < N; ++n) hold(v[n]);
#pragma GCC unroll 4
      for (int q = 0; q < Q; ++q) {
        const Vec weight = all(p[u / C * W + q * C + u % C]);
#pragma GCC unroll 4
        for (int n = 0; n < N; ++n) sums[u % SUMS * Q * N + q * N + n] += weight * v[n];
      }
    }
  }
#pragma GCC unroll 16
  for (int i = 0; i < Q * N; ++i) {
    Vec total = sums[i];
#pragma GCC unroll 4
    for (int u = 1; u < SUMS; ++u) total += sums[u * Q * N + i];
    store(outputs + i / N * output_stride + i % N * W, total);
  }
  fetched = ahead;
}

// The same for R rows of any width, one of so many blocks that share what is fetched.
template <int R, class S>
void mix_all(float *outputs, int64_t width, const float *weights, const char *values,
             int64_t stride, int64_t tokens, Ahead &ahead, int64_t blocks) {
  constexpr int Q = std::min(R, MIX_ROWS), N = MIX_VECTORS;
  const int64_t whole = width / (N * W), passes = blocks * (R / Q) * std::max<int64_t>(1, whole);
  const int64_t share = ahead.share(passes * tokens / MIX_TOKENS);
  for (int r = 0; r < R; r += Q, outputs += Q * width, weights += Q * W / R) {
    int64_t c = 0;
    const auto add = [&](auto vectors, int64_t own) {
      constexpr int M = decltype(vectors)::value;
      const S *from = skip(reinterpret_cast<const S *>(values), c);
      mix<R, Q, M, S>(outputs + c, width, weights, reinterpret_cast<const char *>(from), stride,
                      tokens, ahead, own);
      c += M * W;
    };
    while (c + N * W <= width) add(std::integral_constant<int, N>{}, share);
    const int64_t rest = whole ? 0 : share;
    while (c + 2 * W <= width) add(std::integral_constant<int, 2>{}, rest);
    if constexpr (!std::is_same_v<S, PairedBfloat16>)
      if (c < width) add(std::integral_constant<int, 1>{}, rest);
  }
}

// The running softmax of R rows; one row has C lanes.
//
// Weights are relative to an anchor, a score that was the largest once. It stays until another one
// is far above it, so that weights do not wait for the largest score of their tile and outputs are
// seldom rescaled.
struct Running {
  static constexpr float SLACK = 8.0f;  // Weights are 2^8 at most.

  Vec anchor = all(LOWEST), total = {};

  // Computes weights from scores times `scale`; returns whether earlier ones must be rescaled, by
  // the factors `change`. The lanes of a row are neighbours. If tokens come first, they are R lanes
  // apart, and weights are rounded to bfloat16.
  template <int R, bool TOKENS_FIRST = false>
  bool update(float *weights, const float *scores, float scale, int64_t tokens, Vec &change,
              Ahead &fetched, int64_t blocks) {
    constexpr int STEP = R > 1 ? 2 : 1;
    const int64_t vectors = tokens * R / W;
    Ahead ahead = fetched;
    const int64_t share = ahead.share(blocks * vectors / STEP);
    Vec high, sum;
    const auto weigh = [&](auto bounded) {
      // Before the first visible token there is no anchor.
      const Vec base = anchor == LOWEST ? Vec{} : anchor;
      high = all(LOWEST), sum = Vec{};
      for (int64_t i = 0; i < vectors; i += STEP) {
        ahead.fetch(share);
        for (int j = 0; j < STEP; ++j) {
          Vec score = load(scores + (i + j) * W);
          if (decltype(bounded)::value) score = smaller(all(LARGEST), score * scale) - base;
          else score = score * scale - base;
          high = larger(high, score);
          Vec weight = power_of_two(score);
          if (TOKENS_FIRST) weight = narrow(weight);
          store(weights + (i + j) * W, weight);
          sum += weight;
        }
      }
    };
    weigh(std::false_type{});
    const bool grows = any(high > (anchor == LOWEST ? all(LOWEST) : all(SLACK)));
    if (grows) {
      high = TOKENS_FIRST ? largest_far_lane<R>(high) : largest_lane<W / R>(high);
      const Vec limit = anchor == LOWEST ? all(LOWEST) : all(SLACK);
      const Vec base = anchor == LOWEST ? Vec{} : anchor;
      const Vec next = high > limit ? smaller(all(LARGEST), high + base) : anchor;
      change = next == LOWEST ? all(1.0f) : power_of_two(anchor - next);
      total *= change;
      anchor = next;
      weigh(std::true_type{});
    }
    total += sum;
    fetched = ahead;
    return grows;
  }
};

}  // namespace
}  // namespace products
