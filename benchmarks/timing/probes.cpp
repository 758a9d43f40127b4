// What the machine can do at best: bytes read in a row, and products added up, in one thread.

#include <cstdint>
#include <cstring>

#if defined(__AVX512F__)
constexpr int W = 16;
#elif defined(__AVX__)
constexpr int W = 8;
#else
constexpr int W = 4;
#endif

typedef float Vec __attribute__((vector_size(W * 4)));

// A sum of floats with eight accumulators; `ahead` is the distance of prefetching in bytes, or 0.
extern "C" float probe_read(const float *p, int64_t count, int64_t ahead) {
  Vec sums[8] = {};
  for (int64_t i = 0; i + 8 * W <= count; i += 8 * W) {
#pragma GCC unroll 8
    for (int j = 0; j < 8; ++j) {
      if (ahead && j * W % 16 == 0)
        __builtin_prefetch(reinterpret_cast<const char *>(p + i + j * W) + ahead);
      Vec v;
      std::memcpy(&v, p + i + j * W, sizeof v);
      sums[j] += v;
    }
  }
  Vec total = {};
#pragma GCC unroll 8
  for (int j = 0; j < 8; ++j) total += sums[j];
  float sum = 0;
  for (int k = 0; k < W; ++k) sum += total[k];
  return sum;
}

// `rounds` times twelve vectors of multiply-adds that do not wait for each other.
extern "C" float probe_multiply_add(int64_t rounds, float factor) {
  Vec sums[12] = {};
  const Vec x = factor - Vec{};
  for (int64_t i = 0; i < rounds; ++i) {
#pragma GCC unroll 12
    for (int j = 0; j < 12; ++j) {
      sums[j] = sums[j] * x + x;
      asm volatile("" : "+v"(sums[j]));
    }
  }
  Vec total = {};
#pragma GCC unroll 12
  for (int j = 0; j < 12; ++j) total += sums[j];
  return total[0];
}

extern "C" int64_t probe_width() { return W; }
