// New codes of a cache, the same as those of cache_codes.py, number for number.

#pragma once

#include <algorithm>
#include <cmath>
#include <limits>

#include "stored.h"

namespace products {
namespace {

constexpr float MOST_NUMBER = 0x1p120f;  // The bound of numbers that have a scale.

// The scale of numbers up to `most`, rounded up.
inline float scale_of(double most, int most_code) {
  const double exact = most / most_code;
  const float scale = static_cast<float>(exact);
  return scale < exact ? std::nextafter(scale, std::numeric_limits<float>::infinity()) : scale;
}

inline int code_of(double number, float scale) {
  return static_cast<int>(std::nearbyint(number / (scale > 0 ? scale : 1.0f)));
}

// Quantises the first `count` of the newest tokens of a head: they become the last `count` codes.
template <class S>
void encode(const Stored &to, int64_t storage, int64_t coded, int64_t count, int64_t batch,
            int64_t head) {
  const int64_t dim = to.dim, first = coded - count;
  const S *newest = static_cast<const S *>(to.newest) + batch * to.newest_batch_stride +
                    head * to.newest_head_stride;
  const auto number = [&](int64_t token, int64_t c) {
    return static_cast<double>(to_float(newest[(token - coded) * to.newest_token_stride + c]));
  };
  const int most_code = storage == INT4 ? 7 : 127;
  float *scales = const_cast<float *>(to.scales) + batch * to.scale_batch_stride +
                  head * to.scale_head_stride;
  for (int64_t token = first; token < coded; token += to.block)
    for (int64_t g = 0; g < to.scale_groups; ++g) {
      double most = 0;
      for (int64_t t = token; t < token + to.block; ++t)
        for (int64_t c = g * to.group; c < std::min(dim, (g + 1) * to.group); ++c)
          most = std::max(most, std::fabs(number(t, c)));
      scales[token / to.block * to.scale_token_stride + g] = scale_of(most, most_code);
    }
  auto *codes = static_cast<uint8_t *>(const_cast<void *>(to.data)) + batch * to.batch_stride +
                head * to.head_stride;
  for (int64_t token = first; token < coded; ++token) {
    const float *own = scales + token / to.block * to.scale_token_stride;
    uint8_t *row = codes + token * to.token_stride;
    const auto code = [&](int64_t c) {
      return c < dim ? code_of(number(token, c), own[c / to.group]) : 0;
    };
    if (storage == INT8)
      for (int64_t c = 0; c < dim; ++c) row[c] = static_cast<uint8_t>(code(c));
    else
      for (int64_t c = 0; c < dim; c += 2)
        row[c / 2] = static_cast<uint8_t>((code(c) + 8) | (code(c + 1) + 8) << 4);
  }
}

}  // namespace
}  // namespace products
