// Last freed blocks, kept near the threads that freed them.
// SPDX-License-Identifier: Apache-2.0
module;
#include <cstdint>
#include <mutex>
export module gpumem:magazines;
import :block;
import :cabinet;
import :credit;
import :recent_blocks;
import :relaxed;
import :size_class;
import :std;
import :sync;
import :tags;
import :timeline;

namespace gpumem::detail {

/// Sums of what threads count for themselves; exact, whoever freed what, while none of them goes on.
export struct thread_counts {
  std::uint64_t allocations = 0;
  std::uint64_t frees = 0;
  std::uint64_t refused = 0; ///< frees of small and medium blocks that found no credit for their size
  std::int64_t not_live = 0; ///< requested bytes that the shards count as live, and that are not
  std::array<credit::sum, size_class::kinds> kept; ///< bytes, and what is in reserve for that
  inline std::size_t cached() const noexcept {
    return kept[size_class::small].in_use + kept[size_class::medium].in_use + kept[size_class::large].in_use;
  }
};

/// Freed blocks by thread number and stream: small and medium ones by size, and the last others, large ones and medium
/// ones that found no place there. They belong to the pool: anybody can sweep them. A block goes out to the stream that
/// freed it and to no other, so what that was given before is before the next use; for its own size, or for one a
/// little smaller. What is kept comes out of a credit for each kind of size. Nothing here allocates but `prepare`.
///
/// Each slot has a lock of its own, far from those of others, which belongs to its thread; threads of the highest
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

  /// A kept block of that size or a little more, granted to the stream again; or null. Any thread, of the number `me`.
  [[gnu::always_inline]] inline block* take(timeline& order, size_class const& size, std::size_t requested,
                                            unsigned me) noexcept {
    auto& mine = slot_of(me);
    auto* const all = mine.furniture.load(std::memory_order_acquire);
    if (!all) [[unlikely]]
      return nullptr;
    sync::owned_lock const held{mine.guard};
    if (!allowed()) [[unlikely]]
      return nullptr;
    auto* found = size.is_numbered() ? take_numbered(mine, all->cabinet_of(order), order, size.number) : nullptr;
    if (!found && !size.is_small()) found = take_recent(mine, all->recent, order, size.bytes);
    return found ? &grant(mine, *found, order, requested) : nullptr;
  }

  /// What became of a block that was put.
  struct result {
    bool kept;
    block* out; ///< another block, for which there is no place any more; or null
  };
  /// Keeps a granted block whose last use, on its stream, is over by that tag. Any thread, of the number `me`.
  [[gnu::always_inline]] inline result put(block& freed, tag const& use, unsigned me) noexcept {
    auto& order = *use.order;
    auto& mine = slot_of(me);
    auto* const all = mine.furniture.load(std::memory_order_acquire);
    if (!all) [[unlikely]]
      return {false, nullptr};
    sync::owned_lock const held{mine.guard};
    if (!allowed()) [[unlikely]]
      return {false, nullptr};
    auto& in = all->cabinet_of(order);
    if (freed.stack < size_class::count) {
      if (auto const numbered = put_numbered(mine, *all, in, freed, use)) return *numbered;
    }
    return put_recent(mine, all->recent, in, freed, use);
  }

  /// Links a granted block whose use is over to others that are to be made free; false: not now, as nothing is kept.
  /// Any thread; a sweep that follows `allow(false)` comes after all of them.
  inline bool post(block& freed, tag const& use, std::atomic<block*>& to) noexcept {
    sync::owned_lock const held{slot_of(sync::thread_number()).guard};
    if (!allowed()) return false;
    freed.tags.assign(use);
    freed.become(block_state::posted);
    freed.next = to.load(std::memory_order_relaxed);
    while (!to.compare_exchange_weak(freed.next, &freed, std::memory_order_release, std::memory_order_relaxed)) {}
    return true;
  }

  /// Whether any more are kept, most bytes of each kind, how many threads share those of stacks, and after how many
  /// bytes freed a stream's free goes another way, on which evidence may be recorded. Under the pool's lock.
  void allow(bool on, std::array<std::size_t, size_class::kinds> const& most, std::size_t threads,
             std::size_t most_unrecorded) noexcept;
  inline bool allowed() const noexcept { return allowed_.load(std::memory_order_relaxed); }
  inline std::size_t most_unrecorded() const noexcept { return most_unrecorded_.load(std::memory_order_relaxed); }
  /// What is kept, in reserve near threads and left is the credit, and no more is kept. Within `look`.
  bool balanced(thread_counts const& sum) const noexcept;
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

  // What a thread keeps.
  struct alignas(far_apart) furniture {
    recent_blocks recent;
    std::array<cabinet, cabinet_count> cabinets;
    inline cabinet& cabinet_of(timeline const& order) noexcept { return cabinets[order.index() % cabinet_count]; }
  };
  // Its lock's holder changes it; any thread reads the counts.
  struct alignas(far_apart) slot {
    sync::owned_mutex guard;
    std::uint32_t lacked = 0; // credit, so often since the last sweep
    relaxed<std::int64_t> not_live;
    relaxed<std::uint64_t> allocations, frees, refused;
    std::array<credit::part, size_class::kinds> parts;
    std::atomic<magazines::furniture*> furniture{nullptr}; // of threads that have allocated
  };

