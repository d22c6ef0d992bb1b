// Work that is preempted for older work, beside a cache that frees memory on request and needs more memory to do so.
// Include it after `import gpumem;`, chance.hpp and the standard headers of pool_spiller_schedule_test.cpp: it includes
// nothing itself.
// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace gpumem_test {

// Counts of events by name, and the faults found. Used under a schedule, where one thread runs at a time, so it has no
// lock.
class spiller_notes {
public:
  explicit spiller_notes(bool shows) : shows_{shows} {}
  void tell(char const* what, std::size_t bytes = 0) {
    ++told_[what];
    if (shows_) std::printf("%s %zu\n", what, bytes);
  }
  void wrong(std::string const& what) {
    if (wrong_.find(what) == std::string::npos) wrong_ += what + "; ";
  }
  std::map<std::string, std::uint64_t> const& told() const { return told_; }
  std::string const& wrong() const { return wrong_; }

private:
  bool const shows_;
  std::map<std::string, std::uint64_t> told_;
  std::string wrong_;
};

inline void pause(random_source& random) {
  for (auto times = random.below(12); times > 0; --times) gpumem::detail::sync::schedule_point();
}

// A cache of blocks that can be freed. To copy one to the host it needs another block of the same pool.
template <class Pool> class spilled_cache {
public:
  spilled_cache(Pool pool, std::size_t block, std::size_t limit, std::uint64_t seed, spiller_notes& notes)
      : pool_{std::move(pool)}, block_{block}, limit_{limit}, random_{seed}, notes_{notes} {
    if (random_.one_in(2)) mark_.emplace(scope_.waiting_elsewhere());
  }

  // Adds a block if the pool has memory; work calls this too.
  void add(gpumem::stream& on) {
    auto got = scope_.acquire(on, block_).try_now();
    if (got) blocks_.push_back(std::move(*got));
  }
  std::size_t spill(std::size_t wanted) {
    if (wanted == 0) notes_.wrong("asked for nothing");
    if (spilling_) notes_.wrong("asked again meanwhile");
    spilling_ = true;
    std::size_t freed = 0;
    auto const enough = random_.one_in(2) ? wanted : 1; // or one block per call
    while (freed < enough && !blocks_.empty()) freed += spill_one();
    notes_.tell("asks to spill", wanted);
    spilling_ = false;
    if (freed == 0 && random_.one_in(4)) {
      notes_.tell("throws");
      throw std::runtime_error{"nothing is left"};
    }
    if (freed == 0 && random_.one_in(3)) {
      notes_.tell("lies");
      return wanted;
    }
    return freed;
  }

private:
  std::size_t spill_one() {
    auto const block = std::move(blocks_.front());
    blocks_.pop_front();
    auto const before = pool_.statistics().peak_live;
    auto const staging = pool_.try_allocate(block.stream(), block_ / 2);
    pause(random_);
    auto const now = pool_.statistics();
    if (now.live > limit_) notes_.wrong("more is live than the limit");
    if (now.peak_live > before) notes_.tell("raises the peak", now.peak_live);
    notes_.tell(staging ? "spills by way of another block" : "spills without one");
    if (!staging) return block_;
    gpumem::simulator::work(block.stream(), {gpumem::simulator::read(block.data(), block_),
                                             gpumem::simulator::write(*staging, block_ / 2)});
    pool_.deallocate(block.stream(), *staging, block_ / 2);
    return block_;
  }

  Pool pool_;
  gpumem::scope<Pool> scope_{pool_, "cache"};
  std::optional<gpumem::waiting_mark> mark_;
  std::size_t const block_, limit_;
  random_source random_;
  spiller_notes& notes_;
  std::deque<gpumem::allocation> blocks_;
  bool spilling_ = false;
};

// One thread, which does one work after the other and adds to the cache in between.
template <class Pool> class spiller_member {
  using scope = gpumem::scope<Pool>;

public:
  // Each work takes at most `most` units.
  spiller_member(Pool pool, spilled_cache<Pool>& cache, gpumem::stream& on, std::size_t unit, std::size_t most,
                 std::uint64_t seed, spiller_notes& notes)
      : pool_{std::move(pool)}, cache_{cache}, on_{on}, unit_{unit}, most_{most}, random_{seed}, notes_{notes} {}

  void run(int works) {
    gpumem::thread_executor own;
    resume_on_ = random_.one_in(2) ? &own : &gpumem::default_executor();
    for (int i = 0; i < works; ++i) {
      hurries_ = random_.one_in(8);
      gpumem::sync_wait(whole());
      pause(random_);
      if (random_.one_in(2)) cache_.add(on_);
    }
  }

private:
  gpumem::task<> whole() {
    scope work{pool_};
    auto const count = 1 + random_.below(3);
    auto const largest = most_ / count; // so that there is room beside its own blocks
    auto const each = unit_ * (largest - random_.below(largest / 2 + 1));
    int ends = 0;
    auto const undo = [&] {
      notes_.tell("gives way");
      if (work.held() > 0) notes_.wrong("rolled back before it has freed what it holds");
      pause(random_);
    };
    try {
      co_await gpumem::with_retry(work, [&] { return parts(work, count, each); }, undo, resume_on_);
      ++ends;
      notes_.tell("ends");
    } catch (gpumem::acquire_error const& e) {
      ++ends;
      notes_.tell("is late");
      if (e.reason() != gpumem::outcome::deadline || !hurries_) {
        notes_.wrong("ended without need by " + std::to_string(static_cast<int>(e.reason())));
      }
    }
    if (ends != 1) notes_.wrong("ended more than once");
    if (work.held() > 0) notes_.wrong("a scope still counts freed memory");
  }
  gpumem::task<> parts(scope work, std::uint64_t count, std::size_t bytes) {
    std::array<gpumem::allocation, 3> held;
    for (std::uint64_t i = 0; i < count; ++i) {
      gpumem::acquire_options how{.resume_on = resume_on_};
      if (hurries_) how.deadline = gpumem::detail::sync::now() + std::chrono::microseconds{random_.below(40)};
      held.at(i) = co_await work.acquire(on_, bytes, how);
      gpumem::simulator::work(on_, {gpumem::simulator::write(held.at(i).data(), bytes)});
      pause(random_);
    }
  }

  Pool pool_;
  spilled_cache<Pool>& cache_;
  gpumem::stream& on_;
  std::size_t const unit_, most_;
  random_source random_;
  spiller_notes& notes_;
  gpumem::executor* resume_on_ = nullptr;
  bool hurries_ = false;
};

} // namespace gpumem_test
