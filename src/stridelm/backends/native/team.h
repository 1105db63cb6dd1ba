// A team of threads that run the same work together.
//
// A forward is one `run`, in which the threads meet at a barrier 150 times or more. They spin while they wait, since
// that takes less than a microsecond. A thread that has spun for long yields, so that another process can use its core;
// a thread without work for some milliseconds sleeps.
//
// If other processes hold the cores, the first thread waits for threads that do not run, at every barrier, for as long
// as the system lets others run. It notices that, goes on without them, and tries again after some runs.
#pragma once

#include <pthread.h>
#include <sched.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <new>
#include <thread>
#include <vector>

#include "lanes.h"

namespace stride {

constexpr int kSpins = 2000;  // about 30 microseconds, then yield

// Whether other processes hold the cores. Only the first thread asks and tells.
class Crowd {
 public:
  using Clock = std::chrono::steady_clock;

  // The number of threads for the next run.
  int begin(int wanted) {
    started_ = Clock::now();
    waited_in_run_ = {};
    is_alone_ = left_ > 0;
    if (is_alone_) left_--;
    return is_alone_ ? 1 : wanted;
  }
  void waited(Clock::duration time) { waited_in_run_ += time; }
  // Within a run: has so much been lost that the rest is quicker alone? In a long run, as over a prompt, threads wait
  // as long as that because their shares differ: only a large part of the run counts.
  bool is_lost() const { return waited_in_run_ > kLost && waited_in_run_ * 3 > Clock::now() - started_; }

  void end() {
    if (is_alone_) return;
    const auto ran = Clock::now() - started_;
    // In a short run, as for a draft, most of the time may go to waking a thread that has gone to sleep.
    if (ran < kShort) return;
    const bool lost = is_lost();
    waited_ += waited_in_run_;
    ran_ += ran;
    if (!lost && ++runs_ < kRuns) return;
    // Rest longer each time that another try shows the same; a single hitch of the system costs little.
    if (lost || waited_ * 3 > ran_) left_ = rest_ = std::min(2 * rest_, kMaxRest);
    else rest_ = kMinRest / 2;
    waited_ = ran_ = {};
    runs_ = 0;
  }

 private:
  static constexpr std::chrono::milliseconds kLost{8};
  static constexpr std::chrono::microseconds kShort{500};
  static constexpr int kRuns = 8, kMinRest = 2, kMaxRest = 512;
  Clock::time_point started_;
  Clock::duration waited_in_run_{}, waited_{}, ran_{};  // the last two over `runs_` runs
  int runs_ = 0, left_ = 0, rest_ = kMinRest / 2;       // left: runs until the others are tried again
  bool is_alone_ = false;
};

// In two halves: what a thread computes between `arrive` and `wait` is time that it does not wait.
class Barrier {
 public:
  // Returns the round to wait for.
  int arrive(int threads) {
    const int round = round_.load(std::memory_order_relaxed);
    if (threads == 1) return round - 1;
    if (arrived_.fetch_add(1, std::memory_order_acq_rel) == threads - 1) {
      arrived_.store(0, std::memory_order_relaxed);
      round_.store(round + 1, std::memory_order_release);
    }
    return round;
  }
  // Returns how long the others took, if it was long enough to yield.
  Crowd::Clock::duration wait(int round) {
    for (int spins = 0; spins < kSpins; spins++) {
      if (round_.load(std::memory_order_acquire) != round) return {};
      pause_spinning();
    }
    const auto before = Crowd::Clock::now();
    while (round_.load(std::memory_order_acquire) == round) sched_yield();
    return Crowd::Clock::now() - before;
  }

 private:
  alignas(64) std::atomic<int> arrived_{0};
  alignas(64) std::atomic<int> round_{0};
};

class Team {
 public:
  // One per process: two teams would compete for the cores.
  static Team& instance() {
    static Team* team = [] {
      // A forked process has none of these threads: it starts its own.
      pthread_atfork(nullptr, nullptr, [] { new (&instance()) Team; });
      return new Team;  // never destroyed: its threads may still sleep when the process ends
    }();
    return *team;
  }

  // Call work(thread, threads) on `threads` threads, the caller's being the first. One run at a time.
  template <class Work>
  void run(int threads, Work work) {
    std::lock_guard<std::mutex> one_run(run_);
    threads = active_ = threads > 1 ? crowd_.begin(threads) : 1;
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
    for (int spins = 0; done_.load(std::memory_order_acquire) < threads - 1; spins++) {
      pause_spinning();
      if (spins >= kSpins) sched_yield();
    }
    crowd_.end();
  }

  // Wait until all threads of the run have come here.
  void wait(int thread, int threads) { wait_for(arrive(threads), thread); }
  // The same in two halves: say that this thread has come here; later wait until all have.
  int arrive(int threads) { return barrier_.arrive(threads); }
  void wait_for(int arrival, int thread) {
    const auto waited = barrier_.wait(arrival);
    if (thread == 0) crowd_.waited(waited);
  }

  // By the first thread, before a barrier: do the others take part in what follows? After the barrier `threads` tells
  // all of them.
  void decide() {
    if (active_ > 1 && crowd_.is_lost()) active_ = 1;  // once: threads that leave still read it
  }
  int threads() const { return active_; }

 private:
  static constexpr int kIdleSpins = 20000;  // under a millisecond, then yield kIdleYields times, then sleep
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
    for (int spins = 0;; spins++) {
      const uint64_t job = job_.load(std::memory_order_acquire);
      if (job != seen) return job;
      pause_spinning();
      if (spins < kIdleSpins) continue;
      sched_yield();
      if (spins < kIdleSpins + kIdleYields) continue;
      std::unique_lock<std::mutex> lock(sleep_);
      sleeping_.fetch_add(1, std::memory_order_acq_rel);
      wake_.wait(lock, [&] { return job_.load(std::memory_order_acquire) != seen; });
      sleeping_.fetch_sub(1, std::memory_order_acq_rel);
    }
  }

  Barrier barrier_;
  Crowd crowd_;
  int active_ = 1;
  std::mutex run_, sleep_;
  std::condition_variable wake_;
  std::vector<std::thread> helpers_;
  std::function<void(int)> work_;
  // The job's number, and in the lowest bits the number of its threads: one word, so that a thread never reads the one
  // of this job and the other of the next.
  static constexpr uint64_t kThreads = 0xffff;
  alignas(64) std::atomic<uint64_t> job_{0};
  alignas(64) std::atomic<int> done_{0};
  std::atomic<int> sleeping_{0};
};

}  // namespace stride
