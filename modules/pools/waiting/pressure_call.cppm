// A function that frees memory for requests that wait.
// SPDX-License-Identifier: Apache-2.0
module;
#include <coroutine>
#include <optional>
#include <utility>
export module gpumem:pressure_call;
import :coroutine;
import :executor;
import :shard_roles;
import :std;
import :sync;

namespace gpumem::detail {

/// One function, which its executor runs each time that it is posted. "The lock" means the locks of all shards. The
/// function runs until it returns or, if what it returns is awaited, until that has come.
export class pressure_call final : public work_item, public std::enable_shared_from_this<pressure_call> {
public:
  /// Returns how many bytes it has freed; nothing if it calls finish() once it has, which may be before it returns.
  using function = std::function<std::optional<std::size_t>(std::size_t wanted, pressure_call& call)>;

  /// The pool, which learns of each beginning and end; see pressure_list.
  class observer {
  public:
    virtual std::size_t begin_pressure(pressure_call& call) noexcept = 0;
    virtual void end_pressure(pressure_call& call, std::size_t freed) noexcept = 0;

  protected:
    ~observer() = default;
  };

  pressure_call(observer& pool, executor& where, function free_some) noexcept
      : pool_{pool}, where_{where}, free_some_{std::move(free_some)} {}

  /// Without the lock, after it was begun: see pressure_list.
  void post() noexcept;
  /// Without the lock: the function has ended. The last touch of the call, which may be gone.
  void finish(std::size_t freed) noexcept;
  /// Without the lock, after it was removed: returns once the function does not run and will not, or at once if it is
  /// the function that calls this.
  void end() noexcept;

private:
  friend class pressure_list;
  void resume() noexcept override;

  observer& pool_;
  executor& where_;
  function free_some_;

  // Under the locks of all shards.
  bool busy_ __attribute__((guarded_by(all_shards))) = false;       // it was posted, and has not ended
  bool freed_some_ __attribute__((guarded_by(all_shards))) = false; // it has freed something
  std::uint64_t parks_ __attribute__((guarded_by(all_shards))) = 0; // requests that had parked when it was called
  std::uint64_t change_count_ __attribute__((guarded_by(all_shards))) = 0; // of the pool, when it was called

  sync::mutex mutex_;
  sync::condition over_;
  std::shared_ptr<pressure_call> self_ __attribute__((guarded_by(mutex_))); // from its beginning until it has ended
  bool ended_ = false; // by the function itself: the pool may be gone
};

/// A coroutine that nothing awaits: it begins at once, and its end is the end of its frame.
export struct detached {
  struct promise_type {
    detached get_return_object() const noexcept { return {}; }
    std::suspend_never initial_suspend() const noexcept { return {}; }
    std::suspend_never final_suspend() const noexcept { return {}; }
    void return_void() const noexcept {}
    void unhandled_exception() const noexcept { std::terminate(); }
  };
};

/// Awaits what the function returns, and then ends the call. The call owns the function, and may end with it.
export template <class F> detached await_freed(F& free_some, std::size_t wanted, pressure_call& call) {
  std::size_t freed = 0;
  try {
    freed = co_await free_some(wanted);
  } catch (...) {
    // An exception counts as nothing freed.
  }
  call.finish(freed);
}

} // namespace gpumem::detail
