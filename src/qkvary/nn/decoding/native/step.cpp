// One new token of each of a few rows through a whole network: embedding, blocks, norm and head.
//
// A step of few rows reads every weight once and computes next to nothing with it, so that calls,
// checks and small tensors cost more than the products. Here a step is one call. Threads share the
// rows of every matrix and meet between the parts; sums do not depend on how many they are.

#include <memory>
#include <optional>

#include "attention.cpp"
#include "codes.h"
#include "matrix.h"
#include "pace.h"
#include "rows.h"
#include "sums.h"

extern "C" {

// All structures are mirrored field by field in native.py.

struct Projected {  // A source: the layer's input through one matrix or two, or unchanged.
  Matrix down, weight;
};

struct Layer {
  Norm attention_norm, feed_forward_norm;
  Projected sources[6];           // q, k, v, both sides of decoupled positions, and the input.
  int64_t query, key, value;      // Which of them each role reads.
  int64_t residual;               // 0: none, 1: the query adds the input, 2: and is a GELU before.
  Matrix out, up, gate, down;
  Matrix latent_key, latent_value; // Key and value of all heads, of the latent that is stored.
  int64_t activation;             // 0: ReLU, 1: GELU, 2: SiLU of the gate, times the other.
  int64_t post;                   // Norms come after the sums.
  int64_t queries;                // Query heads; those of key and value are in the call.
  int64_t pairs;                  // Turned by positions; 0 for none.
  const float *cos, *sin;         // [positions, pairs]
  int64_t turns_key, turns_value; // What is stored was turned.
  int64_t turns_back;             // The mixture is turned back.
  int64_t turns_by_index;         // Queries go by index, not by position: keys are turned when read.
  int64_t reads_memory;           // Keys and values are a memory's: a token adds none.
  Norm key_norm, query_norm;      // Of the key, which may be the value too, and of the query.
  int64_t norms_heads;            // Of each head by itself, not over all heads.
  int64_t norms_value;            // The value is what the key is made from.
  Stored rope;                    // Decoupled positions' rotated keys, of one head; no dim for none.
  int64_t closing;                // Of the newest tokens, those that become codes now.
  Sums sums;                      // Of linear attention, which stores nothing else.
  Call attention;                 // Over what is stored; its query and output are the step's own.
};

struct Step {
  const Layer *layers;
  int64_t num_layers, rows, width, storage, threads;
  int64_t bytes;  // Of all weights.
  Matrix embedding;
  double embedding_scale;
  const void *positions;             // A table like the embedding's; null for none.
  const int64_t *tokens, *position;  // Of each row.
  int64_t index;                      // Of the new tokens among those stored.
  Norm final_norm;
  Matrix head;
  void *logits;  // [rows, vocabulary], of the network's type.
};

}  // extern "C"

namespace {

enum Failure : int64_t { FULL = 1, UNKNOWN_TOKEN = 2, NO_SCALE = 3 };

bool is_latent(const Layer &layer) { return layer.latent_key.weight; }

// Channels per head of the query and of the mixture, as projections have them.
int64_t head_dim(const Layer &layer) { return layer.out.inner / layer.queries; }

constexpr int64_t ROPES = 64;  // Rotary keys that a thread compares at once.

// Size of a thread's buffer for these keys, by token and by channel, with padding to a cache line.
int64_t rope_numbers(const Layer &layer) { return 2 * round_up(layer.rope.dim) * ROPES + W; }

constexpr int LEARNED = 5, QUERY_ROPE = 3, KEY_ROPE = 4;  // Sources that are projections.

// The buffers of a step, kept from call to call: fresh memory pages take time.
struct Buffers {
  std::vector<float> memory;
  float *x, *normed, *sources[LEARNED], *narrow, *query, *stored, *mixed, *change, *inner, *gate;
  float *rope_keys, *bias, *logits;
  float *projected;  // Queries, then mixtures, as projections have them, where a latent is between.

