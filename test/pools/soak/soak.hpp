// One soak run: its threads, their blocks, and its counts. Every block carries its owner's stamp, which is checked at
// its free. A thread tells the simulated device's checker of its blocks in one of 32 periods between trims, as work on
// the whole block. The pool's consistency is checked after every 65,536 steps of a thread. Include it after
// `import gpumem;` and what main.cpp includes before: it includes nothing itself.
// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace gpumem_test {

namespace simulator = gpumem::simulator;
inline constexpr std::uint64_t told_one_in = 32, checked_every = 1 << 16;
inline constexpr double least_steals = 1, least_growth = .1; // percent

struct settings {
  std::uint64_t operations = 100'000'000;
  unsigned threads = 4;
  std::uint64_t seed = 1;
};

// An upstream whose memory carries no stamps.
class blank_upstream : public region_upstream {
public:
  using region_upstream::region_upstream;
  void* allocate(cuda::stream_ref stream, std::size_t bytes, std::size_t alignment = 256) {
    return std::memset(region_upstream::allocate(stream, bytes, alignment), 0, bytes);
  }
};

struct block {
  std::byte* pointer;
  std::size_t bytes;
  unsigned stream;
  bool told; // the checker knows of it
};

// At the start of a block: its owner, or the stream on which it was freed.
struct stamp {
  std::uint64_t live; // 0: free
  std::uint64_t stream;
};

struct counted {
  std::uint64_t allocations = 0, steals = 0, failures = 0;
};

