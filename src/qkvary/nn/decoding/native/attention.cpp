// Attention of a few queries over many stored keys. Each tile is read once for both products.
//
// The queries of all heads of a group are rows of one problem. A vector holds R rows times C
// neighbouring channels, R C = W, so that few rows fill it as well as many do: a product takes C
// channels of a key, the same for all rows. Tokens go in tiles that stay in the first cache, and in
// blocks whose results are merged in an order that does not depend on the threads.

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <new>
#include <system_error>
#include <thread>
#include <vector>

#include "tiles.h"
#include "vectors.h"

using namespace vectors;

namespace {

enum Storage : int64_t { FLOAT32 = 0, BFLOAT16 = 1, FLOAT16 = 2, INT8 = 3 };

// One stored tensor [batch, groups, tokens, dim]; strides in elements, channels next to each other.
struct Stored {
  const void *data;
  int64_t batch_stride, head_stride, token_stride, dim;
  const float *scales;  // [batch, groups, tokens, scale_groups], contiguous channels; int8 only
  int64_t scale_batch_stride, scale_head_stride, scale_token_stride, scale_groups;
};

}  // namespace

extern "C" {

// Mirrored field by field in native.py.
struct Call {
  const float *query;  // [batch, groups, rows, key dim], contiguous
  float *output;       // [batch, groups, rows, value dim], contiguous
  const uint8_t *valid;  // [batch, tokens], or null
  int64_t valid_stride;
  Stored key, value;
  int64_t shared;  // The value is the key, un-rotated.
  int64_t storage, batch, groups, rows, queries, tokens;
  int64_t start;  // Query i, the rows' index modulo queries, sees the first start + i + 1 tokens.
  // Rotation at read of the trailing channels: of tokens within 64, and of each 64 tokens.
  const float *near_cos, *near_sin, *far_cos, *far_sin;
  int64_t half;  // Pairs that are turned; 0 for none.
  int64_t table_stride;
  int64_t threads;
  int64_t narrow;  // Whether the queries are numbers of bfloat16.
  double scale;    // Of scores that are powers of two.
};

}  // extern "C"

namespace {

constexpr int64_t BLOCK = 1024;
constexpr int64_t PERIOD = 64;  // Of the rotation's near table.
constexpr int64_t LEAST_WORK = 1 << 18;  // Products that are worth a thread.
// Bytes between what is read and what is fetched, for few rows and for many: while memory is the
// limit, it is to be kept busy, and otherwise to be done in time.
constexpr int64_t NEAR = 2048, FAR = 8192;
constexpr int MIX_ROWS = W == 16 ? 4 : 2;
constexpr int MIX_VECTORS = 4;

int64_t round_up(int64_t n) { return (n + W - 1) / W * W; }

int64_t tile_of(int64_t dim) { return dim <= 128 ? 64 : dim <= 256 ? 32 : 16; }

// Even channels before odd ones, in each two vectors.
int64_t paired_place(int64_t c) { return c / (2 * W) * (2 * W) + c % 2 * W + c % (2 * W) / 2; }

struct Sizes {
  bool paired, tiled;
  int64_t tile, key_width, value_width, still, half_width, row_blocks, plain_stride;

  explicit Sizes(const Call &call) {
    tile = tile_of(std::max(call.key.dim, call.value.dim));
    half_width = round_up(call.half);
    still = call.half ? round_up(call.key.dim - 2 * call.half) : 0;
    key_width = call.half ? still + 2 * half_width : round_up(call.key.dim);
    value_width = round_up(call.value.dim);
    paired = call.storage == BFLOAT16 && call.half == 0 && call.key.dim % (2 * W) == 0 &&
             call.value.dim % (2 * W) == 0;
    row_blocks = (call.rows + W - 1) / W;
#if defined(QKVARY_TILES)
    tiled = paired && call.narrow && call.rows > 1 && tiles::granted();
#else
    tiled = false;
#endif
    if (tiled) tile = 64;
    // Rows are read a vector beyond their end where they are cut into parts.
    plain_stride = std::max(round_up(call.key.dim), value_width) + W;
  }

