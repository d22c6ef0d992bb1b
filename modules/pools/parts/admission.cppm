// The state of a pool that says whether it serves requests immediately, queues them, or refuses them.
// SPDX-License-Identifier: Apache-2.0
export module gpumem:admission;
import :shard_roles;
import :std;

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
  [[clang::requires_capability(all_shards)]] void set_waiting(bool any) noexcept {
    state_.store(any ? state::queue : state::open, std::memory_order_relaxed);
  }
  /// From now on requests are refused with outcome::closed.
  [[clang::requires_capability(all_shards)]] void set_closed() noexcept {
    state_.store(state::closed, std::memory_order_relaxed);
  }
  /// Counts a free, a new limit, or another change after which a refused request may succeed.
  [[clang::requires_capability(all_shards)]] inline void count_change() noexcept { ++changes_; }
  [[clang::requires_capability(all_shards)]] inline std::uint64_t changes() const noexcept { return changes_; }
  /// Calls the function, and resets the count of changes to its value before the call. Returns the number of changes
  /// that the function made.
  template <class Function>
  [[clang::requires_capability(all_shards)]] std::uint64_t without_counting(Function function) noexcept {
    auto const before = changes_;
    function();
    return std::exchange(changes_, before) - before;
  }

private:
  enum class state : std::uint8_t { open, queue, closed };

  std::atomic<state> state_{state::open};
  std::uint64_t changes_ __attribute__((guarded_by(all_shards))) = 1;
};

} // namespace gpumem::detail