  static inline unsigned slot_number(unsigned number) noexcept {
    return number < owned_slots ? number : owned_slots + number % shared_slots;
  }
  inline slot& slot_of(unsigned number) noexcept { return slots_[slot_number(number)]; }
  inline slot const& slot_of(unsigned number) const noexcept { return slots_[slot_number(number)]; }

  [[gnu::always_inline]] static inline block* take_numbered(slot& mine, cabinet& in, timeline const& order,
                                                            unsigned number) noexcept {
    auto* const found = in.order == &order ? in.take(number) : nullptr;
    if (found) mine.parts[size_class::kind_of(found->bytes)].regain(found->bytes);
    return found;
  }
  [[gnu::always_inline]] static inline block* take_recent(slot& mine, recent_blocks& recent, timeline const& order,
                                                          std::size_t bytes) noexcept {
    auto* const found = recent.take(order, bytes);
    if (found) mine.parts[size_class::large].regain(bytes);
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
  // None: a medium block for which there is no place; it may be kept among the last ones.
  [[gnu::always_inline]] inline std::optional<result> put_numbered(slot& mine, furniture& all, cabinet& in,
                                                                   block& freed, tag const& use) noexcept {
    auto& order = *use.order;
    auto const kind = size_class::kind_of(freed.bytes);
    auto& from = credits_[kind];
    auto& part = mine.parts[kind];
    block* out = nullptr;
    if (!claim(in, order)) [[unlikely]] {
      out = give_way(mine, in);
    } else if (!from.spend(part, freed.bytes)) {
      out = refuse(mine, all, from.left() < static_cast<std::int64_t>(freed.bytes));
    } else if (due(in, order, freed.bytes)) [[unlikely]] {
      part.regain(freed.bytes);
      return result{false, nullptr};
    } else {
      note_kept(mine, freed, use);
      in.push(freed);
      in.last_put = mine.refused;
      in.strangers = 0;
      return result{true, nullptr};
    }
    if (out || kind == size_class::small) return result{false, out};
    return {};
  }
  [[gnu::always_inline]] inline result put_recent(slot& mine, recent_blocks& recent, cabinet& in, block& freed,
                                                  tag const& use) noexcept {
    auto& order = *use.order;
    auto const bytes = freed.bytes;
    bool const keeps = bytes <= largest_.load(std::memory_order_relaxed) && recent.worthwhile();
    if (!keeps && recent.empty()) return {false, nullptr};
    // Also where this one is too large: with what is kept it may become a larger range. Without that two of four
    // recorded traces used .01 and .05 less of what is reserved.
    if (!keeps) return {false, evict(mine, recent)};
    if (claim(in, order) ? due(in, order, bytes) : due_alone(order, bytes)) [[unlikely]]
      return {false, nullptr};
    auto& from = credits_[size_class::large];
    auto& part = mine.parts[size_class::large];
    bool paid = !recent.full() && from.spend(part, bytes);
    auto* const out = paid ? nullptr : evict(mine, recent);
    paid = paid || from.spend(part, bytes);
    if (!paid) [[unlikely]] {
      if (from.left() < static_cast<std::int64_t>(bytes)) count_lack(mine);
      return {false, out};
    }
    note_kept(mine, freed, use);
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
    if (many) [[unlikely]]
      pass_on(one, order);
    return many || order.asked();
  }
  inline void count_lack(slot& mine) noexcept {
    ++mine.lacked;
    if (mine.lacked < most_refused) [[likely]]
      return;
    if (!starved()) starved_.store(true, std::memory_order_relaxed);
  }
  [[gnu::always_inline]] static inline void note_kept(slot& mine, block& freed, tag const& use) noexcept {
    freed.tags.assign(use);
    freed.become(block_state::cached);
    ++mine.frees;
    mine.not_live += static_cast<std::int64_t>(freed.requested);
  }

  void furnish(slot& mine);
  // Rare: see sync::quick_mutex.
  [[clang::preserve_most, gnu::visibility("hidden")]] bool claim_empty(cabinet& one, timeline& order) const noexcept;
  [[clang::preserve_most, gnu::visibility("hidden")]] void pass_on(cabinet& one, timeline& order) const noexcept;
  [[clang::preserve_most, gnu::visibility("hidden")]] bool due_alone(timeline& order, std::size_t bytes) const noexcept;
  block& pop_largest(slot& mine, cabinet& in) noexcept;
  static block* evict(slot& mine, recent_blocks& recent) noexcept;
  [[clang::preserve_most, gnu::visibility("hidden")]] block* give_way(slot& mine, cabinet& in) noexcept;
  [[clang::preserve_most, gnu::visibility("hidden")]] block* refuse(slot& mine, furniture& all, bool lacking) noexcept;
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
  std::array<credit, size_class::kinds> credits_;
};

} // namespace gpumem::detail
