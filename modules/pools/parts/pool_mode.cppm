// The mode of a pool: its settings, whether it serves requests at once, and when the library thread makes its next
// pass.
// SPDX-License-Identifier: Apache-2.0
module;
#include <gpumem/lock_attributes.hpp>
#include <cstdint>
export module gpumem:pool_mode;
import :backend_parts;
import :backoff;
import :block;
import :chunk_list;
import :pool_options;
import :reuse_rules;
import :shard_list;
import :shard_roles;
import :std;
import :stream_epochs;
import :stream_timeline;
import :sync;
import :thread_caches;
import :timer;

namespace gpumem::detail {

/// How a pool treats a new request, and the count of changes after which a waiting request may succeed.
export class admission {
public:
  // Called by any thread, without a lock.
  /// Returns whether requests wait. Meanwhile no freed block stays in a thread cache.
  inline bool has_waiting() const noexcept { return state_.load(std::memory_order_relaxed) == state::queue; }
  inline bool is_closed() const noexcept { return state_.load(std::memory_order_relaxed) == state::closed; }
  /// Returns whether the pool is not closed and no request waits, so that a new request is served immediately.
  inline bool is_open() const noexcept { return state_.load(std::memory_order_relaxed) == state::open; }

  // Called under the locks of all shards.
  /// Sets whether requests wait. Not called after set_closed().
  GPUMEM_REQUIRES(all_shards) void set_waiting(bool present) noexcept {
    state_.store(present ? state::queue : state::open, std::memory_order_relaxed);
  }
  /// From now on requests are refused with outcome::closed.
  GPUMEM_REQUIRES(all_shards) void set_closed() noexcept { state_.store(state::closed, std::memory_order_relaxed); }
  /// Counts a free, a new limit, or another change after which a refused request may succeed.
  GPUMEM_REQUIRES(all_shards) inline void count_change() noexcept { ++changes_; }
  GPUMEM_REQUIRES(all_shards) inline std::uint64_t changes() const noexcept { return changes_; }
  /// Calls the function, and resets the count of changes to its value before the call. Returns the number of changes
  /// that the function made.
  template <class Function> GPUMEM_REQUIRES(all_shards) std::uint64_t without_counting(Function function) noexcept {
    auto const before = changes_;
    function();
    return std::exchange(changes_, before) - before;
  }

private:
  enum class state : std::uint8_t { open, queue, closed };

  std::atomic<state> state_{state::open};
  std::uint64_t changes_ GPUMEM_GUARDED_BY(all_shards) = 1;
};

/// Posts passes of the library thread, one at a time, with growing pauses. Guarded by the locks of all shards.
export class pass_timer {
public:
  /// Keeps references to both arguments. `next_pass`: the timer whose expiry is a pass.
  pass_timer(timer& next_pass, admission& requests) noexcept;

  /// Posts a pass after a pause. The pause grows with each pass that found no change for a waiting request. If no
  /// request waits, it grows with each pass that found memory still in use.
  GPUMEM_REQUIRES(all_shards) void schedule() noexcept;
  /// Counts a change after which waiting requests may succeed, and posts a pass that wakes them. For calls that cannot
  /// wake them themselves.
  GPUMEM_REQUIRES(all_shards) void notify() noexcept;
  /// Posts a pass for `deadline`, or for a millisecond from now if that is later. An earlier one that is posted stays.
  GPUMEM_REQUIRES(all_shards) void schedule_at(sync::time_point deadline) noexcept;
  /// Cancels a posted pass. Returns false if a pass runs or is about to run.
  GPUMEM_REQUIRES(all_shards) bool cancel() noexcept;
  GPUMEM_REQUIRES(all_shards) void begin_pass() noexcept;
  GPUMEM_REQUIRES(all_shards) void end_pass() noexcept { running_ = false; }

