// Both products of a tile whose keys and values are 4-bit codes, in integers.
//
// Shifts and masks take codes apart, queries and weights become 8- and 16-bit integers, so that a
// product takes several codes at once, and no code becomes a float. Codes are 8 more than their
// numbers, which is taken off sums.

#pragma once

#include <algorithm>
#include <cmath>

#include "products.h"
#include "shorts.h"

#if defined(QKVARY_SHORTS)
namespace products {
namespace {

constexpr int WORDS = CODES / 4;  // That hold this many codes.
constexpr int HALVES = W / 8;     // Tokens of this many codes in a vector.
constexpr int64_t CODE_BYTES = CODES / 2;
constexpr float ZERO = 8;  // The code of zero.
constexpr int64_t MOST_CODES = 2;  // Times `CODES` channels of a query.

// The K-th codes of words, times 16 for odd K.
template <int K>
inline Shorts take_codes(Shorts words) {
#if defined(QKVARY_AVX512)
  const Shorts upper = (Shorts)_mm512_srli_epi16((__m512i)words, 8);
#else
  const Shorts upper = (Shorts)_mm256_srli_epi16((__m256i)words, 8);
#endif
  const int16_t half = K % 2 ? 0xf0 : 0x0f;
  return (K < 2 ? words : upper) & half;
}

// Products of bytes, the first of which are codes in their lower or upper halves, added up by fours.
inline Ints multiply_codes(Shorts codes, Shorts even, Shorts odd) {
#if defined(QKVARY_AVX512)
  const __m512i all = (__m512i)codes, half = _mm512_set1_epi8(15);
  const __m512i low = _mm512_and_si512(all, half);
  const __m512i high = _mm512_and_si512(_mm512_srli_epi16(all, 4), half);
#if defined(__AVX512VNNI__)
  const __m512i sum = _mm512_dpbusd_epi32(__m512i{}, low, (__m512i)even);
  return (Ints)_mm512_dpbusd_epi32(sum, high, (__m512i)odd);
#else
  const __m512i sums = _mm512_add_epi16(_mm512_maddubs_epi16(low, (__m512i)even),
                                        _mm512_maddubs_epi16(high, (__m512i)odd));
  return (Ints)_mm512_madd_epi16(sums, _mm512_set1_epi16(1));
#endif
#else
  const __m256i all = (__m256i)codes, half = _mm256_set1_epi8(15);
  const __m256i low = _mm256_and_si256(all, half);
  const __m256i high = _mm256_and_si256(_mm256_srli_epi16(all, 4), half);
  const __m256i sums = _mm256_add_epi16(_mm256_maddubs_epi16(low, (__m256i)even),
                                        _mm256_maddubs_epi16(high, (__m256i)odd));
  return (Ints)_mm256_madd_epi16(sums, _mm256_set1_epi16(1));
#endif
}

// The words of a token, and of another one after them where both fit.
inline Shorts load_words(const char *first, const char *second) {
#if defined(QKVARY_AVX512)
  const __m256i low = _mm256_loadu_si256(reinterpret_cast<const __m256i *>(first));
  const __m256i high = _mm256_loadu_si256(reinterpret_cast<const __m256i *>(second));
  return (Shorts)_mm512_inserti64x4(_mm512_castsi256_si512(low), high, 1);
#else
  return load_shorts(reinterpret_cast<const int16_t *>(first));
#endif
}

// Words of two tokens side by side: W of them, from the `part`th W on. Lane 4 q + i has the word
// whose codes add_codes expects there.
inline Shorts pair_words(const char *first, const char *second, int part) {
#if defined(QKVARY_AVX512)
  static_assert(W == WORDS, "one part");
  alignas(64) static constexpr int16_t PLACES[] = {
      0, 16, 4, 20, 8, 24, 12, 28, 1, 17, 5, 21, 9, 25, 13, 29,
      2, 18, 6, 22, 10, 26, 14, 30, 3, 19, 7, 23, 11, 27, 15, 31};
  const __m512i words = (__m512i)load_words(first, second);
  return (Shorts)_mm512_permutexvar_epi16(_mm512_load_si512(PLACES), words);
#else
  const __m256i a = (__m256i)load_words(first, first), b = (__m256i)load_words(second, second);
  return (Shorts)(part ? _mm256_unpackhi_epi16(a, b) : _mm256_unpacklo_epi16(a, b));
#endif
}

// The queries of a few rows as 8-bit integers, even and odd channels apart, repeated for the tokens
// of a vector. The rounding error is a small part of the error of the 4-bit codes.
struct NibbleQuery {
  int8_t numbers[4][MOST_CODES][2][4 * W];
  float scales[4][MOST_CODES], offset[4];