  void fit(const Step &step) {
    int64_t own[LEARNED] = {1, 1, 1, 1, 1}, down = 1, heads = 1, inside = 1, ropes = 1, biases = 1;
    for (int64_t l = 0; l < step.num_layers; ++l) {
      const Layer &layer = step.layers[l];
      for (int i = 0; i < LEARNED; ++i) {
        own[i] = std::max(own[i], layer.sources[i].weight.width);
        down = std::max(down, layer.sources[i].down.width);
      }
      heads = std::max({heads, layer.out.inner, layer.queries * layer.attention.key.dim});
      inside = std::max(inside, layer.up.width);
      ropes = std::max(ropes, step.threads * rope_numbers(layer));
      if (layer.rope.dim) biases = std::max(biases, layer.queries * layer.attention.tokens);
    }
    int64_t total = 0;
    const auto place = [&](float **to, int64_t width) {
      *to = memory.data() + total;
      total += round_up(step.rows * width) + W;
    };
    const auto lay = [&] {
      total = 0;
      place(&x, step.width), place(&normed, step.width), place(&change, step.width);
      for (int i = 0; i < LEARNED; ++i) place(&sources[i], own[i]);
      place(&narrow, down), place(&query, heads), place(&stored, heads), place(&mixed, heads);
      place(&projected, heads);
      place(&inner, inside), place(&gate, inside);
      place(&rope_keys, ropes), place(&bias, biases);
      place(&logits, step.storage == FLOAT32 ? 1 : step.head.width);
    };
    lay();
    if (static_cast<int64_t>(memory.size()) < total) memory.resize(total), lay();
  }
};

template <class S>
class Walk {
 public:
  Walk(const Step &step, Buffers &buffers)
      : step_(step), rows_(step.rows), to_(buffers), turn_(WEIGHTS, step.bytes) {}

  // Every thread walks through all of it.
  void run(Seat seat) {
    if (seat.thread == 0) embed();
    for (; seat.layer < step_.num_layers; ++seat.layer) visit(step_.layers[seat.layer], seat);
    if (seat.thread == 0) norm(step_.final_norm, to_.x, to_.normed);
    meet(seat);
    predict(seat);
    if (seat.thread == 0 && !failure_) turn_.finish();
  }

  int64_t failure() const { return failure_; }

 private:
  const Step &step_;
  const int64_t rows_;
  Buffers &to_;
  const Turn turn_;
  Meeting meeting_;
  std::optional<Plan> plan_;
  Call call_;
  std::atomic<int64_t> failure_{0};

  void meet(const Seat &seat) { meeting_.wait(seat.threads); }

  // Logits are narrowed here: torch would use threads of its own, which spin for a while afterwards
  // and slow down the next step.
  void predict(const Seat &seat) {
    S *logits = static_cast<S *>(step_.logits);
    if constexpr (std::is_same_v<S, float>) {
      apply(step_.head, to_.normed, logits, seat);
    } else {
      apply(step_.head, to_.normed, to_.logits, seat);
      const Part own = part(step_.head.width, seat);
      for (int64_t row = 0, at = 0; row < rows_; ++row, at += step_.head.width)
        for (int64_t c = own.first; c < own.last; ++c) put(logits + at + c, to_.logits[at + c]);
    }
  }

  // A thread's outputs of a matrix, as whole vectors.
  struct Part {
    int64_t first, last;
  };
  static Part part(int64_t width, const Seat &seat) {
    const int64_t vectors = (width + W - 1) / W;
    return {vectors * seat.thread / seat.threads * W,
            std::min(width, vectors * (seat.thread + 1) / seat.threads * W)};
  }

  void apply(const Matrix &m, const float *x, float *y, const Seat &seat) {
    const Part own = part(m.width, seat);
    apply(m, own, x, y, rows_, turn_.reach());
  }

  static void apply(const Matrix &m, Part own, const float *x, float *y, int64_t rows, Reach reach) {
    if (m.scales) multiply<int8_t, S>(m, own.first, own.last, x, y, rows, reach);
    else multiply<S, S>(m, own.first, own.last, x, y, rows, reach);
  }

