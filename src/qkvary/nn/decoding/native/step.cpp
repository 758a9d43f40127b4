// One new token of each of a few rows through a whole network: embedding, blocks, norm and head.
//
// A step of few rows reads every weight once and computes next to nothing with it, so that calls,
// checks and small tensors cost more than the products. Here a step is one call. Threads share the
// rows of every matrix and meet between the parts; sums do not depend on how many they are.

#include <cmath>
#include <memory>
#include <optional>

#include "attention.cpp"
#include "codes.h"
#include "matrix.h"

extern "C" {

// All structures are mirrored field by field in step.py.

struct Norm {
  const void *weight, *bias;  // Null where there is none.
  int64_t kind;               // 0: none, 1: of mean and deviation, 2: of the root mean square.
  double epsilon;
};

struct Projected {  // A source: the layer's input through one matrix or two, or as it is.
  Matrix down, weight;
};

struct Layer {
  Norm attention_norm, feed_forward_norm;
  Projected sources[6];           // q, k, v, both sides of decoupled positions, and the input.
  int64_t query, key, value;      // Which of them each role reads.
  int64_t residual;               // 0: none, 1: the query adds the input, 2: and is a GELU before.
  Matrix out, up, gate, down;
  int64_t activation;             // 0: ReLU, 1: GELU, 2: SiLU of the gate, times the other.
  int64_t post;                   // Norms stand behind the sums.
  int64_t queries;                // Query heads; those of key and value stand in the call.
  int64_t pairs;                  // Turned by positions; 0 for none.
  const float *cos, *sin;         // [positions, pairs]
  int64_t turns_key, turns_value; // What is stored was turned.
  int64_t turns_back;             // The mixture is turned back.
  int64_t turns_by_index;         // Queries go by index, not by position: keys are turned when read.
  int64_t reads_memory;           // Keys and values are a memory's: a token has none of its own.
  Norm shared_norm;               // Of what key and value share, over all heads.
  Stored rope;                    // Decoupled positions' rotated keys, of one head; no dim for none.
  int64_t closing;                // Of the newest tokens, those that become codes now.
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
  float *logits;  // [rows, vocabulary]
};

}  // extern "C"

namespace {

enum Failure : int64_t { FULL = 1, UNKNOWN_TOKEN = 2, NO_SCALE = 3 };

// A thread among those of a step.
struct Seat {
  int64_t thread, threads;
  int64_t layer = 0;  // Where it is.
};

// Waits until all threads of a step have come, again and again. Parts of a step are too short for
// a thread to sleep in between, but not for one to give way.
class Meeting {
 public:
  void wait(int64_t all) {
    if (all == 1) return;
    const int64_t round = round_.load(std::memory_order_acquire);
    if (come_.fetch_add(1, std::memory_order_acq_rel) + 1 == all) {
      come_.store(0, std::memory_order_relaxed);
      round_.store(round + 1, std::memory_order_release);
      return;
    }
    for (int64_t turn = 0; round_.load(std::memory_order_acquire) == round; ++turn)
      if (turn > 2000) std::this_thread::yield();
  }

 private:
  std::atomic<int64_t> come_{0}, round_{0};
};

// Which reach the products of a step take, and the times of both while that is tried, by turns of
// layers.
class Pace {
 public:
  explicit Pace(bool tries) : tries_(tries && trial(WEIGHTS).chosen() < 0) {}

  // The first thread's time counts.
  template <class F>
  void run(const Seat &seat, int64_t weights, const F &product) {
    const int way = tries_ ? seat.layer % CHOICES : std::max(0, trial(WEIGHTS).chosen());
    if (!tries_ || seat.thread) return product(REACHES[way]);
    const auto start = Clock::now();
    product(REACHES[way]);
    spent_[way] += (Clock::now() - start).count(), read_[way] += weights;
  }

  void finish() const {
    if (tries_ && read_[0] > 0 && read_[1] > 0)
      trial(WEIGHTS).count(spent_[0] / read_[0], spent_[1] / read_[1]);
  }

 private:
  using Clock = std::chrono::steady_clock;

