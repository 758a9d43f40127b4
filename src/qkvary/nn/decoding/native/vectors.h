// Vectors of floats as wide as the processor has them, and the operations that attention needs.
//
// Written with the vector extensions of GCC and Clang; intrinsics stand where these do not find the
// one instruction that exists.

#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>
#include <utility>

#if defined(__AVX__)
#include <immintrin.h>
#endif

namespace vectors {

#if defined(__AVX512F__) && defined(__AVX512DQ__) && defined(__AVX512BW__) && defined(__AVX512VL__)
#define QKVARY_AVX512 1
constexpr int W = 16;
#elif defined(__AVX__)
constexpr int W = 8;
#else
constexpr int W = 4;
#endif

typedef float Vec __attribute__((vector_size(W * 4)));
typedef int32_t Ints __attribute__((vector_size(W * 4)));
typedef uint32_t Words __attribute__((vector_size(W * 4)));
typedef uint16_t Halves __attribute__((vector_size(W * 2)));
typedef int8_t Bytes __attribute__((vector_size(W)));

constexpr float LOWEST = -__builtin_inff();
constexpr float LARGEST = 3.4028234663852886e38f;

struct Bfloat16 {
  uint16_t bits;
};
// Read two vectors at a time, of the even and of the odd channels: widening needs no shuffle then.
struct PairedBfloat16 {
  uint16_t bits;
};
struct Float16 {
  uint16_t bits;
};

// 4-bit codes, two in a byte, the first in the lower half; each is 8 more than its number.
struct Int4 {
  uint8_t bits;
};

template <class S>
constexpr bool IS_CODE = std::is_same_v<S, int8_t> || std::is_same_v<S, Int4>;

// The address of channel c, which must be even for 4-bit codes.
template <class S>
inline const S *skip(const S *from, int64_t c) {
  return from + (std::is_same_v<S, Int4> ? c / 2 : c);
}

inline int code_at(const int8_t *from, int64_t c) { return from[c]; }
inline int code_at(const Int4 *from, int64_t c) { return (from[c / 2].bits >> c % 2 * 4 & 15) - 8; }

inline float to_float(float x) { return x; }

inline float to_float(Bfloat16 x) {
  const uint32_t word = static_cast<uint32_t>(x.bits) << 16;
  float result;
  std::memcpy(&result, &word, 4);
  return result;
}

// The bits of a number that bfloat16 holds.
inline uint16_t upper_half(float x) {
  uint32_t word;
  std::memcpy(&word, &x, 4);
  return static_cast<uint16_t>(word >> 16);
}

inline float to_float(PairedBfloat16 x) { return to_float(Bfloat16{x.bits}); }

inline float to_float(Float16 x) {
#if defined(__F16C__)
  return _cvtsh_ss(x.bits);
#else
  const uint32_t sign = static_cast<uint32_t>(x.bits & 0x8000u) << 16;
  const uint32_t rest = x.bits & 0x7fffu;
  float result;
  if (rest < 0x0400u) {
    result = static_cast<float>(rest) * 5.9604644775390625e-8f;
    return sign ? -result : result;
  }
  const uint32_t exponent = rest >= 0x7c00u ? (255u - 31u) << 23 : (127u - 15u) << 23;
  const uint32_t word = sign | ((rest << 13) + exponent);
  std::memcpy(&result, &word, 4);
  return result;
#endif
}

inline float to_float(int8_t x) { return static_cast<float>(x); }

inline void put(float *to, float x) { *to = x; }

inline void put(Bfloat16 *to, float x) {
  uint32_t word;
  std::memcpy(&word, &x, 4);
  // To the nearest, halves to even; NaN keeps a bit.
  to->bits = x != x ? 0x7fc0 : (word + 0x7fffu + ((word >> 16) & 1u)) >> 16;
}

inline void put(Float16 *to, float x) {
#if defined(__F16C__)
  to->bits = _cvtss_sh(x, 0);
#else
  uint32_t word;
  std::memcpy(&word, &x, 4);
  const uint32_t sign = word >> 16 & 0x8000u;
  const float size = std::fabs(x);
  if (x != x) {
    to->bits = 0x7e00;
  } else if (size >= 65520.0f) {
    to->bits = sign | 0x7c00u;
  } else if (size < 6.103515625e-5f) {
    to->bits = sign | static_cast<uint32_t>(std::nearbyint(size * 16777216.0f));
  } else {
    word = (word & 0x7fffffffu) + 0xfffu + (word >> 13 & 1u);
    to->bits = sign | ((word - (112u << 23)) >> 13);
  }
#endif
}

inline Vec all(float x) { return x - Vec{}; }

inline Vec load(const float *p) {
  Vec v;
  std::memcpy(&v, p, sizeof v);
  return v;
}

// Converters of Clang and GCC widen in halves where one instruction does it.
inline Vec load(const Bfloat16 *p) {
#if defined(QKVARY_AVX512)
  const __m256i half = _mm256_loadu_si256(reinterpret_cast<const __m256i *>(p));
  return (Vec)_mm512_slli_epi32(_mm512_cvtepu16_epi32(half), 16);
#elif defined(__AVX2__)
  const __m128i half = _mm_loadu_si128(reinterpret_cast<const __m128i *>(p));
  return (Vec)_mm256_slli_epi32(_mm256_cvtepu16_epi32(half), 16);
#else
  Halves half;
  std::memcpy(&half, p, sizeof half);
  return (Vec)(__builtin_convertvector(half, Words) << 16);
#endif
}

inline Vec load(const Float16 *p) {
#if defined(QKVARY_AVX512)
  return (Vec)(
      _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i *>(p))));