  void norm(const Norm &n, const float *x, float *y) {
    for (int64_t row = 0; row < rows_; ++row) {
      const float *from = x + row * step_.width;
      float *to = y + row * step_.width;
      if (n.kind) normalise<S>(n, from, to, step_.width);
      else if (from != to) std::copy(from, from + step_.width, to);
    }
  }

  void embed() {
    const S *positions = static_cast<const S *>(step_.positions);
    for (int64_t row = 0; row < rows_; ++row) {
      float *to = to_.x + row * step_.width;
      read_row<S>(step_.embedding, step_.tokens[row], to);
      for (int64_t c = 0; c < step_.width; ++c) to[c] *= static_cast<float>(step_.embedding_scale);
      if (positions)
        for (int64_t c = 0; c < step_.width; ++c)
          to[c] += to_float(positions[step_.position[row] * step_.width + c]);
    }
  }

  void visit(const Layer &layer, const Seat &seat) {
    const bool leads = seat.thread == 0;
    if (leads && !layer.post) norm(layer.attention_norm, to_.x, to_.normed);
    meet(seat);
    attend(layer, layer.post ? to_.x : to_.normed, seat);
    meet(seat);
    apply(layer.out, is_latent(layer) ? to_.projected : to_.mixed, to_.change, seat);
    meet(seat);
    if (leads) {
      add_change();
      if (layer.post) norm(layer.attention_norm, to_.x, to_.x);
      else if (layer.up.weight) norm(layer.feed_forward_norm, to_.x, to_.normed);
    }
    // Cross attention comes before it, as a separate layer.
    if (!layer.up.weight) return;
    meet(seat);
    feed_forward(layer, layer.post ? to_.x : to_.normed, seat);
    meet(seat);
    if (leads) {
      add_change();
      if (layer.post) norm(layer.feed_forward_norm, to_.x, to_.x);
    }
  }

  void add_change() {
    for (int64_t i = 0; i < rows_ * step_.width; ++i) to_.x[i] += to_.change[i];
  }

  void feed_forward(const Layer &layer, const float *x, const Seat &seat) {
    apply(layer.up, x, to_.inner, seat);
    if (layer.gate.weight) apply(layer.gate, x, to_.gate, seat);
    const Part own = part(layer.up.width, seat);
    for (int64_t row = 0; row < rows_; ++row) {
      const int64_t at = row * layer.up.width + own.first;
      const float *beside = (layer.gate.weight ? to_.gate : to_.inner) + at;
      each(to_.inner + at, beside, own.last - own.first, [&](Vec v, Vec gate) {
        if (layer.activation == 0) return v > 0.0f ? v : Vec{};
        return layer.activation == 1 ? gelu(v) : v * silu(gate);
      });
    }
    meet(seat);
    apply(layer.down, to_.inner, to_.change, seat);
  }

  void attend(const Layer &layer, float *x, const Seat &seat) {
    for (int i = 0; i < LEARNED; ++i) {
      const Projected &source = layer.sources[i];
      if (!source.weight.weight) continue;
      const float *in = x;
      if (source.down.weight) {
        apply(source.down, x, to_.narrow, seat);
        meet(seat);
        in = to_.narrow;
      }
      apply(source.weight, in, to_.sources[i], seat);
      // The next one writes its own latent to the same place.
      if (source.down.weight) meet(seat);
    }
    meet(seat);
    if (seat.thread == 0) prepare(layer, x);
    if (layer.sums.features) {
      meet(seat);
      return sum_up(layer, x, seat);
    }
    if (is_latent(layer)) {
      meet(seat);
      absorb(layer, seat);
      meet(seat);
    }
    if (seat.thread == 0) plan(layer);
    meet(seat);
    if (layer.rope.dim) {
      compare_ropes(layer, seat);
      meet(seat);
    }
    if (!failure_) {
      try {
        Scratch scratch(plan_->sizes);
        plan_->work(scratch);
      } catch (const std::exception &) {
        failure_ = FULL;
      }
    }
    meet(seat);
    if (seat.thread == 0 && !failure_) finish(layer);
    if (is_latent(layer)) {
      meet(seat);
      restore(layer, seat);
    }
  }

