// The shared state of a pool or adaptor: it lives until its last handle is gone and its last block is freed.
// SPDX-License-Identifier: Apache-2.0
module;
#include <utility>
export module gpumem:shared_state;
import :fork;
import :std;
import :sync;

namespace gpumem::extend {

/// Base of a shared state. It counts handles in one counter, and live blocks in slots by thread, since a counter that
/// all threads share costs hundreds of nanoseconds. Each slot has a biased mutex: an atomic exchange takes 5 ns, of the
/// 12 of a pool's call. Once the last handle is gone the slots are folded into one count. That revokes the mutexes,
/// which stops all threads for some microseconds. The call that brings the count to zero deletes the state. Any thread.
export class shared_state {
public:
  /// `long_lived`: false saves the making and the revocation of biased mutexes, and makes calls slower.
  explicit shared_state(bool long_lived = true) noexcept;
  shared_state(shared_state const&) = delete;
  shared_state& operator=(shared_state const&) = delete;

  void add_handle() noexcept { handles_.fetch_add(1, std::memory_order_relaxed); }
  void drop_handle() noexcept;
  inline void add_live() noexcept {
    auto& mine = own_slot();
    sync::biased_lock const held{mine.mutex};
    if (mine.folded) [[unlikely]]
      return add_folded();
    ++mine.live;
  }
  /// The state may be deleted when this returns.
  inline void drop_live() noexcept {
    if (detail::forked()) [[unlikely]]
      return;
    auto& mine = own_slot();
    {
      sync::biased_lock const held{mine.mutex};
      if (!mine.folded) [[likely]] {
        --mine.live;
        return;
      }
    }
    drop_folded();
  }

  /// Whether the last handle is gone: only frees may still come.
  inline bool closed() const noexcept { return handles_.load(std::memory_order_relaxed) == 0; }

protected:
  virtual ~shared_state() = default;

  /// Called once, when the last handle is gone; the state still lives.
  virtual void on_last_handle() noexcept {}

private:
  // The mutex belongs to the thread of the slot's index. Threads with higher indices share the slots after these.
  struct alignas(64) slot {
    sync::biased_mutex mutex;
    bool folded __attribute__((guarded_by(mutex))) = false;
    std::int64_t live __attribute__((guarded_by(mutex))) = 0;
  };
  static constexpr unsigned shared_slots = 16;
  inline slot& own_slot() noexcept {
    auto const index = sync::thread_index();
    if (index < sync::max_biased_threads && long_lived_) [[likely]]
      return slots_[index];
    return slots_[sync::max_biased_threads + index % shared_slots];
  }
  void add_folded() noexcept { remaining_.fetch_add(1, std::memory_order_relaxed); }
  void drop_folded() noexcept;

  std::atomic<std::int64_t> handles_{0};
  // The live blocks of folded slots. It includes `folding`, more than there can be blocks, until all slots are folded:
  // a free on a folded slot cannot bring it to zero before.
  static constexpr std::int64_t folding = std::int64_t{1} << 62;
  std::atomic<std::int64_t> remaining_{folding};
  bool const long_lived_;
  std::array<slot, sync::max_biased_threads + shared_slots> slots_;
};

/// A counted pointer to a state; each handle of a pool or adaptor holds one.
export template <class State> class state_ptr {
public:
  explicit state_ptr(State* state) noexcept : state_{state} { state_->add_handle(); }
  state_ptr(state_ptr const& other) noexcept : state_{other.state_} {
    if (state_) state_->add_handle();
  }
  state_ptr(state_ptr&& other) noexcept : state_{std::exchange(other.state_, nullptr)} {}
  state_ptr& operator=(state_ptr other) noexcept {
    std::swap(state_, other.state_);
    return *this;
  }
  ~state_ptr() {
    if (state_) state_->drop_handle();
  }
  inline State& operator*() const noexcept { return *state_; }
  inline State* operator->() const noexcept { return state_; }
  friend bool operator==(state_ptr const& a, state_ptr const& b) noexcept { return a.state_ == b.state_; }

private:
  State* state_;
};

} // namespace gpumem::extend
