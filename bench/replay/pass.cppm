// One run through a plan over a resource: the timed loop, the times that it keeps, and what is counted beside it.
// SPDX-License-Identifier: Apache-2.0
module;
#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <utility>
#include <vector>
export module replay:pass;
import gpumem;
import :plan;

namespace replay {

/// The clock of passes, as a number. Templates of a module must not subtract time points: reduced BMIs lack that
/// operator, since the standard keeps no declaration of the global module fragment for a dependent expression.
export struct steady_nanoseconds {
  static inline std::int64_t now() noexcept {
    return std::chrono::nanoseconds{std::chrono::steady_clock::now().time_since_epoch()}.count();
  }
};

/// Delays each call of a pass until its recorded time since `begin`, and stores the nanoseconds that it took, including
/// the clock. A late call is made at once; later calls keep their own times. The thread spins, since a sleep may end
/// late. For passes over one plan, which must outlive the timer. Not thread-safe.
export template <class Clock = steady_nanoseconds> class pace_timer {
public:
  explicit pace_timer(plan const& of)
      : operations_{of.operations.data()}, microseconds_{of.microseconds}, nanoseconds_(of.operations.size()) {}

  /// Call directly before each pass.
  void begin() noexcept {
    nanoseconds_.clear();
    origin_ = Clock::now();
  }

  inline void before(operation const& next) noexcept {
    std::int64_t const due = origin_ + 1000 * static_cast<std::int64_t>(microseconds_[place_of(next)]);
    do { begin_ = Clock::now(); } while (begin_ < due);
  }
  inline void after(operation const&, void*) noexcept {
    nanoseconds_.push_back(static_cast<double>(Clock::now() - begin_));
  }
  /// Returns the durations of the calls since `begin`, in their order.
  std::span<double const> nanoseconds() const noexcept { return nanoseconds_; }

private:
  // Returns the operation's index in the plan, which is also the index of its time.
  inline std::size_t place_of(operation const& one) const noexcept {
    return static_cast<std::size_t>(&one - operations_);
  }

  operation const* operations_;
  std::span<std::uint64_t const> microseconds_;
  std::vector<double> nanoseconds_; // filled once at construction, so that no pass pays for page faults
  std::int64_t origin_ = 0;
  std::int64_t begin_ = 0;
};

/// The state of one thread between the operations of a pass. Made before the clock starts.
export struct pass_state {
  explicit pass_state(plan const& of) : blocks(of.blocks) {}

  std::vector<void*> blocks; ///< by block number; null if there is no block or its allocation failed
  std::uint64_t failures = 0;
  std::optional<gpumem::failure> fatal; ///< the first failure other than a lack of memory
};

/// A watch that does nothing.
export struct no_timer {
  inline void before(operation const&) noexcept {}
  inline void after(operation const&, void*) noexcept {}
};

/// Stores the nanoseconds of each call, including the clock.
export class call_timer {
public:
  explicit call_timer(std::size_t calls) { nanoseconds_.reserve(calls); }