#elif defined(__F16C__)
  return (Vec)(
      _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i *>(p))));
#else
  Vec v;
  for (int i = 0; i < W; ++i) v[i] = to_float(p[i]);
  return v;
#endif
}

inline Vec load(const int8_t *p) {
#if defined(QKVARY_AVX512)
  const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i *>(p));
  return (Vec)_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(bytes));
#elif defined(__AVX2__)
  const __m128i bytes = _mm_loadl_epi64(reinterpret_cast<const __m128i *>(p));
  return (Vec)_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(bytes));
#else
  Bytes bytes;
  std::memcpy(&bytes, p, sizeof bytes);
  return __builtin_convertvector(__builtin_convertvector(bytes, Ints), Vec);
#endif
}

inline Vec load(const Int4 *p) {
#if defined(QKVARY_AVX512)
  // Spreads each byte over two words; the lowest 4 bits of each word select from a table.
  const __m512i bytes = _mm512_cvtepu8_epi64(_mm_loadl_epi64(reinterpret_cast<const __m128i *>(p)));
  const __m512i words = _mm512_or_si512(bytes, _mm512_slli_epi64(bytes, 28));
  const __m512 numbers = _mm512_setr_ps(-8, -7, -6, -5, -4, -3, -2, -1, 0, 1, 2, 3, 4, 5, 6, 7);
  return (Vec)_mm512_permutexvar_ps(words, numbers);
#elif defined(__AVX2__)
  int32_t bytes;
  std::memcpy(&bytes, p, sizeof bytes);
  const __m256i places = _mm256_setr_epi32(0, 4, 8, 12, 16, 20, 24, 28);
  const Ints codes = (Ints)_mm256_srlv_epi32(_mm256_set1_epi32(bytes), places) & 15;
  return __builtin_convertvector(codes, Vec) - 8.0f;
#else
  Vec v;
  for (int i = 0; i < W; ++i) v[i] = code_at(p, i);
  return v;
#endif
}

// N vectors of neighbouring channels.
template <int N, class S>
inline void load_row(Vec *to, const S *from) {
  if constexpr (std::is_same_v<S, PairedBfloat16>) {
    static_assert(N % 2 == 0, "pairs");
    for (int n = 0; n < N; n += 2) {
      Words words;
      std::memcpy(&words, from + n * W, sizeof words);
      to[n] = (Vec)(words << 16);
      to[n + 1] = (Vec)(words & 0xffff0000u);
    }
  } else {
    for (int n = 0; n < N; ++n) to[n] = load(skip(from, n * W));
  }
}

// Keeps compilers from loading a vector from memory again for each of its uses.
inline void hold(Vec &v) {
#if defined(QKVARY_AVX512)
  asm("" : "+v"(v));
#elif defined(__SSE2__)
  asm("" : "+x"(v));
#elif defined(__aarch64__)
  asm("" : "+w"(v));
#endif
}

inline void store(float *p, Vec v) { std::memcpy(p, &v, sizeof v); }

