// Last freed blocks, kept near the threads that freed them.
// SPDX-License-Identifier: Apache-2.0
module;
#include <mutex>
export module gpumem:magazines;
import :block;
import :relaxed;
import :size_class;
import :std;
import :sync;
import :tags;
import :timeline;

namespace gpumem::detail {

/// Sums of what threads count for themselves; exact but for `refused`, whoever freed what, while none of them goes on.
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
/// Each slot has a lock of its own, on a cache line of its own, which belongs to its thread; threads of the highest
/// numbers share slots. Whether to keep is asked under the lock: a sweep that follows `allow(false)` finds every block
/// that was put before, and none is put after (O11).
export class magazines {
public:
  magazines() noexcept;
  magazines(magazines const&) = delete;
  magazines& operator=(magazines const&) = delete;

  /// Makes what the slot of the thread of number `me`, the calling one, keeps blocks in, if there is none. Under the
  /// pool's lock. Throws std::bad_alloc.
  inline void prepare(unsigned me) {
    if (!prepared(me)) furnish(slot_of(me));
  }
  inline bool prepared(unsigned me) const noexcept {
    return slot_of(me).cabinets.load(std::memory_order_relaxed) != nullptr;
  }

  /// A kept block of that size exactly, granted to the stream again; or null. Any thread, of the number `me`.
  [[gnu::always_inline]] inline block* take(timeline& order, size_class const& size, std::size_t requested,
                                            unsigned me) noexcept {
    auto& mine = slot_of(me);
    auto* const all = mine.cabinets.load(std::memory_order_acquire);
    if (!all) return nullptr;
    auto& in = (*all)[order.index() % cabinet_count];
    auto& from = in.stacks[size.number];
    if (!from.holds(size.bytes)) return nullptr;
    std::scoped_lock const held{mine.guard};
    if (!from.holds(size.bytes) || !allowed() || in.order != &order) return nullptr;
    auto& found = unlink(mine, in, from);
    from.misfits = 0;
    mine.not_live -= static_cast<std::int64_t>(requested); // beside what is no longer kept
    found.tags.clear();
    found.requested = requested;
    found.stream = &order;
    found.become(block_state::granted);
    ++mine.allocations;
    return &found;
  }

  /// What became of a block that was put.
  struct result {
    bool kept;
    block* out; ///< another block, for which there is no place any more; or null
  };
  /// Keeps a granted block that is freed on the stream. Any thread, of the number `me`.
  [[gnu::always_inline]] inline result put(block& freed, timeline& order, unsigned me) noexcept {
    auto const bytes = freed.bytes;
    if (bytes > most_.load(std::memory_order_relaxed)) return {false, nullptr};
    auto& mine = slot_of(me);
    auto* const all = mine.cabinets.load(std::memory_order_acquire);
    if (!all) return {false, nullptr};
    auto& in = (*all)[order.index() % cabinet_count];
    auto& on = in.stacks[freed.stack];
    if (on.holds_other(bytes)) {
      if (!misfit(on)) return {false, nullptr};
    } else if (!affordable(mine, bytes)) {
      return {false, mine.refused % refusals_a_look == 0 ? take_stale(mine, *all) : nullptr};
    }
    std::scoped_lock const held{mine.guard};
    if (!allowed()) return {false, nullptr};
    if (!claim(in, order)) return {false, give_way(mine, in)};
    if (due(in, order, bytes)) return {false, nullptr};
    auto* const out = on.holds_other(bytes) ? &pop(mine, in, on) : nullptr;
    if ((out && on.top) || !afford(mine, bytes)) return {false, out};
    keep(mine, in, on, freed, order);
    return {true, out};
  }

  /// Links a granted block whose use is over to others that are to be made free; false: not now, as nothing is kept.
  /// Any thread; a sweep that follows `allow(false)` comes after all of them.
  inline bool post(block& freed, tag const& use, std::atomic<block*>& to) noexcept {
    std::scoped_lock const held{slot_of(sync::thread_number()).guard};
    if (!allowed()) return false;
    freed.tags.assign(use);
    freed.become(block_state::posted);
    freed.next = to.load(std::memory_order_relaxed);
    while (!to.compare_exchange_weak(freed.next, &freed, std::memory_order_release, std::memory_order_relaxed)) {}
    return true;
  }