  const bool tries_;
  double spent_[CHOICES] = {}, read_[CHOICES] = {};
};

// Sums that do not wait for each other.
template <class F>
double add_up(int64_t n, const F &term) {
  double sums[8] = {};
  int64_t c = 0;
  for (; c + 8 <= n; c += 8)
    for (int i = 0; i < 8; ++i) sums[i] += term(c + i);
  for (; c < n; ++c) sums[0] += term(c);
  double total = 0;
  for (const double sum : sums) total += sum;
  return total;
}

template <class S>
void normalise(const Norm &norm, const float *x, float *y, int64_t width) {
  const double mean = norm.kind == 1 ? add_up(width, [&](int64_t c) { return x[c]; }) / width : 0;
  const double square = add_up(width, [&](int64_t c) { return (x[c] - mean) * (x[c] - mean); });
  const double factor = 1.0 / std::sqrt(square / width + norm.epsilon);
  const S *weight = static_cast<const S *>(norm.weight);
  const S *bias = static_cast<const S *>(norm.bias);
  for (int64_t c = 0; c < width; ++c) {
    const float scaled = static_cast<float>((x[c] - mean) * factor);
    y[c] = scaled * (weight ? to_float(weight[c]) : 1.0f) + (bias ? to_float(bias[c]) : 0.0f);
  }
}

constexpr float LOG2_E = 1.44269504088896341f;

inline Vec size_of(Vec x) { return (Vec)((Words)x & 0x7fffffffu); }

// x P(X <= x) of a normal X, from the rational fit of erfc of Press et al., Numerical Recipes,
// whose relative error is below 1.2e-7 everywhere.
inline Vec gelu(Vec x) {
  const Vec z = size_of(x) * 0.70710678118654752f;
  const Vec t = 1.0f / (1.0f + 0.5f * z);
  Vec p = all(0.17087277f);
  for (const float c : {-0.82215223f, 1.48851587f, -1.13520398f, 0.27886807f, -0.18628806f,
                        0.09678418f, 0.37409196f, 1.00002368f, -1.26551223f})
    p = p * t + c;
  const Vec tail = 0.5f * t * power_of_two(smaller((p - z * z) * LOG2_E, Vec{}));
  return x * (x > 0.0f ? 1.0f - tail : tail);
}

inline Vec silu(Vec x) {
  const Vec small = power_of_two(size_of(x) * -LOG2_E);
  return x * (x > 0.0f ? all(1.0f) : small) / (1.0f + small);
}

// An activation of n numbers, each with another beside it. What follows them is another thread's.
template <class F>
inline void each(float *x, const float *beside, int64_t n, F function) {
  int64_t c = 0;
  for (; c + W <= n; c += W) store(x + c, function(load(x + c), load(beside + c)));
  if (c == n) return;
  Vec own = {}, other = {};
  std::memcpy(&own, x + c, 4 * (n - c));
  std::memcpy(&other, beside + c, 4 * (n - c));
  own = function(own, other);
  std::memcpy(x + c, &own, 4 * (n - c));
}

// Turns the trailing channels of a head; the first half of them pairs with the second.
inline void turn(float *head, int64_t dim, int64_t pairs, const float *cos, const float *sin,
                 float sign) {
  float *first = head + dim - 2 * pairs, *second = head + dim - pairs;
  for (int64_t i = 0; i < pairs; ++i) {
    const float a = first[i], b = second[i], s = sin[i] * sign;
    first[i] = a * cos[i] - b * s;
    second[i] = b * cos[i] + a * s;
  }
}

constexpr int LEARNED = 5, QUERY_ROPE = 3, KEY_ROPE = 4;  // Sources that are projections.

// Numbers of one step, kept from call to call: fresh pages cost as much as a part of the products.
struct Buffers {
  std::vector<float> memory;
  float *x, *normed, *sources[LEARNED], *latent, *query, *stored, *mixed, *change, *inner, *gate;
  float *asked, *bias;

