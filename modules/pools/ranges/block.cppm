// The record of a block, its states, the uses of its memory, its size class, and the chunk in which it lies.
// SPDX-License-Identifier: Apache-2.0
export module gpumem:block;
import :std;
import :stream_timeline;

namespace gpumem::detail {

/// The distance in bytes between data that different threads write all the time. Processors fetch more than the cache
/// line that missed. With a distance of 128 bytes, two lines, 16 threads on an H200's host lost a third of their speed.
/// A thread that read its own data in order made the processor fetch the next thread's lines too.
export inline constexpr std::size_t false_sharing_distance = 512;

/// An atomic with relaxed loads and stores only, which cost as much as those of a plain value. Only the holder of a
/// lock may change it: `+=`, `-=` and `++` load and then store, so changes by two threads at once would be lost.
export template <class T> class relaxed_atomic {
public:
  constexpr relaxed_atomic() noexcept = default;
  constexpr relaxed_atomic(T value) noexcept : value_{value} {}
  relaxed_atomic(relaxed_atomic const&) = delete;
  inline relaxed_atomic& operator=(relaxed_atomic const& other) noexcept { return *this = static_cast<T>(other); }
  inline relaxed_atomic& operator=(T value) noexcept {
    value_.store(value, std::memory_order_relaxed);
    return *this;
  }
  inline operator T() const noexcept { return value_.load(std::memory_order_relaxed); }
  inline T operator->() const noexcept { return *this; }

  inline relaxed_atomic& operator+=(T change) noexcept { return *this = static_cast<T>(*this) + change; }
  inline relaxed_atomic& operator-=(T change) noexcept { return *this = static_cast<T>(*this) - change; }
  inline relaxed_atomic& operator++() noexcept { return *this += T{1}; }

private:
  std::atomic<T> value_{};
};

/// A use of memory by work on a stream, and the epoch in which it ends.
export struct stream_use {
  stream_timeline* timeline = nullptr;
  epoch newest = 0;

  /// Returns whether the host has seen the use complete.
  inline bool completed() const noexcept { return timeline->completed(newest); }
  /// Returns whether an event was recorded after the use, or the host has seen the use complete. Otherwise polls of
  /// events cannot show that the use is complete.
  inline bool has_event() const noexcept { return completed() || timeline->newest_recorded() >= newest; }
  /// Returns whether the host has not seen the use complete, but polls of events can show it.
  inline bool may_complete() const noexcept { return !completed() && timeline->can_complete(newest); }
};

/// The uses of a block: at most four, one for each stream. A use has the newest epoch in which its stream used the
/// block. A block without uses is ready for all streams. Guarded by the lock that guards the block: that of its shard,
/// or that of a thread cache while the block is there.
export class stream_uses {
public:
  static constexpr std::size_t max_streams = 4;

  stream_uses() = default;
  explicit inline stream_uses(stream_use const& only) noexcept { assign(only); }

  inline stream_use const* begin() const noexcept { return uses_.data(); }
  inline stream_use const* end() const noexcept { return uses_.data() + size_; }
  inline bool empty() const noexcept { return size_ == 0; }
  inline std::size_t size() const noexcept { return size_; }
  inline void clear() noexcept { size_ = 0; }
  /// Replaces all uses by `only`.
  inline void assign(stream_use const& only) noexcept {
    uses_[0] = only;
    size_ = 1;
  }

  stream_use const* find(stream_timeline const& timeline) const noexcept;

  /// Adds a use. Returns false, and changes nothing, if that would be a fifth stream.
  inline bool add(stream_use const& use) noexcept {
    if (size_ > 0) [[unlikely]]
      return add_to_others(use);
    assign(use);
    return true;
  }
  /// Adds the uses of another set. Returns false, and changes nothing, if that would make more than four streams.
  inline bool join(stream_uses const& other) noexcept {
    if (other.size_ == 1 && size_ == 1 && other.uses_[0].timeline == uses_[0].timeline) [[likely]] {
      uses_[0].newest = std::max(uses_[0].newest, other.uses_[0].newest);
      return true;
    }
    return other.size_ == 0 || join_many(other);
  }
  void remove(stream_timeline const& timeline) noexcept;
  /// Drops uses that the host has seen complete.
  void prune() noexcept;

