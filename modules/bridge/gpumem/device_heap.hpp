// The parts of a heap for kernels that the host and the kernels share: the view of kernels, and the metadata's layout.
// For C++17 and later, with any compiler; kernels include <gpumem/device_heap.cuh>, which defines the view's functions.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <stdexcept>
#include <string>

#if defined(__CUDACC__)
#define GPUMEM_HEAP_HOST __host__
#define GPUMEM_HEAP_DEVICE __device__
#else
#define GPUMEM_HEAP_HOST
#define GPUMEM_HEAP_DEVICE
#endif
#define GPUMEM_HEAP_SHARED GPUMEM_HEAP_HOST GPUMEM_HEAP_DEVICE

namespace gpumem {

/// Options of a device_heap; sizes in bytes.
struct device_heap_options {
  std::size_t bytes = 0;   ///< the size at first, rounded up to 2 MiB
  std::size_t reserve = 0; ///< addresses to reserve: the most that the heap can ever have; 0: as many as `bytes`
  std::string name = "device heap"; ///< names the memory in snapshots and reports, and the heap in texts of errors
};

/// The memory of the blocks of a device_heap, and the calls that failed since its creation or last reset.
struct device_heap_statistics {
  /// The blocks of one size class.
  struct size_class {
    std::size_t bytes = 0;    ///< size of each block
    std::uint64_t live = 0;   ///< number of blocks that are allocated and not freed
    std::uint64_t in_use = 0; ///< bytes of the slabs that hold them, free blocks included
  };

  std::size_t bytes = 0;                ///< size of the heap
  std::size_t free = 0;                 ///< bytes of slabs that no size class and no large block uses
  std::uint64_t live = 0;               ///< number of all blocks that are allocated and not freed
  std::size_t live_bytes = 0;           ///< their bytes, rounded up to size classes and slabs
  std::uint64_t failed = 0;             ///< number of allocations that returned null for lack of memory
  std::size_t largest_failed = 0;       ///< most bytes for which such an allocation asked
  std::uint64_t bad_frees = 0;          ///< number of ignored frees; heap_view::deallocate says which these are
  std::uintptr_t bad_free = 0;          ///< address of the first of them
  std::uint64_t large = 0;              ///< number of live blocks of more than 64 KiB
  std::size_t large_bytes = 0;          ///< their bytes, rounded up to slabs
  std::array<size_class, 13> classes{}; ///< 16 bytes, 32 bytes, … 64 KiB
};

namespace heap_detail {

constexpr unsigned class_count = 13;                // 16 bytes … 64 KiB
constexpr unsigned smallest_log = 4, slab_log = 16; // logarithms of the bytes of the smallest class and of a slab
constexpr std::size_t slab_bytes = std::size_t{1} << slab_log;
constexpr unsigned slab_words = (1u << (slab_log - smallest_log)) / 32; // bit words of one slab
constexpr std::size_t most_slabs = std::size_t{1} << 24;                // 1 TiB; a slot has 24 bits for a slab
constexpr unsigned most_processors = 256;                               // slots beyond them are shared
constexpr unsigned slabs_per_processor = 128; // slabs for each slot of a class: slots keep little memory back

// The state of a slab: the class and the number of freed blocks, which no slot has reserved. A slab that is free has 0.
// The first slab of a large block has the kind `large` and the number of its slabs; its other slabs have 0.
constexpr unsigned state_shift = 28;
constexpr std::uint32_t count_mask = (std::uint32_t{1} << state_shift) - 1;
constexpr std::uint32_t large = class_count + 1;
GPUMEM_HEAP_SHARED constexpr std::uint32_t make_state(std::uint32_t kind, std::uint32_t count) {
  return kind << state_shift | count;
}
GPUMEM_HEAP_SHARED inline std::uint32_t kind_of(std::uint32_t state) { return state >> state_shift; }
GPUMEM_HEAP_SHARED inline std::uint32_t count_of(std::uint32_t state) { return state & count_mask; }

// A slot holds the blocks that the threads of one multiprocessor take next: the first slab, the number of its blocks
// that the slot has reserved, and how many were taken. The blocks are marked in the bits of the slab, or lie in a row
// from its first one on. A slot has become empty when more than `reserved` were asked for.
constexpr unsigned taken_bits = 21, reserved_bits = 18;
GPUMEM_HEAP_SHARED constexpr std::uint64_t make_slot(std::uint32_t slab, std::uint32_t reserved, bool marked,
                                                     std::uint32_t taken) {
  return (std::uint64_t{slab} << (reserved_bits + 1) | std::uint64_t{reserved} << 1 | (marked ? 1u : 0u))
             << taken_bits |
         taken;
}
GPUMEM_HEAP_SHARED inline std::uint32_t taken_of(std::uint64_t slot) {
  return static_cast<std::uint32_t>(slot) & ((1u << taken_bits) - 1);
}
GPUMEM_HEAP_SHARED inline bool is_marked(std::uint64_t slot) { return (slot >> taken_bits & 1) != 0; }
GPUMEM_HEAP_SHARED inline std::uint32_t reserved_of(std::uint64_t slot) {
  return static_cast<std::uint32_t>(slot >> (taken_bits + 1)) & ((1u << reserved_bits) - 1);
}
GPUMEM_HEAP_SHARED inline std::uint32_t slab_of(std::uint64_t slot) {
  return static_cast<std::uint32_t>(slot >> (taken_bits + 1 + reserved_bits));
}

// The counts of the device; at the begin of the metadata.
struct header {
  std::uint64_t failed;
  std::uint64_t largest_failed;
  std::uint64_t bad_frees;
  std::uint64_t bad_free;
};

constexpr std::size_t header_bytes = 256;
constexpr std::size_t slot_stride = 16; // slots of one multiprocessor, for alignment more than there are classes
constexpr unsigned cache_entries = 256; // of the cache of one multiprocessor and class
constexpr std::uint32_t cache_gap =
    ~std::uint32_t{0}; // where a thread found no block; the next block there is not counted

// Offsets into the metadata of a heap that can have `slabs` slabs.
struct layout {
  std::uint32_t slabs = 0;                          // a multiple of 64
  std::uint32_t processors = 1;                     // the most multiprocessors with slots and caches of their own
  std::uint32_t words1 = 0, words2 = 0, words3 = 0; // of one set: a bit of each level stands for a word of the last one
  std::uint32_t set_words = 0;                      // of one set, with the alignment

