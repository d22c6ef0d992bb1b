// Last freed blocks, kept near the threads that freed them.
// SPDX-License-Identifier: Apache-2.0
module;
#include <mutex>
export module gpumem:magazines;
import :block;
import :credit;
import :recent_blocks;
import :relaxed;
import :size_class;
import :std;
import :sync;
import :tags;
import :timeline;

namespace gpumem::detail {

/// Sums of what threads count for themselves; exact but for `refused`, whoever freed what, while none of them goes on.
export struct thread_counts {
  std::uint64_t allocations = 0;
  std::uint64_t frees = 0;
  std::uint64_t refused = 0; ///< frees of small blocks that found no credit
  std::int64_t not_live = 0; ///< requested bytes that the shards count as live, and that are not
  credit::sum small, large;  ///< bytes kept, and in reserve for that
  inline std::size_t cached() const noexcept { return small.in_use + large.in_use; }
};

/// Freed blocks by thread number and stream: small ones by size, and the last large ones. They belong to the pool:
/// anybody can sweep them. A block goes out for its exact size, to the stream that freed it and to no other, so what
/// that was given before is before the next use. What is kept comes out of two credits, one of small blocks and one of
/// large. Nothing here allocates but `prepare`.
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
    return slot_of(me).furniture.load(std::memory_order_relaxed) != nullptr;
  }

  /// A kept block of that size exactly, granted to the stream again; or null. Any thread, of the number `me`.
  [[gnu::always_inline]] inline block* take(timeline& order, size_class const& size, std::size_t requested,
                                            unsigned me) noexcept {
    auto& mine = slot_of(me);
    auto* const all = mine.furniture.load(std::memory_order_acquire);
    if (!all) return nullptr;
    if (!size.is_small()) return take_recent(mine, *all, order, size.bytes, requested);
    auto& in = all->cabinet_of(order);
    auto& from = in.stacks[size.number];
    if (!from) return nullptr;
    std::scoped_lock const held{mine.guard};
    if (!from || !allowed() || in.order != &order) return nullptr;
    return &grant(mine, unlink(mine, in, from), order, requested);
  }

  /// What became of a block that was put.
  struct result {
    bool kept;
    block* out; ///< another block, for which there is no place any more; or null
  };
  /// Keeps a granted block that is freed on the stream. Any thread, of the number `me`.
  [[gnu::always_inline]] inline result put(block& freed, timeline& order, unsigned me) noexcept {
    auto& mine = slot_of(me);
    auto* const all = mine.furniture.load(std::memory_order_acquire);
    if (!all || !allowed()) return {false, nullptr};
    auto& in = all->cabinet_of(order);
    if (freed.bytes > size_class::largest_small) return put_recent(mine, *all, in, freed, order);
    if (!small_.affordable(mine.small, freed.bytes)) return put_beyond_credit(mine, *all);
    std::scoped_lock const held{mine.guard};
    if (!allowed()) return {false, nullptr};
    if (!claim(in, order)) return {false, give_way(mine, in)};
    if (due(in, order, freed.bytes)) return {false, nullptr};
    if (!small_.spend(mine.small, freed.bytes)) return refuse(mine);
    note_kept(mine, freed, order);
    freed.next = in.stacks[freed.stack];
    in.stacks[freed.stack] = &freed;
    ++in.count;
    in.last_put = mine.refused;
    in.strangers = 0;
    return {true, nullptr};
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

  /// Most bytes that are kept, of small blocks and of large ones, whether any more are, and after how many bytes freed
  /// a stream's free goes another way, on which evidence may be recorded. Under the pool's lock.
  void allow(bool on, std::size_t small, std::size_t large, std::size_t most_unrecorded) noexcept;
  inline bool allowed() const noexcept { return allowed_.load(std::memory_order_relaxed); }
  inline std::size_t most_unrecorded() const noexcept { return most_unrecorded_.load(std::memory_order_relaxed); }
  /// What is kept, in reserve near threads and left is the credit, and no more is kept. Within `look`.
  bool balanced(thread_counts const& sum) const noexcept {
    return small_.balanced(sum.small) && large_.balanced(sum.large);
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
  // So rarely does a free go another way, on which evidence may be recorded.
  static constexpr std::uint32_t most_unrecorded_frees = 64;
  static constexpr std::uint32_t most_strangers = 16;
  static constexpr std::uint32_t most_refused = 1 << 20;
  // Of a slot: so often it looks for what is kept for streams that have left it, and after so many they have.
  static constexpr std::uint32_t refusals_a_look = 32;
  static constexpr std::uint32_t refusals_till_stale = 4096;

  // One stream's small blocks.
  struct cabinet {
    timeline* order = nullptr;
    std::uint32_t count = 0;
    std::uint32_t unrecorded_frees = 0; // with those of large blocks
    std::size_t unrecorded_bytes = 0;
    std::uint32_t strangers = 0; // frees of other streams since the last of its own
    std::uint64_t last_put = 0;  // after how many refusals of its slot
    // By size, the newest on top; looked at without the lock too, for a hint.
    std::array<relaxed<block*>, size_class::small_count> stacks;
  };
  // What a thread keeps.
  struct furniture {
    recent_blocks recent;
    std::array<cabinet, cabinet_count> cabinets;
    inline cabinet& cabinet_of(timeline const& order) noexcept { return cabinets[order.index() % cabinet_count]; }
  };
  // Its lock's holder changes it, but for the refusals, which are counted without; any thread reads the counts.
  struct alignas(128) slot {
    sync::owned_mutex guard;
    relaxed<std::uint32_t> lacked; // credit, so often since the last sweep
    relaxed<std::int64_t> not_live;
    relaxed<std::uint64_t> allocations, frees, refused;
    credit::part small, large;
    std::atomic<magazines::furniture*> furniture{nullptr}; // of threads that have allocated
  };

  static inline unsigned slot_number(unsigned number) noexcept {
    return number < owned_slots ? number : owned_slots + number % shared_slots;
  }
  inline slot& slot_of(unsigned number) noexcept { return slots_[slot_number(number)]; }
  inline slot const& slot_of(unsigned number) const noexcept { return slots_[slot_number(number)]; }

  // The newest block of a stack, which is no longer kept.
  [[gnu::always_inline]] inline block& unlink(slot& mine, cabinet& in, relaxed<block*>& from) noexcept {
    block& found = *from;
    from = found.next;
    --in.count;
    mine.small.regain(found.bytes);
    return found;
  }
  // To whom it was kept for.
  [[gnu::always_inline]] static inline block& grant(slot& mine, block& found, timeline& order,
                                                    std::size_t requested) noexcept {
    mine.not_live -= static_cast<std::int64_t>(requested); // beside what is no longer kept
    found.tags.clear();
    found.requested = requested;
    found.stream = &order;
    found.become(block_state::granted);
    ++mine.allocations;
    return found;
  }
  // On its way to be free.
  static inline block& put_out(slot& mine, block& found) noexcept {
    found.become(block_state::put_out);
    mine.not_live -= static_cast<std::int64_t>(found.requested);
    return found;
  }
  [[gnu::always_inline]] inline block* take_recent(slot& mine, furniture& all, timeline& order, std::size_t bytes,
                                                   std::size_t requested) noexcept {
    if (all.recent.empty()) return nullptr;
    std::scoped_lock const held{mine.guard};
    auto* const found = allowed() ? all.recent.take(order, bytes) : nullptr;
    if (!found) return nullptr;
    mine.large.regain(bytes);
    return &grant(mine, *found, order, requested);
  }
  [[gnu::always_inline]] inline result put_recent(slot& mine, furniture& all, cabinet& in, block& freed,
                                                  timeline& order) noexcept {
    auto const bytes = freed.bytes;
    auto& recent = all.recent;
    bool const keeps = bytes <= largest_.load(std::memory_order_relaxed) && recent.worthwhile();
    if (!keeps && recent.empty()) return {false, nullptr};
    std::scoped_lock const held{mine.guard};
    if (!allowed()) return {false, nullptr};
    // Also where this one is too large: with what is kept it may become a larger range. Without that two of four
    // recorded traces used .01 and .05 less of what is reserved.
    if (!keeps) return {false, evict(mine, recent)};
    if (claim(in, order) ? due(in, order, bytes) : due_alone(order, bytes)) return {false, nullptr};
    bool paid = !recent.full() && large_.spend(mine.large, bytes);
    auto* const out = paid ? nullptr : evict(mine, recent);
    paid = paid || large_.spend(mine.large, bytes);
    if (!paid) {
      count_lack(mine);
      return {false, out};
    }
    note_kept(mine, freed, order);
    recent.keep(freed);
    return {true, out};
  }
  // One stream a cabinet.
  inline bool claim(cabinet& one, timeline& order) noexcept { return one.order == &order || claim_empty(one, order); }
  // Whether this free should leave evidence, which it does where it takes the pool's lock.
  [[gnu::always_inline]] inline bool due(cabinet& one, timeline& order, std::size_t bytes) noexcept {
    auto const most = most_unrecorded();
    if (most == SIZE_MAX) return order.asked(); // nobody else would
    one.unrecorded_bytes += bytes;
    bool const many = ++one.unrecorded_frees >= most_unrecorded_frees || one.unrecorded_bytes >= most;
    if (many) pass_on(one, order);
    return many || order.asked();
  }
  // The same, of a stream that has no cabinet there.
  inline bool due_alone(timeline& order, std::size_t bytes) noexcept {
    auto const most = most_unrecorded();
    if (most != SIZE_MAX && order.count_unrecorded(1, bytes, most)) order.ask();
    return order.asked();
  }
  // Counted roughly where threads share a slot.
  inline void count_lack(slot& mine) noexcept {
    ++mine.lacked;
    if (mine.lacked < most_refused) return;
    if (!starved()) starved_.store(true, std::memory_order_relaxed);
  }
  inline result refuse(slot& mine) noexcept {
    ++mine.refused;
    count_lack(mine);
    return {false, nullptr};
  }
  // The epoch is read after all that the caller has enqueued.
  [[gnu::always_inline]] static inline void note_kept(slot& mine, block& freed, timeline& order) noexcept {
    freed.tags.assign({&order, order.now()});
    freed.become(block_state::cached);
    ++mine.frees;
    mine.not_live += static_cast<std::int64_t>(freed.requested);
  }

  void furnish(slot& mine);
  bool claim_empty(cabinet& one, timeline& order) const noexcept;
  void pass_on(cabinet& one, timeline& order) const noexcept;
  block& pop_any(slot& mine, cabinet& in) noexcept;
  static block* evict(slot& mine, recent_blocks& recent) noexcept;
  block* give_way(slot& mine, cabinet& in) noexcept;
  result put_beyond_credit(slot& mine, furniture& all) noexcept;
  block* take_stale(slot& mine, furniture& all) noexcept;
  block* take_out(slot& from, furniture& all, block* others) noexcept;
  void lock_all() noexcept;
  void unlock_all() noexcept;

  std::array<slot, owned_slots + shared_slots> slots_;
  std::vector<std::unique_ptr<furniture>> all_furniture_;
  std::atomic<bool> allowed_{false};
  std::atomic<bool> starved_{false};
  std::atomic<std::size_t> most_unrecorded_{0};
  std::atomic<std::size_t> largest_{0}; // that is kept
  credit small_, large_;
};

} // namespace gpumem::detail