  /// Returns whether the host has seen every use complete.
  bool completed() const noexcept;
  /// Returns whether both sets have the same streams; their epochs may differ.
  inline bool same_streams(stream_uses const& other) const noexcept {
    if (size_ != other.size_) return false;
    return size_ == 0 || (size_ == 1 ? uses_[0].timeline == other.uses_[0].timeline : same_many(other));
  }

private:
  bool add_to_others(stream_use const& use) noexcept;
  bool join_many(stream_uses const& other) noexcept;
  bool same_many(stream_uses const& other) const noexcept;

  std::size_t size_ = 0; // before the uses, so that it shares a cache line of the block with the first use
  std::array<stream_use, max_streams> uses_{};
};

/// Sizes and addresses of all blocks are multiples of this many bytes.
export inline constexpr std::size_t granule = 256;

export struct chunk;
export class free_list;

/// The state of a block. Only the holder of its shard's lock makes a block free, or allocates a free one. Changes
/// between `allocated` and `cached` need only the lock of a thread cache.
export enum class block_state : std::uint8_t {
  free,
  quick_listed, ///< small and free, on a quick list
  cached,       ///< freed, and in a thread cache
  evicted,      ///< removed from a thread cache: the block is still to be made free
  remote_freed, ///< in a remote free
  deferred,     ///< freed by a stream that is capturing a graph: the block is made free after the capture
  hole,         ///< its pages are unmapped
  allocated = 0x40,
  labelled = 0xc0, ///< allocated, and named by its owner; every other change of the state ends that
};

/// Returns whether a block in this state is live: allocated or labelled. Tests one bit, since each free asks.
export inline bool is_live(block_state state) noexcept {
  return (static_cast<std::uint8_t>(state) & static_cast<std::uint8_t>(block_state::allocated)) != 0;
}

/// The record of a block: a part of a chunk, all of it in one state. Allocations and frees touch mostly the first two
/// cache lines of a record; processors fetch these two together.
export struct alignas(128) block {
  relaxed_atomic<std::uintptr_t> base; // atomic: searches for other blocks read it without a lock
  std::size_t bytes = 0;
  block* lower = nullptr; ///< neighbours in the chunk, in any state
  block* upper = nullptr;
  block* next = nullptr;                 ///< free: next block in its size bin; otherwise next in the list that holds it
  block** bin_link = nullptr;            ///< free: address of the pointer to this block that its size bin holds
  relaxed_atomic<std::size_t> requested; ///< bytes that its last allocation asked for
  relaxed_atomic<block_state> state_ = block_state::free;
  relaxed_atomic<std::uint8_t>
      class_number; ///< live or cached: number of its size class; size_class::count if it has none
  std::uint16_t bin = 0;
  std::uint32_t table_slot = 0; ///< index of its entry in the block table, which finds blocks by address

  chunk* parent = nullptr;
  free_list* list = nullptr; ///< while free
  block* older = nullptr;    ///< free: neighbours on the free list, by age of their uses; hole: on the list of holes
  union {
    block* newer = nullptr;
    std::uint64_t
        allocated_at; ///< neither free nor a hole: the shard's locked calls when the block left its free memory
  };
  relaxed_atomic<stream_timeline*>
      stream;       ///< the stream that the block was allocated on; deferred: the stream that freed it
  stream_uses uses; ///< free or cached: uses after which it may be reused; live: uses that record_use() has declared

  block* pair_prev = nullptr; ///< links of the list free_pairs, if this block and its upper neighbour are free
  block* pair_next = nullptr;
  bool was_ready = false; ///< live and granted to a request that waits: all its earlier uses were complete then
  relaxed_atomic<std::uint32_t> label; ///< labelled: the number of the text; otherwise of no meaning