  // Queries whose products with the latent are those with the keys that are made of it. A thread
  // has channels of the latent.
  void absorb(const Layer &layer, const Seat &seat) {
    const Matrix &m = layer.latent_key;
    const Part own = part(m.inner, seat);
    each_group(layer, m, [&](const Matrix &group, int64_t head, int64_t heads) {
      const float *from = to_.projected + head * group.width;
      float *to = to_.query + head * m.inner;
      if (m.scales)
        multiply_transposed<int8_t>(group, own.first, own.last, from, to, heads, turn_.reach());
      else
        multiply_transposed<S>(group, own.first, own.last, from, to, heads, turn_.reach());
    });
  }

  // Mixed values of mixed latents. A thread has channels of every head.
  void restore(const Layer &layer, const Seat &seat) {
    const Matrix &m = layer.latent_value;
    const Part own = part(head_dim(layer), seat);
    each_group(layer, m, [&](const Matrix &group, int64_t head, int64_t heads) {
      const float *from = to_.mixed + head * m.inner;
      apply(group, own, from, to_.projected + head * group.width, heads, turn_.reach());
    });
  }

  // The part of a latent's matrix that makes each KV head, with the query heads that read it.
  template <class F>
  void each_group(const Layer &layer, const Matrix &m, const F &function) const {
    const int64_t dim = head_dim(layer), groups = m.width / dim, heads = layer.queries / groups;
    for (int64_t g = 0; g < groups; ++g)
      for (int64_t row = 0; row < rows_; ++row)
        function(some_rows<S>(m, g * dim, dim), row * layer.queries + g * heads, heads);
  }

  float *source(int64_t which, float *x) const { return which < LEARNED ? to_.sources[which] : x; }

  // Whether a row's new token is no padding.
  bool is_real(const Call &call, int64_t row) const {
    return !call.valid || call.valid[row * call.valid_stride + step_.index];
  }

  // Linear attention; a thread has groups of heads.
  void sum_up(const Layer &layer, float *x, const Seat &seat) {
    const int64_t dim = head_dim(layer), groups = layer.attention.groups;
    const int64_t count = layer.queries / groups;
    const float *value = layer.norms_value ? to_.stored : source(layer.value, x);
    for (int64_t i = seat.thread; i < rows_ * groups; i += seat.threads) {
      // Features are elsewhere than the key, which may be the value.
      float *key = to_.projected + i * dim;
      std::copy_n(to_.stored + i * dim, dim, key);
      add_token<S>(layer.sums, i, i % groups, key, value + i * dim, to_.query + i * count * dim,
                   count, dim, is_real(layer.attention, i / groups), to_.mixed + i * count * dim);
    }
  }

  // Stores the new token and makes the queries.
  void prepare(const Layer &layer, float *x) {
    const int64_t dim = head_dim(layer), heads = layer.attention.groups;
    const Norm value = layer.norms_value ? layer.key_norm : Norm{};
    const Call &call = layer.attention;
    if (layer.sums.features) {
      std::copy_n(source(layer.key, x), rows_ * heads * dim, to_.stored);
      for (int64_t row = 0; row < rows_; ++row)
        normalise_heads(layer, layer.key_norm, to_.stored + row * heads * dim, heads, dim);
    } else if (!layer.reads_memory) {
      keep(layer, call.key, source(layer.key, x), heads, layer.key_norm, layer.turns_key);
      if (!call.shared)
        keep(layer, call.value, source(layer.value, x), heads, value, layer.turns_value);
    }
    if (layer.rope.dim) keep(layer, layer.rope, to_.sources[KEY_ROPE], 1, Norm{}, true);
    for (int64_t row = 0; row < rows_; ++row) {
      const float *from = source(layer.query, x) + row * layer.queries * dim;
      float *query = (is_latent(layer) ? to_.projected : to_.query) + row * layer.queries * dim;
      std::copy(from, from + layer.queries * dim, query);
      if (layer.residual)
        each(query, x + row * layer.queries * dim, layer.queries * dim, [&](Vec v, Vec own) {
          return (layer.residual == 2 ? gelu(v) : v) + own;
        });
      normalise_heads(layer, layer.query_norm, query, layer.queries, dim);
      const int64_t at = layer.turns_by_index ? step_.index : step_.position[row];
      const int64_t turned = layer.rope.dim ? layer.rope.dim : dim;
      if (layer.rope.dim) query = to_.sources[QUERY_ROPE] + row * layer.queries * turned;
      turn_heads(layer, query, layer.queries, turned, at, 1.0f);
      if (layer.rope.dim)
        for (int64_t i = 0; i < layer.queries * turned; ++i) query[i] *= layer.attention.scale;
    }
  }

