// Threads that do one thing together, again and again.
//
// A forward is one `run`, inside which the threads meet at a barrier some two hundred times: they wait for each other by
// looking, since that takes less than a microsecond. Who has looked in vain for long yields, so that another process
// on the same core gets on; who has had nothing to do for some milliseconds sleeps.
#pragma once

#include <immintrin.h>
#include <pthread.h>
#include <sched.h>

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <new>
#include <thread>
#include <vector>

namespace stride {

constexpr int kLooks = 2000;  // about 30 microseconds, then the core is offered to others

class Barrier {
 public:
  void wait(int threads) {
    if (threads == 1) return;
    const int round = round_.load(std::memory_order_relaxed);
    if (arrived_.fetch_add(1, std::memory_order_acq_rel) == threads - 1) {
      arrived_.store(0, std::memory_order_relaxed);
      round_.store(round + 1, std::memory_order_release);
      return;
    }
    for (int looks = 0; round_.load(std::memory_order_acquire) == round; looks++) {
      _mm_pause();
      if (looks >= kLooks) sched_yield();
    }
  }

 private:
  alignas(64) std::atomic<int> arrived_{0};
  alignas(64) std::atomic<int> round_{0};
};

class Team {
 public:
  // One for the process: two teams would take the cores from each other.
  static Team& instance() {
    static Team* team = [] {
      // A forked process has none of the threads: it starts its own.
      pthread_atfork(nullptr, nullptr, [] { new (&instance()) Team; });
      return new Team;  // never destroyed: its threads sleep when the process ends
    }();
    return *team;
  }

  // work(thread, threads) on so many threads, of which the caller's is the first. One run at a time.
  template <class Work>
  void run(int threads, Work work) {
    std::lock_guard<std::mutex> turn(turn_);
    if (threads <= 1) {
      work(0, 1);
      return;
    }
    grow(threads - 1);
    work_ = [&](int thread) { work(thread, threads); };
    done_.store(0, std::memory_order_relaxed);
    {
      std::lock_guard<std::mutex> lock(sleep_);
      job_.store((job_.load(std::memory_order_relaxed) | kThreads) + 1 + threads, std::memory_order_release);
    }
    if (sleeping_.load(std::memory_order_acquire) > 0) wake_.notify_all();
    work_(0);
    for (int looks = 0; done_.load(std::memory_order_acquire) < threads - 1; looks++) {
      _mm_pause();
      if (looks >= kLooks) sched_yield();
    }
  }

  Barrier barrier;

 private:
  static constexpr int kIdleLooks = 20000;  // under a millisecond; then, with the core offered to others, some more
  static constexpr int kIdleYields = 2000;

  void grow(int helpers) {
    while (static_cast<int>(helpers_.size()) < helpers) {
      const int thread = static_cast<int>(helpers_.size()) + 1;
      helpers_.emplace_back([this, thread] { help(thread); });
      helpers_.back().detach();
    }
  }

  void help(int thread) {
    for (uint64_t seen = 0;;) {
      const uint64_t job = next(seen);
      seen = job;
      if (thread >= static_cast<int>(job & kThreads)) continue;
      work_(thread);
      done_.fetch_add(1, std::memory_order_release);
    }
  }

  uint64_t next(uint64_t seen) {
    for (int looks = 0;; looks++) {
      const uint64_t job = job_.load(std::memory_order_acquire);
      if (job != seen) return job;
      _mm_pause();
      if (looks < kIdleLooks) continue;
      sched_yield();
      if (looks < kIdleLooks + kIdleYields) continue;
      std::unique_lock<std::mutex> lock(sleep_);
      sleeping_.fetch_add(1, std::memory_order_acq_rel);
      wake_.wait(lock, [&] { return job_.load(std::memory_order_acquire) != seen; });
      sleeping_.fetch_sub(1, std::memory_order_acq_rel);
    }
  }

  std::mutex turn_, sleep_;
  std::condition_variable wake_;
  std::vector<std::thread> helpers_;
  std::function<void(int)> work_;
  // The number of the job, and in the lowest bits on how many threads it runs: one word, so that nobody takes the one
  // from this job and the other from the next.
  static constexpr uint64_t kThreads = 0xffff;
  alignas(64) std::atomic<uint64_t> job_{0};
  alignas(64) std::atomic<int> done_{0};
  std::atomic<int> sleeping_{0};
};

}  // namespace stride
