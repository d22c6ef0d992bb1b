// The requests that wait for a pool's memory: their turns, what each lacks, and what the library thread does for them.
// SPDX-License-Identifier: Apache-2.0
module;
#include <gpumem/lock_attributes.hpp>
#include <cstdint>
#include <string>
export module gpumem:request_queue;
import :deadlock_monitor;
import :error;
import :frees;
import :holder;
import :pool_parts;
import :pressure_calls;
import :range_search;
import :shard_roles;
import :std;
import :sync;
import :waiter;

namespace gpumem::detail {

/// The waiting requests of one pool, and what each of them lacks. A request of several parts asks for several blocks at
/// once; if one is refused, it gives the others back. Guarded by the locks of all shards of the pool.
export class waiting_requests {
public:
  /// Keeps references to both arguments.
  waiting_requests(pool_parts& parts, shard_frees const& frees) noexcept
      : queue{parts.options.max_overtakes}, parts_{parts}, frees_{frees},
        guards_{guard_layout::of(parts.options.hardened)} {}

  waiter_list queue GPUMEM_GUARDED_BY(all_shards);

  /// For a request that has a turn, bytes are set aside. Returns the bytes that are free or could be reserved, less
  /// those set aside for other requests. `own_bytes`: the bytes set aside for the request that asks.
  GPUMEM_REQUIRES(one_shard, all_shards) std::size_t headroom(std::size_t own_bytes = 0) const noexcept;
  GPUMEM_REQUIRES(one_shard, all_shards) bool fits(waiter const& item) const noexcept;
  /// Rounds a size up as the pool does when it cannot grow: small sizes to a size class, larger ones to a multiple of
  /// 256 bytes.
  std::size_t rounded(std::size_t bytes) const noexcept;
  /// Returns the size of the block for a user's request, rounded up so. It includes the guards of a hardened pool.
  std::size_t block_size(std::size_t bytes, std::size_t alignment) const noexcept;
  /// Returns the sum of the block sizes of a request. That of a request that asks only for a turn may be more than the
  /// pool can have: the request then waits until no memory is live.
  std::size_t rounded(waiter const& item) const noexcept;
  /// Returns why the request can never be met any more: outcome::closed, device_lost or too_large; nullopt if a state
  /// of the pool could serve it. A request that asks only for a turn is never too large.
  GPUMEM_REQUIRES_SHARED(all_shards) std::optional<outcome> refusal(waiter const& item) const noexcept;
  /// Returns whether waiting cannot help the request: neither a free nor the end of work on streams can give it memory.
  /// No free can come if no memory is live, set aside for the turn of another request, or freed in a graph capture.
  GPUMEM_REQUIRES(one_shard, all_shards) bool waits_for_nothing(waiter const& item) const noexcept;
  /// Returns whether the pool has no handle, no live block and no waiting request.
  GPUMEM_REQUIRES(one_shard, all_shards) bool is_pool_unused() const noexcept;
  /// Returns whether a free inside a graph capture waits for a later call that completes it.
  GPUMEM_REQUIRES_SHARED(all_shards) inline bool has_deferred_frees() const noexcept { return frees_.any_deferred(); }

  /// Returns a count of changes that may let a refused request go on: it grows with each free, and with each free range
  /// whose uses a poll finds complete.
  GPUMEM_REQUIRES(one_shard, all_shards) std::uint64_t change_count() const noexcept;
  /// Returns the count for this request. For a request of several parts, it does not include blocks that such requests
  /// gave back.
  GPUMEM_REQUIRES(one_shard, all_shards) std::uint64_t change_count(waiter const& item) const noexcept;
  /// Returns the count without the blocks that requests of several parts gave back.
  GPUMEM_REQUIRES(one_shard, all_shards) std::uint64_t frees_of_others() const noexcept {
    return change_count() - returned_parts_;
  }
  GPUMEM_REQUIRES(all_shards) void count_returned_parts(std::uint64_t changes) noexcept { returned_parts_ += changes; }