  /// Most bytes that are kept, whether any more are, and after how many bytes freed a stream's free goes another way,
  /// on which evidence may be recorded. Under the pool's lock.
  void allow(bool on, std::size_t credit, std::size_t most_unrecorded) noexcept;
  inline bool allowed() const noexcept { return most_.load(std::memory_order_relaxed) > 0; }
  inline std::size_t most_unrecorded() const noexcept { return most_unrecorded_.load(std::memory_order_relaxed); }
  /// What is kept, in reserve near threads and left is the credit, and no more is kept. Within `look`.
  bool balanced(thread_counts const& sum) const noexcept {
    auto const kept = static_cast<std::int64_t>(sum.cached);
    return kept + sum.allowance + credit_.load(std::memory_order_relaxed) == static_cast<std::int64_t>(total_);
  }
  /// Many frees have found no credit since the last sweep: it is where it is of no use.
  inline bool starved() const noexcept { return starved_.load(std::memory_order_relaxed); }
  /// Takes everything out: the blocks, linked by `next`. Under the pool's lock.
  block* sweep() noexcept;

  /// A thread's part of what shards count as live, and is not.
  inline std::int64_t not_live_of(unsigned me) const noexcept { return slot_of(me).not_live; }
  /// The sums as one finds them while threads go on. Any thread.
  thread_counts glance() const noexcept;
  /// Calls `look(counts)` with the sums while no slot changes. Under the pool's lock.
  template <class Look> void look(Look look_at) {
    lock_all();
    look_at(glance());
    unlock_all();
  }

private:
  static constexpr unsigned owned_slots = sync::most_owners;
  static constexpr unsigned shared_slots = owned_slots / 4;
  static constexpr unsigned cabinet_count = owned_slots / 4; // few where schedules are tried: streams meet there
  static constexpr std::int64_t quantum = 64 << 10;          // of credit
  // So rarely does a free go another way, on which evidence may be recorded.
  static constexpr std::uint32_t most_unrecorded_frees = 64;
  static constexpr std::uint32_t most_misfits = 16;
  static constexpr std::uint32_t most_strangers = 16;
  static constexpr std::uint32_t most_refused = 1 << 20;
  // Of a slot: so often it looks for what is kept for streams that have left it, and after so many they have.
  static constexpr std::uint32_t refusals_a_look = 32;
  static constexpr std::uint32_t refusals_till_stale = 4096;

  // Blocks of one size, which is not 0. Whether it is empty nobody can foretell, nor the size: each question is one
  // branch.
  struct stack {
    block* top = nullptr;
    relaxed<std::size_t> bytes;     // 0: empty; looked at without the lock too, for a hint
    relaxed<std::uint32_t> misfits; // frees of another size since it was last made use of
    inline bool holds(std::size_t size) const noexcept { return bytes == size; }
    inline bool holds_other(std::size_t size) const noexcept {
      std::size_t const held = bytes;
      return (held != 0) & (held != size);
    }
  };
  // One stream's.
  struct cabinet {
    timeline* order = nullptr;
    std::uint32_t count = 0;
    std::uint32_t unrecorded_frees = 0;
    std::size_t unrecorded_bytes = 0;
    std::uint32_t strangers = 0;                 // frees of other streams since the last of its own
    std::uint64_t last_put = 0;                  // after how many refusals of its slot
    std::array<stack, size_class::count> stacks; // small sizes have one each
  };
  using cabinets = std::array<cabinet, cabinet_count>;
  // Its lock's holder changes it, but for the refusals, which are counted without; any thread reads the counts.
  struct alignas(128) slot {
    sync::owned_mutex guard;
    relaxed<std::uint32_t> refused_lately; // since the last sweep
    relaxed<std::int64_t> allowance;
    relaxed<std::int64_t> not_live;
    relaxed<std::uint64_t> allocations, frees, refused;
    std::atomic<std::int64_t> credit{0};                 // taken, for what is kept or may be
    std::atomic<magazines::cabinets*> cabinets{nullptr}; // of threads that have allocated
  };

  static inline unsigned slot_number(unsigned number) noexcept {
    return number < owned_slots ? number : owned_slots + number % shared_slots;
  }
  inline slot& slot_of(unsigned number) noexcept { return slots_[slot_number(number)]; }
  inline slot const& slot_of(unsigned number) const noexcept { return slots_[slot_number(number)]; }