  static constexpr std::size_t slots = header_bytes;
  // The number of blocks in each cache, then the blocks: their numbers in their class, from 1 on.
  GPUMEM_HEAP_SHARED constexpr std::size_t cache_sizes() const {
    return slots + processors * slot_stride * sizeof(std::uint64_t);
  }
  GPUMEM_HEAP_SHARED constexpr std::size_t caches() const {
    return cache_sizes() + processors * slot_stride * sizeof(std::uint32_t);
  }
  GPUMEM_HEAP_SHARED constexpr std::size_t states() const {
    return caches() + std::size_t{processors} * class_count * cache_entries * sizeof(std::uint32_t);
  }
  GPUMEM_HEAP_SHARED constexpr std::size_t sets() const { return states() + slabs * sizeof(std::uint32_t); }
  // The free slabs; then for each class the slabs with many freed blocks, and those with few.
  static constexpr unsigned set_count = 1 + 2 * class_count;
  GPUMEM_HEAP_SHARED constexpr std::size_t bits() const {
    return sets() + std::size_t{set_words} * set_count * sizeof(std::uint64_t);
  }
  GPUMEM_HEAP_SHARED constexpr std::size_t end(std::size_t present) const {
    return bits() + present * slab_words * sizeof(std::uint32_t);
  }
};

constexpr std::uint32_t processors_for(std::size_t bytes) {
  auto const count = bytes / slab_bytes / slabs_per_processor;
  return static_cast<std::uint32_t>(count < 1 ? 1 : count > most_processors ? most_processors : count);
}

constexpr layout make_layout(std::size_t reserve) {
  layout result;
  result.processors = processors_for(reserve);
  result.slabs = static_cast<std::uint32_t>((reserve / slab_bytes + 63) / 64 * 64);
  // Each level has a word for each bit of the level above, since the fills of a growth set whole words there.
  result.words1 = (result.slabs / 64 + 63) / 64 * 64;
  result.words2 = (result.words1 / 64 + 63) / 64 * 64;
  result.words3 = result.words2 / 64;
  result.set_words = (result.words1 + result.words2 + result.words3 + 31) / 32 * 32;
  return result;
}

} // namespace heap_detail

/// The heap as kernels see it; pass it to them by value. It stays valid when the heap grows and when it is reset;
/// kernels with an older view use the new memory too. A view of a larger heap is faster, as more multiprocessors have
/// blocks of their own. A view that is made empty, and one of a device_heap that has ended, must not be used. Its
/// functions are defined in <gpumem/device_heap.cuh>.
class heap_view {
public:
  heap_view() = default;
  /// For device_heap: `data` and `metadata` are the addresses of its two buffers.
  heap_view(void* data, void* metadata, std::size_t reserve, std::size_t bytes) noexcept
      : data_{static_cast<unsigned char*>(data)}, metadata_{static_cast<unsigned char*>(metadata)},
        layout_{heap_detail::make_layout(reserve)}, processors_{heap_detail::processors_for(bytes)} {}