// C floats, repeated to fill a vector.
template <int C>
inline Vec repeat(const float *p) {
  static_assert(W % C == 0, "a vector holds whole copies");
  if constexpr (C == W) {
    return load(p);
  } else if constexpr (C == 1) {
    return all(*p);
#if defined(QKVARY_AVX512)
  } else if constexpr (C == 2) {
    double pair;
    std::memcpy(&pair, p, 8);
    return (Vec)(_mm512_set1_pd(pair));
  } else if constexpr (C == 4) {
    return (Vec)(_mm512_broadcast_f32x4(_mm_loadu_ps(p)));
  } else if constexpr (C == 8) {
    return (Vec)(_mm512_broadcast_f32x8(_mm256_loadu_ps(p)));
#elif defined(__AVX__)
  } else if constexpr (C == 2) {
    double pair;
    std::memcpy(&pair, p, 8);
    return (Vec)(_mm256_set1_pd(pair));
  } else if constexpr (C == 4) {
    return (Vec)(_mm256_broadcast_ps(reinterpret_cast<const __m128 *>(p)));
#endif
  } else {
    Vec v;
    for (int i = 0; i < W; ++i) v[i] = p[i % C];
    return v;
  }
}

#if defined(__clang__) || __GNUC__ >= 12
#define QKVARY_SHUFFLE(a, b, index) __builtin_shufflevector(a, b, (index)...)
#else
#define QKVARY_SHUFFLE(a, b, index) __builtin_shuffle(a, b, Ints{(index)...})
#endif

template <int H, class V, int... I>
inline V add_halves(V a, V b, std::integer_sequence<int, I...>) {
  const V low = QKVARY_SHUFFLE(a, b, (I % (2 * H) < H ? I : W + I - H));
  const V high = QKVARY_SHUFFLE(a, b, (I % (2 * H) < H ? I + H : W + I));
  return low + high;
}

template <int H, int... I>
inline Vec swap_halves(Vec a, std::integer_sequence<int, I...>) {
  return QKVARY_SHUFFLE(a, a, (I ^ H));
}

template <int FIRST, int... I>
inline Vec every_other(Vec a, Vec b, std::integer_sequence<int, I...>) {
  return QKVARY_SHUFFLE(a, b, (2 * I + FIRST));
}

using Lanes = std::make_integer_sequence<int, W>;

// Every fourth place of two vectors' quarters: a0 b0 a1 b1, or a2 b2 a3 b3 with HIGH = 2.
template <int HIGH, class V, int... I>
inline V zip(V a, V b, std::integer_sequence<int, I...>) {
  return QKVARY_SHUFFLE(a, b, (I / 4 * 4 + I % 4 / 2 + HIGH + I % 2 * W));
}

// The same of pairs: a0 a1 b0 b1, or a2 a3 b2 b3 with HIGH = 2.
template <int HIGH, class V, int... I>
inline V zip_pairs(V a, V b, std::integer_sequence<int, I...>) {
  return QKVARY_SHUFFLE(a, b, (I / 4 * 4 + I % 2 + HIGH + I % 4 / 2 * W));
}

// Of two vectors, each other H lanes: those that come first in both, or those that come second.
template <int H, int SECOND, int... I>
inline Vec take_blocks(Vec a, Vec b, std::integer_sequence<int, I...>) {
  return QKVARY_SHUFFLE(a, b, (I % H + I / (2 * H) * (2 * H) + SECOND * H + I / H % 2 * W));
}

// W vectors as the columns of a square become its rows.
template <int H = 1>
inline void transpose(Vec *v) {
#pragma GCC unroll 16
  for (int i = 0; i < W; ++i)
    if (i / H % 2 == 0) {
      const Vec a = v[i], b = v[i + H];
      v[i] = take_blocks<H, 0>(a, b, Lanes{}), v[i + H] = take_blocks<H, 1>(a, b, Lanes{});
    }
  if constexpr (2 * H < W) transpose<2 * H>(v);
}

// The sums over each four neighbouring lanes of four vectors, in the order of the vectors. What
// stays within four lanes is the cheapest for processors.
template <class V>
inline V sum_fours(const V *v) {
  const V low = zip<0>(v[0], v[1], Lanes{}) + zip<2>(v[0], v[1], Lanes{});
  const V high = zip<0>(v[2], v[3], Lanes{}) + zip<2>(v[2], v[3], Lanes{});
  return zip_pairs<0>(low, high, Lanes{}) + zip_pairs<2>(low, high, Lanes{});
}

// The same of each C lanes of C vectors that were summed by fours.
template <int C, class V>
inline V sum_sums(const V *fours) {
  if constexpr (C == 4) return fours[0];
  else return add_halves<C / 2>(sum_sums<C / 2>(fours), sum_sums<C / 2>(fours + C / 8), Lanes{});
}