  // The newest block of a stack, which is no longer kept.
  [[gnu::always_inline]] inline block& unlink(slot& mine, cabinet& in, stack& from) noexcept {
    auto& found = *from.top;
    from.top = found.next;
    from.bytes = found.bytes & (0 - std::size_t{from.top != nullptr});
    --in.count;
    mine.allowance += static_cast<std::int64_t>(found.bytes);
    return found;
  }
  // The same, on its way out.
  inline block& pop(slot& mine, cabinet& in, stack& from) noexcept {
    auto& found = unlink(mine, in, from);
    found.become(block_state::put_out);
    mine.not_live -= static_cast<std::int64_t>(found.requested);
    return found;
  }
  // One stream a cabinet.
  static inline bool claim(cabinet& one, timeline& order) noexcept {
    return one.order == &order || claim_empty(one, order);
  }
  // Whether this free should leave evidence, which it does where it takes the pool's lock.
  [[gnu::always_inline]] inline bool due(cabinet& one, timeline& order, std::size_t bytes) noexcept {
    auto const most = most_unrecorded();
    if (most == SIZE_MAX) return order.asked(); // nobody else would
    one.unrecorded_bytes += bytes;
    bool const many = ++one.unrecorded_frees >= most_unrecorded_frees || one.unrecorded_bytes >= most;
    if (many) pass_on(one, order);
    return many || order.asked();
  }
  // As things look without the lock.
  inline bool affordable(slot& mine, std::size_t bytes) noexcept {
    auto const need = static_cast<std::int64_t>(bytes) - mine.allowance;
    if (need <= 0 || need <= credit_.load(std::memory_order_relaxed)) return true;
    count_refused(mine);
    return false;
  }
  // Counted roughly where threads share a slot.
  inline void count_refused(slot& mine) noexcept {
    ++mine.refused;
    ++mine.refused_lately;
    if (mine.refused_lately < most_refused) return;
    if (!starved()) starved_.store(true, std::memory_order_relaxed);
  }
  // Credit comes in quanta, so that threads rarely meet at it.
  inline bool afford(slot& mine, std::size_t bytes) noexcept {
    auto const need = static_cast<std::int64_t>(bytes) - mine.allowance;
    return need <= 0 || borrow(mine, need);
  }
  // The epoch is read after all that the caller has enqueued.
  [[gnu::always_inline]] inline void keep(slot& mine, cabinet& in, stack& on, block& freed, timeline& order) noexcept {
    auto const bytes = freed.bytes;
    auto const requested = static_cast<std::int64_t>(freed.requested);
    freed.tags.assign({&order, order.now()});
    freed.become(block_state::cached);
    freed.next = on.top;
    on.top = &freed;
    on.bytes = bytes;
    on.misfits = 0;
    ++in.count;
    in.last_put = mine.refused;
    in.strangers = 0;
    mine.allowance -= static_cast<std::int64_t>(bytes);
    ++mine.frees;
    mine.not_live += requested;
  }
  // A size that is not asked for any more makes place for others, one block at a time. Whether it is to, counted
  // roughly.
  static inline bool misfit(stack& on) noexcept {
    auto const count = on.misfits + 1;
    on.misfits = count % most_misfits;
    return count == most_misfits;
  }

  void furnish(slot& mine);
  static bool claim_empty(cabinet& one, timeline& order) noexcept;
  void pass_on(cabinet& one, timeline& order) const noexcept;
  block& pop_any(slot& mine, cabinet& in) noexcept;
  block* give_way(slot& mine, cabinet& in) noexcept;
  block* take_stale(slot& mine, cabinets& all) noexcept;
  bool borrow(slot& mine, std::int64_t need) noexcept;
  void lock_all() noexcept;
  void unlock_all() noexcept;

  std::array<slot, owned_slots + shared_slots> slots_;
  std::vector<std::unique_ptr<cabinets>> furniture_;
  std::atomic<std::size_t> most_{0}; // 0: nothing may be kept
  std::atomic<std::size_t> most_unrecorded_{0};
  std::atomic<bool> starved_{false};
  std::size_t total_ = 0;
  alignas(64) std::atomic<std::int64_t> credit_{0};
};

} // namespace gpumem::detail