  block* tree_parent = nullptr; ///< its place in the tree of its chunk, if the chunk has one
  std::array<block*, 2> tree_children{};

  inline std::uintptr_t end() const noexcept { return base + bytes; }
  inline void* pointer() const noexcept { return reinterpret_cast<void*>(std::uintptr_t{base}); }
  inline block_state state() const noexcept { return state_; }
  inline void set_state(block_state next_state) noexcept { state_ = next_state; }
  inline bool is_free() const noexcept { return state() == block_state::free; }
  /// Asks the processor to fetch the records of both neighbours.
  inline void prefetch_neighbours() const noexcept {
    __builtin_prefetch(lower, 1);
    __builtin_prefetch(upper, 1);
  }
  inline bool is_live() const noexcept { return detail::is_live(state()); }
  /// Names a live block, or takes its name away if `number` is 0. Only the owner of the block may do so.
  inline void set_label(std::uint32_t number) noexcept {
    label = number;
    set_state(number ? block_state::labelled : block_state::allocated);
  }
  /// Returns the number of the block's label; 0 if it has none.
  inline std::uint32_t label_number() const noexcept {
    return state() == block_state::labelled ? std::uint32_t{label} : 0;
  }
};

static_assert(sizeof(block) == 256);

/// Returns whether `bytes` bytes with this alignment fit into the block; sets `offset` to their place in it.
export inline bool fits(block const& range, std::size_t bytes, std::size_t alignment, std::size_t& offset) noexcept {
  offset = (0 - range.base) & (alignment - 1);
  return offset <= range.bytes && bytes <= range.bytes - offset;
}

export struct pool_shard;
export struct address_range;

/// Contiguous memory of a pool's upstream. Its blocks adjoin without a gap; each is linked to its neighbours by `lower`
/// and `upper`. Blocks never coalesce across the ends of a chunk.
export struct alignas(64) chunk {
  std::uintptr_t base = 0;
  std::size_t bytes = 0;
  std::size_t live_blocks = 0; ///< blocks that are allocated, in a thread cache, or still to be freed
  block* first = nullptr;      ///< the lowest block
  block* last = nullptr;
  pool_shard* shard = nullptr;        ///< the owner; does not change while the chunk has live blocks
  address_range* addresses = nullptr; ///< where its pages are mapped; null if it is no pages
  block* root = nullptr;              ///< of the tree of all blocks; null: there is no tree
  std::size_t pins = 0;               ///< pins of a chunk that serves as pages; a pinned one stays

  inline std::uintptr_t end() const noexcept { return base + bytes; }

  // always_inline: each allocation or free that no thread cache serves runs this code.
  /// Links a block between `upper`, a block of this chunk, and the lower neighbour of `upper`.
  [[gnu::always_inline]] inline void link_below(block& lower, block& upper) noexcept {
    lower.parent = this;
    lower.lower = upper.lower;
    lower.upper = &upper;
    (lower.lower ? lower.lower->upper : first) = &lower;
    upper.lower = &lower;
    if (root) [[unlikely]]
      add_to_tree(lower);
  }
  /// Links a block between `lower`, a block of this chunk, and the upper neighbour of `lower`.
  inline void link_above(block& upper, block& lower) noexcept {
    upper.parent = this;
    upper.lower = &lower;
    upper.upper = lower.upper;
    (upper.upper ? upper.upper->lower : last) = &upper;
    lower.upper = &upper;
    if (root) [[unlikely]]
      add_to_tree(upper);
  }
  /// Takes a block of this chunk out of the list: makes its neighbours neighbours of each other. Returns the block.
  [[gnu::always_inline]] inline block& unlink(block& joined) noexcept {
    (joined.lower ? joined.lower->upper : first) = joined.upper;
    (joined.upper ? joined.upper->lower : last) = joined.lower;
    if (root) [[unlikely]]
      remove_from_tree(joined);
    return joined;
  }
  /// Makes the tree of a chunk that has one block. From then on find_containing() takes a number of steps in proportion
  /// to the logarithm of the number of blocks.
  inline void begin_tree() noexcept {
    root = first;
    root->tree_parent = nullptr;
    root->tree_children = {};
  }

