// The threads of a step: where they run and where they wait for each other.

#pragma once

#include <atomic>
#include <cstdint>
#include <thread>

namespace products {
namespace {

// A thread among those of a step.
struct Seat {
  int64_t thread, threads;
  int64_t layer = 0;  // Where it is.
};

// A barrier of the threads of a step, used again and again. Parts of a step are too short for a
// waiting thread to sleep, but not for it to yield.
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

}  // namespace
}  // namespace products
