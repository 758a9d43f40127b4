// The threads of a step: where they run, where they wait for each other, and what they prefetch.

#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <thread>

#include "ahead.h"

namespace products {
namespace {

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

}  // namespace
}  // namespace products