// The sums over each C neighbouring lanes of C vectors, in the order of the vectors.
template <int C, class V>
inline V sum_lanes(const V *v) {
  if constexpr (C == 1) {
    return v[0];
  } else if constexpr (C == 2) {
    return add_halves<1>(v[0], v[1], Lanes{});
  } else {
    V fours[C / 4];
    for (int i = 0; i < C / 4; ++i) fours[i] = sum_fours(v + 4 * i);
    return sum_sums<C>(fours);
  }
}

// Lanes of C tokens with R rows each, as rows of C tokens.
template <int R, int... I>
inline Vec rows_first(Vec v, std::integer_sequence<int, I...>) {
  constexpr int C = W / R;
  return QKVARY_SHUFFLE(v, v, (I % C * R + I / C));
}

// sum + a * b, rounded once where the processor can. For some processors compilers round once in one
// loop and twice in another, so that a sum would depend on the loop that makes it.
inline Vec add_product(Vec sum, Vec a, Vec b) {
#if defined(QKVARY_AVX512)
  return (Vec)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)sum);
#elif defined(__AVX__) && defined(__FMA__)
  return (Vec)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)sum);
#else
  return sum + a * b;
#endif
}

// Where an operand is NaN, the result is the second operand.
inline Vec larger(Vec a, Vec b) {
#if defined(QKVARY_AVX512)
  return (Vec)_mm512_max_ps((__m512)a, (__m512)b);
#elif defined(__AVX__)
  return (Vec)_mm256_max_ps((__m256)a, (__m256)b);
#else
  return a > b ? a : b;
#endif
}

inline Vec smaller(Vec a, Vec b) {
#if defined(QKVARY_AVX512)
  return (Vec)_mm512_min_ps((__m512)a, (__m512)b);
#elif defined(__AVX__)
  return (Vec)_mm256_min_ps((__m256)a, (__m256)b);
#else
  return a < b ? a : b;
#endif
}

// Whether a lane of a comparison holds.
inline bool any(Ints v) {
#if defined(QKVARY_AVX512)
  return _mm512_movepi32_mask((__m512i)v);
#elif defined(__AVX__)
  return _mm256_movemask_ps((__m256)v);
#else
  int64_t halves[W / 2], found = 0;
  std::memcpy(halves, &v, sizeof v);
  for (const int64_t half : halves) found |= half;
  return found;
#endif
}

// The largest of each C neighbouring lanes, in all of them.
template <int C>
inline Vec largest_lane(Vec v) {
  if constexpr (C > 1) {
    v = larger(v, swap_halves<C / 2>(v, Lanes{}));
    return largest_lane<C / 2>(v);
  }
  return v;
}

// The sum of each C neighbouring lanes, in all of them.
template <int C>
inline Vec add_lanes(Vec v) {
  if constexpr (C > 1) return add_lanes<C / 2>(v + swap_halves<C / 2>(v, Lanes{}));
  return v;
}

// The largest of the lanes at the same place of each R, in all of them.
template <int R>
inline Vec largest_far_lane(Vec v) {
  if constexpr (R < W) {
    v = larger(v, swap_halves<R>(v, Lanes{}));
    return largest_far_lane<2 * R>(v);
  }
  return v;
}

// 2^x for x <= 127 to three units in the last place, and 0 below 2^-126; NaN stays NaN.
inline Vec power_of_two(Vec x) {
  const Vec bounded = larger(all(-127.0f), x);
  // The lowest bits become the exponent of the power; -127 has the bits of zero.
  const Vec magic = all(12582912.0f + 127.0f);
  const Vec shifted = bounded + magic;
  const Vec f = bounded - (shifted - magic);
  Vec p = all(1.3264723820611835e-3f);
  p = p * f + 9.671512991189957e-3f;
  p = p * f + 5.550733581185341e-2f;
  p = p * f + 2.4022242426872253e-1f;
  p = p * f + 6.931470036506653e-1f;
  p = p * f + 1.0f;
  return p * (Vec)((Words)shifted << 23);
}

inline float power_of_two(float x) { return power_of_two(all(x))[0]; }

// The nearest number of bfloat16, of numbers that are not negative.
inline Vec narrow(Vec x) { return (Vec)(((Words)x + 0x8000u) & 0xffff0000u); }

}  // namespace vectors