  /// Resets the pause, because a pass has found a change that may help a waiting request.
  GPUMEM_REQUIRES(all_shards) void restart_waiting() noexcept { waiting_pause_.restart(); }
  /// Notes that a pass found memory that is to go back to the upstream, but is still in use. `open`: whether polling
  /// can show the end of these uses. If it cannot, or after many such passes, the timer gives up.
  GPUMEM_REQUIRES(all_shards) void count_idle(bool open) noexcept;
  /// Notes that a free has left memory that is to go back to the upstream.
  GPUMEM_REQUIRES(all_shards) void restart_idle() noexcept {
    idle_pause_.restart();
    gives_up_ = false;
  }
  /// Returns whether the timer has given up: no pass is posted for memory that is to go back, until restart_idle().
  GPUMEM_REQUIRES(all_shards) bool gives_up() const noexcept { return gives_up_; }

private:
  GPUMEM_REQUIRES(all_shards) void post(sync::time_point time, bool late) noexcept;

  timer& timer_;
  admission& requests_;
  bool queued_ GPUMEM_GUARDED_BY(all_shards) = false;
  bool late_ GPUMEM_GUARDED_BY(all_shards) = false; // whether an earlier pass may replace the posted one
  sync::time_point posted_for_ GPUMEM_GUARDED_BY(all_shards);
  bool running_ GPUMEM_GUARDED_BY(all_shards) = false;
  bool gives_up_ GPUMEM_GUARDED_BY(all_shards) = true; // until the first restart_idle()
  // The pauses grow with passes that found no change for a waiting request, and with passes that found memory in use.
  backoff waiting_pause_ GPUMEM_GUARDED_BY(all_shards);
  backoff idle_pause_ GPUMEM_GUARDED_BY(all_shards);
};

/// The facts on which the mode depends. Sizes are in bytes.
export struct mode_facts {
  std::size_t reserved = 0;
  std::size_t release_threshold = SIZE_MAX;
  std::size_t shards = 1;       ///< active shards: their threads allocate under locks
  bool near_limit = false;      ///< less than a quarter of the limit is left
  bool under_pressure = false;  ///< a request found no memory without a wait, and too little was freed since
  bool closed = false;          ///< the pool refuses requests, or no handle of it is left
  bool deferred_frees = false;  ///< frees inside a graph capture wait for a later call that completes them
  bool multi_stream = false;    ///< more than one stream has used the pool
  bool host_accessible = false; ///< the host may touch memory as soon as it is allocated
};

/// The settings that follow from the facts.
export struct mode_settings {
  bool fast_path;               ///< a call may be served under the lock of one shard
  bool caching;                 ///< thread caches hold blocks
  bool frees_record;            ///< each free on a stream that may be destroyed records an event
  std::size_t largest_numbered; ///< the largest size that is rounded up to a size class
  std::array<std::size_t, size_class::kinds> cache_limits; ///< bytes of all thread caches together, by kind of size
  std::size_t cache_threads;                               ///< number of threads that share the limits
  event_threshold threshold;                               ///< of the thread caches
};

/// Returns the settings for these facts.
export mode_settings derive_mode(mode_facts const& facts) noexcept;

/// Returns the number of freed bytes of a stream after which a free records an event, so that other streams can reuse
/// the memory. It is half of the reserved bytes but at least 64 MiB, since in a small pool events cost more than that
/// reuse saves. Near the limit it is 1/256 of the reserved bytes.
export std::size_t event_threshold_of(std::size_t reserved, bool near_limit) noexcept;
/// Returns whether memory is to go back to the upstream. Release in the background begins when the reserved bytes
/// exceed the threshold by an eighth, and ends at the threshold.
export bool is_too_much(std::size_t reserved, std::size_t release_threshold) noexcept;

/// The facts of one pool, and the settings that follow. update() applies them after each change of a fact.
export class pool_mode final : public reserved_observer {
public:
  /// Keeps references to all arguments.
  pool_mode(pool_options const& options, reuse_rules const& rules, chunk_list const& chunks, shard_list const& shards,
            admission const& requests, thread_caches& caches) noexcept
      : options_{options}, rules_{rules}, chunks_{chunks}, shards_{shards}, requests_{requests}, caches_{caches} {}