  inline void before(operation const&) noexcept { begin_ = clock::now(); }
  inline void after(operation const&, void*) noexcept {
    nanoseconds_.push_back(std::chrono::duration<double, std::nano>(clock::now() - begin_).count());
  }
  std::span<double> nanoseconds() noexcept { return nanoseconds_; }

private:
  using clock = std::chrono::steady_clock;
  clock::time_point begin_;
  std::vector<double> nanoseconds_;
};

/// Runs the plan. `streams` are indexed by stream number. Skips the free of a block whose allocation failed.
export template <class Resource, class Watch>
void run_pass(Resource& resource, plan const& of, std::span<gpumem::stream_ref const> streams, pass_state& state,
              Watch& watch) {
  for (operation const& next : of.operations) {
    void*& block = state.blocks[next.block];
    if (next.allocates) {
      watch.before(next);
      auto const got = resource.try_allocate(streams[next.stream], next.bytes);
      block = got ? *got : nullptr;
      watch.after(next, block);
      if (!got) [[unlikely]] {
        ++state.failures;
        auto const what = got.error().reason;
        bool const lacking = what == gpumem::outcome::exhausted || what == gpumem::outcome::too_large;
        if (!lacking && !state.fatal) state.fatal = got.error();
      }
    } else if (block != nullptr) {
      watch.before(next);
      resource.deallocate(streams[next.stream], block, next.bytes);
      watch.after(next, block);
    }
  }
}

/// Frees the blocks that the plan leaves live, so that the next pass starts from the same state.
export template <class Resource>
void free_live_at_end(Resource& resource, plan const& of, std::span<gpumem::stream_ref const> streams,
                      pass_state& state) {
  for (operation const& next : of.live_at_end) {
    if (void*& block = state.blocks[next.block]; block != nullptr) {
      resource.deallocate(streams[next.stream], block, next.bytes);
      block = nullptr;
    }
  }
}

/// Reads the statistics of the resource after each call during which the driver was called, since only then the
/// resource can have grown. For a pass whose times are not used. Calls another watch too.
export template <class Resource, class Watch> class growth_timer {
public:
  growth_timer(Resource const& of, Watch other) : resource_{of}, other_{std::move(other)} {}

  inline void before(operation const& next) { other_.before(next); }
  void after(operation const& next, void* block) {
    if (auto const calls = gpumem::driver_api::driver_calls(); calls != calls_) {
      auto const now = resource_.statistics();
      if (now.reserved > peak_.reserved) peak_ = now;
      calls_ = gpumem::driver_api::driver_calls();
    }
    other_.after(next, block);
  }

  /// Returns the first statistics with the most reserved bytes.
  gpumem::statistics const& peak() const noexcept { return peak_; }

private:
  Resource const& resource_;
  Watch other_;
  gpumem::statistics peak_;
  std::uint64_t calls_ = 0;
};

/// Returns the share of the free bytes that is outside the largest free range; 0 if nothing is free.
export inline double fragmentation_of(gpumem::statistics const& of) {
  if (of.free == 0) return 0;
  return std::max(0.0, 1 - static_cast<double>(of.largest_free) / static_cast<double>(of.free));
}

/// The notes of one thread about a pass: the time of each `stride`-th operation of the plan, 0 if it was skipped, and
/// the allocations that failed.
export struct pass_notes {
  std::vector<std::int64_t> times;
  std::vector<std::size_t> failed; ///< their places in the plan, ascending
};

/// Returns the most requested bytes that all threads had live at once: puts the operations of all threads in the order
/// of their times. Operations between two times are spread evenly.
export std::uint64_t live_at_once(plan const& of, std::size_t stride, std::span<pass_notes const> threads);

/// Counts the live bytes of passes in which several threads run, whatever the resource knows about them. A thread
/// writes only its own notes, so that the threads do not wait for each other.
export class live_counter {
public:
  /// Notes every operation, or with `sparse` one of `sparse_stride`, which costs less time. Counts nothing for one
  /// thread, whose peak is that of the plan.
  live_counter(plan const& of, unsigned threads, bool sparse)
      : of_{of}, mask_{sparse ? sparse_stride - 1 : 0}, notes_(threads > 1 ? threads : 0) {
    for (pass_notes& each : notes_) each.times.resize(of.operations.size() / (mask_ + 1) + 1);
  }

  /// Runs the pass of one thread of the team.
  template <class Resource, class Member, class Watch> void run(Resource& resource, Member mine, Watch& watch) {
    if (notes_.empty()) return run_pass(resource, of_, mine.streams, mine.state, watch);
    noting both{*this, notes_[mine.number], watch};
    run_pass(resource, of_, mine.streams, mine.state, both);
  }
  /// Counts the pass that all threads have ended.
  void end_pass();
  /// Returns the most bytes that were live at once in a pass; 0 for one thread.
  std::uint64_t peak() const noexcept { return peak_; }

private:
  static constexpr std::size_t sparse_stride = 16;

  // A block is live from the end of its allocation to the begin of its free.
  template <class Watch> struct noting {
    live_counter const& counter;
    pass_notes& mine;
    Watch& other;

    inline void before(operation const& next) {
      if (!next.allocates) note(next);
      other.before(next);
    }
    inline void after(operation const& next, void* block) {
      other.after(next, block);
      if (!next.allocates) return;
      note(next);
      if (!block) [[unlikely]]
        mine.failed.push_back(counter.place_of(next));
    }
    inline void note(operation const& next) noexcept {
      std::size_t const place = counter.place_of(next);
      if ((place & counter.mask_) == 0) mine.times[place / (counter.mask_ + 1)] = steady_nanoseconds::now();
    }
  };
  inline std::size_t place_of(operation const& one) const noexcept {
    return static_cast<std::size_t>(&one - of_.operations.data());
  }

  plan const& of_;
  std::size_t mask_; // stride - 1
  std::vector<pass_notes> notes_;
  std::uint64_t peak_ = 0;
};

} // namespace replay
