// Stored tensors, and their numbers as floats.

#pragma once

#include "ahead.h"
#include "vectors.h"

extern "C" {

enum Storage : int64_t { FLOAT32 = 0, BFLOAT16 = 1, FLOAT16 = 2, INT8 = 3, INT4 = 4 };

// One stored tensor [batch, groups, tokens, dim]; strides in elements (bytes of codes), channels next
// to each other. Codes have scales: [batch, groups, tokens / block, scale_groups], each for `group`
// channels of `block` tokens. Mirrored field by field in native.py.
struct Stored {
  const void *data;
  int64_t batch_stride, head_stride, token_stride, dim;
  const float *scales;
  int64_t scale_batch_stride, scale_head_stride, scale_token_stride, scale_groups, group, block;
  // From the first token that is not yet a code: plain numbers.
  const void *newest;
  int64_t newest_batch_stride, newest_head_stride, newest_token_stride;
};

}  // extern "C"

namespace products {
namespace {

using namespace vectors;

inline int64_t size_of(int64_t storage) {
  return storage == FLOAT32 ? 4 : storage >= INT8 ? 1 : 2;
}

inline int64_t row_bytes(int64_t storage, int64_t dim) {
  return storage == INT4 ? (dim + 1) / 2 : dim * size_of(storage);
}

// Numbers as a network has them.
struct Plain {
  const void *data;
  int64_t storage, size;

  float at(int64_t index) const {
    if (storage == FLOAT32) return static_cast<const float *>(data)[index];
    if (storage == BFLOAT16) return to_float(static_cast<const Bfloat16 *>(data)[index]);
    return to_float(static_cast<const Float16 *>(data)[index]);
  }
};

// Tokens of one head of a stored tensor.
struct Tokens {
  const char *data;
  int64_t stride, dim, row_size;
  const float *scales;
  int64_t scale_stride, scale_groups, group, block;
  int64_t coded;  // Tokens before the newest ones.
  Plain newest;
  int64_t newest_stride;
  int64_t near, far;  // What is fetched, in tokens: from the one read, and from there; 0 for none.

  Tokens(const Stored &stored, int64_t storage, int64_t coded, int64_t plain, int64_t batch,
         int64_t head, Reach reach)
      : stride(stored.token_stride * size_of(storage)), dim(stored.dim),
        row_size(row_bytes(storage, stored.dim)), scale_stride(stored.scale_token_stride),
        scale_groups(stored.scale_groups), group(stored.group), block(stored.block), coded(coded),
        newest_stride(stored.newest_token_stride) {
    const int64_t offset = batch * stored.batch_stride + head * stored.head_stride;
    data = static_cast<const char *>(stored.data) + offset * size_of(storage);
    scales = stored.scales + batch * stored.scale_batch_stride + head * stored.scale_head_stride;
    const int64_t size = size_of(plain);
    const int64_t from = batch * stored.newest_batch_stride + head * stored.newest_head_stride;
    newest = {static_cast<const char *>(stored.newest) + from * size, plain, size};
    near = reach.near / bytes();
    far = reach.far ? reach.far / bytes() - near : 0;
  }
  int64_t bytes() const { return row_size; }
  const char *row(int64_t token) const { return data + token * stride; }
  const float *scales_of(int64_t token) const {
    return scales + (block > 1 ? token / block : token) * scale_stride;
  }
  // Whether the codes of this many tokens have one scale each, contiguous.
  bool has_token_scales(int64_t from, int64_t count) const {
    return scale_groups == 1 && block == 1 && scale_stride == 1 && from + count <= coded;
  }
  void fetch_scales(int64_t from, int64_t count) const {
    for (int64_t t = 0; t < count; t += LINE / sizeof(float)) __builtin_prefetch(scales + from + t);
  }
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

template <class S>
inline void unpack_codes(float *to, const S *from, int64_t dim, const float *scales, int64_t groups,
                         int64_t group) {
  constexpr bool HALVES = std::is_same_v<S, Int4>;
  int64_t c = 0;
  if (groups == dim) {
    for (; c + W <= dim; c += W) store(to + c, load(skip(from, c)) * load(scales + c));
    for (; c < dim; ++c) to[c] = code_at(from, c) * scales[c];
  }
  for (; c < dim; ++scales) {
    const int64_t end = dim - c < group ? dim : c + group;
    if (!HALVES || c % 2 == 0)
      for (; c + W <= end; c += W) store(to + c, load(skip(from, c)) * *scales);
    for (; c < end; ++c) to[c] = code_at(from, c) * *scales;
  }
}

template <class S>
void unpack(float *to, int64_t to_stride, const Tokens &from, int64_t first, int64_t count) {
  if constexpr (IS_CODE<S>)
    if (from.dim % W == 0 && from.has_token_scales(first, count)) {
      for (int64_t t = first; t < first + count; ++t, to += to_stride)
        for (int64_t c = 0; c < from.dim; c += W)
          store(to + c, load(skip(reinterpret_cast<const S *>(from.row(t)), c)) * from.scales[t]);
      return;
    }
  for (int64_t token = first; token < first + count; ++token, to += to_stride) {
    const S *row = reinterpret_cast<const S *>(from.row(token));
    if constexpr (!IS_CODE<S>)
      unpack_row(to, row, from.dim);
    else if (token < from.coded)
      unpack_codes(to, row, from.dim, from.scales_of(token), from.scale_groups, from.group);
    else
      for (int64_t c = 0; c < from.dim; ++c)
        to[c] = from.newest.at((token - from.coded) * from.newest_stride + c);
  }
}

}  // namespace
}  // namespace products
