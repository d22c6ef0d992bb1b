// How long the shared state of a pool or adaptor lives: until its last handle is gone and its last block is freed.
// SPDX-License-Identifier: Apache-2.0
module;
#include <utility>
export module gpumem:shared_state;
import :std;
import :sync;

namespace gpumem::extend {

/// Base of a shared state: counts handles in one place and live blocks in slots by thread, since a counter that all
/// threads share costs hundreds of nanoseconds. Once the last handle is gone the slots are folded into one count, and
/// whoever brings it to zero disposes of the state. Any thread.
export class shared_state {
public:
  shared_state() = default;
  shared_state(shared_state const&) = delete;
  shared_state& operator=(shared_state const&) = delete;

  void add_handle() noexcept { handles_.fetch_add(1, std::memory_order_relaxed); }
  void drop_handle() noexcept;
  void add_live() noexcept;
  /// The state may be gone when this returns.
  void drop_live() noexcept;

  /// The last handle is gone: only frees may still come.
  inline bool closed() const noexcept { return handles_.load(std::memory_order_relaxed) == 0; }

protected:
  virtual ~shared_state() = default;

private:
  struct alignas(64) slot {
    std::atomic_flag busy;
    bool folded = false;
    std::int64_t live = 0;
  };
  static constexpr unsigned slot_count = 16;
  inline slot& own_slot() noexcept { return slots_[sync::thread_index() % slot_count]; }

  std::atomic<std::int64_t> handles_{0};
  // Counts once folding has begun. The folder holds more than there can be blocks, so that a free on a folded slot
  // cannot bring it to zero while others are still to be folded.
  static constexpr std::int64_t folding = std::int64_t{1} << 62;
  std::atomic<std::int64_t> remaining_{folding};
  std::array<slot, slot_count> slots_{};
};

/// A counted pointer to a state; what a pool or adaptor handle holds.
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