  // Where channel c of a mixture stands.
  int64_t mixed_at(int64_t c) const {
#if defined(QKVARY_TILES)
    if (tiled) return tiles::place(c);
#endif
    return paired ? paired_place(c) : c;
  }
};

struct Scratch {
  std::vector<float> memory;
  float *plain, *turned, *values, *query, *scores, *running, *pairs, *weights;
  int configured = 0;  // Rows that the matrix units expect.

  explicit Scratch(const Sizes &sizes) {
    const int64_t plain_size = sizes.tile * sizes.plain_stride + W;
    const int64_t turned_size = sizes.tile * sizes.key_width, query_size = W * sizes.key_width;
    const int64_t scores_size = W * sizes.tile, running_size = sizes.row_blocks * 2 * W;
    const int64_t pairs_size = sizes.tile * sizes.value_width / 2;
    memory.assign(2 * plain_size + turned_size + query_size + 2 * scores_size + running_size +
                      pairs_size + 16,
                  0);
    auto address = reinterpret_cast<uintptr_t>(memory.data());
    plain = memory.data() + (-address % 64) / 4;
    turned = plain + plain_size;
    values = turned + turned_size;
    query = values + plain_size;
    scores = query + query_size;
    running = scores + scores_size;
    weights = running + running_size;
    pairs = weights + scores_size;
  }
};

inline void prefetch(const char *p, int64_t bytes) {
  for (int64_t i = 0; i < bytes; i += LINE) __builtin_prefetch(p + i, 0, 3);
}

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

void unpack_row(float *to, const int8_t *from, int64_t dim, const float *scales, int64_t groups) {
  const int64_t width = dim / groups;
  for (int64_t g = 0; g < groups; ++g) {
    const Vec scale = all(scales[g]);
    int64_t c = g * width;
    for (; c + W <= (g + 1) * width; c += W) store(to + c, load(from + c) * scale);
    for (; c < (g + 1) * width; ++c) to[c] = to_float(from[c]) * scales[g];
  }
}

// Tokens of one head of a stored tensor.
struct Tokens {
  const char *data;
  int64_t stride, dim, element;
  const float *scales;
  int64_t scale_stride, scale_groups;