  void assign(const float *rows, int64_t count, int64_t stride, int64_t dim) {
    for (int64_t r = 0; r < count; ++r) {
      offset[r] = 0;
      for (int64_t n = 0; n < dim / CODES; ++n) {
        const float *from = rows + r * stride + n * CODES;
        float most = 0, sum = 0;
        for (int64_t c = 0; c < CODES; ++c) most = std::fmax(most, std::fabs(from[c])), sum += from[c];
        // Integers cannot represent NaN or infinity, so the scale becomes NaN.
        const float scale = scales[r][n] = sum - sum == 0.0f ? most / 127 : __builtin_nanf("");
        for (int64_t c = 0; c < CODES; ++c) {
          const float number = scale > 0 ? std::nearbyint(from[c] / scale) : 0.0f;
          offset[r] += number * ZERO * scale;
          for (int h = 0; h < HALVES; ++h)
            numbers[r][n][c % 2][h * CODE_BYTES + c / 2] = static_cast<int8_t>(number);
        }
      }
    }
  }
};

// Scores of R rows with whole vectors of tokens, laid out as those of score_rows, for N times `CODES`
// channels.
template <int R, int N>
[[gnu::noinline]] void score_nibbles(float *scores, const NibbleQuery &query, const char *keys,
                                     int64_t stride, int64_t tokens, Ahead &fetched) {
  constexpr int C = W / R;
  Ahead ahead = fetched;
  const int64_t share = ahead.share(tokens * 4 / W);
  const auto load_bytes = [](const int8_t *from) {
    return load_shorts(reinterpret_cast<const int16_t *>(from));
  };
  for (int64_t t = 0; t < tokens; t += W, keys += W * stride, scores += R * W) {
    Ints sums[N][R][8];
#pragma GCC unroll 8
    for (int i = 0; i < 8; ++i) {
      if (i % 2 == 0) ahead.fetch(share);
      const char *token = keys + i * stride;
#pragma GCC unroll 2
      for (int n = 0; n < N; ++n, token += CODE_BYTES) {
        const Shorts words = load_words(token, token + 8 * stride);
#pragma GCC unroll 4
        for (int r = 0; r < R; ++r) {
          const auto &own = query.numbers[r][n];
          sums[n][r][i] = multiply_codes(words, load_bytes(own[0]), load_bytes(own[1]));
        }
      }
    }
#pragma GCC unroll 4
    for (int r = 0; r < R; ++r) {
      Vec total = all(-query.offset[r]);
#pragma GCC unroll 2
      for (int n = 0; n < N; ++n)
        total += __builtin_convertvector(sum_lanes<8>(sums[n][r]), Vec) * query.scales[r][n];
      float found[W];
      store(found, total);
      for (int m = 0; m < R; ++m) std::memcpy(scores + m * W + r * C, found + m * C, C * 4);
    }
  }
  fetched = ahead;
}

// Weights of the tokens of a tile, row by row.
struct NibbleWeights {
  Short rows[4];
  float offset[4];