  void fit(const Step &step) {
    int64_t own[LEARNED] = {1, 1, 1, 1, 1}, down = 1, heads = 1, inside = 1, asking = 1, biases = 1;
    for (int64_t l = 0; l < step.num_layers; ++l) {
      const Layer &layer = step.layers[l];
      for (int i = 0; i < LEARNED; ++i) {
        own[i] = std::max(own[i], layer.sources[i].weight.width);
        down = std::max(down, layer.sources[i].down.width);
      }
      heads = std::max({heads, layer.out.inner, layer.queries * layer.attention.key.dim});
      inside = std::max(inside, layer.up.width);
      asking = std::max(asking, layer.rope.dim * round_up(layer.queries));
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
      place(&latent, down), place(&query, heads), place(&stored, heads), place(&mixed, heads);
      place(&inner, inside), place(&gate, inside);
      place(&asked, asking), place(&bias, biases);
    };
    lay();
    if (static_cast<int64_t>(memory.size()) < total) memory.resize(total), lay();
  }
};

template <class S>
class Walk {
 public:
  Walk(const Step &step, Buffers &buffers)
      : step_(step), rows_(step.rows), to_(buffers), pace_(step.bytes >= Trial::WORTH) {}

  // Every thread walks through all of it.
  void run(Seat seat) {
    if (seat.thread == 0) embed();
    for (; seat.layer < step_.num_layers; ++seat.layer) visit(step_.layers[seat.layer], seat);
    if (seat.thread == 0) norm(step_.final_norm, to_.x, to_.normed);
    meet(seat);
    apply(step_.head, to_.normed, step_.logits, seat);
    if (seat.thread == 0) pace_.finish();
  }

  int64_t failure() const { return failure_; }

 private:
  const Step &step_;
  const int64_t rows_;
  Buffers &to_;
  Pace pace_;
  Meeting meeting_;
  std::optional<Plan> plan_;
  Call call_;
  std::atomic<int64_t> failure_{0};

  void meet(const Seat &seat) { meeting_.wait(seat.threads); }

  // A thread's outputs of a matrix, as whole vectors.
  struct Part {
    int64_t first, last;
  };
  static Part part(const Matrix &m, const Seat &seat) {
    const int64_t vectors = (m.width + W - 1) / W;
    return {vectors * seat.thread / seat.threads * W,
            std::min(m.width, vectors * (seat.thread + 1) / seat.threads * W)};
  }