  Tokens(const Stored &stored, int64_t size, int64_t batch, int64_t head)
      : stride(stored.token_stride * size), dim(stored.dim), element(size),
        scale_stride(stored.scale_token_stride), scale_groups(stored.scale_groups) {
    const int64_t offset = batch * stored.batch_stride + head * stored.head_stride;
    data = static_cast<const char *>(stored.data) + offset * element;
    scales = stored.scales + batch * stored.scale_batch_stride + head * stored.scale_head_stride;
  }
  int64_t bytes() const { return dim * element; }
  const char *row(int64_t token) const { return data + token * stride; }
};

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

// Keys turned by their place within 64 tokens: still channels, first halves, second halves.
void turn_tile(float *to, int64_t to_stride, const float *from, int64_t from_stride,
               const Call &call, const Sizes &sizes, int64_t first, int64_t count) {
  const int64_t still = call.key.dim - 2 * call.half;
  for (int64_t t = 0; t < count; ++t, from += from_stride, to += to_stride) {
    const int64_t near = (first + t) % PERIOD * call.table_stride;
    for (int64_t c = 0; c < sizes.still; c += W) store(to + c, load(from + c));
    float *halves = to + sizes.still;
    for (int64_t c = 0; c < sizes.half_width; c += W) {
      const Vec a = load(from + still + c), b = load(from + still + call.half + c);
      const Vec cos = load(call.near_cos + near + c), sin = load(call.near_sin + near + c);
      store(halves + c, a * cos - b * sin);
      store(halves + sizes.half_width + c, b * cos + a * sin);
    }
  }
}

// Queries turned back by the place of a period: what they meet is turned by places within it.
template <int R>
void turn_query(float *to, const float *from, const Call &call, const Sizes &sizes,
                int64_t period) {
  constexpr int C = W / R;
  const int64_t start = sizes.still * R, half = sizes.half_width * R;
  std::memcpy(to, from, start * sizeof(float));
  const float *cos = call.far_cos + period * call.table_stride;
  const float *sin = call.far_sin + period * call.table_stride;
  for (int64_t c = 0, i = start; c < sizes.half_width; c += C, i += W) {
    const Vec a = load(from + i), b = load(from + i + half);
    const Vec x = repeat<C>(cos + c), y = repeat<C>(sin + c);
    store(to + i, a * x + b * y);
    store(to + i + half, b * x - a * y);
  }
}

inline const float *at(const char *p) { return reinterpret_cast<const float *>(p); }

// Scores of W tokens at a time: vectors of R rows times C tokens.
template <int R>
void score(float *scores, const float *query, const char *keys, int64_t stride, int64_t width,
           int64_t tokens, Ahead ahead) {
  constexpr int C = W / R, GROUPS = W / 4;
  // Lines for each step of channels, so that all is fetched when the tile is done.
  const int64_t lines = ahead.share(tokens / W * width / C);
  for (int64_t t = 0; t < tokens; t += W, scores += R * W, keys += W * stride) {
    Vec sums[W] = {};
    // Four tokens share a pointer: as many as tokens do not fit the registers.
    const char *group[GROUPS];
#pragma GCC unroll 4
    for (int g = 0; g < GROUPS; ++g) group[g] = keys + 4 * g * stride;
    const int64_t step = C * sizeof(float), triple = 3 * stride;
    for (int64_t c = 0; c < width; c += C) {
      const Vec q = load(query + c * R);
      ahead.fetch(lines);
#pragma GCC unroll 4
      for (int g = 0; g < GROUPS; ++g) {
        const char *key = group[g];
        group[g] += step;
        sums[4 * g] += repeat<C>(at(key)) * q;
        sums[4 * g + 1] += repeat<C>(at(key + stride)) * q;
        sums[4 * g + 2] += repeat<C>(at(key + 2 * stride)) * q;
        sums[4 * g + 3] += repeat<C>(at(key + triple)) * q;
      }
    }
#pragma GCC unroll 16
    for (int i = 0; i < R; ++i) {
      const Vec v = sum_lanes<C>(sums + i * C);
      store(scores + i * W, smaller(all(LARGEST), v));
    }
  }
}

// The same for one row of N vectors, token by token: memory is read in its order.
template <int N, class S>
void score_row(float *scores, const float *query, const char *keys, int64_t stride,
               int64_t tokens, Ahead ahead) {
  Vec q[N];
  for (int n = 0; n < N; ++n) q[n] = load(query + n * W);
  for (int64_t t = 0; t < tokens; t += W) {
    Vec sums[W];
#pragma GCC unroll 16
    for (int j = 0; j < W; ++j, keys += stride) {
      prefetch(ahead.row + t * stride + j * stride, ahead.bytes);
      Vec key[N];
      load_row<N>(key, reinterpret_cast<const S *>(keys));
      sums[j] = key[0] * q[0];
      for (int n = 1; n < N; ++n) sums[j] += key[n] * q[n];
    }
    store(scores + t, smaller(all(LARGEST), sum_lanes<W>(sums)));
  }
}

// Adds weighted values to the outputs of Q rows; `weights` are laid out as scores are.
template <int R, int Q, int N, class S>
void mix(float *outputs, int64_t output_stride, const float *weights, int first_row,
         const char *values, int64_t stride, int64_t tokens, Ahead ahead) {
  constexpr int C = W / R, U = std::min(C, Q >= MIX_ROWS ? 1 : MIX_ROWS / Q);
  Vec sums[U][Q][N] = {};
  for (int q = 0; q < Q; ++q)
    for (int n = 0; n < N; ++n) sums[0][q][n] = load(outputs + q * output_stride + n * W);
  for (int64_t t = 0; t < tokens; t += U) {
    const float *p = weights + t / C * W + first_row * C + t % C;
#pragma GCC unroll 4
    for (int u = 0; u < U; ++u) {
      const char *row = values + (t + u) * stride;
      prefetch(ahead.row + (t + u) * ahead.stride, ahead.bytes);
      Vec v[N];
      load_row<N>(v, reinterpret_cast<const S *>(row));
      for (int q = 0; q < Q; ++q) {
        const Vec weight = all(p[q * C + u]);
        for (int n = 0; n < N; ++n) sums[u][q][n] += weight * v[n];
      }
    }
  }
  for (int q = 0; q < Q; ++q)
    for (int n = 0; n < N; ++n) {
      Vec total = sums[0][q][n];
      for (int u = 1; u < U; ++u) total += sums[u][q][n];
      store(outputs + q * output_stride + n * W, total);
    }
}

template <int R, class S>
void mix_all(float *outputs, int64_t width, const float *weights, const char *values,
             int64_t stride, int64_t tokens, Ahead ahead) {
  constexpr int Q = std::min(R, MIX_ROWS), N = MIX_VECTORS;
  constexpr bool paired = std::is_same_v<S, PairedBfloat16>;
  for (int r = 0; r < R; r += Q) {
    float *to = outputs + r * width;
    // Each pass over the tile fetches its part.
    const int64_t passes = R / Q * ((width + N * W - 1) / (N * W));
    Ahead part = ahead;
    part.bytes = ((ahead.bytes + LINE - 1) / LINE + passes - 1) / passes * LINE;
    int64_t c = 0, fetched = r / Q * (passes / (R / Q)) * part.bytes;
    const auto next = [&] {
      part.row = ahead.row + fetched;
      if (fetched >= ahead.bytes) part.bytes = 0;
      fetched += part.bytes;
      return part;
    };
    for (; c + N * W <= width; c += N * W)
      mix<R, Q, N, S>(to + c, width, weights, r, values + c * sizeof(S), stride, tokens, next());
    for (; c + 2 * W <= width; c += 2 * W)
      mix<R, Q, 2, S>(to + c, width, weights, r, values + c * sizeof(S), stride, tokens, {});
    if constexpr (!paired)
      if (c < width)
        mix<R, Q, 1, S>(to + c, width, weights, r, values + c * sizeof(S), stride, tokens, {});
  }
}

// The running softmax of R rows; one row has C lanes.
struct Running {
  Vec most = all(LOWEST), total = {};

