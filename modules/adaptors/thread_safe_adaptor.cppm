// thread_safe_adaptor: lets threads share a resource that only one thread may use at a time.
// SPDX-License-Identifier: Apache-2.0
module;
#include <gpumem/lock_attributes.hpp>
export module gpumem:thread_safe_adaptor;
import :adaptor_base;
import :cuda;
import :error;
import :misuse;
import :process;
import :std;
import :stream;
import :sync;

namespace gpumem {

namespace detail {

template <class Upstream> class locking_state final : public adaptor_state<locking_state<Upstream>, Upstream> {
  using base = adaptor_state<locking_state, Upstream>;

public:
  using base::base;

  expected<void*, failure> try_allocate(stream_key const& key, std::size_t bytes, std::size_t alignment) noexcept {
    entry const held{*this};
    return base::try_allocate(key, bytes, alignment);
  }

  // Releases the lock before it calls drop_live(), which may destroy this state and its mutex.
  void deallocate(stream_key const& key, void* pointer, std::size_t bytes, std::size_t alignment) noexcept {
    auto const refused = refused_calls;
    {
      entry const held{*this};
      this->access().deallocate(key, pointer, bytes, alignment);
    }
    if (refused_calls == refused) this->drop_live(); // may destroy *this
  }

  // Calls the function under the lock. In a child process after fork() the lock may be held for ever, so it is not
  // taken; the upstream does nothing there.
  template <class Call> auto locked(Call call) {
    if (forked()) return call();
    entry const held{*this};
    return call();
  }

private:
  // Takes the lock, unless the thread has it: then a function of the user, which the upstream calls, has called the
  // adaptor.
  class entry {
  public:
    GPUMEM_NO_LOCK_ANALYSIS explicit entry(locking_state& state)
        : state_{state}, outermost_{state.owner_.load(std::memory_order_relaxed) != here()} {
      if (!outermost_) return;
      state_.mutex_.lock();
      state_.owner_.store(here(), std::memory_order_relaxed);
    }
    GPUMEM_NO_LOCK_ANALYSIS ~entry() {
      if (!outermost_) return;
      state_.owner_.store(nullptr, std::memory_order_relaxed);
      state_.mutex_.unlock();
    }
    entry(entry const&) = delete;
    entry& operator=(entry const&) = delete;

  private:
    static void const* here() noexcept { return &refused_calls; } // an address of the calling thread

    locking_state& state_;
    bool const outermost_;
  };
  sync::mutex mutex_;
  std::atomic<void const*> owner_{nullptr}; // here() of the thread that has the lock
};

} // namespace detail

/// Runs the allocations and frees of all threads one after another, under one lock. It is for resources of other
/// libraries and callback resources that are not thread-safe. gpumem's own resources are thread-safe, and faster
/// without this adaptor. The lock is held while the upstream works or waits. A function of the user that the upstream
/// calls meanwhile may call this adaptor on the same thread. Copies are handles to the same adaptor; see adaptor_base.
/// Any thread.
export template <class Upstream>
class thread_safe_adaptor
    : public adaptor_base<thread_safe_adaptor<Upstream>, detail::locking_state<Upstream>, Upstream> {
  using base = adaptor_base<thread_safe_adaptor, detail::locking_state<Upstream>, Upstream>;

public:
  using base::deallocate;
  /// Frees the block at `pointer` under the lock. The caller names no size; find() of the upstream returns the block's
  /// size.
  void deallocate(stream_ref stream, void* pointer) noexcept
    requires requires(base& b) { b.deallocate(stream, pointer); }
  {
    if (!this->valid()) return detail::report_moved_from(pointer, 0);
    auto const found = find(pointer);
    if (found && found->live && found->base == pointer) return base::deallocate(stream, pointer, found->bytes);
    this->shared().locked([&] { base::deallocate(stream, pointer); }); // the upstream reports the misuse
  }
  /// Calls record_use() of the upstream under the lock.
  void record_use(void* pointer, stream_ref stream)
    requires requires(base& b) { b.record_use(pointer, stream); }
  {
    this->shared().locked([&] { base::record_use(pointer, stream); });
  }
  /// Calls find() of the upstream under the lock: returns its description of the block that holds the address.
  auto find(void const* pointer) const
    requires requires(base const& b) { b.find(pointer); }
  {
    return this->shared().locked([&] { return base::find(pointer); });
  }

  /// Throws std::bad_alloc.
  explicit thread_safe_adaptor(Upstream upstream) : base{new detail::locking_state<Upstream>{std::move(upstream)}} {}
};

} // namespace gpumem