  /// Notes that the upstream has refused to give the pool more than `reserved` bytes in all. The note is valid as long
  /// as requests wait.
  GPUMEM_REQUIRES(all_shards) void set_upstream_limit(std::size_t reserved) noexcept { upstream_limit_ = reserved; }
  /// Forgets that. Returns whether there was a note.
  GPUMEM_REQUIRES(all_shards) bool clear_upstream_limit() noexcept {
    return std::exchange(upstream_limit_, SIZE_MAX) != SIZE_MAX;
  }

private:
  GPUMEM_REQUIRES(one_shard, all_shards) bool is_held_by_others(waiter const& item) const noexcept;
  GPUMEM_REQUIRES_SHARED(all_shards) bool could_serve(waiter const& item) const noexcept;

  pool_parts& parts_;
  shard_frees const& frees_;
  guard_layout const guards_; // of a hardened pool; in other pools they have no bytes
  std::size_t upstream_limit_ GPUMEM_GUARDED_BY(all_shards) = SIZE_MAX;
  // The changes that count_returned_parts() has counted: blocks that requests of several parts gave back.
  std::uint64_t returned_parts_ GPUMEM_GUARDED_BY(all_shards) = 0;
};

/// Tells since when nothing has been granted or freed while requests wait. Guarded by the locks of all shards.
export class stall_detector {
public:
  /// After `timeout` without a grant or a free, the requests that wait count as stalled; 0: never.
  explicit stall_detector(sync::duration timeout) noexcept : timeout_{timeout} {}

  /// Returns whether there is a timeout.
  bool enabled() const noexcept;
  /// Called when the first request begins to wait.
  void begin() noexcept { quiet_since_ = sync::now(); }
  /// Counts a request that was granted while others wait, or that ended so that others can go on.
  void count_grant() noexcept { ++grants_; }
  /// Notes that this many changes are no sign of progress: requests of several parts gave back parts of their memory.
  void disregard(std::uint64_t changes) noexcept { vain_ += changes; }
  /// Returns when the requests count as stalled if nothing is granted or freed until then. `changes`: the pool's count
  /// of frees and of other changes that may help a request. A change since the last call counts as if it were made now,
  /// so that no free has to read the clock.
  sync::time_point stalls_at(std::uint64_t changes) noexcept;
  /// Returns whether the requests count as stalled now.
  bool has_stalled(std::uint64_t changes) noexcept;

private:
  sync::duration const timeout_;
  std::uint64_t grants_ = 0;
  std::uint64_t vain_ = 0;
  std::uint64_t signs_ = 0;        // number of grants and frees at the last call
  sync::time_point quiet_since_{}; // time of the last call that saw a new grant or free
};

/// Decides what a pass of the library thread does for requests that wait: it polls events, calls pressure callbacks, or
/// makes the deadlock_monitor look for requests that must end. Guarded by the locks of all shards.
export class progress_monitor {
public:
  /// Keeps references to both arguments.
  progress_monitor(pool_parts& parts, waiting_requests& requests) noexcept
      : stall{parts.options.stall_timeout}, parts_{parts}, requests_{requests} {}

  pressure_list pressure GPUMEM_GUARDED_BY(all_shards);
  stall_detector stall GPUMEM_GUARDED_BY(all_shards);

  /// Returns whether streams still use free memory. If they did at the last call and no longer do, adds 1 to the pool's
  /// count of changes, so that waiting requests try again.
  GPUMEM_REQUIRES(one_shard, all_shards) bool update_work_pending() noexcept;
  /// Returns the next waiting request for which a poll may help, because enough bytes are free or could be reserved;
  /// null if there is none. In a hardened pool, and while frees in a graph capture are still to be done, returns the
  /// first waiting request. While requests wait, only the library thread polls.
  GPUMEM_REQUIRES(one_shard, all_shards) waiter* next_to_poll_for() const noexcept;
  /// Returns what the deadlock_monitor sees while `first`, the first request without a turn, waits.
  GPUMEM_REQUIRES(one_shard, all_shards) place_state state(waiter const& first) noexcept;
  /// Returns the bytes that waiting requests lack, beyond those that are free or could be reserved. If they lack none,
  /// the free bytes lie in pieces; then returns the bytes of the first request. Returns 0 if no request waits.
  GPUMEM_REQUIRES(one_shard, all_shards) std::size_t wanted() const noexcept;
  /// If it is possible that all memory is held by work that waits itself, posts a pass, in which the deadlock_monitor
  /// looks. Cheap, because this function does not add up the bytes of each holder.
  GPUMEM_REQUIRES(one_shard, all_shards) void schedule_look() noexcept;
  /// Called before the deadlock_monitor looks.
  GPUMEM_REQUIRES(all_shards) void begin_look() noexcept { look_is_due_ = false; }
  /// Returns whether a pass of the library thread would have something to do.
  GPUMEM_REQUIRES(one_shard, all_shards) bool needs_pass() noexcept;
  /// Posts a pass if the library thread has to poll, to call a pressure callback, or to look for a stall.
  GPUMEM_REQUIRES(one_shard, all_shards) void schedule_poll() noexcept;
  /// Posts a pass for the time at which the waiting requests count as stalled.
  GPUMEM_REQUIRES(one_shard, all_shards) void schedule_stall_check() noexcept;

private:
  GPUMEM_REQUIRES(one_shard, all_shards) bool is_work_pending() const noexcept;
  GPUMEM_REQUIRES(one_shard, all_shards) bool needs_poll() noexcept;
  GPUMEM_REQUIRES(one_shard, all_shards) inline bool is_pressure_due() const noexcept {
    return pressure.due() && wanted() > 0;
  }

