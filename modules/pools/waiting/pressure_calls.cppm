// The pressure callbacks of a pool.
// SPDX-License-Identifier: Apache-2.0
module;
#include <gpumem/lock_attributes.hpp>
#include <coroutine>
#include <optional>
#include <utility>
export module gpumem:pressure_calls;
import :coroutine;
import :executor;
import :shard_roles;
import :std;
import :sync;

namespace gpumem::detail {

/// One pressure callback. Each time that this object is posted to its executor, the executor runs the function. A run
/// ends when the function returns; if the function returns an awaitable, the run ends when the awaited result is there.
/// "The lock" means the locks of all shards.
export class pressure_call final : public work_item, public std::enable_shared_from_this<pressure_call> {
public:
  /// Frees memory and returns the number of bytes that it has freed. Or returns nullopt, and calls end_run() of `call`
  /// with that number, before the return or later.
  using function = std::function<std::optional<std::size_t>(std::size_t bytes, pressure_call& call)>;

  /// The pool, which is told when a run begins and ends. begin_pressure() returns the wanted bytes; if it returns 0,
  /// the function is not called.
  class observer {
  public:
    virtual std::size_t begin_pressure(pressure_call& call) noexcept = 0;
    virtual void end_pressure(pressure_call& call, std::size_t freed_bytes) noexcept = 0;

  protected:
    ~observer() = default;
  };

  pressure_call(observer& pool, executor& executor, function free_some) noexcept
      : pool_{pool}, executor_{executor}, free_some_{std::move(free_some)} {}

  /// Posts a run to the executor. Called without the lock, after pressure_list::begin_next() has returned this object.
  void post() noexcept;
  /// Ends the run. Called without the lock. This object can be gone when the call returns.
  void end_run(std::size_t freed_bytes) noexcept;
  /// Waits until the function does not run and will not run. Returns immediately if the function itself calls end().
  /// Called without the lock, after the object was removed from the pressure_list.
  void end() noexcept;

private:
  friend class pressure_list;
  void resume() noexcept override;

  observer& pool_;
  executor& executor_;
  function free_some_;

  // Changed under the locks of all shards.
  bool busy_ GPUMEM_GUARDED_BY(all_shards) = false;              // a run was posted and has not ended
  bool freed_some_ GPUMEM_GUARDED_BY(all_shards) = false;        // the last run freed something
  std::uint64_t parks_ GPUMEM_GUARDED_BY(all_shards) = 0;        // waits that had begun before the last run
  std::uint64_t change_count_ GPUMEM_GUARDED_BY(all_shards) = 0; // the pool's changes before the last run

  sync::mutex mutex_;
  sync::condition over_;
  std::shared_ptr<pressure_call> self_ GPUMEM_GUARDED_BY(mutex_); // keeps this object alive during a run
  bool ended_ = false; // the function itself has called end(): the pool may be destroyed
};

/// A coroutine that nothing awaits: it starts immediately, and destroys its frame at its end.
export struct detached {
  struct promise_type {
    detached get_return_object() const noexcept { return {}; }
    std::suspend_never initial_suspend() const noexcept { return {}; }
    std::suspend_never final_suspend() const noexcept { return {}; }
    void return_void() const noexcept {}
    void unhandled_exception() const noexcept { std::terminate(); }
  };
};

/// Awaits the result of the function, and then ends the run. end_run() may destroy `call`, which owns `free_some`.
export template <class F> detached await_freed(F& free_some, std::size_t bytes, pressure_call& call) {
  std::size_t freed_bytes = 0;
  try {
    freed_bytes = co_await free_some(bytes);
  } catch (...) {
    // An exception counts as nothing freed.
  }
  call.end_run(freed_bytes);
}

/// The pressure callbacks of one pool, guarded by the locks of all shards. A callback is due if requests have begun to
/// wait since its last run, or if that run freed memory.
export class pressure_list {
public:
  /// Throws std::bad_alloc.
  GPUMEM_REQUIRES(all_shards) void add(pressure_call& item) { calls_.push_back(&item); }
  GPUMEM_REQUIRES(all_shards) void remove(pressure_call& item) noexcept;
  GPUMEM_REQUIRES(all_shards) void on_park() noexcept { ++parks_; }
  /// Returns whether a function runs or is due.
  GPUMEM_REQUIRES_SHARED(all_shards) bool pending() const noexcept;
  /// Returns whether a function is due.
  GPUMEM_REQUIRES_SHARED(all_shards) bool due() const noexcept;
  /// Returns a function that is due, and marks it as begun; null if none is due.
  GPUMEM_REQUIRES(all_shards) pressure_call* begin_next() noexcept;
  /// on_begin() notes that a run of the function begins, on_end() that it has ended. With 0 wanted bytes the function
  /// does not run, and stays due. `change_count`: the pool's count of changes, which grows with each free. If the count
  /// has not grown during the run, the function freed nothing in this pool.
  GPUMEM_REQUIRES(all_shards)
  void on_begin(pressure_call& item, std::size_t bytes, std::uint64_t change_count) noexcept;
  GPUMEM_REQUIRES(all_shards)
  void on_end(pressure_call& item, std::size_t freed_bytes, std::uint64_t change_count) noexcept;

private:
  GPUMEM_REQUIRES_SHARED(all_shards) inline bool is_due(pressure_call const& item) const noexcept {
    return !item.busy_ && (item.freed_some_ || item.parks_ != parks_);
  }
  std::vector<pressure_call*> calls_ GPUMEM_GUARDED_BY(all_shards);
  std::uint64_t parks_ GPUMEM_GUARDED_BY(all_shards) = 0;
};

} // namespace gpumem::detail
