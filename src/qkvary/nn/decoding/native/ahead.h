// Prefetches what is read next from memory, a cache line at a time, between products.

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
constexpr int64_t PAGE = 4096;  // Bytes of a page; processors' own prefetching stops at its end.

// Distance in bytes from what is read to what is prefetched into the first-level cache (near) and
// into the second-level cache (far); 0 for no prefetching.
struct Reach {
  int64_t near, far;
};

// Some processors prefetch best by themselves and are slowed down by explicit prefetches; others
// begin too late, or allow more outstanding lines in the second-level cache.
constexpr Reach REACHES[] = {{12288, 0}, {8192, 65536}, {0, 0}};
constexpr int WAYS = sizeof REACHES / sizeof *REACHES;

// Finds the fastest reach on this processor. The first calls that read more than the caches hold
// take turns, one reach per call: within a call, one reach would wait for lines that the other has
// requested. The first reach stays unless the best call of another is clearly faster.
class Trial {
 public:
  static constexpr int64_t WORTH = 32 << 20;  // Bytes from which a call is timed.
  // The way of each call: each equally often, at every place of any pattern of up to ten layers.
  static constexpr char TURNS[] = "122110022101020200002200111112202022211121110200";
  static constexpr int CALLS = sizeof TURNS - 1;
  static constexpr double CLEARLY = 0.95;  // Share of the first way's time that others must beat.

  Trial() { pin(-1); }

  // The way that won or was pinned; -1 before.
  int chosen() const { return chosen_.load(std::memory_order_relaxed); }

  // The way of the next call.
  int next() const {
    const int chosen = this->chosen();
    return chosen < 0 ? TURNS[calls_.load(std::memory_order_relaxed) % CALLS] - '0' : chosen;
  }

  // Fixes a way, or tries all again for -1.
  void pin(int64_t way) {
    std::lock_guard<std::mutex> guard(lock_);
    chosen_ = static_cast<int>(std::clamp<int64_t>(way, -1, WAYS - 1)), calls_ = 0;
    std::fill_n(best_, WAYS, std::numeric_limits<double>::infinity());
  }

  // Records the time per byte of a call.
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

// What is to be prefetched, in bytes of whole lines. Many prefetches at once would wait for each
// other, and the products for them.
class Ahead {
 public:
  // Prefetches rows into the first-level cache, and the rows at a distance after them into the
  // second-level cache, unless the distance is 0.
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

  // The bytes to prefetch in each of a number of steps.
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
      // The first lines of the next page make the processor prefetch it before this one ends.
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
