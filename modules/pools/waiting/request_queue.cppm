// Turns of the requests that wait for a pool's memory.
// SPDX-License-Identifier: Apache-2.0
module;
#include <cstdint>
#include <string>
export module gpumem:request_queue;
import :allocation_request;
import :error;
import :pool_parts;
import :progress_monitor;
import :shard_frees;
import :shard_roles;
import :std;
import :waiter;
import :waiting_requests;

namespace gpumem::detail {

/// Decides which request has a turn, and what is set aside for it. While a request waits, all frees take the locks of
/// all shards, and call wake_next().
///
/// Functions of the first group take the locks of all shards themselves; those of the second are called under them.
export class request_queue {
public:
  /// Refers to all arguments.
  request_queue(pool_parts& parts, shard_frees& frees, waiting_requests& waiting, progress_monitor& monitor) noexcept
      : parts_{parts}, frees_{frees}, waiting_{waiting}, monitor_{monitor} {}

  /// The outcome of a request that asks to wait.
  enum class waiting : std::uint8_t {
    parked,   ///< it waits, and may be gone
    answered, ///< by complete(), or it was cancelled
    last,     ///< answered; the pool has neither handle nor block any more, and is the caller's to close
    turn,     ///< the caller tries to allocate for it, and then calls end_turn
  };
  /// With the count of changes at the beginning of the turn.
  struct turn {
    waiting what;
    std::uint64_t since = 0;
  };
  /// Parks the request, or gives it a turn. The caller makes the attempt itself: a hardened pool allocates in another
  /// way.
  turn begin_turn(waiter& item) noexcept;
  turn end_turn(waiter& item, turn const& mine, expected<void*, failure> result) noexcept;
  /// Withdraws a request; false if it does not wait, or has a turn. `last`: as above.
  bool cancel(waiter& item, bool& last) noexcept;
  /// Whether the memory could be there for a request that only asks for a turn, or for one of several parts.
  expected<void*, failure> may_go_on(waiter const& item) noexcept;
  /// Why a request that does not wait gets nothing while others do; none if it may overtake them.
  std::optional<outcome> refusal_at_admission(allocation_request const& request) noexcept;
  /// `live`: bytes, as the users see them. Throws std::bad_alloc.
  std::string describe(std::size_t live);
  waiting_statistics read_statistics() noexcept;

  /// Gives turns as long as there could be memory for the next. A request that cannot be met any more is woken to be
  /// told so.
  [[clang::requires_capability(one_shard, all_shards)]] void wake_next(woken_waiters& woken) noexcept;
  /// Wakes the requests that cannot be met any more: the limit has changed, or the pool is closed.
  [[clang::requires_capability(one_shard, all_shards)]] void wake_ended(woken_waiters& woken) noexcept;
  [[clang::requires_capability(one_shard, all_shards)]] void give_turn(waiter& item, woken_waiters& woken) noexcept;
  /// Removes a request, after which others may have queued, and wakes those. Returns whether the pool is unused now.
  [[clang::requires_capability(one_shard, all_shards)]] bool remove(waiter& item, woken_waiters& woken) noexcept;
  /// Calls `free_part`, which frees a part of a request of which another part was refused. The free counts as no change
  /// for requests of several parts: otherwise two of them would wake each other for ever.
  template <class Free>
  [[clang::requires_capability(one_shard, all_shards)]] void return_part(Free free_part) noexcept {
    waiting_.count_returned_parts(parts_.requests.without_counting(free_part));
  }

private:
  std::optional<turn> park(waiter& item) noexcept;
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
      nullptr; // the request of several parts that tries to allocate them
};

} // namespace gpumem::detail
