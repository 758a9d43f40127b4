// Stored tensors, and their numbers as floats.

#pragma once

#include "ahead.h"
#include "vectors.h"

extern "C" {

enum Storage : int64_t { FLOAT32 = 0, BFLOAT16 = 1, FLOAT16 = 2, INT8 = 3 };

// One stored tensor [batch, groups, tokens, dim]; strides in elements, channels next to each other.
// Mirrored field by field in native.py.
struct Stored {
  const void *data;
  int64_t batch_stride, head_stride, token_stride, dim;
  const float *scales;  // [batch, groups, tokens, scale_groups], contiguous channels; int8 only
  int64_t scale_batch_stride, scale_head_stride, scale_token_stride, scale_groups;
};

}  // extern "C"

namespace products {
namespace {

using namespace vectors;

inline int64_t size_of(int64_t storage) {
  return storage == FLOAT32 ? 4 : storage == INT8 ? 1 : 2;
}

// Tokens of one head of a stored tensor.
struct Tokens {
  const char *data;
  int64_t stride, dim, element;
  const float *scales;
  int64_t scale_stride, scale_groups;
  int64_t near, far;  // What is fetched, in tokens: from the one read, and from there; 0 for none.

  Tokens(const Stored &stored, int64_t size, int64_t batch, int64_t head, Reach reach)
      : stride(stored.token_stride * size), dim(stored.dim), element(size),
        scale_stride(stored.scale_token_stride), scale_groups(stored.scale_groups) {
    const int64_t offset = batch * stored.batch_stride + head * stored.head_stride;
    data = static_cast<const char *>(stored.data) + offset * element;
    scales = stored.scales + batch * stored.scale_batch_stride + head * stored.scale_head_stride;
    near = reach.near / bytes();
    far = reach.far ? reach.far / bytes() - near : 0;
  }
  int64_t bytes() const { return dim * element; }
  const char *row(int64_t token) const { return data + token * stride; }
};

template <class S>
void unpack_row(float *to, const S *from, int64_t dim) {
  constexpr int N = std::is_same_v<S, PairedBfloat16> ? 2 : 1;
  int64_t c = 0;
  for (; c + N * W <= dim; c += N * W) {
    Vec v[N];
    load_row<N>(v, from + c);
    for (int n = 0; n < N; ++n) store(to + c + n * W, v[n]);
  }
  for (; c < dim; ++c) to[c] = to_float(from[c]);
}

inline void unpack_row(float *to, const int8_t *from, int64_t dim, const float *scales,
                       int64_t groups) {
  const int64_t width = dim / groups;
  for (int64_t g = 0; g < groups; ++g) {
    const Vec scale = all(scales[g]);
    int64_t c = g * width;
    for (; c + W <= (g + 1) * width; c += W) store(to + c, load(from + c) * scale);
    for (; c < (g + 1) * width; ++c) to[c] = to_float(from[c]) * scales[g];
  }
}

template <class S>
void unpack(float *to, int64_t to_stride, const Tokens &from, int64_t first, int64_t count) {
  for (int64_t t = 0; t < count; ++t, to += to_stride) {
    const S *row = reinterpret_cast<const S *>(from.row(first + t));
    if constexpr (std::is_same_v<S, int8_t>)
      unpack_row(to, row, from.dim, from.scales + (first + t) * from.scale_stride,
                 from.scale_groups);
    else
      unpack_row(to, row, from.dim);
  }
}

}  // namespace
}  // namespace products