  void apply(const Matrix &m, const float *x, float *y, const Seat &seat) {
    const Part own = part(m, seat);
    pace_.run(seat, (own.last - own.first) * m.inner, [&](Reach reach) {
      if (m.scales) multiply<int8_t, S>(m, own.first, own.last, x, y, rows_, reach);
      else multiply<S, S>(m, own.first, own.last, x, y, rows_, reach);
    });
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
    apply(layer.out, to_.mixed, to_.change, seat);
    meet(seat);
    if (leads) {
      add_change();
      if (layer.post) norm(layer.attention_norm, to_.x, to_.x);
      else if (layer.up.weight) norm(layer.feed_forward_norm, to_.x, to_.normed);
    }
    // Cross attention comes before it, as a layer of its own.
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
    const Part own = part(layer.up, seat);
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
        apply(source.down, x, to_.latent, seat);
        meet(seat);
        in = to_.latent;
      }
      apply(source.weight, in, to_.sources[i], seat);
      // The next one writes its own latent to the same place.
      if (source.down.weight) meet(seat);
    }
    meet(seat);
    if (seat.thread == 0) prepare(layer, x);
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
  }

  // Stores what is new and makes the queries.
  void prepare(const Layer &layer, float *x) {
    float *const sources[] = {to_.sources[0], to_.sources[1], to_.sources[2],
                              to_.sources[QUERY_ROPE], to_.sources[KEY_ROPE], x};
    const int64_t dim = layer.attention.key.dim;
    const int64_t heads = layer.attention.groups;
    const Norm &shared = layer.shared_norm;
    if (!layer.reads_memory)
      keep(layer, layer.attention.key, sources[layer.key], heads, shared, layer.turns_key);
    if (!layer.reads_memory && !layer.attention.shared)
      keep(layer, layer.attention.value, sources[layer.value], heads, shared, layer.turns_value);
    if (layer.rope.dim) keep(layer, layer.rope, sources[KEY_ROPE], 1, Norm{}, true);
    for (int64_t row = 0; row < rows_; ++row) {
      const float *from = sources[layer.query] + row * layer.queries * dim;
      float *query = to_.query + row * layer.queries * dim;
      std::copy(from, from + layer.queries * dim, query);
      if (layer.residual)
        each(query, x + row * layer.queries * dim, layer.queries * dim, [&](Vec v, Vec own) {
          return (layer.residual == 2 ? gelu(v) : v) + own;
        });
      const int64_t at = layer.turns_by_index ? step_.index : step_.position[row];
      const int64_t turned = layer.rope.dim ? layer.rope.dim : dim;
      if (layer.rope.dim) query = sources[QUERY_ROPE] + row * layer.queries * turned;
      turn_heads(layer, query, layer.queries, turned, at, 1.0f);
      if (layer.rope.dim) ask_ropes(layer, query, row);
    }
    if (layer.attention.rounded)
      for (int64_t i = 0; i < rows_ * layer.queries * dim; ++i) {
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

  void turn_heads(const Layer &layer, float *heads, int64_t count, int64_t dim, int64_t at,
                  float sign) {
    if (!layer.pairs) return;
    const float *cos = layer.cos + at * layer.pairs, *sin = layer.sin + at * layer.pairs;
    for (int64_t h = 0; h < count; ++h) turn(heads + h * dim, dim, layer.pairs, cos, sin, sign);
  }

  // A thread's tokens: scores of the rotated queries with the one rotated key of all heads.
  void compare_ropes(const Layer &layer, const Seat &seat) {
    const Stored &rope = layer.rope;
    const int64_t tokens = layer.attention.tokens, heads = layer.queries, lanes = round_up(heads);
    const int64_t first = tokens * seat.thread / seat.threads;
    const int64_t last = tokens * (seat.thread + 1) / seat.threads;
    for (int64_t row = 0; row < rows_; ++row)
      for (int64_t t = first; t < last; ++t) {
        const S *key =
            static_cast<const S *>(rope.data) + row * rope.batch_stride + t * rope.token_stride;
        for (int64_t lane = 0; lane < lanes; lane += W) {
          const float *asked = to_.asked + row * rope.dim * lanes + lane;
          Vec total = {};
          for (int64_t c = 0; c < rope.dim; ++c) total += load(asked + c * lanes) * to_float(key[c]);
          float *to = to_.bias + (row * heads + lane) * tokens + t;
          for (int64_t h = 0; h < std::min<int64_t>(W, heads - lane); ++h) to[h * tokens] = total[h];
        }
      }
  }

  // Rotated queries of decoupled positions, channel by channel, so that heads are next to each other.
  void ask_ropes(const Layer &layer, const float *queries, int64_t row) {
    const int64_t dim = layer.rope.dim, lanes = round_up(layer.queries);
    float *asked = to_.asked + row * dim * lanes;
    for (int64_t c = 0; c < dim; ++c)
      for (int64_t h = 0; h < lanes; ++h)
        asked[c * lanes + h] = h < layer.queries ? queries[h * dim + c] * layer.attention.scale : 0;
  }

  void keep(const Layer &layer, const Stored &to, const float *from, int64_t heads,
            const Norm &norm, bool turned) {
    const Call &call = layer.attention;
    const bool coded = call.storage >= INT8;
    for (int64_t row = 0; row < rows_; ++row) {
      std::copy(from + row * heads * to.dim, from + (row + 1) * heads * to.dim, to_.stored);
      if (norm.kind) normalise<S>(norm, to_.stored, to_.stored, heads * to.dim);
      if (turned) turn_heads(layer, to_.stored, heads, to.dim, step_.position[row], 1.0f);
      // Padding has no part in a scale that it shares with tokens.
      const bool real = !call.valid || call.valid[row * call.valid_stride + step_.index];
      if (coded && to.block > 1 && !real) std::fill_n(to_.stored, heads * to.dim, 0.0f);
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
