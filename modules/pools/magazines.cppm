// Last freed blocks, kept near the threads that freed them.
// SPDX-License-Identifier: Apache-2.0
export module gpumem:magazines;
import :block;
import :std;
import :sync;
import :timeline;

namespace gpumem::detail {

/// What threads count for themselves; the sums are exact, whoever freed what.
export struct thread_counts {
  std::int64_t live = 0; ///< bytes requested less bytes freed, where negative too, less what was passed on
  std::uint64_t allocations = 0;
  std::uint64_t frees = 0;
  std::uint64_t refused = 0;  ///< frees that found no credit
  std::size_t cached = 0;     ///< bytes kept
  std::int64_t not_live = 0;  ///< requested bytes that the shards count as live, and that are not
  std::int64_t allowance = 0; ///< bytes of credit taken, and not in use
};

/// Freed blocks by thread number, stream and exact size. They belong to the pool: anybody can sweep them. A block goes
/// out to the stream that freed it and to no other, so what that was given before is before the next use. All that is
/// kept comes out of one credit. Nothing here allocates but `prepare`.
///
/// Each slot has a lock of its own, on a cache line of its own. Whether to keep is asked under it: a sweep that follows
/// `allow(false)` finds every block that was put before, and none is put after (O11).
export class magazines {
public:
  magazines() = default;
  magazines(magazines const&) = delete;
  magazines& operator=(magazines const&) = delete;

  /// Makes the calling thread's slot, if it has none. Under the pool's lock. Throws std::bad_alloc.
  inline void prepare() {
    if (!own()) make_own();
  }
  /// The calling thread's slot is there.
  inline bool prepared() const noexcept { return own() != nullptr; }

  /// A kept block of so many bytes exactly, granted to the stream again; or null. Any thread.
  block* take(timeline& order, std::size_t bytes, std::size_t requested) noexcept;

  /// What became of a block that was put.
  struct result {
    bool kept;
    block* out; ///< another block, of the same stream, for which there is no place any more; or null
  };
  /// Keeps a granted block that is freed on the stream. Any thread.
  result put(block& freed, timeline& order) noexcept;

  /// Most bytes that are kept, whether any more are, and after how many bytes freed a stream's free goes another way,
  /// on which evidence may be recorded. Under the pool's lock.
  void allow(bool on, std::size_t credit, std::size_t most_unrecorded) noexcept;
  inline bool allowed() const noexcept { return most_.load(std::memory_order_relaxed) > 0; }
  /// What is kept, in reserve near threads and left is the credit, and no more is kept. Within `look`.
  bool balanced(thread_counts const& sum) const noexcept {
    auto const kept = static_cast<std::int64_t>(sum.cached);
    return kept + sum.allowance + credit_.load(std::memory_order_relaxed) == static_cast<std::int64_t>(total_);
  }
  /// Many frees have found no credit since the last sweep: it is where it is of no use.
  inline bool starved() const noexcept { return starved_.load(std::memory_order_relaxed); }
  /// Takes everything out: the blocks, linked by `next`. Under the pool's lock.
  block* sweep() noexcept;

  /// The calling thread's part of what shards count as live, and is not.
  inline std::int64_t own_not_live() const noexcept {
    auto const* const mine = own();
    return mine ? mine->not_live.load(std::memory_order_relaxed) : 0;
  }
  /// Calls `look(counts)` with the sums while no slot changes. Under the pool's lock.
  template <class Look> void look(Look look_at) {
    thread_counts sum;
    for (auto& each : kept_) lock_and_add(each.get(), sum);
    look_at(sum);
    for (auto& each : kept_) {
      if (each) each->guard.unlock();
    }
  }

private:
  static constexpr unsigned slot_count = 64;
  static constexpr unsigned cabinet_count = 16;
  static constexpr unsigned small_sizes = 64; // granules
  static constexpr unsigned large_sizes = 16;

  // Blocks of one size. Looked at without the lock too, for a hint.
  struct stack {
    std::atomic<block*> top{nullptr};
    std::atomic<std::size_t> bytes{0};
    std::atomic<std::uint32_t> misfits{0}; // frees of another size since it was last made use of
    inline bool holds(std::size_t size) const noexcept {
      return top.load(std::memory_order_relaxed) && bytes.load(std::memory_order_relaxed) == size;
    }
    inline bool holds_other(std::size_t size) const noexcept {
      return top.load(std::memory_order_relaxed) && bytes.load(std::memory_order_relaxed) != size;
    }
  };
  // One stream's.
  struct cabinet {
    timeline* order = nullptr;
    std::uint32_t count = 0;
    std::uint32_t unrecorded_frees = 0;
    std::size_t unrecorded_bytes = 0;
    std::array<stack, small_sizes + large_sizes> stacks;
  };
  struct alignas(64) slot {
    sync::quick_mutex guard;
    std::uint32_t refused = 0;  // since the last sweep
    std::int64_t allowance = 0; // of the credit, not in use
    std::atomic<std::int64_t> not_live{0};
    thread_counts counts;
    std::array<cabinet, cabinet_count> cabinets;
  };

  inline slot* own() const noexcept {
    return slots_[sync::thread_number() % slot_count].load(std::memory_order_acquire);
  }
  static inline stack& stack_of(cabinet& in, std::size_t bytes) noexcept {
    auto const granules = bytes / granule;
    return in.stacks[granules <= small_sizes ? granules - 1
                                             : small_sizes + (granules * 0x9e3779b97f4a7c15u >> 60) % large_sizes];
  }
  void make_own();
  bool claim(cabinet& one, timeline& order) noexcept;
  bool afford(slot& mine, std::size_t bytes) noexcept;
  bool due(cabinet& one, timeline& order, std::size_t bytes) noexcept;
  void keep(slot& mine, cabinet& in, stack& on, block& freed, timeline& order) noexcept;
  static bool misfit(stack& on) noexcept;
  block& pop(slot& mine, cabinet& in, stack& from) noexcept;
  static inline void count_not_live(slot& mine, std::int64_t change) noexcept {
    mine.not_live.store(mine.not_live.load(std::memory_order_relaxed) + change, std::memory_order_relaxed);
  }
  static void lock_and_add(slot* one, thread_counts& sum) noexcept;

  std::array<std::atomic<slot*>, slot_count> slots_{};
  std::array<std::unique_ptr<slot>, slot_count> kept_;
  std::atomic<std::size_t> most_{0}; // 0: nothing may be kept
  std::atomic<std::size_t> most_unrecorded_{0};
  std::atomic<bool> starved_{false};
  std::size_t total_ = 0;
  alignas(64) std::atomic<std::int64_t> credit_{0};
};

} // namespace gpumem::detail
