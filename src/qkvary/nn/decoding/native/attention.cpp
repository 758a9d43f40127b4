// Attention of a few queries over many stored keys. Each tile is read once for both products.
//
// The queries of all heads of a group are rows of one problem. Tokens go in tiles that stay in the
// first cache, and in blocks whose results are merged in an order that does not depend on the
// threads.

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <memory>
#include <new>
#include <vector>

#include "nibbles.h"
#include "products.h"
#include "stored.h"
#include "team.h"
#include "tiles.h"

using namespace products;

extern "C" {

// Mirrored field by field in native.py.
struct Call {
  const void *query;  // [batch, groups, rows, key dim], contiguous
  void *output;       // [batch, groups, rows, value dim], contiguous
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
  int64_t narrow;  // Whether query and output are bfloat16; they are floats otherwise.
  const float *bias;  // [batch, groups, rows, tokens], added to scaled scores; null for none.
  int64_t rounded;    // Whether the query's numbers are those of bfloat16.
  int64_t coded, plain;  // Tokens that are codes, if any, and the type of those after them.
  double scale;          // Of scores that are powers of two.
};

}  // extern "C"

namespace {

// Tokens of a task, and the number of tasks of a sequence from which tasks grow: few tasks leave
// little to merge, many keep threads busy. The number of threads has no influence on results.
constexpr int64_t LEAST_SPAN = 1024, MOST_SPAN = 4096, LEAST_TASKS = 16;
constexpr int64_t PERIOD = 64;  // Of the rotation's near table.
constexpr int64_t LEAST_WORK = 1 << 20;  // Multiplications that are worth a thread.

int64_t round_up(int64_t n) { return (n + W - 1) / W * W; }

// Tokens of a tile, which fits in the first-level cache with what is prefetched. Small tiles keep
// memory busy, large ones give processors more to do at once.
int64_t tile_of(int64_t row_bytes) {
  int64_t tokens = 64;
  while (tokens > 16 && tokens * row_bytes > 8192) tokens /= 2;
  return tokens;
}

// Even channels before odd ones, in each two vectors.
int64_t paired_place(int64_t c) { return c / (2 * W) * (2 * W) + c % 2 * W + c % (2 * W) / 2; }

struct Sizes {
  // Whether two channels of bfloat16 stand in a word, and whether matrix units or products of pairs
  // take them as they are stored.
  bool paired, tiled, dotted;
  bool integral = false;  // Whether products take codes directly.
  int64_t tile, span, key_width, value_width, still, half_width, block, row_blocks, plain_stride;
  int64_t whole;  // Vectors of a row if rows are few and not rearranged; else 0.

  explicit Sizes(const Call &call) {
    tile = tile_of(row_bytes(call.storage, std::max(call.key.dim, call.value.dim)));
    span = LEAST_SPAN;
    while (span < MOST_SPAN && call.groups * call.tokens >= 2 * LEAST_TASKS * span) span *= 2;
    half_width = round_up(call.half);
    still = call.half ? round_up(call.key.dim - 2 * call.half) : 0;
    key_width = call.half ? still + 2 * half_width : round_up(call.key.dim);
    value_width = round_up(call.value.dim);
    paired = call.storage == BFLOAT16 && call.half == 0 && call.key.dim % (2 * W) == 0 &&
             call.value.dim % (2 * W) == 0;
#if defined(QKVARY_TILES)
    tiled = paired && call.rounded && call.rows > 1 && tiles::granted();
    if (tiled) tile = tiles::TOKENS;
#else
    tiled = false;
#endif
#if defined(QKVARY_PAIRS)
    dotted = paired && call.rounded && !tiled;
#else
    dotted = false;
#endif
    if (dotted) key_width = call.key.dim / 2;
    // Rows that a visit takes at once; two full blocks may be visited together.
    block = tiled ? W : W / 2;
    row_blocks = (call.rows + block - 1) / block;
    const int64_t vectors = key_width / W, unit = unit_of(dotted);
    const bool few = !tiled && call.rows <= std::min<int64_t>(block, 4);
    whole = few && vectors % unit == 0 && vectors <= 4 * unit ? vectors : 0;
#if defined(QKVARY_SHORTS)
    // Half-precision queries lose almost no accuracy as integers.
    integral = whole && call.storage == INT4 && call.plain != FLOAT32 && call.half == 0 &&
               call.key.dim % CODES == 0 && call.value.dim % CODES == 0 &&
               call.key.dim <= MOST_CODES * CODES;
#endif
    // Rows that are cut into parts are read one vector beyond their end.
    plain_stride = std::max(round_up(call.key.dim), value_width) + W;
  }