  /// Visits every block in order of address.
  template <class Visit> void visit(Visit visitor) const {
    for (auto* each = first; each; each = each->upper) visitor(*each);
  }
  /// Returns the block that holds the address; null if the address is above the chunk. The address must not be below
  /// the chunk. Without a tree, takes time in proportion to the number of blocks.
  block* find_containing(void const* pointer) const noexcept;
  /// Returns the bytes of the largest run of adjacent free blocks, whether or not streams still use them. Takes time in
  /// proportion to the number of blocks.
  std::size_t largest_run() const noexcept;

private:
  void add_to_tree(block& added) noexcept;
  void remove_from_tree(block& joined) noexcept;
  void rotate_up(block& node) noexcept;
  block*& link_to(block const& node) noexcept;
};

/// The size of a block, and the number of its class. Up to 4 KiB, and for large blocks, every multiple of 256 bytes is
/// a size. Between these, each power of two has eight sizes. So above 2 KiB, rounding wastes at most an eighth of a
/// block. The code has no branches, because the processor would mispredict them for random sizes.
export struct size_class {
  static constexpr std::size_t largest_small = std::size_t{64} << 10;
  static constexpr std::size_t largest_medium = std::size_t{1} << 20;
  static constexpr unsigned small_count = 48;
  static constexpr unsigned count = 80; ///< number of small and medium classes

  /// The kinds of sizes: a pool bounds the bytes that its thread caches hold of each kind.
  enum kind : std::uint8_t { small, medium, large };
  static constexpr std::size_t kinds = 3;
  /// Returns the kind, small or medium, of a size that has a class number.
  static inline kind kind_of(std::size_t bytes) noexcept { return bytes <= largest_small ? small : medium; }

  std::size_t bytes;
  std::uint8_t number; ///< class number; `count` if the size has none

  /// Returns the size of the block for a request of at least one byte. Sizes up to `largest` have class numbers.
  static inline size_class of(std::size_t requested, std::size_t largest = largest_medium) noexcept {
    bool const numbered = requested <= largest;
    auto const fine = unit_log2_of(requested);
    auto const unit_log2 = __builtin_expect_with_probability(numbered, true, .5) ? fine : granule_log2;
    auto const steps = (requested - 1) >> unit_log2;
    auto const class_number = number_of(steps, fine);
    auto const number = __builtin_expect_with_probability(numbered, true, .5) ? class_number : count;
    return {(steps + 1) << unit_log2, static_cast<std::uint8_t>(number)};
  }
  inline bool is_small() const noexcept { return number < small_count; }
  inline bool is_numbered() const noexcept { return number < count; }
  /// Returns the class number of a small size.
  static inline unsigned number_of_small(std::size_t bytes) noexcept {
    auto const unit_log2 = unit_log2_of(bytes);
    return static_cast<unsigned>(number_of((bytes - 1) >> unit_log2, unit_log2));
  }

private:
  static constexpr unsigned granule_log2 = 8;
  static_assert(granule == 1u << granule_log2);
  static constexpr unsigned steps_log2 = 3;

  // Returns the binary logarithm of the step between the sizes near this one. The step is a sixteenth of the next power
  // of two, and at least a granule.
  static inline unsigned unit_log2_of(std::size_t bytes) noexcept {
    constexpr std::size_t least = granule << steps_log2;
    return static_cast<unsigned>(std::bit_width((bytes - 1) | least)) - steps_log2 - 1;
  }
  static inline std::size_t number_of(std::size_t steps, unsigned unit_log2) noexcept {
    return ((std::size_t{unit_log2} - granule_log2) << steps_log2) + steps;
  }
};

} // namespace gpumem::detail