  // Called by any thread, without a lock. Each returns the member of mode_settings or mode_facts that has the same
  // name.
  inline std::size_t largest_numbered() const noexcept { return largest_numbered_.load(std::memory_order_relaxed); }
  inline bool near_limit() const noexcept { return near_limit_.load(std::memory_order_relaxed); }
  inline bool frees_record() const noexcept { return frees_record_.load(std::memory_order_relaxed); }

  // Called under the lock of any shard.
  GPUMEM_REQUIRES_SHARED(all_shards) inline bool fast_path() const noexcept { return fast_path_; }
  GPUMEM_REQUIRES_SHARED(all_shards) inline bool multi_stream() const noexcept { return multi_stream_; }
  GPUMEM_REQUIRES_SHARED(all_shards) inline bool under_pressure() const noexcept { return under_pressure_; }
  /// Returns whether a call on the stream may be served under the lock of one shard.
  GPUMEM_REQUIRES_SHARED(all_shards) inline bool may_use_one_lock(stream_timeline const& timeline) const noexcept {
    return fast_path_ && (multi_stream_ || first_stream_ == &timeline);
  }
  GPUMEM_REQUIRES_SHARED(all_shards) inline std::size_t event_threshold_bytes() const noexcept {
    return event_threshold_of(chunks_.reserved(), chunks_.near_limit());
  }
  GPUMEM_REQUIRES_SHARED(all_shards) inline bool too_much_reserved() const noexcept {
    return is_too_much(chunks_.reserved(), options_.release_threshold);
  }

  // Called under the locks of all shards.
  GPUMEM_REQUIRES_SHARED(all_shards) inline bool no_handles() const noexcept { return no_handles_; }
  /// Notes that the stream uses the pool. After the second stream was added, frees record events.
  GPUMEM_REQUIRES(all_shards) inline void add_stream(stream_timeline const& timeline) noexcept {
    if (!first_stream_) first_stream_ = &timeline;
    if (!multi_stream_ && first_stream_ != &timeline) set(multi_stream_, true);
  }
  GPUMEM_REQUIRES(all_shards) void set_under_pressure(bool enabled) noexcept { set(under_pressure_, enabled); }
  GPUMEM_REQUIRES(all_shards) void set_deferred_frees(bool present) noexcept { set(deferred_frees_, present); }
  GPUMEM_REQUIRES(all_shards) void set_no_handles() noexcept { set(no_handles_, true); }
  GPUMEM_REQUIRES(all_shards) void on_reserved_changed() noexcept override { update(); }
  /// Derives the settings from the facts and applies them. The setters above call update() themselves. Other code calls
  /// it after a change of the limit or of the number of active shards, and after the pool was closed.
  GPUMEM_REQUIRES(all_shards) void update() noexcept;

private:
  GPUMEM_REQUIRES(all_shards) void set(bool& fact, bool value) noexcept {
    if (std::exchange(fact, value) != value) update();
  }

  pool_options const& options_;
  reuse_rules const& rules_;
  chunk_list const& chunks_;
  shard_list const& shards_;
  admission const& requests_;
  thread_caches& caches_;

  std::atomic<std::size_t> largest_numbered_{derive_mode({}).largest_numbered};
  std::atomic<bool> near_limit_{false};
  std::atomic<bool> frees_record_{false};

  // Changed under the locks of all shards.
  stream_timeline const* first_stream_ GPUMEM_GUARDED_BY(all_shards) = nullptr;
  bool fast_path_ GPUMEM_GUARDED_BY(all_shards) = false;
  bool multi_stream_ GPUMEM_GUARDED_BY(all_shards) = false;
  bool under_pressure_ GPUMEM_GUARDED_BY(all_shards) = false;
  bool deferred_frees_ GPUMEM_GUARDED_BY(all_shards) = false;
  bool no_handles_ GPUMEM_GUARDED_BY(all_shards) = false;
};

} // namespace gpumem::detail
