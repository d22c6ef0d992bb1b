// The requests that wait for a pool's memory, and their turns. In its turn a request tries to allocate again.
// SPDX-License-Identifier: Apache-2.0
module;
#include <cstdint>
#include <string>
export module gpumem:request_queue;
import :deadlock_monitor;
import :error;
import :frees;
import :pool_parts;
import :progress_monitor;
import :range_search;
import :shard_roles;
import :std;
import :waiter;
import :waiting_requests;

namespace gpumem::detail {

/// Decides which waiting request has a turn, and how many bytes are set aside for that turn. While a request waits, all
/// frees take the locks of all shards, and call wake_next().
///
/// Functions with `requires_capability` are called under the locks of all shards; the other functions take these locks
/// themselves.
export class request_queue {
public:
  /// Keeps references to all arguments.
  request_queue(pool_parts& parts, shard_frees& frees, waiting_requests& waiting, progress_monitor& monitor) noexcept
      : parts_{parts}, frees_{frees}, waiting_{waiting}, monitor_{monitor} {}

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
  turn end_turn(waiter& item, turn const& mine, expected<void*, failure> result) noexcept;
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
  /// Describes the waiting requests, and the memory that units of work (`scope`) hold `here`, as text. `live`: the live
  /// bytes, as users see them. Throws std::bad_alloc.
  std::string describe(waiting_place const& here, std::size_t live);
  waiting_statistics read_statistics() noexcept;

  /// Gives turns to waiting requests as long as there could be memory for the next one. A request that can never be met
  /// any more gets a turn too; its attempt then fails.
  [[clang::requires_capability(one_shard, all_shards)]] void wake_next(woken_waiters& woken) noexcept;
  /// Wakes the requests that can never be met any more. Called after the limit has changed or the pool was closed.
  [[clang::requires_capability(one_shard, all_shards)]] void wake_ended(woken_waiters& woken) noexcept;
  [[clang::requires_capability(one_shard, all_shards)]] void give_turn(waiter& item, woken_waiters& woken) noexcept;
  /// Removes a request, and gives turns to requests that waited for its end. Returns whether the pool now has no
  /// handle, no live block and no request.
  [[clang::requires_capability(one_shard, all_shards)]] bool remove(waiter& item, woken_waiters& woken) noexcept;
  /// Called when one part of a request was refused: calls `free_part`, which frees another part that the request has
  /// got. For requests of several parts this free does not count as a change. Otherwise two such requests would wake
  /// each other for ever.
  template <class Free>
  [[clang::requires_capability(one_shard, all_shards)]] void return_part(Free free_part) noexcept {
    waiting_.count_returned_parts(parts_.requests.without_counting(free_part));
  }

private:
  failure failure_of(waiter const& item, outcome why) const noexcept;
  [[clang::requires_capability(one_shard, all_shards)]] turn park(waiter& item, woken_waiters& woken) noexcept;
  [[clang::requires_capability(one_shard, all_shards)]] void take_turn(waiter& item) noexcept;
  [[clang::requires_capability(one_shard, all_shards)]] turn new_turn(waiter const& item) noexcept;
  [[clang::requires_capability(one_shard, all_shards)]] void end_turn_of(waiter& item) noexcept;
  [[clang::requires_capability(one_shard, all_shards)]] turn wait_again(waiter& item, turn const& mine,
                                                                        woken_waiters& woken) noexcept;

  pool_parts& parts_;
  shard_frees& frees_;
  waiting_requests& waiting_;
  progress_monitor& monitor_;
  waiter const* multi_part_ __attribute__((guarded_by(all_shards))) =
      nullptr; // the request of several parts that has a turn now; null: none
};

} // namespace gpumem::detail