  // Vectors that are read at once: words with two channels, or numbers that may be widened from them.
  static constexpr int unit_of(bool dotted) { return dotted ? 1 : 2; }

  // Rows of a block as products take them.
  int rows_of(const Call &call, int64_t number) const {
    const int64_t left = std::min(call.rows - number * block, block);
    int rows = tiled ? 4 : 1;
    while (rows < left) rows *= 2;
    return rows;
  }

  // The place of channel c in a mixture.
  int64_t mixed_at(int64_t c) const { return paired ? paired_place(c) : c; }
};

// A thread's buffer, aligned to a cache line and kept from call to call: fresh memory pages take
// time.
class Kept {
 public:
  float *fit(int64_t size) {
    if (static_cast<int64_t>(numbers_.size()) < size + W) numbers_.resize(size + W);
    return numbers_.data() + -reinterpret_cast<uintptr_t>(numbers_.data()) % (4 * W) / 4;
  }

 private:
  std::vector<float> numbers_;
};

struct Scratch {
  float *plain, *turned, *values, *query, *scores, *weights, *turned_weights, *running;
  int configured = 0;  // Rows that the matrix units expect.

  explicit Scratch(const Sizes &sizes) {
    const int64_t plain_size = sizes.tile * sizes.plain_stride + W;
    const int64_t turned_size = sizes.tile * sizes.key_width, query_size = W * sizes.key_width;
    const int64_t scores_size = W * sizes.tile, running_size = sizes.row_blocks * 2 * W;
    const int64_t size =
        2 * plain_size + turned_size + query_size + 4 * scores_size + running_size;
    static thread_local Kept memory;
    plain = memory.fit(size);
    // Memory after the ends of rows is read.
    std::fill(plain, plain + size, 0.0f);
    turned = plain + plain_size;
    values = turned + turned_size;
    query = values + plain_size;
    scores = query + query_size;
    weights = scores + scores_size;
    turned_weights = weights + scores_size;
    running = turned_weights + 2 * scores_size;
  }
};

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

// Rotates queries back by the start of a period; keys are rotated by their places within it.
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

// A tile's keys and values as the products read them.
struct Tile {
  const char *keys, *values;
  int64_t key_stride, value_stride, first, count;
  const float *key_scales, *value_scales;  // Of codes.
  bool cut;  // Whether some token is hidden from some row.
  Ahead with_scores, with_softmax, with_mixture;  // What is fetched meanwhile.
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