  /// Returns a block of at least `bytes` bytes; null if the heap has none, which is counted, or if `bytes` is 0. Blocks
  /// of up to 64 KiB have the next power of two as their size, at least 16 bytes, and are aligned to it. Larger ones
  /// are aligned to 64 KiB. Any thread of any kernel of the device. The contents are undefined. A heap that is nearly
  /// full may return null while other threads allocate or free.
  GPUMEM_HEAP_DEVICE void* allocate(std::size_t bytes) const;
  /// Frees a block that any thread of any kernel got from the heap. Null does nothing. An address outside of the heap,
  /// and one at which no block can begin, are counted and ignored. A second free of a block is undefined. With the
  /// macro GPUMEM_DEVICE_HEAP_CHECKS the heap counts and ignores it too, while the block is free and its slab is not
  /// used anew. Two warps must not free the block at the same time. Frees take longer then.
  GPUMEM_HEAP_DEVICE void deallocate(void* block) const;
  /// Allocates and constructs an object; returns null if the heap has no memory.
  template <class T, class... Arguments> GPUMEM_HEAP_DEVICE T* create(Arguments&&... arguments) const;
  /// Destroys an object that `create` made, and frees its memory. Null does nothing.
  template <class T> GPUMEM_HEAP_DEVICE void destroy(T* object) const;