  pool_parts& parts_;
  waiting_requests& requests_;
  bool look_is_due_ GPUMEM_GUARDED_BY(all_shards) = false; // something has changed since the last look
  bool work_was_pending_ GPUMEM_GUARDED_BY(all_shards) =
      false; // whether streams still used free memory at the last poll
};

/// Decides which waiting request has a turn, and how many bytes are set aside for that turn. While a request waits, all
/// frees take the locks of all shards, and call wake_next().
///
/// Functions with GPUMEM_REQUIRES are called under the locks of all shards; the other functions take these locks
/// themselves.
export class request_queue {
public:
  /// Keeps references to all arguments.
  request_queue(pool_parts& parts, shard_frees& frees, waiting_requests& requests, progress_monitor& monitor) noexcept
      : parts_{parts}, frees_{frees}, requests_{requests}, monitor_{monitor} {}

  /// The outcome of a request that asks to wait.
  enum class waiting : std::uint8_t {
    parked,   ///< the request waits; another thread can complete and destroy it immediately
    answered, ///< complete() was called for the request, or the request was cancelled
    last,     ///< answered; the caller must close the pool, which has no handle, live block or request any more
    turn,     ///< the caller tries to allocate for the request, and then calls end_turn
  };
  /// The outcome. `since` is for a turn only: the pool's count of changes (which grows with each free) when the turn
  /// began.
  struct turn {
    waiting what;
    std::uint64_t since = 0;
  };
  /// Parks the request, or gives it a turn. In a turn the caller makes the attempt to allocate, since a hardened pool
  /// allocates in another way than other pools.
  turn begin_turn(waiter& item) noexcept;
  turn end_turn(waiter& item, turn const& turn, expected<void*, failure> result) noexcept;
  /// Withdraws a request. Returns false if the request does not wait, or if it has a turn and is not being destroyed.
  /// Sets `last` if the caller must close the pool, as with `waiting::last`.
  bool cancel(waiter& item, bool& last) noexcept;
  /// For a request of several parts, or one that asks only for a turn: returns null if there could be enough memory
  /// now, otherwise the failure.
  expected<void*, failure> may_go_on(waiter const& item) noexcept;
  /// Returns whether no state of the pool could serve the request.
  bool is_too_large(waiter const& item) noexcept;
  /// Returns why a request that does not wait gets no memory while other requests wait; nullopt if it may overtake
  /// them.
  std::optional<outcome> refusal_at_admission(allocation_request const& request) noexcept;
  /// Describes the waiting requests, and the memory that units of work (`scope`) hold `place`, as text. `live`: the
  /// live bytes, as users see them. Throws std::bad_alloc.
  std::string describe(waiting_place const& place, std::size_t live);
  waiting_statistics read_statistics() noexcept;
  /// Returns the number of requests that have ended here without memory. The counts of the shards have them too, but
  /// not the statistics of the pool's modes that count for themselves.
  inline std::uint64_t failures() const noexcept { return failures_.load(std::memory_order_relaxed); }
  /// Ends a request that does not wait yet with outcome::too_large.
  void refuse_as_too_large(waiter& item) noexcept;
  /// Counts a request that ends here without memory.
  GPUMEM_REQUIRES(one_shard, all_shards) void count_failure(waiter const& item) noexcept;