  // Turns scores into weights relative to the largest so far; returns how earlier ones change.
  // A row's lanes are neighbours, or those at the same place of each R where tokens come first.
  template <int R, bool TOKENS_FIRST = false>
  Vec update(float *scores, int64_t tokens) {
    constexpr int C = W / R;
    Vec high = all(LOWEST);
    for (int64_t i = 0; i < tokens / C; ++i) high = larger(high, load(scores + i * W));
    high = larger(most, TOKENS_FIRST ? largest_far_lane<R>(high) : largest_lane<C>(high));
    // While nothing was seen, there is nothing to be relative to.
    const Vec anchor = high == LOWEST ? Vec{} : high;
    const Vec change = exp2_negative(most - anchor);
    Vec sum = {};
    for (int64_t i = 0; i < tokens / C; ++i) {
      const Vec weight = exp2_negative(load(scores + i * W) - anchor);
      store(scores + i * W, weight);
      sum += weight;
    }
    total = total * change + sum;
    most = high;
    return change;
  }
};

// A tile's keys and values as the products read them.
struct Tile {
  const char *keys, *values;
  int64_t key_stride, value_stride, first, count;
  bool cut;  // Whether some token is hidden from some row.
  Ahead with_scores, with_mixture;  // What is fetched meanwhile.
};

// One head group of one sequence over one block of tokens.
struct Task {
  const Call &call;
  const Sizes &sizes;
  Scratch &scratch;
  int64_t batch, group;

  const uint8_t *valid() const {
    return call.valid ? call.valid + batch * call.valid_stride : nullptr;
  }

  bool is_cut(int64_t from, int64_t count) const {
    if (count % W || from + count > call.start + 1) return true;
    const uint8_t *real = valid();
    return real && std::any_of(real + from, real + from + count, [](uint8_t v) { return !v; });
  }

  bool is_empty(int64_t from, int64_t count) const {
    const uint8_t *real = valid();
    if (from >= call.start + call.queries) return true;
    return real && std::none_of(real + from, real + from + count, [](uint8_t v) { return v; });
  }

  // A tile as it is stored, and what is fetched meanwhile: a little ahead where all is in place.
  // What is converted is read at once, so that all of the next tile must be there.
  Tile place(const Tokens &keys, const Tokens &values, int64_t first, int64_t count,
             bool in_place) const {
    const auto next = [&](const Tokens &stored) {
      const int64_t bytes = call.rows <= 4 ? NEAR : FAR;
      const int64_t tokens = std::max<int64_t>(W, bytes / std::max<int64_t>(stored.stride, 1));
      const char *row = stored.row(first + (in_place ? tokens : sizes.tile));
      return Ahead{row, stored.stride, stored.bytes(), sizes.tile};
    };
    Ahead with_scores = next(keys), with_mixture = next(values);
    if (call.shared) with_mixture.bytes = 0;
    return {keys.row(first), values.row(first), keys.stride, values.stride, first, count,
            is_cut(first, count), with_scores, with_mixture};
  }