  /// For the library.
  GPUMEM_HEAP_SHARED unsigned char* data() const noexcept { return data_; }
  /// For the library.
  GPUMEM_HEAP_SHARED unsigned char* metadata() const noexcept { return metadata_; }
  /// For the library.
  GPUMEM_HEAP_SHARED heap_detail::layout const& layout() const noexcept { return layout_; }
  /// For the library: the number of multiprocessors with slots of their own.
  GPUMEM_HEAP_SHARED std::uint32_t processors() const noexcept { return processors_; }

private:
  unsigned char* data_ = nullptr;
  unsigned char* metadata_ = nullptr;
  heap_detail::layout layout_;
  std::uint32_t processors_ = 1;
};

namespace heap_detail {

constexpr std::size_t unit_bytes = 32 * slab_bytes; // the sizes of a heap are multiples of it

constexpr std::size_t round_to_units(std::size_t bytes) { return (bytes + unit_bytes - 1) / unit_bytes * unit_bytes; }

// Returns the options with sizes that a heap can have. Throws std::invalid_argument.
inline device_heap_options checked(device_heap_options options) {
  auto const fail = [&options](std::string const& why) {
    throw std::invalid_argument{"gpumem: " + options.name + ": " + why};
  };
  constexpr auto most = most_slabs * slab_bytes;
  if (options.reserve == 0) options.reserve = options.bytes;
  if (options.reserve == 0) fail("a device_heap needs memory: set device_heap_options::bytes or reserve");
  if (options.reserve > most)
    fail(std::to_string(options.reserve) + " bytes of addresses exceed the " + std::to_string(most) +
         " bytes that a heap can have");
  if (options.bytes > options.reserve)
    fail("the initial " + std::to_string(options.bytes) + " bytes exceed the " + std::to_string(options.reserve) +
         " bytes of addresses");
  options.bytes = round_to_units(options.bytes);
  options.reserve = round_to_units(options.reserve);
  return options;
}

// A part of the metadata that the host fills with one byte value, in stream order.
struct fill {
  std::size_t offset;
  std::size_t bytes;
  unsigned char value;
};

// Returns the fills after a growth from `old` to `now` slabs, both multiples of 32. A heap that kernels use meanwhile
// stays valid: only words of new slabs change, and a set bit of an upper level may stand for an empty word.
inline std::array<fill, 5> fills_of_growth(layout const& heap, std::size_t old, std::size_t now) {
  auto const upper = heap.sets() + std::size_t{heap.words1} * 8;
  auto const words = [](std::size_t slabs, std::size_t each) { return (slabs + each - 1) / each * 8; };
  return {{{heap.states() + old * 4, (now - old) * 4, 0},
           {heap.bits() + old * slab_words * 4, (now - old) * slab_words * 4, 0},
           {heap.sets() + old / 8, (now - old) / 8, 0xff},
           {upper, words(now, 64 * 64), 0xff},
           {upper + std::size_t{heap.words2} * 8, words(now, std::size_t{64} * 64 * 64), 0xff}}};
}

// Returns the fill before the first growth, and, with that of all slabs, for a reset.
inline fill fill_of_begin(layout const& heap) { return {0, heap.bits(), 0}; }

// Returns the number of the metadata's first bytes that count_blocks needs.
inline std::size_t counted_bytes(layout const& heap, std::size_t slabs) { return heap.states() + slabs * 4; }

// Returns the statistics. `copy`: the metadata's first counted_bytes, of a time at which no kernel uses the heap.
inline device_heap_statistics count_blocks(layout const& heap, unsigned char const* copy, std::size_t slabs) {
  auto const read = [copy](auto& value, std::size_t offset) { std::memcpy(&value, copy + offset, sizeof value); };
  device_heap_statistics result;
  header counted{};
  read(counted, 0);
  result.bytes = slabs * slab_bytes;
  result.failed = counted.failed;
  result.largest_failed = static_cast<std::size_t>(counted.largest_failed);
  result.bad_frees = counted.bad_frees;
  result.bad_free = static_cast<std::uintptr_t>(counted.bad_free);
  for (unsigned i = 0; i != class_count; ++i) result.classes[i].bytes = std::size_t{1} << (smallest_log + i);

  for (std::size_t i = 0; i != slabs; ++i) {
    std::uint32_t state = 0;
    read(state, heap.states() + i * 4);
    auto const kind = kind_of(state);
    if (kind == large) {
      ++result.large;
      result.large_bytes += count_of(state) * slab_bytes;
    } else if (kind != 0) {
      auto& blocks = result.classes[kind - 1];
      blocks.live += slab_bytes / blocks.bytes - count_of(state);
      blocks.in_use += slab_bytes;
    }
  }
  for (unsigned processor = 0; processor != heap.processors; ++processor)
    for (unsigned i = 0; i != class_count; ++i) {
      std::uint64_t slot = 0;
      read(slot, layout::slots + (processor * slot_stride + i) * 8);
      if (taken_of(slot) < reserved_of(slot)) result.classes[i].live -= reserved_of(slot) - taken_of(slot);
      for (unsigned entry = 0; entry != cache_entries; ++entry) {
        std::uint32_t block = 0;
        read(block, heap.caches() + ((std::size_t{processor} * class_count + i) * cache_entries + entry) * 4);
        if (block != 0 && block != cache_gap) --result.classes[i].live;
      }
    }
  result.live = result.large;
  result.live_bytes = result.large_bytes;
  auto in_use = result.large_bytes;
  for (auto& blocks : result.classes) {
    if (static_cast<std::int64_t>(blocks.live) < 0) blocks.live = 0; // kernels have changed the copy meanwhile
    result.live += blocks.live;
    result.live_bytes += blocks.live * blocks.bytes;
    in_use += blocks.in_use;
  }
  result.free = in_use < result.bytes ? result.bytes - in_use : 0;
  return result;
}

} // namespace heap_detail
} // namespace gpumem