  /// Gives turns to waiting requests as long as there could be memory for the next one. A request that can never be met
  /// any more gets a turn too; its attempt then fails.
  GPUMEM_REQUIRES(one_shard, all_shards) void wake_next(woken_waiters& waiters) noexcept;
  /// Wakes the requests that can never be met any more. Called after the limit has changed or the pool was closed.
  GPUMEM_REQUIRES(one_shard, all_shards) void wake_ended(woken_waiters& waiters) noexcept;
  /// Wakes the requests that lack nothing any more, and those that lack less. Called after a request has been granted
  /// by which others lack less.
  void wake_satisfied() noexcept;
  GPUMEM_REQUIRES(one_shard, all_shards) void give_turn(waiter& item, woken_waiters& waiters) noexcept;
  /// Removes a request, and gives turns to requests that waited for its end. Returns whether the pool now has no
  /// handle, no live block and no request.
  GPUMEM_REQUIRES(one_shard, all_shards) bool remove(waiter& item, woken_waiters& waiters) noexcept;
  /// Called when one part of a request was refused: calls `free_part`, which frees another part that the request has
  /// got. For requests of several parts this free does not count as a change. Otherwise two such requests would wake
  /// each other for ever.
  template <class Free> GPUMEM_REQUIRES(one_shard, all_shards) void return_part(Free free_part) noexcept {
    requests_.count_returned_parts(parts_.requests.without_counting(free_part));
  }

private:
  failure failure_of(waiter const& item, outcome reason) const noexcept;
  GPUMEM_REQUIRES(one_shard, all_shards) turn park(waiter& item, woken_waiters& waiters) noexcept;
  GPUMEM_REQUIRES(one_shard, all_shards) void take_turn(waiter& item) noexcept;
  GPUMEM_REQUIRES(one_shard, all_shards) turn new_turn(waiter const& item) noexcept;
  GPUMEM_REQUIRES(one_shard, all_shards) void end_turn_of(waiter& item) noexcept;
  GPUMEM_REQUIRES(one_shard, all_shards)
  turn wait_again(waiter& item, turn const& turn, woken_waiters& waiters) noexcept;

  pool_parts& parts_;
  shard_frees& frees_;
  waiting_requests& requests_;
  progress_monitor& monitor_;
  waiter const* multi_part_ GPUMEM_GUARDED_BY(all_shards) =
      nullptr; // the request of several parts that has a turn now; null: none
  std::atomic<std::uint64_t> failures_{0};
};

/// Does what the progress_monitor decides: calls pressure callbacks, makes the deadlock_monitor look for requests that
/// must end, and polls for work that has completed. Takes the locks of all shards.
export class request_passes final : public pressure_call::observer, public waiting_place {
public:
  /// Keeps references to all arguments.
  request_passes(pool_parts& parts, shard_frees& frees, waiting_requests& requests, progress_monitor& monitor,
                 request_queue& queue) noexcept
      : parts_{parts}, frees_{frees}, requests_{requests}, monitor_{monitor}, queue_{queue} {
    deadlock_monitor::get().add(*this);
  }
  ~request_passes() { deadlock_monitor::get().remove(*this); }

  /// Called by the library thread in each of its passes over the pool.
  void run() noexcept;
  void on_holder_event(holder& unit, holder_event event) noexcept;
  /// Throws std::bad_alloc.
  void add_pressure_call(pressure_call& item);
  void remove_pressure_call(pressure_call& item) noexcept;

private:
  void call_pressure() noexcept;
  void end_deadlocks() noexcept;
  void poll() noexcept;
  void show(visitor& visitor) noexcept override;
  void end_wait(waiter& item, woken_waiters& waiters) noexcept override;
  std::size_t begin_pressure(pressure_call& call) noexcept override;
  void end_pressure(pressure_call& call, std::size_t freed_bytes) noexcept override;

  pool_parts& parts_;
  shard_frees& frees_;
  waiting_requests& requests_;
  progress_monitor& monitor_;
  request_queue& queue_;
};

} // namespace gpumem::detail