  // Describes attention to the current queries.
  void plan(const Layer &layer) {
    if (layer.attention.rounded)
      for (int64_t i = 0; i < rows_ * layer.queries * layer.attention.key.dim; ++i) {
        Bfloat16 rounded;
        put(&rounded, to_.query[i]);
        to_.query[i] = to_float(rounded);
      }
    call_ = layer.attention;
    call_.query = to_.query, call_.output = to_.mixed;
    if (layer.rope.dim) call_.bias = to_.bias;
    call_.threads = step_.threads;
    try {
      plan_.emplace(call_);
    } catch (const std::exception &) {
      failure_ = FULL;
    }
  }

  void normalise_heads(const Layer &layer, const Norm &norm, float *heads, int64_t count,
                       int64_t dim) {
    if (!norm.kind) return;
    const int64_t width = layer.norms_heads ? dim : count * dim;
    for (int64_t c = 0; c < count * dim; c += width) normalise<S>(norm, heads + c, heads + c, width);
  }

  void turn_heads(const Layer &layer, float *heads, int64_t count, int64_t dim, int64_t at,
                  float sign) {
    if (!layer.pairs) return;
    const float *cos = layer.cos + at * layer.pairs, *sin = layer.sin + at * layer.pairs;
    for (int64_t h = 0; h < count; ++h) turn(heads + h * dim, dim, layer.pairs, cos, sin, sign);
  }

  // A thread's tokens: scores of the rotated queries with the one rotated key of all heads.
  void compare_ropes(const Layer &layer, const Seat &seat) {
    if (layer.attention.storage == INT8) compare_ropes<int8_t>(layer, seat);
    else if (layer.attention.storage == INT4) compare_ropes<Int4>(layer, seat);
    else compare_ropes<S>(layer, seat);
  }

  template <class K>
  void compare_ropes(const Layer &layer, const Seat &seat) {
    const Call &call = layer.attention;
    const int64_t dim = layer.rope.dim, width = round_up(dim), heads = layer.queries;
    const int64_t end = call.tokens * (seat.thread + 1) / seat.threads;
    float *keys = to_.rope_keys + seat.thread * rope_numbers(layer), *turned = keys + width * ROPES;
    for (int64_t row = 0; row < rows_; ++row) {
      const Tokens stored(layer.rope, call.storage, call.coded, call.plain, row, 0, Reach());
      for (int64_t t = call.tokens * seat.thread / seat.threads; t < end; t += ROPES) {
        const int64_t count = std::min(ROPES, end - t);
        unpack<K>(keys, width, stored, t, count);
        for (int64_t i = 0; i < count; i += W)
          for (int64_t c = 0; c < width; c += W) {
            Vec v[W];
            for (int k = 0; k < W; ++k) v[k] = load(keys + (i + k) * width + c);
            transpose(v);
            for (int k = 0; k < W; ++k) store(turned + (c + k) * ROPES + i, v[k]);
          }
        const float *query = to_.sources[QUERY_ROPE] + row * heads * dim;
        float *scores = to_.bias + row * heads * call.tokens + t;
        int64_t h = 0;
        for (; h + 2 <= heads; h += 2)
          score_ropes<2>(query + h * dim, turned, dim, scores + h * call.tokens, call.tokens, count);
        if (h < heads)
          score_ropes<1>(query + h * dim, turned, dim, scores + h * call.tokens, call.tokens, count);
      }
    }
  }

