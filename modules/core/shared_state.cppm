// The shared state of a pool or adaptor: it lives until its last handle is gone and its last block is freed.
// SPDX-License-Identifier: Apache-2.0
module;
#include <thread>
#include <utility>
export module gpumem:shared_state;
import :error;
import :process;
import :std;
import :sync;

namespace gpumem::extend {

/// Base of a shared state. Each object of a pool's or adaptor's class is a handle, and one counter counts the handles.
/// Live blocks are counted in slots (counters for one thread or a few), since a counter that all threads share costs
/// hundreds of nanoseconds. The first threads of the process have slots of their own with a biased mutex. The slot's
/// thread locks it without an atomic exchange, which would take 5 ns of the 12 ns of a pool's call.
///
/// When the last handle is gone, the counts of all slots are added up in one counter, `remaining_`: the slots are
/// folded. This revokes the biased mutexes, which stops all threads for some microseconds. The call that brings
/// `remaining_` to zero deletes the state. Any thread.
export class shared_state {
public:
  /// `long_lived`: if false, the state has no biased mutexes. Construction and end are then cheaper, and calls slower.
  explicit shared_state(bool long_lived = true) noexcept;
  shared_state(shared_state const&) = delete;
  shared_state& operator=(shared_state const&) = delete;

  /// Counts a handle.
  void add_handle() noexcept { handles_.fetch_add(1, std::memory_order_relaxed); }
  /// Counts a handle as gone. The state may be deleted when this returns.
  void drop_handle() noexcept;
  /// Counts a live block.
  inline void add_live() noexcept {
    if (!count(1)) [[unlikely]]
      remaining_.fetch_add(1, std::memory_order_relaxed);
  }
  /// Counts a live block as freed. The state may be deleted when this returns.
  inline void drop_live() noexcept {
    if (detail::forked()) [[unlikely]]
      return;
    if (!count(-1)) [[unlikely]]
      drop_folded();
  }

  /// Returns whether the last handle is gone: only frees may still come.
  inline bool closed() const noexcept { return handles_.load(std::memory_order_relaxed) == 0; }

protected:
  virtual ~shared_state() = default;

  /// Called once, when the last handle is gone; the state is still alive.
  virtual void on_last_handle() noexcept {}

private:
  struct slot {
    bool folded = false;
    std::int64_t live = 0;
    bool add(std::int64_t change) noexcept {
      if (folded) return false;
      live += change;
      return true;
    }
  };
  struct alignas(64) owned_slot : slot {
    sync::biased_mutex mutex; // its owner is the thread with the slot's index
  };
  // The slots of threads with higher indices; if the state is not long-lived, the slots of all threads.
  struct alignas(64) shared_slot : slot {
    std::atomic_flag busy;
  };
  class flag_lock {
  public:
    explicit flag_lock(std::atomic_flag& busy) noexcept : busy_{busy} {
      while (busy_.test_and_set(std::memory_order_acquire)) std::this_thread::yield();
    }
    ~flag_lock() { busy_.clear(std::memory_order_release); }
    flag_lock(flag_lock const&) = delete;
    flag_lock& operator=(flag_lock const&) = delete;

  private:
    std::atomic_flag& busy_;
  };

  // Adds to the slot of the calling thread. Returns false if the slot is folded.
  inline bool count(std::int64_t change) noexcept {
    auto const index = sync::thread_index();
    if (long_lived_ && index < sync::max_biased_threads) [[likely]] {
      auto& mine = owned_[index];
      sync::biased_lock const held{mine.mutex};
      return mine.add(change);
    }
    auto& mine = shared_[index % shared_.size()];
    flag_lock const held{mine.busy};
    return mine.add(change);
  }
  void fold(slot& slot) noexcept;
  void drop_folded() noexcept;

  std::atomic<std::int64_t> handles_{0};
  // The live blocks of folded slots. Until all slots are folded, `folding` is added, a number larger than any number of
  // blocks. So a free on a folded slot cannot bring `remaining_` to zero too early.
  static constexpr std::int64_t folding = std::int64_t{1} << 62;
  std::atomic<std::int64_t> remaining_{folding};
  bool const long_lived_;
  std::array<shared_slot, 16> shared_;
  std::array<owned_slot, sync::max_biased_threads> owned_;
};

/// A counted pointer to a state; each object of a pool's or adaptor's class holds one.
export template <class State> class state_ptr {
public:
  /// Counts a new handle of the state.
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
  /// Throws std::invalid_argument after a move from this pointer.
  inline State& operator*() const { return *operator->(); }
  /// Throws std::invalid_argument after a move from this pointer.
  inline State* operator->() const {
    if (!state_) [[unlikely]]
      detail::throw_moved_from();
    return state_;
  }
  /// Returns null after a move from this pointer.
  inline State* get() const noexcept { return state_; }
  friend bool operator==(state_ptr const& a, state_ptr const& b) noexcept { return a.state_ == b.state_; }

private:
  State* state_;
};

} // namespace gpumem::extend
