// Numbers as 16-bit integers with a common scale, whose products processors take two at once.

#pragma once

#include "vectors.h"

namespace products {
namespace {

using namespace vectors;

constexpr int64_t CODES = 64;  // That share a scale.

// The first of W numbers where there are no more; zeros after them.
template <class S>
inline Vec load_first(const S *from, int64_t count) {
  if (count >= W) return load(from);
  S some[W] = {};
  std::memcpy(some, from, count * sizeof(S));
  return load(some);
}

#if defined(__AVX2__)
#define QKVARY_SHORTS 1
typedef int16_t Shorts __attribute__((vector_size(W * 4)));
typedef int16_t HalfShorts __attribute__((vector_size(W * 2)));

// Numbers of x as 16-bit integers, with a scale for each `CODES`: numbers of half precision lose
// next to nothing by it, and processors take two at once. Zeros fill the last group of a row.
struct Short {
  using Type = Short;
  float scale;
  int16_t numbers[CODES];

  void assign(const float *x, int64_t count) {
    Vec most = {};
    Ints wrong = {};
    for (int64_t c = 0; c < count; c += W) {
      const Vec v = load_first(x + c, count - c);
      most = larger(most, larger(v, -v)), wrong |= v != v;
    }
    const float largest = largest_lane<W>(most)[0], magic = 12582912.0f;
    // Integers cannot represent NaN, so the scale becomes NaN.
    scale = any(wrong) ? __builtin_nanf("") : largest / 32767.0f;
    const float factor = scale > 0 ? 1.0f / scale : 0.0f;
    std::memset(numbers, 0, sizeof numbers);
    for (int64_t c = 0; c < count; c += W) {
      // The lowest bits of the sum are the nearest integer.
      const Vec sum = load_first(x + c, count - c) * factor + magic;
      const HalfShorts some = __builtin_convertvector((Ints)sum, HalfShorts);
      std::memcpy(numbers + c, &some, sizeof some);
    }
  }
};

inline Shorts load_shorts(const int16_t *from) {
  Shorts v;
  std::memcpy(&v, from, sizeof v);
  return v;
}

inline Shorts load_shorts(const int8_t *from) {
#if defined(QKVARY_AVX512)
  return (Shorts)_mm512_cvtepi8_epi16(_mm256_loadu_si256(reinterpret_cast<const __m256i *>(from)));
#else
  return (Shorts)_mm256_cvtepi8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i *>(from)));
#endif
}

inline Ints add_pairs(Ints sum, Shorts a, Shorts b) {
#if defined(QKVARY_AVX512) && defined(__AVX512VNNI__)
  return (Ints)_mm512_dpwssd_epi32((__m512i)sum, (__m512i)a, (__m512i)b);
#elif defined(QKVARY_AVX512)
  return sum + (Ints)_mm512_madd_epi16((__m512i)a, (__m512i)b);
#else
  return sum + (Ints)_mm256_madd_epi16((__m256i)a, (__m256i)b);
#endif
}
#endif

}  // namespace
}  // namespace products
