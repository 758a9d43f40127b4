// What comes next in memory, fetched a line at a time between products.

#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <limits>
#include <mutex>

namespace products {
namespace {

constexpr int64_t LINE = 64;    // Bytes that memory moves at once, on most processors.
constexpr int64_t PAGE = 4096;  // Bytes at whose end processors stop fetching by themselves.

// Bytes between what is read and what is fetched, into the first cache and into the second; 0 for
// nothing.
struct Reach {
  int64_t near, far;
};

// Some processors fetch best by themselves, and are slowed down by lines that are asked for; others
// begin too late, or wait for more lines at once in the second cache.
constexpr Reach REACHES[] = {{12288, 0}, {8192, 65536}, {0, 0}};
constexpr int WAYS = sizeof REACHES / sizeof *REACHES;

// Which reach is the fastest on this processor. The first calls that read more than the caches hold
// take turns, one reach a call: within a call, one would wait for what the other has asked memory
// for. The first reach stays unless the best call of another clearly wins.
class Trial {
 public:
  static constexpr int64_t WORTH = 32 << 20;  // Bytes of a call.
  // Of each call: each way equally often, and at every place of any pattern of up to ten layers.
  static constexpr char TURNS[] = "122110022101020200002200111112202022211121110200";
  static constexpr int CALLS = sizeof TURNS - 1;
  static constexpr double CLEARLY = 0.95;  // Of the time of the first.

  Trial() { pin(-1); }

  // The way that won or was pinned; -1 before.
  int chosen() const { return chosen_.load(std::memory_order_relaxed); }

  // The way of the next call.
  int next() const {
    const int chosen = this->chosen();
    return chosen < 0 ? TURNS[calls_.load(std::memory_order_relaxed) % CALLS] - '0' : chosen;
  }

  // Takes a way, or tries all anew with -1.
  void pin(int64_t way) {
    std::lock_guard<std::mutex> guard(lock_);
    chosen_ = static_cast<int>(std::clamp<int64_t>(way, -1, WAYS - 1)), calls_ = 0;
    std::fill_n(best_, WAYS, std::numeric_limits<double>::infinity());
  }

  // What a call took for a byte.
  void count(int way, double time) {
    std::lock_guard<std::mutex> guard(lock_);
    if (chosen() >= 0) return;
    best_[way] = std::min(best_[way], way ? time : CLEARLY * time);
    if (++calls_ == CALLS) chosen_ = static_cast<int>(std::min_element(best_, best_ + WAYS) - best_);
  }

 private:
  std::mutex lock_;
  std::atomic<int> chosen_{-1}, calls_{0};
  double best_[WAYS];
};

// What a call reads, each with a trial of its own.
enum Kind { STORED, CODED, WEIGHTS };

inline Trial &trial(Kind kind) {
  static Trial trials[3];
  return trials[kind];
}

// The reach of one call, and its time while all are tried.
class Turn {
 public:
  Turn(Kind kind, int64_t bytes)
      : trial_(trial(kind)), bytes_(bytes), tries_(bytes >= Trial::WORTH && trial_.chosen() < 0),
        way_(tries_ ? trial_.next() : std::max(0, trial_.chosen())), start_(Clock::now()) {}

  Reach reach() const { return REACHES[way_]; }

  void finish() const {
    if (tries_) trial_.count(way_, 1.0 * (Clock::now() - start_).count() / bytes_);
  }

 private:
  using Clock = std::chrono::steady_clock;

  Trial &trial_;
  const int64_t bytes_;
  const bool tries_;
  const int way_;
  const Clock::time_point start_;
};

// What is to be fetched, in bytes of whole lines. Much at once would wait for each other, and the
// products for it.
class Ahead {
 public:
  // Fetches rows of a number of bytes into the first cache; and into the second cache the rows at a
  // distance after them, unless it is 0.
  Ahead(const char *first, int64_t row_stride, int64_t row_bytes, int64_t rows, int64_t distance)
      : line_(first), far_(distance), is_run_(row_stride == row_bytes),
        is_plain_(is_run_ && !distance) {
    const int64_t in_row = round_up(row_bytes);
    if (is_run_) {
      left_ = round_up(row_bytes * rows);
      stride_ = PAGE;
      end_ = first + PAGE - reinterpret_cast<uintptr_t>(first + far_) % PAGE;
    } else {
      left_ = in_row * rows;
      stride_ = row_stride, skip_ = row_stride - in_row;
      end_ = first + row_bytes;
    }
  }

  // Of each of so many steps.
  int64_t share(int64_t steps) const {
    return static_cast<uint32_t>(left_ / LINE + steps - 1) / static_cast<uint32_t>(steps) * LINE;
  }

  void fetch(int64_t bytes) {
    if (left_ <= 0) return;
    bytes = bytes < left_ ? bytes : left_;
    left_ -= bytes;
    if (__builtin_expect(is_plain_, 1)) {
      for (const char *stop = line_ + bytes; line_ < stop; line_ += LINE)
        __builtin_prefetch(line_, 0, 3);
      return;
    }
    for (; bytes > 0; bytes -= LINE) {
      __builtin_prefetch(line_, 0, 3);
      if (far_) __builtin_prefetch(line_ + far_, 0, 2);
      line_ += LINE;
      if (line_ < end_) continue;
      line_ += skip_, end_ += stride_;
      // The first lines of the next page let the processor begin with it before this one ends.
      if (far_ && is_run_)
        for (int i = 0; i < 3; ++i) __builtin_prefetch(end_ + far_ + i * LINE, 0, 2);
    }
  }

 private:
  static int64_t round_up(int64_t bytes) { return (bytes + LINE - 1) / LINE * LINE; }

  const char *line_, *end_;
  int64_t left_, stride_, skip_ = 0, far_;
  bool is_run_;    // Rows follow each other without a gap.
  bool is_plain_;  // Such a run, into the first cache alone.
};

}  // namespace
}  // namespace products