  // A tile as it is stored, and what is prefetched meanwhile: as many bytes of later tokens, at a
  // steady pace, so that memory never waits for the products.
  Tile place(const Tokens &keys, const Tokens &values, int64_t first, int64_t count) const {
    const int64_t part = sizes.tile / 16, soft = sizes.tiled ? 4 : 0;
    const int64_t scores = part * (call.shared ? (16 - soft) / 2 : 16 - soft);
    const auto ahead = [&](const Tokens &stored, int64_t from, int64_t tokens) {
      return Ahead(stored.row(first + from + stored.near), stored.stride, stored.bytes(),
                   stored.near ? tokens : 0, stored.far * stored.stride);
    };
    for (const Tokens *stored : {&keys, &values})
      if (stored->scale_groups && stored->near) stored->fetch_scales(first + stored->near, sizes.tile);
    return {keys.row(first), values.row(first), keys.stride, values.stride, first, count,
            keys.scales + first, values.scales + first, is_cut(first, count),
            ahead(keys, 0, scores), ahead(keys, scores, soft * part),
            call.shared ? ahead(keys, scores + soft * part, scores) : ahead(values, 0, sizes.tile)};
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

  // Adds a bias to scores on their scale.
  template <int R, bool TOKENS_FIRST = false>
  void add_bias(float *scores, int64_t first_row, const Tile &tile) const {
    constexpr int C = TOKENS_FIRST ? 1 : W / R;
    const int64_t head = batch * call.groups + group;
    for (int r = 0; r < R && first_row + r < call.rows; ++r) {
      const float *bias = call.bias + (head * call.rows + first_row + r) * call.tokens + tile.first;
      float *to = scores + r * C;
      int64_t t = 0;
      for (; t + C <= tile.count; t += C, to += R * C)
        for (int c = 0; c < C; ++c) to[c] += bias[t + c];
      for (int64_t c = 0; t + c < tile.count; ++c) to[c] += bias[t + c];
    }
  }

  void rescale(float *output, float factor) const {
    if (factor == 1.0f) return;
    for (int64_t c = 0; c < sizes.value_width; c += W) store(output + c, load(output + c) * factor);
  }

#if defined(QKVARY_TILES)
  template <int R>
  void visit_tiled(Tile &tile, int64_t first_row, const float *query, Running &running,
                   float *outputs) const {
    float *scores = scratch.scores;
    const auto *narrow = reinterpret_cast<const uint16_t *>(query);
    if (scratch.configured != R) tiles::configure(scratch.configured = R);
    Vec change;
    float *weights = scratch.weights, scale = call.scale;
    tiles::score<R>(scores, narrow, tile.keys, tile.key_stride, call.key.dim, tile.with_scores);
    if (tile.cut || call.bias) {
      for (int64_t i = 0; i < tiles::TOKENS * R; i += W) store(scores + i, load(scores + i) * scale);
      scale = 1;
      if (call.bias) add_bias<R, true>(scores, first_row, tile);
      if (tile.cut) hide<R, true>(scores, first_row, tile, tiles::TOKENS);
    }
    if (running.update<R, true>(weights, scores, scale, tiles::TOKENS, change, tile.with_softmax, 1))
      for (int r = 0; r < R; ++r) rescale(outputs + r * sizes.value_width, change[r]);
    tiles::turn_weights<R>(scratch.turned_weights, weights);
    tiles::mix<R>(outputs, sizes.value_width, scratch.turned_weights, tile.values, tile.value_stride,
                  call.value.dim, tile.with_mixture);
  }

  void visit_tiled(int rows, Tile &tile, int64_t first_row, const float *query, Running &running,
                   float *outputs) const {
    if (rows == 4) return visit_tiled<4>(tile, first_row, query, running, outputs);
    if (rows == 8) return visit_tiled<8>(tile, first_row, query, running, outputs);
    visit_tiled<16>(tile, first_row, query, running, outputs);
  }

  // A tile as it is stored, its end filled with zeros.
  Tile prepare_tiled(const Tokens &keys, const Tokens &values, int64_t first, int64_t count) const {
    Tile tile = place(keys, values, first, count);
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
    return tile;
  }
#endif

  // Weights of a block's scores; earlier outputs are brought to their scale.
  template <int R>
  void weigh(Tile &tile, int64_t first_row, float *weights, float *scores, float scale,
             int64_t tokens, Running &running, float *outputs, int64_t blocks) const {
    Vec change;
    if (call.bias) add_bias<R>(scores, first_row, tile);
    if (tile.cut) hide<R>(scores, first_row, tile, tokens);
    if (running.update<R>(weights, scores, scale, tokens, change, tile.with_softmax, blocks))
      for (int r = 0; r < R; ++r)
        rescale(outputs + r * sizes.value_width, change[r * (W / R)]);
  }

  // One tile for G blocks of R rows, of keys and values in type S, whose words P adds up; few rows may
  // have N vectors each.
  template <int R, int G, class P, class S, int N>
  void visit(Tile &tile, int64_t first_row, const float *query, Running *running,
             float *outputs) const {
    const int64_t tokens = round_up(tile.count), width = sizes.value_width;
    float *scores = scratch.scores;
    if (call.half) {
      constexpr int BLOCK = N ? 1 : R;
      for (int64_t r = 0; r < G * R; r += BLOCK)
        turn_query<BLOCK>(scratch.query + r * sizes.key_width, query + r * sizes.key_width, call,
                          sizes, tile.first / PERIOD);
      query = scratch.query;
    }
    if constexpr (N > 0)
      score_rows<R, N, std::conditional_t<std::is_same_v<P, Numbers>, S, float>, P>(
          scores, query, tile.keys, tile.key_stride, tokens, tile.with_scores);
    else
      score<R, G, P>(scores, query, tile.keys, tile.key_stride, sizes.key_width, tokens,
                     tile.with_scores);
    if constexpr (IS_CODE<S>) scale_tokens<R>(scores, tile.key_scales, tokens);
    // Queries of two channels to a word do not hold the scale.
    float *weights = scratch.weights, scale = std::is_same_v<P, Numbers> ? 1.0f : call.scale;
    if ((tile.cut || call.bias) && scale != 1.0f) {
      for (int64_t i = 0; i < G * R * tokens; i += W) store(scores + i, load(scores + i) * scale);
      scale = 1.0f;
    }
    for (int g = 0; g < G; ++g, scores += R * tokens, weights += R * tokens, outputs += R * width) {
      weigh<R>(tile, first_row + g * R, weights, scores, scale, tokens, running[g], outputs, G - g);
      if constexpr (IS_CODE<S>) scale_tokens<R>(weights, tile.value_scales, tokens);
      mix_all<R, S>(outputs, width, weights, tile.values, tile.value_stride, tokens,
                    tile.with_mixture, G - g);
    }
  }

#if defined(QKVARY_SHORTS)
  // A tile of 4-bit codes, in integers.
  template <int R>
  void visit_nibbles(Tile &tile, const NibbleQuery &query, Running &running, float *outputs) const {
    float *scores = scratch.scores, *weights = scratch.weights;
    const auto score = call.key.dim == CODES ? score_nibbles<R, 1> : score_nibbles<R, 2>;
    score(scores, query, tile.keys, tile.key_stride, tile.count, tile.with_scores);
    scale_tokens<R>(scores, tile.key_scales, tile.count);
    weigh<R>(tile, 0, weights, scores, 1.0f, tile.count, running, outputs, 1);
    scale_tokens<R>(weights, tile.value_scales, tile.count);
    NibbleWeights own;
    own.assign<R>(weights, tile.count);
    mix_nibbles<R>(outputs, sizes.value_width, own, tile.values, tile.value_stride, tile.count,
                   tile.with_mixture);
  }

  void visit_nibbles(int rows, Tile &tile, const NibbleQuery &query, Running &running,
                     float *outputs) const {
    if (rows == 4) return visit_nibbles<4>(tile, query, running, outputs);
    if (rows == 2) return visit_nibbles<2>(tile, query, running, outputs);
    visit_nibbles<1>(tile, query, running, outputs);
  }
#endif

  // Whether all rows may read type S. Others are only read by whole rows, which widen them.
  template <class P, class S>
  static constexpr bool READS_ALL = std::is_same_v<S, float> || !std::is_same_v<P, Numbers>;

  template <int R, class P, class S>
  void visit_few(Tile &tile, int64_t first_row, const float *query, Running *running,
                 float *outputs) const {
    constexpr int UNIT = Sizes::unit_of(!std::is_same_v<P, Numbers>);
    switch (sizes.whole / UNIT) {
      case 1: return visit<R, 1, P, S, UNIT>(tile, first_row, query, running, outputs);
      case 2: return visit<R, 1, P, S, 2 * UNIT>(tile, first_row, query, running, outputs);
      case 3: return visit<R, 1, P, S, 3 * UNIT>(tile, first_row, query, running, outputs);
      case 4: return visit<R, 1, P, S, 4 * UNIT>(tile, first_row, query, running, outputs);
    }
    if constexpr (READS_ALL<P, S>)
      visit<R, 1, P, S, 0>(tile, first_row, query, running, outputs);
  }

  template <class P, class S>
  void visit_all(int rows, bool two, Tile &tile, int64_t first_row, const float *query,
                 Running *running, float *outputs) const {
    constexpr int FULL = W / 2;
    if constexpr (READS_ALL<P, S>) {
      if (two) return visit<FULL, 2, P, S, 0>(tile, first_row, query, running, outputs);
      if constexpr (FULL > 4)
        if (rows == FULL) return visit<FULL, 1, P, S, 0>(tile, first_row, query, running, outputs);
    }
    if constexpr (FULL > 2)
      if (rows == 4) return visit_few<4, P, S>(tile, first_row, query, running, outputs);
    if (rows == 2) return visit_few<2, P, S>(tile, first_row, query, running, outputs);
    visit_few<1, P, S>(tile, first_row, query, running, outputs);
  }

  // Keys and values of type S, read in place.
  template <class S>
  void visit(int rows, bool two, Tile &tile, int64_t first_row, const float *query,
             Running *running, float *outputs) const {
#if defined(QKVARY_PAIRS)
    if (sizes.dotted)
      return visit_all<Pairs, PairedBfloat16>(rows, two, tile, first_row, query, running, outputs);
#endif
    visit_all<Numbers, S>(rows, two, tile, first_row, query, running, outputs);
  }

  // Whether few rows read keys and values where they are, and widen them by themselves.
  bool reads_rows() const {
    return sizes.whole && call.half == 0 && call.key.dim % W == 0 && call.value.dim % (2 * W) == 0;
  }
};

// A row block's queries in the order in which a product takes them: [channels / C][R rows][C], or as
// they are.
void arrange(float *to, const float *rows, int64_t count, int size, const Call &call,
             const Sizes &sizes) {
#if defined(QKVARY_TILES)
  if (sizes.tiled)
    return tiles::arrange(reinterpret_cast<uint16_t *>(to), rows, count, size, call.key.dim);
#endif
  const int C = W / size;
  const auto at = [&](int64_t r, int64_t place) {
    return sizes.whole ? r * sizes.key_width + place : place / C * W + r * C + place % C;
  };
  std::fill(to, to + size * sizes.key_width, 0.0f);
  if (sizes.dotted) {
    auto *halves = reinterpret_cast<uint16_t *>(to);
    for (int64_t r = 0; r < count; ++r)
      for (int64_t c = 0; c < call.key.dim; ++c)
        halves[2 * at(r, c / 2) + c % 2] = upper_half(rows[r * call.key.dim + c]);
    return;
  }
  const int64_t dim = call.key.dim, still = dim - 2 * call.half;
  for (int64_t r = 0; r < count; ++r)
    for (int64_t c = 0; c < dim; ++c) {
      int64_t place = sizes.paired ? paired_place(c) : c;
      if (call.half && c >= still)
        place = sizes.still + (c - still) / call.half * sizes.half_width + (c - still) % call.half;
      to[at(r, place)] = rows[r * dim + c] * static_cast<float>(call.scale);
    }
}

// Turns, converts and completes a tile where it cannot be read in place.
template <class S>
Tile prepare(const Task &task, const Tokens &keys, const Tokens &values, int64_t first,
             int64_t count) {
  const Call &call = task.call;
  const Sizes &sizes = task.sizes;
  Scratch &scratch = task.scratch;
  const int64_t rest = round_up(count) - count;
  Tile tile = task.place(keys, values, first, count);
  const auto copy = [&](float *to, const Tokens &from, const char *&data, int64_t &stride) {
    char *rows = reinterpret_cast<char *>(to);
    data = rows, stride = sizes.dotted ? from.bytes() : sizes.plain_stride * 4;
    if (sizes.dotted)
      for (int64_t t = 0; t < count; ++t)
        std::memcpy(rows + t * stride, from.row(first + t), stride);
    else
      unpack<S>(to, sizes.plain_stride, from, first, count);
    if (rest) std::memset(rows + count * stride, 0, rest * stride);
  };
  const auto in_place = [&](const Tokens &stored) {
    return rest == 0 && (sizes.dotted || (std::is_same_v<S, float> && stored.dim % W == 0));
  };
  const bool key_in_place = in_place(keys) && call.half % W == 0;
  if (!key_in_place) copy(scratch.plain, keys, tile.keys, tile.key_stride);
  if (in_place(values)) {
    // Read where it is.
  } else if (call.shared && !key_in_place) {
    tile.values = tile.keys, tile.value_stride = tile.key_stride;
  } else {
    copy(scratch.values, values, tile.values, tile.value_stride);
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
void run_block(const Task &task, const float *queries, int64_t first, int64_t last, Reach reach,
               Partial to) {
  const Call &call = task.call;
  const Sizes &sizes = task.sizes;
  // Two tensors share the first cache.
  if (!call.shared) reach.near /= 2;
  const auto stored = [&](const Stored &tensor) {
    return Tokens(tensor, call.storage, call.coded, call.plain, task.batch, task.group, reach);
  };
  const Tokens keys = stored(call.key), values = stored(call.value);
  Running *running = reinterpret_cast<Running *>(task.scratch.running);
  for (int64_t b = 0; b < sizes.row_blocks; ++b) running[b] = Running();
  std::fill(to.outputs, to.most, 0.0f);
  constexpr bool WIDENED = std::is_same_v<S, Bfloat16>;
  const bool direct = !WIDENED && task.reads_rows();
  const auto is_plain = [&](int64_t from, int64_t count) {
    if (!IS_CODE<S>) return true;
    return keys.has_token_scales(from, count) && values.has_token_scales(from, count);
  };
#if defined(QKVARY_SHORTS)
  NibbleQuery integers;
  if (sizes.integral)
    integers.assign(queries, sizes.rows_of(call, 0), sizes.key_width, call.key.dim);
#endif
  for (int64_t from = first; from < last; from += sizes.tile) {
    const int64_t count = std::min(sizes.tile, last - from);
    if (task.is_empty(from, count)) continue;
    if constexpr (!WIDENED)
      if (direct && count % W == 0 && is_plain(from, count)) {
        Tile tile = task.place(keys, values, from, count);
        const int rows = sizes.rows_of(call, 0);
#if defined(QKVARY_SHORTS)
        if (sizes.integral) task.visit_nibbles(rows, tile, integers, *running, to.outputs);
        else
#endif
          task.visit<S>(rows, false, tile, 0, queries, running, to.outputs);
        continue;
      }
#if defined(QKVARY_TILES)
    if (sizes.tiled) {
      Tile tile = task.prepare_tiled(keys, values, from, count);
      for (int64_t b = 0; b < sizes.row_blocks; ++b)
        task.visit_tiled(sizes.rows_of(call, b), tile, b * W, queries + b * W * sizes.key_width,
                         running[b], to.outputs + b * W * sizes.value_width);
      continue;
    }
#endif
    Tile tile = prepare<S>(task, keys, values, from, count);
    for (int64_t b = 0; b < sizes.row_blocks; ++b) {
      const int64_t row = b * sizes.block;
      const bool two = b + 1 < sizes.row_blocks && sizes.rows_of(call, b + 1) == sizes.block;
      task.visit<float>(sizes.rows_of(call, b), two, tile, row, queries + row * sizes.key_width,
                 running + b, to.outputs + row * sizes.value_width);
      b += two;
    }
  }
#if defined(QKVARY_TILES)
  if (sizes.tiled) tiles::release(), task.scratch.configured = 0;
#endif
  for (int64_t row = 0; row < call.rows; ++row) {
    const int64_t b = row / sizes.block, size = sizes.rows_of(call, b), lanes = W / size;
    // If tokens come first, a row's lanes are not contiguous.
    const int64_t in = row % sizes.block, step = sizes.tiled ? size : 1;
    const int64_t start = sizes.tiled ? in : in * lanes;
    to.most[row] = running[b].anchor[start];
    to.total[row] = 0;
    for (int64_t i = 0; i < lanes; ++i) to.total[row] += running[b].total[start + i * step];
  }
}

// The blocks' outputs on one scale, over the sum of all weights. A row that sees nothing gets zero.
template <class T>
void merge(const Call &call, const Sizes &sizes, const Partial *parts, int64_t blocks, T *output) {
  for (int64_t row = 0; row < call.rows; ++row, output += call.value.dim) {
    float most = LOWEST, total = 0;
    for (int64_t b = 0; b < blocks; ++b) most = std::max(most, parts[b].most[row]);
    // The first block's place takes all of them.
    float *mixed = parts[0].outputs + row * sizes.value_width;
    // Nothing was seen: zeros over one.
    if (most == LOWEST) most = 0, total = 1;
    for (int64_t b = 0; b < blocks; ++b) {
      const float factor = power_of_two(parts[b].most[row] - most);
      const float *from = parts[b].outputs + row * sizes.value_width;
      total += parts[b].total[row] * factor;
      // Zero times infinity would be NaN.
      if (factor == 0.0f && b) continue;
      for (int64_t c = 0; c < sizes.value_width; c += W) {
        const Vec own = factor == 0.0f ? Vec{} : load(from + c) * factor;
        store(mixed + c, b ? load(mixed + c) + own : own);
      }
    }
    for (int64_t c = 0; c < call.value.dim; ++c) put(output + c, mixed[sizes.mixed_at(c)] / total);
  }
}

inline bool is_coded(const Call &call) { return call.storage == INT8 || call.storage == INT4; }

struct Plan {
  const Call &call;
  Sizes sizes;
  int64_t blocks, rows, tasks, query_size, partial_size, ranges;
  float *queries;
  std::vector<Partial> parts;

  explicit Plan(const Call &given)
      : call(given), sizes(given), blocks((given.tokens + sizes.span - 1) / sizes.span),
        rows((sizes.row_blocks - 1) * sizes.block + sizes.rows_of(given, sizes.row_blocks - 1)),
        tasks(given.batch * given.groups * blocks), query_size(rows * sizes.key_width),
        partial_size(round_up(rows * (sizes.value_width + 2))), ranges(threads()), parts(tasks),
        turn_(is_coded(call) ? CODED : STORED, sizes.whole ? bytes() : 0),
        next_(new std::atomic<int64_t>[ranges]) {
    static thread_local Kept kept;
    const int64_t heads = call.batch * call.groups;
    const int64_t numbers = heads * call.rows * call.key.dim, size = heads * query_size;
    queries = kept.fit(size + tasks * partial_size + (call.narrow ? numbers : 0));
    const float *plain = static_cast<const float *>(call.query);
    if (call.narrow) {
      float *wide = queries + size + tasks * partial_size;
      const auto *narrow = static_cast<const Bfloat16 *>(call.query);
      for (int64_t i = 0; i < numbers; ++i) wide[i] = to_float(narrow[i]);
      plain = wide;
    }
    for (int64_t head = 0; head < heads; ++head)
      for (int64_t b = 0; b < sizes.row_blocks; ++b) {
        const int64_t row = b * sizes.block;
        arrange(queries + head * query_size + row * sizes.key_width,
                plain + (head * call.rows + row) * call.key.dim,
                std::min(sizes.block, call.rows - row), sizes.rows_of(call, b), call, sizes);
      }
    for (int64_t i = 0; i < tasks; ++i) {
      float *start = queries + size + i * partial_size;
      parts[i] = {start, start + rows * sizes.value_width, start + rows * (sizes.value_width + 1)};
    }
    for (int64_t i = 0; i < ranges; ++i) next_[i] = tasks * i / ranges;
  }

  // Each thread takes tasks that follow each other in memory, and then what others have left.
  template <class S>
  void work(Scratch &scratch) {
    const int64_t own = come_.fetch_add(1);
    for (int64_t k = 0; k < ranges; ++k) {
      const int64_t range = (own + k) % ranges, end = tasks * (range + 1) / ranges;
      for (int64_t i; (i = next_[range].fetch_add(1)) < end;) {
        const int64_t head = i / blocks, first = i % blocks * sizes.span;
        const Task task{call, sizes, scratch, head / call.groups, head % call.groups};
        run_block<S>(task, queries + head * query_size, first,
                     std::min(first + sizes.span, call.tokens), turn_.reach(), parts[i]);
      }
    }
  }

  void work(Scratch &scratch) {
    if (call.storage == FLOAT32) work<float>(scratch);
    if (call.storage == BFLOAT16 && sizes.paired) work<PairedBfloat16>(scratch);
    if (call.storage == BFLOAT16 && !sizes.paired) work<Bfloat16>(scratch);
    if (call.storage == FLOAT16) work<Float16>(scratch);
    if (call.storage == INT8) work<int8_t>(scratch);
    if (call.storage == INT4) work<Int4>(scratch);
  }

  void finish() const {
    turn_.finish();
    for (int64_t head = 0; head < call.batch * call.groups; ++head) {
      const int64_t first = head * call.rows * call.value.dim;
      const Partial *own = parts.data() + head * blocks;
      auto *narrow = static_cast<Bfloat16 *>(call.output);
      if (call.narrow) merge(call, sizes, own, blocks, narrow + first);
      else merge(call, sizes, own, blocks, static_cast<float *>(call.output) + first);
    }
  }

  int64_t threads() const {
    const int64_t size = call.key.dim + call.value.dim;
    const int64_t work = call.batch * call.groups * call.rows * call.tokens * size;
    return std::max<int64_t>(1, std::min({call.threads, tasks, work / LEAST_WORK}));
  }

 private:
  int64_t bytes() const {
    const int64_t key = row_bytes(call.storage, call.key.dim);
    const int64_t value = call.shared ? 0 : row_bytes(call.storage, call.value.dim);
    return call.batch * call.groups * call.tokens * (key + value);
  }

  const Turn turn_;
  std::unique_ptr<std::atomic<int64_t>[]> next_;
  std::atomic<int64_t> come_{0};
};

}  // namespace

extern "C" {

int64_t qkvary_call_size() { return sizeof(Call); }

// The chosen reach of a kind, or -1 while they are tried; and a way to pin all of them, for tests.
int64_t qkvary_reach(int64_t kind) { return trial(static_cast<Kind>(kind)).chosen(); }

void qkvary_pin_reach(int64_t way) {
  for (const Kind kind : {STORED, CODED, WEIGHTS}) trial(kind).pin(way);
}

int64_t qkvary_decode(const Call *call) {
  try {
    Plan plan(*call);
    std::atomic<bool> done{false};
    team().run(plan.ranges, [&](int64_t, int64_t) {
      try {
        Scratch scratch(plan.sizes);
        plan.work(scratch);
        done = true;
      } catch (const std::exception &) {
        // Threads with enough memory take the tasks of those without.
      }
    });
    if (!done) return 1;
    plan.finish();
    return 0;
  } catch (const std::exception &) {
    return 1;
  }
}

}  // extern "C"