  template <int R, bool TOKENS_FIRST = false>
  void hide(float *scores, int64_t first_row, const Tile &tile, int64_t tokens) const {
    constexpr int C = TOKENS_FIRST ? 1 : W / R;
    const uint8_t *real = valid();
    for (int64_t t = 0; t < tokens; ++t) {
      const int64_t token = tile.first + t;
      const bool gone = t >= tile.count || (real && !real[token]);
      for (int r = 0; r < R; ++r)
        if (gone || token > call.start + (first_row + r) % call.queries)
          scores[t / C * R * C + r * C + t % C] = LOWEST;
    }
  }

  void rescale(float *output, float factor) const {
    if (factor == 1.0f) return;
    for (int64_t c = 0; c < sizes.value_width; c += W) store(output + c, load(output + c) * factor);
  }

#if defined(QKVARY_TILES)
  template <int R>
  void visit_tiled(const Tile &tile, int64_t first_row, const float *query, Running &running,
                   float *outputs) const {
    float *scores = scratch.scores;
    const auto *narrow = reinterpret_cast<const uint16_t *>(query);
    auto *weights = reinterpret_cast<uint16_t *>(scratch.weights);
    if (scratch.configured != R) tiles::configure(scratch.configured = R);
    const auto *pairs = reinterpret_cast<const uint16_t *>(scratch.pairs);
    tiles::score<R>(scores, narrow, tile.keys, tile.key_stride, call.key.dim, call.scale,
                    first_row == 0 ? tile.with_scores : Ahead{});
    if (tile.cut) hide<R, true>(scores, first_row, tile, tiles::TOKENS);
    const Vec change = running.update<R, true>(scores, tiles::TOKENS);
    for (int r = 0; r < R; ++r) rescale(outputs + r * sizes.value_width, change[r]);
    tiles::turn_weights<R>(weights, scores);
    tiles::mix<R>(outputs, sizes.value_width, weights, pairs, call.value.dim,
                  first_row == 0 ? tile.with_mixture : Ahead{});
  }

  void visit_tiled(int rows, const Tile &tile, int64_t first_row, const float *query,
                   Running &running, float *outputs) const {
    if (rows == 4) return visit_tiled<4>(tile, first_row, query, running, outputs);
    if (rows == 8) return visit_tiled<8>(tile, first_row, query, running, outputs);
    visit_tiled<16>(tile, first_row, query, running, outputs);
  }

  // A tile as it is stored, its end filled with zeros, and the values as pairs of tokens.
  Tile prepare_tiled(const Tokens &keys, const Tokens &values, int64_t first, int64_t count) const {
    Tile tile = place(keys, values, first, count, false);
    if (call.shared) {
      // One half with each product.
      tile.with_mixture = tile.with_scores;
      tile.with_scores.tokens /= 2, tile.with_mixture.tokens /= 2;
      tile.with_mixture.row += tile.with_scores.tokens * keys.stride;
    }
    const auto complete = [&](float *to, const Tokens &from, const char *&data, int64_t &stride) {
      char *rows = reinterpret_cast<char *>(to);
      std::memset(rows, 0, tiles::TOKENS * from.bytes());
      for (int64_t t = 0; t < count; ++t)
        std::memcpy(rows + t * from.bytes(), from.row(first + t), from.bytes());
      data = rows, stride = from.bytes();
    };
    if (count < tiles::TOKENS) {
      complete(scratch.plain, keys, tile.keys, tile.key_stride);
      complete(scratch.values, values, tile.values, tile.value_stride);
    }
    tiles::pair_values(reinterpret_cast<uint16_t *>(scratch.pairs), tile.values, tile.value_stride,
                       values.dim);
    return tile;
  }
#endif

