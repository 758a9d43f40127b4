// Both products of a tile of bfloat16 keys on matrix units of x86 processors, where these are.
//
// Scores come out as [tokens][R rows]; weights go in as [R rows][tokens], values as token pairs.
// The channels of a mixture stay in the order in which pairs are cheap to make.

#pragma once

#include "vectors.h"

#if defined(QKVARY_AVX512) && defined(__AMX_TILE__) && defined(__AMX_BF16__) && \
    defined(__AVX512BF16__) && defined(__linux__)
#define QKVARY_TILES 1

#include <sys/syscall.h>
#include <unistd.h>

namespace tiles {

using namespace vectors;

constexpr int TOKENS = 64;

// The kernel of the system grants the use of the registers to a process that asks.
inline bool granted() {
  constexpr long REQUEST = 0x1023, TILE_DATA = 18;
  static const bool answer = syscall(SYS_arch_prctl, REQUEST, TILE_DATA) == 0;
  return answer;
}

struct alignas(64) Shapes {
  uint8_t palette = 1, start = 0, reserved[14] = {};
  uint16_t row_bytes[16] = {};
  uint8_t rows[16] = {};

  void set(int tile, int count, int bytes) { rows[tile] = count, row_bytes[tile] = bytes; }
};

// Registers: 0, 1 scores; 2 queries; 3, 7 keys or pairs of values; 4, 5 outputs; 6 weights.
inline void configure(int rows) {
  Shapes shapes;
  for (int i = 0; i < 3; ++i) shapes.set(i, 16, rows * 4);
  for (int i = 4; i < 7; ++i) shapes.set(i, rows, 64);
  shapes.set(3, 16, 64);
  shapes.set(7, 16, 64);
  _tile_loadconfig(&shapes);
}

// What was written before is in memory when tiles are read: compilers do not know that they are.
inline void settle() { asm volatile("" ::: "memory"); }

// Where channel c of a mixture stands: 16-bit pairs are made within 128 bits.
inline int64_t place(int64_t c) {
  const int64_t in = c % 32;
  return c / 32 * 32 + in / 8 * 4 + in % 4 + (in % 8 >= 4 ? 16 : 0);
}

// Queries as the second operand: [channels / 2][R rows][2].
inline void arrange(uint16_t *to, const float *rows, int64_t count, int size, int64_t dim) {
  std::memset(to, 0, dim * size * 2);
  for (int64_t r = 0; r < count; ++r)
    for (int64_t c = 0; c < dim; ++c) {
      uint32_t word;
      std::memcpy(&word, rows + r * dim + c, 4);
      to[(c / 2 * size + r) * 2 + c % 2] = static_cast<uint16_t>(word >> 16);
    }
}

template <int R>
void score(float *scores, const uint16_t *query, const char *keys, int64_t stride, int64_t dim,
           float scale, Ahead ahead) {
  const int64_t lines = ahead.share(dim / 16);
  settle();
  for (int t = 0; t < TOKENS; t += 32) {
    _tile_zero(0);
    _tile_zero(1);
    for (int64_t c = 0; c < dim; c += 32) {
      const char *key = keys + t * stride + c * 2;
      _tile_loadd(2, query + c * R, R * 4);
      _tile_loadd(3, key, stride);
      _tile_dpbf16ps(0, 3, 2);
      _tile_loadd(7, key + 16 * stride, stride);
      _tile_dpbf16ps(1, 7, 2);
      ahead.fetch(lines);
    }
    _tile_stored(0, scores + t * R, R * 4);
    _tile_stored(1, scores + (t + 16) * R, R * 4);
  }
  for (int i = 0; i < TOKENS * R; i += W)
    store(scores + i, smaller(all(LARGEST), load(scores + i) * scale));
}

// Pairs of tokens next to each other: [tokens / 2][channels][2], channels as `place` says.
inline void pair_values(uint16_t *to, const char *values, int64_t stride, int64_t dim) {
  for (int t = 0; t < TOKENS; t += 2, values += 2 * stride, to += 2 * dim)
    for (int64_t c = 0; c < dim; c += 32) {
      const __m512i a = _mm512_loadu_si512(values + c * 2);
      const __m512i b = _mm512_loadu_si512(values + stride + c * 2);
      _mm512_storeu_si512(to + 2 * c, _mm512_unpacklo_epi16(a, b));
      _mm512_storeu_si512(to + 2 * c + 32, _mm512_unpackhi_epi16(a, b));
    }
}

inline __m512i narrow(const float *p) {
  return (__m512i)_mm512_cvtne2ps_pbh(_mm512_loadu_ps(p + W), _mm512_loadu_ps(p));
}

// Weights [tokens][R] as bfloat16 [R][tokens].
template <int R>
void turn_weights(uint16_t *to, const float *weights) {
  constexpr int N = 32 / R;  // Tokens of 32 weights.
  alignas(64) uint16_t index[32];
  for (int i = 0; i < 32; ++i) index[i] = i % N * R + i / N;
  const __m512i order = _mm512_load_si512(index);
  for (int t = 0; t < TOKENS; t += N) {
    alignas(64) uint16_t rows[32];
    _mm512_store_si512(rows, _mm512_permutexvar_epi16(order, narrow(weights + t * R)));
    for (int r = 0; r < R; ++r) std::memcpy(to + r * TOKENS + t, rows + r * N, N * 2);
  }
}

inline void turn_square(__m512i *v) {
  __m512i u[16];
  for (int i = 0; i < 16; i += 2) {
    u[i] = _mm512_unpacklo_epi32(v[i], v[i + 1]);
    u[i + 1] = _mm512_unpackhi_epi32(v[i], v[i + 1]);
  }
  for (int i = 0; i < 16; i += 4) {
    v[i] = _mm512_unpacklo_epi64(u[i], u[i + 2]);
    v[i + 1] = _mm512_unpackhi_epi64(u[i], u[i + 2]);
    v[i + 2] = _mm512_unpacklo_epi64(u[i + 1], u[i + 3]);
    v[i + 3] = _mm512_unpackhi_epi64(u[i + 1], u[i + 3]);
  }
  for (int i = 0; i < 4; ++i) {
    u[i] = _mm512_shuffle_i32x4(v[i], v[i + 4], 0x88);
    u[i + 4] = _mm512_shuffle_i32x4(v[i], v[i + 4], 0xdd);
    u[i + 8] = _mm512_shuffle_i32x4(v[i + 8], v[i + 12], 0x88);
    u[i + 12] = _mm512_shuffle_i32x4(v[i + 8], v[i + 12], 0xdd);
  }
  for (int i = 0; i < 4; ++i) {
    v[i] = _mm512_shuffle_i32x4(u[i], u[i + 8], 0x88);
    v[i + 4] = _mm512_shuffle_i32x4(u[i + 4], u[i + 12], 0x88);
    v[i + 8] = _mm512_shuffle_i32x4(u[i], u[i + 8], 0xdd);
    v[i + 12] = _mm512_shuffle_i32x4(u[i + 4], u[i + 12], 0xdd);
  }
}

template <>
inline void turn_weights<16>(uint16_t *to, const float *weights) {
  alignas(64) uint16_t index[32];
  for (int i = 0; i < 32; ++i) index[i] = i % 2 * 16 + i / 2;
  const __m512i order = _mm512_load_si512(index);
  for (int t = 0; t < TOKENS; t += 32) {
    __m512i pairs[16];
    for (int i = 0; i < 16; ++i)
      pairs[i] = _mm512_permutexvar_epi16(order, narrow(weights + (t + 2 * i) * 16));
    turn_square(pairs);
    for (int r = 0; r < 16; ++r) _mm512_storeu_si512(to + r * TOKENS + t, pairs[r]);
  }
}

// Adds weights [R][tokens] times paired values to outputs.
template <int R>
void mix(float *outputs, int64_t output_stride, const uint16_t *weights, const uint16_t *values,
         int64_t dim, Ahead ahead) {
  const int64_t lines = ahead.share(dim / 16);
  settle();
  const int64_t out = output_stride * 4, in = dim * 4;
  const uint16_t *later = values + 32 * dim;
  for (int64_t c = 0; c < dim; c += 32) {
    float *to = outputs + c;
    _tile_loadd(6, weights, TOKENS * 2);
    _tile_loadd(4, to, out);
    _tile_loadd(5, to + 16, out);
    _tile_loadd(3, values + 2 * c, in);
    _tile_dpbf16ps(4, 6, 3);
    _tile_loadd(7, values + 2 * c + 32, in);
    _tile_dpbf16ps(5, 6, 7);
    ahead.fetch(lines);
    _tile_loadd(6, weights + 32, TOKENS * 2);
    _tile_loadd(3, later + 2 * c, in);
    _tile_dpbf16ps(4, 6, 3);
    _tile_loadd(7, later + 2 * c + 32, in);
    _tile_dpbf16ps(5, 6, 7);
    ahead.fetch(lines);
    _tile_stored(4, to, out);
    _tile_stored(5, to + 16, out);
  }
}

inline void release() { _tile_release(); }

}  // namespace tiles

#endif