  // Scores of H queries with keys that are stored channel by channel.
  template <int H>
  static void score_ropes(const float *query, const float *keys, int64_t dim, float *to,
                          int64_t stride, int64_t count) {
    constexpr int N = ROPES / W;
    Vec totals[H][N] = {};
    for (int64_t c = 0; c < dim; ++c)
#pragma GCC unroll 16
      for (int n = 0; n < N; ++n) {
        const Vec key = load(keys + c * ROPES + n * W);
        for (int h = 0; h < H; ++h) totals[h][n] += key * query[h * dim + c];
      }
    for (int h = 0; h < H; ++h)
      std::memcpy(to + h * stride, totals[h], count == ROPES ? sizeof totals[h] : count * sizeof(float));
  }

  void keep(const Layer &layer, const Stored &to, const float *from, int64_t heads,
            const Norm &norm, bool turned) {
    const Call &call = layer.attention;
    const bool coded = call.storage >= INT8;
    for (int64_t row = 0; row < rows_; ++row) {
      std::copy(from + row * heads * to.dim, from + (row + 1) * heads * to.dim, to_.stored);
      normalise_heads(layer, norm, to_.stored, heads, to.dim);
      if (turned) turn_heads(layer, to_.stored, heads, to.dim, step_.position[row], 1.0f);
      // Padding has no part in a scale that it shares with tokens.
      if (coded && to.block > 1 && !is_real(call, row)) std::fill_n(to_.stored, heads * to.dim, 0.0f);
      for (int64_t h = 0; h < heads; ++h) {
        S *place = place_of(layer, to, row, h);
        for (int64_t c = 0; c < to.dim; ++c) {
          put(place + c, to_.stored[h * to.dim + c]);
          if (coded && !(std::fabs(to_float(place[c])) < MOST_NUMBER)) failure_ = NO_SCALE;
        }
        if (layer.closing) encode<S>(to, call.storage, call.coded, layer.closing, row, h);
      }
    }
  }

  // Where the new token of a head belongs.
  S *place_of(const Layer &layer, const Stored &to, int64_t row, int64_t head) const {
    const Call &call = layer.attention;
    if (call.storage < INT8)
      return static_cast<S *>(const_cast<void *>(to.data)) + row * to.batch_stride +
             head * to.head_stride + step_.index * to.token_stride;
    return static_cast<S *>(const_cast<void *>(to.newest)) + row * to.newest_batch_stride +
           head * to.newest_head_stride + (step_.index - call.coded) * to.newest_token_stride;
  }

  void finish(const Layer &layer) {
    plan_->finish();
    plan_.reset();
    if (!layer.turns_back) return;
    for (int64_t row = 0; row < rows_; ++row)
      turn_heads(layer, to_.mixed + row * layer.queries * call_.value.dim, layer.queries,
                 call_.value.dim, step_.position[row], -1.0f);
  }
};

template <class S>
int64_t walk(const Step &step, Buffers &buffers) {
  Walk<S> all(step, buffers);
  team().run(step.threads, [&](int64_t thread, int64_t threads) { all.run({thread, threads}); });
  return all.failure();
}

}  // namespace

extern "C" {

int64_t qkvary_step_size() { return sizeof(Step); }
int64_t qkvary_layer_size() { return sizeof(Layer); }

int64_t qkvary_step(const Step *step) {
  static thread_local Buffers buffers;
  for (int64_t row = 0; row < step->rows; ++row)
    if (step->tokens[row] < 0 || step->tokens[row] >= step->embedding.width) return UNKNOWN_TOKEN;
  try {
    buffers.fit(*step);
    if (step->storage == FLOAT32) return walk<float>(*step, buffers);
    if (step->storage == BFLOAT16) return walk<Bfloat16>(*step, buffers);
    return walk<Float16>(*step, buffers);
  } catch (const std::exception &) {
    return FULL;
  }
}

}  // extern "C"