  // One tile for R rows at most, of keys and values in type S; one row may have N vectors.
  template <int R, class S = float, int N = 0>
  void visit(const Tile &tile, int64_t first_row, const float *query, Running &running,
             float *outputs) const {
    const int64_t tokens = round_up(tile.count), width = sizes.value_width;
    float *scores = scratch.scores;
    if (call.half) {
      turn_query<R>(scratch.query, query, call, sizes, tile.first / PERIOD);
      query = scratch.query;
    }
    const Ahead with_scores = first_row == 0 ? tile.with_scores : Ahead{};
    if constexpr (R == 1 && N > 0)
      score_row<N, S>(scores, query, tile.keys, tile.key_stride, tokens, with_scores);
    else
      score<R>(scores, query, tile.keys, tile.key_stride, sizes.key_width, tokens, with_scores);
    if (tile.cut) hide<R>(scores, first_row, tile, tokens);
    const Vec change = running.update<R>(scores, tokens);
    for (int r = 0; r < R; ++r) rescale(outputs + r * width, change[r * (W / R)]);
    mix_all<R, S>(outputs, width, scores, tile.values, tile.value_stride, tokens,
                  first_row == 0 ? tile.with_mixture : Ahead{});
  }

  void visit(int rows, const Tile &tile, int64_t first_row, const float *query, Running &running,
             float *outputs) const {
    if (rows == 1) return visit<1>(tile, first_row, query, running, outputs);
    if (rows == 2) return visit<2>(tile, first_row, query, running, outputs);
    if (rows == 4) return visit<4>(tile, first_row, query, running, outputs);
    if constexpr (W >= 8)
      if (rows == 8) return visit<8>(tile, first_row, query, running, outputs);
    if constexpr (W >= 16) visit<16>(tile, first_row, query, running, outputs);
  }

  // One row that reads keys and values where they are.
  template <class S>
  void visit_row(const Tile &tile, const float *query, Running &running, float *outputs) const {
    switch (sizes.key_width / W) {
      case 2: return visit<1, S, 2>(tile, 0, query, running, outputs);
      case 4: return visit<1, S, 4>(tile, 0, query, running, outputs);
      case 6: return visit<1, S, 6>(tile, 0, query, running, outputs);
      case 8: return visit<1, S, 8>(tile, 0, query, running, outputs);
    }
  }