template <class Pool> class soak {
public:
  soak(shape const& what, settings const& how, Pool pool, std::vector<gpumem::stream>& streams)
      : what_{what}, how_{how}, pool_{std::move(pool)}, streams_{streams}, handed_(how.threads),
        together_{how.threads} {}

  // Returns whether no fault was found.
  bool run() {
    auto const begun = std::chrono::steady_clock::now();
    std::vector<std::thread> threads;
    for (unsigned i = 0; i < how_.threads; ++i) threads.emplace_back([this, i] { body(i); });
    for (auto& thread : threads) thread.join();
    std::chrono::duration<double> const seconds = std::chrono::steady_clock::now() - begun;
    for (auto& each : handed_) {
      for (auto const& one : each) free(one, one.stream);
    }
    check();
    auto const statistics = pool_.statistics();
    if (statistics.live != 0) fail("live bytes are left");
    auto const percent = [](std::uint64_t part, std::uint64_t of) {
      return 100. * static_cast<double>(part) / static_cast<double>(of);
    };
    auto const steals = percent(all_.steals, all_.allocations);
    auto const growth = percent(statistics.upstream_allocations + statistics.upstream_frees, done_);
    std::printf(
        "%-20s %11llu operations %8.1f s %6.0f ns each; %5.2f %% steals, %5.2f %% growth or trim, %llu failed\n",
        what_.name, static_cast<unsigned long long>(done_), seconds.count(),
        seconds.count() * 1e9 / static_cast<double>(done_), steals, growth,
        static_cast<unsigned long long>(all_.failures));
    if (steals < least_steals) fail("too few steals");
    if (growth < least_growth) fail("too little growth or trim");
    std::fflush(stdout);
    return well_;
  }

private:
  void fail(std::string const& text) {
    std::scoped_lock const held{mutex_};
    if (well_.exchange(false)) std::printf("%s: %s\n", what_.name, text.c_str());
  }

  void body(unsigned number) {
    gpumem::device_guard const here{gpumem::device::current()};
    random_source random{how_.seed * 64 + number};
    std::vector<block> live;
    std::size_t bytes = 0;
    counted mine;
    auto const most = how_.operations / std::size(shapes) / how_.threads;
    std::uint64_t done = 0;
    for (std::uint64_t steps = 0; done < most && well_;) {
      ++done;
      if (++steps % what_.ebb_every == 0) {
        done += live.size();
        ebb(number, std::exchange(live, {}));
        bytes = 0;
      }
      bool const telling = steps / what_.ebb_every % told_one_in == 0;
      if (bytes < random.below(what_.most_live)) {
        if (auto const got = allocate(random, number, telling, mine); got.pointer) {
          live.push_back(got);
          bytes += got.bytes;
        }
      } else if (!live.empty()) {
        std::swap(live[random.below(live.size())], live.back());
        bytes -= live.back().bytes;
        end(random, number, live.back());
        live.pop_back();
      }
      take_handed(number);
      if (steps % checked_every == 0) check();
    }
    for (auto const& each : live) free(each, each.stream);
    together_.arrive_and_drop();
    std::scoped_lock const held{mutex_};
    done_ += done;
    all_.allocations += mine.allocations;
    all_.steals += mine.steals;
    all_.failures += mine.failures;
  }

  block allocate(random_source& random, unsigned number, bool told, counted& mine) {
    auto const powers = static_cast<std::uint64_t>(std::bit_width(what_.largest / what_.smallest));
    auto const power = what_.smallest << random.below(powers);
    auto const bytes = power - random.below(power / 2);
    auto const on =
        static_cast<unsigned>(random.one_in(what_.elsewhere_one_in) ? random.below(streams_.size()) : number);
    auto const got = pool_.try_allocate(streams_[on], bytes);
    if (!got) {
      ++mine.failures;
      return {};
    }
    block const made{static_cast<std::byte*>(*got), bytes, on, told};
    auto& mark = *static_cast<stamp*>(*got);
    if (mark.live != 0) fail("a block overlaps a live one");
    ++mine.allocations;
    mine.steals += mark.stream != 0 && mark.stream != on + 1;
    mark = {reinterpret_cast<std::uintptr_t>(*got) ^ bytes, on + 1};
    if (made.told) work(made, on);
    return made;
  }

  void work(block const& one, unsigned on) {
    simulator::work(streams_[on], {simulator::write(one.pointer, one.bytes)}, std::chrono::microseconds{1});
  }

  void free(block const& one, unsigned on) {
    auto& mark = *reinterpret_cast<stamp*>(one.pointer);
    if (mark.live != (reinterpret_cast<std::uintptr_t>(one.pointer) ^ one.bytes)) fail("a block lost its stamp");
    mark = {0, on + 1};
    pool_.deallocate(streams_[on], one.pointer, one.bytes);
  }

  void end(random_source& random, unsigned number, block const& one) {
    if (!random.one_in(what_.handed_one_in)) return free(one, one.stream);
    auto const to = (number + 1) % how_.threads;
    std::scoped_lock const held{mutex_};
    handed_[to].push_back(one);
    waiting_ = true;
  }

  // All threads free all blocks, as at the end of a step of a program, and one thread trims the pool.
  void ebb(unsigned number, std::vector<block> const& all) {
    for (auto const& each : all) free(each, each.stream);
    together_.arrive_and_wait();
    take_handed(number);
    gpumem::event done{gpumem::device::current()};
    done.record(streams_[number]);
    done.synchronize();
    together_.arrive_and_wait();
    if (number == 0) pool_.trim(0);
    together_.arrive_and_wait();
  }

  // Frees the blocks that the previous thread has handed over, on this thread's stream, ordered after the work on the
  // other stream.
  void take_handed(unsigned number) {
    if (!waiting_.load(std::memory_order_relaxed)) return;
    std::deque<block> mine;
    {
      std::scoped_lock const held{mutex_};
      mine.swap(handed_[number]);
      waiting_ = std::ranges::any_of(handed_, [](auto const& each) { return !each.empty(); });
    }
    if (mine.empty()) return;
    gpumem::event happened{gpumem::device::current()};
    for (auto const& each : mine) {
      happened.record(streams_[each.stream]);
      happened.make_wait(streams_[number]);
      if (each.told) work(each, number);
      free(each, number);
    }
  }

  void check() {
    auto const services = pool_.services();
    if (!static_cast<gpumem::detail::pool_state*>(services.state)->engine().is_consistent()) {
      fail("allocated and free bytes are not the reserved bytes");
    }
    for (auto const& found : simulator::take_findings()) fail(found.text);
  }

  shape const& what_;
  settings const& how_;
  Pool pool_;
  std::vector<gpumem::stream>& streams_; // one per thread, in the order of the threads
  std::vector<std::deque<block>> handed_;
  std::barrier<> together_;
  std::atomic<bool> waiting_{false}; // some thread has been handed a block
  std::atomic<bool> well_{true};
  std::mutex mutex_;
  counted all_;
  std::uint64_t done_ = 0;
};

} // namespace gpumem_test
