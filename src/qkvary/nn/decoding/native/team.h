// A thread pool kept from call to call: starting a thread takes as long as attending to thousands
// of keys.

#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <exception>
#include <mutex>
#include <thread>

#if defined(__unix__) || defined(__APPLE__)
#include <pthread.h>
#endif

namespace products {
namespace {

class Team {
 public:
  // Calls work(thread, threads) in at most this many threads, including the caller, and waits for
  // all of them. A caller that finds the pool busy does its work alone.
  template <class F>
  void run(int64_t threads, const F &work) {
    std::unique_lock<std::mutex> mine(calls_, std::defer_lock);
    if (threads > 1 && mine.try_lock()) threads = gather(threads);
    else threads = 1;
    if (threads > 1) {
      left_.store(threads - 1);
      {
        std::lock_guard<std::mutex> guard(lock_);
        job_ = {[](const void *f, int64_t i, int64_t n) { (*static_cast<const F *>(f))(i, n); },
                &work, threads};
        round_.fetch_add(1);
      }
      wake_.notify_all();
    }
    work(int64_t{0}, threads);
    if (threads > 1)
      while (left_.load(std::memory_order_acquire)) std::this_thread::yield();
  }

 private:
  struct Job {
    void (*call)(const void *, int64_t, int64_t) = nullptr;
    const void *work = nullptr;
    int64_t threads = 0;
  };
  // Yields before a thread sleeps: it would wake up late for the next call, which often comes soon.
  static constexpr int TURNS = 200;

  std::mutex calls_, lock_;
  std::condition_variable wake_;
  std::atomic<int64_t> round_{0}, left_{0};
  Job job_;
  int64_t members_ = 1;

  int64_t gather(int64_t threads) {
    try {
      for (; members_ < threads; ++members_)
        std::thread(&Team::serve, this, members_, round_.load()).detach();
    } catch (const std::exception &) {
      // The threads that were started do the work of those that could not be.
    }
    return threads < members_ ? threads : members_;
  }

  void serve(int64_t thread, int64_t seen) {
    for (;;) {
      for (int turn = 0; turn < TURNS && round_.load(std::memory_order_acquire) == seen; ++turn)
        std::this_thread::yield();
      std::unique_lock<std::mutex> guard(lock_);
      wake_.wait(guard, [&] { return round_.load() != seen; });
      seen = round_.load();
      const Job job = job_;
      guard.unlock();
      if (thread >= job.threads) continue;
      job.call(job.work, thread, job.threads);
      left_.fetch_sub(1, std::memory_order_release);
    }
  }
};

// The team of this process; it is never destroyed, since its threads wait in it. Threads do not
// survive a fork, so a forked process makes a new team when it needs one.
inline Team &team() {
  static std::atomic<Team *> current{nullptr};
#if defined(__unix__) || defined(__APPLE__)
  static std::once_flag once;
  std::call_once(once, [] { pthread_atfork(nullptr, nullptr, [] { current = nullptr; }); });
#endif
  Team *known = current.load();
  if (known) return *known;
  Team *made = new Team;
  if (current.compare_exchange_strong(known, made)) return *made;
  delete made;
  return *known;
}

}  // namespace
}  // namespace products