  bool reads_rows() const {
    const int64_t vectors = call.key.dim / W;
    return call.rows == 1 && call.half == 0 && vectors % 2 == 0 && 2 <= vectors && vectors <= 8 &&
           call.key.dim % W == 0 && call.value.dim % (2 * W) == 0;
  }
};

int rows_of(const Call &call, const Sizes &sizes, int64_t block) {
  const int64_t left = std::min<int64_t>(call.rows - block * W, W);
  int rows = sizes.tiled ? 4 : 1;
  while (rows < left) rows *= 2;
  return rows;
}

// A row block's queries in the order in which a product takes them: [channels / C][R rows][C].
void arrange(float *to, const float *rows, int64_t count, int size, const Call &call,
             const Sizes &sizes) {
#if defined(QKVARY_TILES)
  if (sizes.tiled)
    return tiles::arrange(reinterpret_cast<uint16_t *>(to), rows, count, size, call.key.dim);
#endif
  const int C = W / size;
  std::fill(to, to + size * sizes.key_width, 0.0f);
  const int64_t dim = call.key.dim, still = dim - 2 * call.half;
  for (int64_t r = 0; r < count; ++r)
    for (int64_t c = 0; c < dim; ++c) {
      int64_t place = sizes.paired ? paired_place(c) : c;
      if (call.half && c >= still)
        place = sizes.still + (c - still) / call.half * sizes.half_width + (c - still) % call.half;
      to[place / C * W + r * C + place % C] = rows[r * dim + c] * static_cast<float>(call.scale);
    }
}

// Turns, converts and completes a tile where it cannot be read in place.
template <class S>
Tile prepare(const Task &task, const Tokens &keys, const Tokens &values, int64_t first,
             int64_t count) {
  const Call &call = task.call;
  const Sizes &sizes = task.sizes;
  Scratch &scratch = task.scratch;
  const int64_t stride = sizes.plain_stride * 4, rest = round_up(count) - count;
  const auto copy = [&](float *to, const Tokens &from) {
    unpack<S>(to, sizes.plain_stride, from, first, count);
    if (rest) std::memset(to + count * sizes.plain_stride, 0, rest * stride);
    return reinterpret_cast<const char *>(to);
  };
  const bool in_place = std::is_same_v<S, float> && rest == 0;
  const bool key_in_place = in_place && keys.dim % W == 0 && call.half % W == 0;
  const bool value_in_place = in_place && values.dim % W == 0;
  Tile tile = task.place(keys, values, first, count, key_in_place && value_in_place);
  if (!key_in_place) tile.keys = copy(scratch.plain, keys), tile.key_stride = stride;
  if (value_in_place) {
    // Read where it is.
  } else if (call.shared && !key_in_place) {
    tile.values = tile.keys, tile.value_stride = stride;
  } else {
    tile.values = copy(scratch.values, values), tile.value_stride = stride;
  }
  if (call.half) {
    turn_tile(scratch.turned, sizes.key_width, reinterpret_cast<const float *>(tile.keys),
              tile.key_stride / 4, call, sizes, first, round_up(count));
    tile.keys = reinterpret_cast<const char *>(scratch.turned);
    tile.key_stride = sizes.key_width * 4;
  }
  return tile;
}

// What a block of tokens gave for all rows of a group: outputs, and per row the largest score and
// the sum of weights.
struct Partial {
  float *outputs, *most, *total;
};

template <class S>
void run_block(const Task &task, const float *queries, int64_t first, int64_t last, Partial to) {
  const Call &call = task.call;
  const Sizes &sizes = task.sizes;
  const Tokens keys(call.key, sizeof(S), task.batch, task.group);
  const Tokens values(call.value, sizeof(S), task.batch, task.group);
  Running *running = reinterpret_cast<Running *>(task.scratch.running);
  for (int64_t b = 0; b < sizes.row_blocks; ++b) running[b] = Running();
  std::fill(to.outputs, to.most, 0.0f);
  // One row converts what it reads by itself; others share what was converted once.
  const bool direct = !std::is_same_v<S, int8_t> && task.reads_rows();
  for (int64_t from = first; from < last; from += sizes.tile) {
    const int64_t count = std::min(sizes.tile, last - from);
    if (task.is_empty(from, count)) continue;
    if (direct && count % W == 0) {
      const Tile tile = task.place(keys, values, from, count, true);
      task.visit_row<S>(tile, queries, running[0], to.outputs);
      continue;
    }
#if defined(QKVARY_TILES)
    if (sizes.tiled) {
      const Tile tile = task.prepare_tiled(keys, values, from, count);
      for (int64_t b = 0; b < sizes.row_blocks; ++b)
        task.visit_tiled(rows_of(call, sizes, b), tile, b * W, queries + b * W * sizes.key_width,
                         running[b], to.outputs + b * W * sizes.value_width);
      continue;
    }
#endif
    const Tile tile = prepare<S>(task, keys, values, from, count);
    for (int64_t b = 0; b < sizes.row_blocks; ++b)
      task.visit(rows_of(call, sizes, b), tile, b * W, queries + b * W * sizes.key_width,
                        running[b], to.outputs + b * W * sizes.value_width);
  }
#if defined(QKVARY_TILES)
  if (sizes.tiled) tiles::release(), task.scratch.configured = 0;
#endif
  for (int64_t row = 0; row < call.rows; ++row) {
    const int64_t b = row / W, size = rows_of(call, sizes, b), lanes = W / size;
    // Where tokens come first, a row's lanes lie apart.
    const int64_t start = sizes.tiled ? row % W : row % W * lanes, step = sizes.tiled ? size : 1;
    to.most[row] = running[b].most[start];
    to.total[row] = 0;
    for (int64_t i = 0; i < lanes; ++i) to.total[row] += running[b].total[start + i * step];
  }
}

// The blocks' outputs on one scale, over the sum of all weights. A row that sees nothing gets zero.
void merge(const Call &call, const Sizes &sizes, const Partial *parts, int64_t blocks,
           float *output) {
  std::vector<float> mixed(sizes.value_width);
  for (int64_t row = 0; row < call.rows; ++row, output += call.value.dim) {
    float most = LOWEST, total = 0;
    for (int64_t b = 0; b < blocks; ++b) most = std::max(most, parts[b].most[row]);
    std::fill(mixed.begin(), mixed.end(), 0.0f);
    // Nothing was seen: zeros over one.
    if (most == LOWEST) most = 0, total = 1;
    for (int64_t b = 0; b < blocks; ++b) {
      const float factor = exp2_negative(parts[b].most[row] - most);
      const float *from = parts[b].outputs + row * sizes.value_width;
      total += parts[b].total[row] * factor;
      if (factor == 0.0f) continue;
      for (int64_t c = 0; c < sizes.value_width; c += W)
        store(&mixed[c], load(&mixed[c]) + load(from + c) * factor);
    }
    for (int64_t c = 0; c < call.value.dim; ++c) output[c] = mixed[sizes.mixed_at(c)] / total;
  }
}

struct Plan {
  const Call &call;
  Sizes sizes;
  int64_t blocks, rows, tasks, query_size, partial_size;
  std::vector<float> queries;
  std::vector<Partial> parts;
  std::atomic<int64_t> next{0};