  template <int R>
  void assign(const float *weights, int64_t tokens) {
    constexpr int C = W / R;
    for (int r = 0; r < R; ++r) {
      float own[CODES];
      if (R > 1)
        for (int64_t t = 0; t < tokens; t += C) std::memcpy(own + t, weights + t * R + r * C, C * 4);
      rows[r].assign(R > 1 ? own : weights, tokens);
      Ints sums = {};
      for (int64_t t = 0; t < CODES; t += 2 * W)
        sums = add_pairs(sums, load_shorts(rows[r].numbers + t), Shorts{} + 1);
      offset[r] = add_lanes<W>(__builtin_convertvector(sums, Vec))[0] * ZERO * rows[r].scale;
    }
  }
};

// Adds what the sums of a part are worth to W words of an output, of four channels each. `sums` have
// the channels k, k + 4, ... of words in the order of pair_words.
inline void add_codes(float *output, const Ints *sums, float scale, float offset, int part) {
  Vec v[4];
  for (int k = 0; k < 4; ++k)
    v[k] = __builtin_convertvector(sums[k], Vec) * (k % 2 ? scale / 16 : scale) - offset;
  const Vec low[] = {zip<0>(v[0], v[1], Lanes{}), zip<2>(v[0], v[1], Lanes{})};
  const Vec high[] = {zip<0>(v[2], v[3], Lanes{}), zip<2>(v[2], v[3], Lanes{})};
  for (int i = 0; i < 4; ++i) {
    const Vec a = low[i / 2], b = high[i / 2];
    const Vec found = i % 2 ? zip_pairs<2>(a, b, Lanes{}) : zip_pairs<0>(a, b, Lanes{});
    if constexpr (W == 16) {
      store(output + i * W, load(output + i * W) + found);
    } else {
      for (int q = 0; q < W / 4; ++q)
        for (int k = 0; k < 4; ++k) output[4 * (8 * q + 4 * part + i) + k] += found[4 * q + k];
    }
  }
}

// Adds weighted values to the outputs of Q rows, for `CODES` channels.
template <int Q>
[[gnu::noinline]] void mix_nibbles(float *outputs, int64_t output_stride,
                                   const NibbleWeights &weights, int first_row, const char *values,
                                   int64_t stride, int64_t tokens, Ahead &fetched, int64_t share) {
  Ahead ahead = fetched;
  for (int part = 0; part < WORDS / W; ++part) {
    Ints sums[Q][4] = {};
    const char *from = values;
    for (int64_t t = 0; t < tokens; t += 2, from += 2 * stride) {
      ahead.fetch(share);
      const Shorts words = pair_words(from, from + stride, part);
      const Shorts codes[] = {take_codes<0>(words), take_codes<1>(words), take_codes<2>(words),
                              take_codes<3>(words)};
#pragma GCC unroll 4
      for (int q = 0; q < Q; ++q) {
        int32_t pair;
        std::memcpy(&pair, weights.rows[first_row + q].numbers + t, 4);
        const Shorts both = (Shorts)(Ints{} + pair);
#pragma GCC unroll 4
        for (int k = 0; k < 4; ++k) sums[q][k] = add_pairs(sums[q][k], codes[k], both);
      }
    }
    for (int q = 0; q < Q; ++q)
      add_codes(outputs + q * output_stride, sums[q], weights.rows[first_row + q].scale,
                weights.offset[first_row + q], part);
  }
  fetched = ahead;
}

// The same for R rows of any width of whole `CODES`.
template <int R>
void mix_nibbles(float *outputs, int64_t width, const NibbleWeights &weights, const char *values,
                 int64_t stride, int64_t tokens, Ahead &ahead) {
  constexpr int Q = std::min(R, MIX_ROWS);
  const int64_t passes = width / CODES * (R / Q) * (WORDS / W);
  const int64_t share = ahead.share(passes * tokens / 2);
  for (int r = 0; r < R; r += Q)
    for (int64_t c = 0; c < width; c += CODES)
      mix_nibbles<Q>(outputs + r * width + c, width, weights, r, values + c / 2, stride, tokens,
                     ahead, share);
}

}  // namespace
}  // namespace products
#endif
