// Both products of a tile of bfloat16 keys on matrix units of x86 processors, where these are.
//
// Scores come out as [tokens][R rows]; weights go in as [R rows][tokens]. Of each 32 channels of a
// mixture the even ones come first.

#pragma once

#include <algorithm>

#include "ahead.h"
#include "vectors.h"

#if defined(QKVARY_AVX512) && defined(__AMX_TILE__) && defined(__AMX_BF16__) && \
    defined(__AVX512BF16__) && defined(__linux__)
#define QKVARY_TILES 1

#include <sys/syscall.h>
#include <unistd.h>

namespace tiles {
namespace {

using namespace products;
using namespace vectors;

constexpr int TOKENS = 64;

// Whether the operating system lets this process use the tile registers, which must be requested.
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

// Makes compilers write earlier stores to memory: they do not know that tile loads read them.
inline void settle(const void *read = nullptr) { asm volatile("" : : "r"(read) : "memory"); }

// Registers: 0, 1 scores; 2 queries; 3 keys or values; 4, 5 outputs; 6, 7 weights.
inline void configure(int rows) {
  Shapes shapes;
  for (int i = 0; i < 3; ++i) shapes.set(i, 16, rows * 4);
  shapes.set(3, 16, 64);
  for (int i = 4; i < 8; ++i) shapes.set(i, rows, 64);
  settle(&shapes);
  _tile_loadconfig(&shapes);
}

// Queries as the second operand: [channels / 2][R rows][2].
inline void arrange(uint16_t *to, const float *rows, int64_t count, int size, int64_t dim) {
  std::memset(to, 0, dim * size * 2);
  for (int64_t r = 0; r < count; ++r)
    for (int64_t c = 0; c < dim; ++c)
      to[(c / 2 * size + r) * 2 + c % 2] = upper_half(rows[r * dim + c]);
}

template <int R>
void score(float *scores, const uint16_t *query, const char *keys, int64_t stride, int64_t dim,
           Ahead &ahead) {
  const int64_t share = ahead.share(dim / 32 * TOKENS / 32);
  settle();
  for (int t = 0; t < TOKENS; t += 32) {
    _tile_zero(0);
    _tile_zero(1);
    for (int64_t c = 0; c < dim; c += 32) {
      const char *key = keys + t * stride + c * 2;
      _tile_loadd(2, query + c * R, R * 4);
      _tile_loadd(3, key, stride);
      _tile_dpbf16ps(0, 3, 2);
      _tile_loadd(3, key + 16 * stride, stride);
      _tile_dpbf16ps(1, 3, 2);
      ahead.fetch(share);
    }
    _tile_stored(0, scores + t * R, R * 4);
    _tile_stored(1, scores + (t + 16) * R, R * 4);
  }
}

// Weights [tokens][R], which are numbers of bfloat16, as [R][tokens].
template <int R>
void turn_weights(float *to, const float *weights) {
  for (int t = 0; t < TOKENS; t += W, weights += R * W) {
    Vec v[R], turned[R];
    for (int i = 0; i < R; ++i) v[i] = load(weights + i * W);
    // Even places come first, until each row's tokens are contiguous.
    for (int n = 1; n < R; n *= 2) {
      for (int i = 0; i < R / 2; ++i) {
        turned[i] = every_other<0>(v[2 * i], v[2 * i + 1], Lanes{});
        turned[R / 2 + i] = every_other<1>(v[2 * i], v[2 * i + 1], Lanes{});
      }
      std::copy(turned, turned + R, v);
    }
    for (int r = 0; r < R; ++r) {
      store(to + r * TOKENS + t, (Vec)((Words)v[r] >> 16));
      store(to + (R + r) * TOKENS + t, v[r]);
    }
  }
}

// Adds weights [R][tokens] times values to outputs. A product takes pairs of neighbours, here the
// channels of a value: a weight next to a zero selects every other of them.
template <int R>
void mix(float *outputs, int64_t output_stride, const float *weights, const char *values,
         int64_t stride, int64_t dim, Ahead &ahead) {
  const int64_t share = ahead.share(dim / 32 * TOKENS / 16), out = output_stride * 4;
  settle();
  for (int64_t c = 0; c < dim; c += 32, outputs += 32, values += 64) {
    _tile_loadd(4, outputs, out);
    _tile_loadd(5, outputs + 16, out);
    for (int t = 0; t < TOKENS; t += 16) {
      _tile_loadd(3, values + t * stride, stride);
      _tile_loadd(6, weights + t, TOKENS * 4);
      _tile_dpbf16ps(4, 6, 3);
      _tile_loadd(7, weights + R * TOKENS + t, TOKENS * 4);
      _tile_dpbf16ps(5, 7, 3);
      ahead.fetch(share);
    }
    _tile_stored(4, outputs, out);
    _tile_stored(5, outputs + 16, out);
  }
}

inline void release() { _tile_release(); }

}  // namespace
}  // namespace tiles

#endif