  explicit Plan(const Call &given)
      : call(given), sizes(given), blocks((given.tokens + BLOCK - 1) / BLOCK),
        rows((sizes.row_blocks - 1) * W + rows_of(given, sizes, sizes.row_blocks - 1)),
        tasks(given.batch * given.groups * blocks),
        query_size(rows * sizes.key_width),
        partial_size(round_up(rows * (sizes.value_width + 2))),
        queries(given.batch * given.groups * query_size), parts(tasks) {
    // Kept from call to call: fresh pages cost as much as a part of the products.
    static thread_local std::vector<float> memory;
    if (static_cast<int64_t>(memory.size()) < tasks * partial_size)
      memory.resize(tasks * partial_size);
    for (int64_t head = 0; head < call.batch * call.groups; ++head)
      for (int64_t b = 0; b < sizes.row_blocks; ++b)
        arrange(queries.data() + head * query_size + b * W * sizes.key_width,
                call.query + (head * call.rows + b * W) * call.key.dim,
                std::min<int64_t>(W, call.rows - b * W), rows_of(call, sizes, b), call, sizes);
    for (int64_t i = 0; i < tasks; ++i) {
      float *start = memory.data() + i * partial_size;
      parts[i] = {start, start + rows * sizes.value_width, start + rows * (sizes.value_width + 1)};
    }
  }

  template <class S>
  void work(Scratch &scratch) {
    for (int64_t i; (i = next.fetch_add(1)) < tasks;) {
      const int64_t head = i / blocks, first = i % blocks * BLOCK;
      const Task task{call, sizes, scratch, head / call.groups, head % call.groups};
      run_block<S>(task, queries.data() + head * query_size, first,
                   std::min(first + BLOCK, call.tokens), parts[i]);
    }
  }

  void work(Scratch &scratch) {
    if (call.storage == FLOAT32) work<float>(scratch);
    if (call.storage == BFLOAT16 && sizes.paired) work<PairedBfloat16>(scratch);
    if (call.storage == BFLOAT16 && !sizes.paired) work<Bfloat16>(scratch);
    if (call.storage == FLOAT16) work<Float16>(scratch);
    if (call.storage == INT8) work<int8_t>(scratch);
  }

  int64_t threads() const {
    const int64_t size = call.key.dim + call.value.dim;
    const int64_t work = call.batch * call.groups * call.rows * call.tokens * size;
    return std::max<int64_t>(1, std::min({call.threads, tasks, work / LEAST_WORK}));
  }
};

}  // namespace

extern "C" {

int64_t qkvary_call_size() { return sizeof(Call); }

int64_t qkvary_decode(const Call *call) {
  try {
    Plan plan(*call);
    const int64_t threads = plan.threads();
    std::vector<Scratch> scratch;
    scratch.reserve(threads);
    for (int64_t i = 0; i < threads; ++i) scratch.emplace_back(plan.sizes);
    std::vector<std::thread> others;
    try {
      for (int64_t i = 1; i < threads; ++i)
        others.emplace_back([&plan, &own = scratch[i]] { plan.work(own); });
    } catch (const std::system_error &) {
      // The threads that there are take the tasks of those that there are not.
    }
    plan.work(scratch[0]);
    for (std::thread &other : others) other.join();
    for (int64_t head = 0; head < call->batch * call->groups; ++head)
      merge(*call, plan.sizes, plan.parts.data() + head * plan.blocks, plan.blocks,
            call->output + head * call->rows * call->value.dim);
    return 0;
  } catch (const std::bad_alloc &) {
    return 1;
  }
}

}  // extern "C"
