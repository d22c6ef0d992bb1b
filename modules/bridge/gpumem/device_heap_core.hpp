// Allocation from a heap by the lanes of a warp. The same source is compiled for the device, and for the host by the
// tests, which emulate the lanes.
//
// Slabs of one size class have bits for their freed blocks, as in the GPU allocator of LLVM's libc. The lanes of a warp
// that ask for one class take blocks out of a slot of their multiprocessor by one atomic addition. A count of freed
// blocks goes before their bits: a lane that has reserved one of them finds a bit, whichever blocks others take.
//
// Lanes: `Lanes` gives the lanes that are active together, match, ballot, shuffle and reductions over them, and atomic
// operations. No lane waits for another one without end.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gpumem/device_heap.hpp>

#include <cstddef>
#include <cstdint>

namespace gpumem {
namespace heap_detail {

enum class order : unsigned char { relaxed, acquire, release, acq_rel };

// Returns the position of the set bit that has `rank` set bits below it.
template <class Lanes, class Word> GPUMEM_HEAP_DEVICE unsigned select_bit(Word word, unsigned rank) {
  unsigned position = 0;
  for (unsigned half = sizeof(Word) * 4; half != 0; half /= 2) {
    auto const low = static_cast<Word>(word >> position) & ((Word{1} << half) - 1);
    auto const count = Lanes::count(low);
    if (rank >= count) {
      rank -= count;
      position += half;
    }
  }
  return position;
}

template <class Lanes> class heap_core {
public:
  GPUMEM_HEAP_DEVICE explicit heap_core(heap_view const& view) : view_{view} {}

  GPUMEM_HEAP_DEVICE void* allocate(std::size_t bytes);
  GPUMEM_HEAP_DEVICE void deallocate(void* block);

private:
  using u32 = std::uint32_t;
  using u64 = std::uint64_t;
  static constexpr u32 none = ~u32{0};
  static constexpr unsigned polls = 256; // of a slot that another thread fills, before a thread takes a slab of its own

  // Blocks that a thread has reserved: of a slab whose bits mark them, or in a row from the begin of the slab on.
  struct reservation {
    u32 slab = none;
    u32 count = 0;
    bool marked = false;
  };
  // One of these blocks.
  struct grant {
    reservation blocks;
    u32 index = 0;
  };

  GPUMEM_HEAP_DEVICE static u32 capacity(u32 kind) { return 1u << (slab_log - smallest_log + 1 - kind); }
  // Slabs with at least so many freed blocks are taken before free slabs, the others after them.
  GPUMEM_HEAP_DEVICE static u32 many(u32 kind) { return capacity(kind) <= 16 ? 1 : capacity(kind) / 16; }
  GPUMEM_HEAP_DEVICE static u32 word_count(u32 kind) { return capacity(kind) <= 32 ? 1 : capacity(kind) / 32; }
  // The most slabs side by side that one slot gets: a slot of fewer blocks would be filled too often.
  GPUMEM_HEAP_DEVICE static u32 most_in_slot(u32 kind) {
    return capacity(kind) >= 1024 ? 1 : capacity(kind) <= 64 ? 16 : 1024 / capacity(kind);
  }
  GPUMEM_HEAP_DEVICE static u32 below(u32 group, u32 lane) { return Lanes::count(group & ((1u << lane) - 1)); }

  template <class Word> GPUMEM_HEAP_DEVICE Word* at(std::size_t offset) const {
    return reinterpret_cast<Word*>(view_.metadata() + offset);
  }
  GPUMEM_HEAP_DEVICE header* counters() const { return at<header>(0); }
  GPUMEM_HEAP_DEVICE u64* slot(u32 processor, u32 kind) const {
    return at<u64>(layout::slots) + processor * slot_stride + (kind - 1);
  }
  GPUMEM_HEAP_DEVICE u32* state(u32 slab) const { return at<u32>(layout::states) + slab; }
  GPUMEM_HEAP_DEVICE u32* bit_words(u32 slab) const {
    return at<u32>(view_.layout().bits()) + std::size_t{slab} * slab_words;
  }
  GPUMEM_HEAP_DEVICE u64* set(u32 index) const {
    return at<u64>(view_.layout().sets()) + std::size_t{index} * view_.layout().set_words;
  }
  GPUMEM_HEAP_DEVICE u64* free_set() const { return set(0); }
  GPUMEM_HEAP_DEVICE u64* set_of_many(u32 kind) const { return set(2 * kind - 1); }
  GPUMEM_HEAP_DEVICE u64* set_of_few(u32 kind) const { return set(2 * kind); }
  GPUMEM_HEAP_DEVICE void* block_at(u32 slab, u32 index, u32 kind) const {
    return view_.data() + (std::size_t{slab} << slab_log) + (std::size_t{index} << (kind - 1 + smallest_log));
  }

  // Sets of slabs.
  GPUMEM_HEAP_DEVICE void mark_upper(u64* set, u32 word);
  GPUMEM_HEAP_DEVICE void unmark_upper(u64* set, u32 word);
  GPUMEM_HEAP_DEVICE void insert(u64* set, u32 word, u64 bits);
  GPUMEM_HEAP_DEVICE u32 take_slabs(u64* set, u32 count, u32 hint);
  GPUMEM_HEAP_DEVICE bool take_bits(u64* set, u32 word, u64 wanted);
  GPUMEM_HEAP_DEVICE static u64 rows(u64 bits, u32 count);
  GPUMEM_HEAP_DEVICE static u64 low_bits(u32 count) { return count >= 64 ? ~u64{0} : (u64{1} << count) - 1; }

  // Blocks of slabs.
  GPUMEM_HEAP_DEVICE reservation reserve_freed(u64* set, u32 kind, u32 hint);
  GPUMEM_HEAP_DEVICE reservation reserve(u32 kind, u32 slabs, u32 hint);
  GPUMEM_HEAP_DEVICE void add_freed(u32 slab, u32 kind, u32 count);
  GPUMEM_HEAP_DEVICE void give_back(reservation const& blocks, u32 used, u32 kind);
  GPUMEM_HEAP_DEVICE grant reserve_elsewhere(u32 kind);
  GPUMEM_HEAP_DEVICE u32 find_marked(u32 active, bool searches, grant const& found, u32 kind);
  GPUMEM_HEAP_DEVICE void* allocate_large(std::size_t bytes);
  GPUMEM_HEAP_DEVICE void free_large(u32 slab, u32 state, void* block);
  GPUMEM_HEAP_DEVICE void count_failures(u32 active, bool failed, std::size_t bytes);
  GPUMEM_HEAP_DEVICE void count_bad_frees(u32 count, void* block);

  heap_view const& view_;
};

// Sets. A bit of an upper level that is set says that the word below may have bits. The thread that clears the last bit
// of a word clears the bit above it, and looks at the word again.

template <class Lanes> GPUMEM_HEAP_DEVICE void heap_core<Lanes>::mark_upper(u64* set, u32 word) {
  auto* const level2 = set + view_.layout().words1;
  auto const upper = word / 64;
  if (Lanes::template fetch_or<order::acq_rel>(level2 + upper, u64{1} << word % 64) != 0) return;
  Lanes::template fetch_or<order::acq_rel>(level2 + view_.layout().words2 + upper / 64, u64{1} << upper % 64);
}

template <class Lanes> GPUMEM_HEAP_DEVICE void heap_core<Lanes>::unmark_upper(u64* set, u32 word) {
  auto* const level2 = set + view_.layout().words1;
  auto* const level3 = level2 + view_.layout().words2;
  auto const upper = word / 64;
  auto const bit = u64{1} << word % 64, upper_bit = u64{1} << upper % 64;
  if (Lanes::template fetch_and<order::acq_rel>(level2 + upper, ~bit) == bit) {
    Lanes::template fetch_and<order::acq_rel>(level3 + upper / 64, ~upper_bit);
    if (Lanes::template load<order::acquire>(level2 + upper) != 0)
      Lanes::template fetch_or<order::acq_rel>(level3 + upper / 64, upper_bit);
  }
  if (Lanes::template load<order::acquire>(set + word) != 0) mark_upper(set, word);
}

template <class Lanes> GPUMEM_HEAP_DEVICE void heap_core<Lanes>::insert(u64* set, u32 word, u64 bits) {
  if (Lanes::template fetch_or<order::acq_rel>(set + word, bits) == 0) mark_upper(set, word);
}

// Takes all wanted bits of a word, or none.
template <class Lanes> GPUMEM_HEAP_DEVICE bool heap_core<Lanes>::take_bits(u64* set, u32 word, u64 wanted) {
  auto const old = Lanes::template fetch_and<order::acq_rel>(set + word, ~wanted);
  auto const taken = old & wanted;
  if (taken != wanted && taken != 0) insert(set, word, taken);
  if (taken == wanted && (old & ~wanted) == 0) unmark_upper(set, word);
  return taken == wanted;
}

// Returns the bits that begin a row of `count` set ones.
template <class Lanes> GPUMEM_HEAP_DEVICE std::uint64_t heap_core<Lanes>::rows(u64 bits, u32 count) {
  for (u32 length = 1; length < count;) {
    auto const more = length < count - length ? length : count - length;
    bits &= bits >> more;
    length += more;
  }
  return bits;
}

// Takes `count` slabs side by side out of one word, at most 64. Returns the first; `none` if there are none. Searches
// from the lowest address on; a thread that loses a race looks further away, so that many threads spread.
template <class Lanes> GPUMEM_HEAP_DEVICE std::uint32_t heap_core<Lanes>::take_slabs(u64* set, u32 count, u32 hint) {
  auto const& layout = view_.layout();
  auto* const level2 = set + layout.words1;
  auto* const level3 = level2 + layout.words2;
  u32 window = 1, losses = 0;
  for (u32 top = 0; top != layout.words3;) {
    auto const tops = Lanes::template load<order::relaxed>(level3 + top);
    if (tops == 0) {
      ++top;
      continue;
    }
    auto const wide = window > 64 ? window / 64 : 1;
    auto const tops_set = Lanes::count(tops);
    auto const upper = top * 64 + select_bit<Lanes>(tops, hint / 64 % (wide < tops_set ? wide : tops_set));
    auto const uppers = Lanes::template load<order::relaxed>(level2 + upper);
    if (uppers == 0) {
      // The bit above stands for nothing.
      auto const bit = u64{1} << upper % 64;
      Lanes::template fetch_and<order::acq_rel>(level3 + top, ~bit);
      if (Lanes::template load<order::acquire>(level2 + upper) != 0)
        Lanes::template fetch_or<order::acq_rel>(level3 + top, bit);
      continue;
    }
    auto const narrow = window < 64 ? window : 64;
    auto const uppers_set = Lanes::count(uppers);
    auto const word = upper * 64 + select_bit<Lanes>(uppers, hint % (narrow < uppers_set ? narrow : uppers_set));
    auto const bits = Lanes::template load<order::relaxed>(set + word);
    if (bits == 0) {
      unmark_upper(set, word);
      continue;
    }
    if (auto const starts = rows(bits, count); starts != 0) {
      auto const first = select_bit<Lanes>(starts, hint % Lanes::count(starts));
      auto const wanted = low_bits(count) << first;
      if (take_bits(set, word, wanted)) return word * 64 + first;
    }
    if (count != 1 && ++losses == 3) return none;
    window = window < 4096 ? window * 8 : window;
    hint = hint * 1664525u + 1013904223u;
  }
  return none;
}

// Reserves all freed blocks of a slab of the set. A slab that was taken in another way, or got another class, is no
// longer in the set.
template <class Lanes>
GPUMEM_HEAP_DEVICE auto heap_core<Lanes>::reserve_freed(u64* set, u32 kind, u32 hint) -> reservation {
  for (;;) {
    auto const slab = take_slabs(set, 1, hint);
    if (slab == none) return {};
    auto seen = Lanes::template load<order::relaxed>(state(slab));
    while (kind_of(seen) == kind && count_of(seen) != 0)
      if (Lanes::template compare_exchange<order::acq_rel>(state(slab), seen, make_state(kind, 0)))
        return {slab, count_of(seen), true};
  }
}

template <class Lanes> GPUMEM_HEAP_DEVICE auto heap_core<Lanes>::reserve(u32 kind, u32 slabs, u32 hint) -> reservation {
  if (auto const blocks = reserve_freed(set_of_many(kind), kind, hint); blocks.slab != none) return blocks;
  auto first = slabs == 1 ? none : take_slabs(free_set(), slabs, hint);
  if (first == none) {
    slabs = 1;
    first = take_slabs(free_set(), 1, hint);
  }
  if (first == none) return reserve_freed(set_of_few(kind), kind, hint);
  for (u32 i = 0; i != slabs; ++i) Lanes::template store<order::relaxed>(state(first + i), make_state(kind, 0));
  return {first, slabs * capacity(kind), false};
}

// Counts freed blocks, whose bits are set. The thread that makes a slab full of them frees the slab.
template <class Lanes> GPUMEM_HEAP_DEVICE void heap_core<Lanes>::add_freed(u32 slab, u32 kind, u32 count) {
  auto const old = count_of(Lanes::template fetch_add<order::acq_rel>(state(slab), count));
  auto const word = slab / 64;
  auto const bit = u64{1} << slab % 64;
  if (old + count == capacity(kind)) {
    auto full = make_state(kind, capacity(kind));
    if (!Lanes::template compare_exchange<order::acq_rel>(state(slab), full, u32{0})) return; // all are reserved again
    Lanes::clear(bit_words(slab), word_count(kind));
    insert(free_set(), word, bit);
  } else if (old < many(kind) && old + count >= many(kind)) {
    insert(set_of_many(kind), word, bit);
  } else if (old == 0) {
    insert(set_of_few(kind), word, bit);
  }
}

// Gives back what a thread has reserved and not used.
template <class Lanes>
GPUMEM_HEAP_DEVICE void heap_core<Lanes>::give_back(reservation const& blocks, u32 used, u32 kind) {
  if (!blocks.marked)
    for (u32 i = used; i < blocks.count; i = (i / 32 + 1) * 32) {
      auto const last = blocks.count - i / 32 * 32;
      auto const bits = (last >= 32 ? ~u32{0} : (1u << last) - 1) & ~u32{0} << i % 32;
      Lanes::template fetch_or<order::release>(bit_words(blocks.slab) + i / 32, bits);
    }
  add_freed(blocks.slab, kind, blocks.count - used);
}

// Takes a block out of any slot of the class.
template <class Lanes> GPUMEM_HEAP_DEVICE auto heap_core<Lanes>::reserve_elsewhere(u32 kind) -> grant {
  for (u32 i = 0; i != view_.processors(); ++i) {
    auto const seen = Lanes::template load<order::relaxed>(slot(i, kind));
    if (taken_of(seen) >= reserved_of(seen)) continue;
    auto const old = Lanes::template fetch_add<order::acquire>(slot(i, kind), u64{1});
    if (taken_of(old) < reserved_of(old)) return {{slab_of(old), reserved_of(old), is_marked(old)}, taken_of(old)};
    // This thread should fill the slot, and has found no memory.
    if (taken_of(old) == reserved_of(old)) Lanes::template exchange<order::acq_rel>(slot(i, kind), u64{0});
  }
  return {};
}

// Finds a freed block for each lane that has reserved one. Other threads may take the bit that a lane saw, but a lane
// that has reserved a block always finds one.
template <class Lanes>
GPUMEM_HEAP_DEVICE std::uint32_t heap_core<Lanes>::find_marked(u32 active, bool searches, grant const& found,
                                                               u32 kind) {
  auto const words = kind == 0 ? 1 : word_count(kind);
  u32 word = searches ? found.index * words / found.blocks.count : 0, index = 0;
  while (Lanes::ballot(active, searches)) {
    auto const group = Lanes::match(active, searches ? found.blocks.slab * slab_words + word : none);
    auto const rank = below(group, Lanes::lane());
    u32 taken = 0;
    if (searches && rank == 0) {
      auto* const bits = bit_words(found.blocks.slab) + word;
      auto wanted = Lanes::template load<order::relaxed>(bits);
      if (auto const most = Lanes::count(group); most < Lanes::count(wanted))
        wanted &= (1u << select_bit<Lanes>(wanted, most)) - 1;
      if (wanted != 0) taken = Lanes::template fetch_and<order::acquire>(bits, ~wanted) & wanted;
    }
    taken = Lanes::shuffle(active, taken, Lanes::first(group));
    if (searches && rank < Lanes::count(taken)) {
      index = word * 32 + select_bit<Lanes>(taken, rank);
      searches = false;
    } else if (searches) {
      word = word + 1 == words ? 0 : word + 1;
    }
  }
  return index;
}

// Takes whole slabs: at most 64 of one word, more from the begin of a word on.
template <class Lanes> GPUMEM_HEAP_DEVICE void* heap_core<Lanes>::allocate_large(std::size_t bytes) {
  auto const& layout = view_.layout();
  auto const wanted = bytes / slab_bytes + (bytes % slab_bytes != 0);
  if (wanted > layout.slabs) return nullptr;
  auto const count = static_cast<u32>(wanted), full = count > 64 ? count / 64 : 0, rest = count - full * 64;
  auto const words = full + (rest != 0);
  auto* const set = free_set();
  for (u32 word = 0; word + words <= layout.words1; ++word) {
    if (word % 64 == 0 && Lanes::template load<order::relaxed>(set + layout.words1 + word / 64) == 0) {
      word += 63;
      continue;
    }
    u32 i = full;
    while (i != 0 && Lanes::template load<order::relaxed>(set + word + i - 1) == ~u64{0}) --i;
    if (i != 0) {
      word += i - 1;
      continue;
    }
    u64 last = low_bits(rest);
    if (full == 0) {
      auto const starts = rows(Lanes::template load<order::relaxed>(set + word), rest);
      if (starts == 0) continue;
      last <<= select_bit<Lanes>(starts, 0);
    }
    while (i != full && take_bits(set, word + i, ~u64{0})) ++i;
    if (i == full && (rest == 0 || take_bits(set, word + full, last))) {
      auto const slab = word * 64 + (full == 0 ? select_bit<Lanes>(last, 0) : 0);
      Lanes::template store<order::relaxed>(state(slab), make_state(large, count));
      return view_.data() + (std::size_t{slab} << slab_log);
    }
    while (i != 0) insert(set, word + --i, ~u64{0});
  }
  return nullptr;
}

template <class Lanes> GPUMEM_HEAP_DEVICE void heap_core<Lanes>::free_large(u32 slab, u32 seen, void* block) {
  if (!Lanes::template compare_exchange<order::acq_rel>(state(slab), seen, u32{0})) return count_bad_frees(1, block);
  auto const end = slab + count_of(seen);
  for (u32 i = slab; i < end;) {
    auto const count = 64 - i % 64 < end - i ? 64 - i % 64 : end - i;
    insert(free_set(), i / 64, low_bits(count) << i % 64);
    i += count;
  }
}

template <class Lanes>
GPUMEM_HEAP_DEVICE void heap_core<Lanes>::count_failures(u32 active, bool failed, std::size_t bytes) {
  auto const failures = Lanes::ballot(active, failed);
  if (!failed) return;
  if (below(failures, Lanes::lane()) == 0)
    Lanes::template fetch_add<order::relaxed>(&counters()->failed, u64{Lanes::count(failures)});
  if (Lanes::template load<order::relaxed>(&counters()->largest_failed) < bytes)
    Lanes::fetch_max(&counters()->largest_failed, u64{bytes});
}

template <class Lanes> GPUMEM_HEAP_DEVICE void heap_core<Lanes>::count_bad_frees(u32 count, void* block) {
  if (Lanes::template fetch_add<order::relaxed>(&counters()->bad_frees, u64{count}) == 0)
    Lanes::template store<order::relaxed>(&counters()->bad_free, u64{reinterpret_cast<std::uintptr_t>(block)});
  Lanes::bad_free(block);
}

template <class Lanes> GPUMEM_HEAP_DEVICE void* heap_core<Lanes>::allocate(std::size_t bytes) {
  auto const active = Lanes::active();
  auto const lane = Lanes::lane();
  auto const kind = bytes > slab_bytes ? large : bytes == 0 ? 0 : bytes <= 16 ? 1 : Lanes::log2_ceiling(bytes) - 3;
  auto const blocks_of_slab = kind == 0 || kind == large ? 1 : capacity(kind);
  auto const processor = Lanes::processor() % view_.processors();
  auto const hint = Lanes::noise();
  void* result = nullptr;
  if (kind == large) result = allocate_large(bytes);
  bool pending = kind != 0 && kind != large, failed = kind == large && result == nullptr;
  bool passes_slot = false; // after a wait without success

  while (Lanes::ballot(active, pending)) {
    // The lanes that ask for one class.
    auto const group = Lanes::match(active, pending ? kind : 0);
    auto const size = Lanes::count(group), rank = below(group, lane);
    auto const leader = Lanes::first(group);
    // Groups that need a large part of a slab take slabs of their own; one lane for each slab.
    bool const direct = pending && (passes_slot || size * 2 >= blocks_of_slab);
    bool const by_slot = pending && !direct;

    u64 old = 0;
    if (by_slot && rank == 0) old = Lanes::template fetch_add<order::acquire>(slot(processor, kind), u64{size});
    old = Lanes::shuffle(active, old, leader);
    grant found{{slab_of(old), reserved_of(old), is_marked(old)}, taken_of(old) + rank};
    bool granted = by_slot && found.index < found.blocks.count;

    // The lane that gets the number after the last block fills the slot, for itself and the lanes of its group behind
    // it. No other thread does until then.
    auto const filler = reserved_of(old) - taken_of(old); // its rank, if there is one
    bool const served = pending && !granted && (direct || filler < size);
    auto const server = direct ? rank / blocks_of_slab * blocks_of_slab : filler;
    reservation blocks;
    if (served && rank == server) {
      auto const needed = size - rank;
      if (direct) {
        blocks = reserve(kind, 1, hint);
        auto const used = needed < blocks_of_slab ? needed : blocks_of_slab;
        if (used < blocks.count) give_back(blocks, used, kind);
      } else {
        auto const before = is_marked(old) ? 0 : reserved_of(old) / blocks_of_slab;
        auto const most = most_in_slot(kind);
        blocks = reserve(kind, before == 0 ? 1 : before * 2 < most ? before * 2 : most, hint);
        auto const used = needed < blocks.count ? needed : blocks.count;
        Lanes::template exchange<order::acq_rel>(
            slot(processor, kind),
            blocks.slab == none ? u64{0} : make_slot(blocks.slab, blocks.count, blocks.marked, used));
      }
    }
    auto const server_lane = served ? select_bit<Lanes>(group, server) : lane;
    auto const packed = Lanes::shuffle(
        active, u64{blocks.slab} << 32 | u64{blocks.count} << 1 | (blocks.marked ? 1u : 0u), server_lane);
    if (served) {
      found = {{static_cast<u32>(packed >> 32), static_cast<u32>(packed) >> 1, (packed & 1) != 0}, rank - server};
      granted = found.index < found.blocks.count;
      if (found.blocks.slab == none) {
        found = reserve_elsewhere(kind);
        granted = found.blocks.slab != none;
        failed = !granted;
        pending = granted;
      }
    }

    if (Lanes::ballot(active, granted && found.blocks.marked)) {
      bool const searches = granted && found.blocks.marked;
      auto const index = find_marked(active, searches, found, pending ? kind : 0);
      if (searches) found.index = index;
    }
    if (granted) {
      result = block_at(found.blocks.slab, found.index, kind);
      pending = false;
    }

    // Others wait for the thread that fills the slot, but not without end. An empty slot says that it found no memory.
    if (pending && !served && rank == 0) {
      u64 seen = old;
      for (u32 i = 0; i != polls && seen >> taken_bits == old >> taken_bits && taken_of(seen) >= taken_of(old); ++i) {
        Lanes::pause();
        seen = Lanes::template load<order::relaxed>(slot(processor, kind));
      }
      passes_slot =
          (seen >> taken_bits == old >> taken_bits && taken_of(seen) >= taken_of(old)) || reserved_of(seen) == 0;
    }
    passes_slot = Lanes::shuffle(active, u32{passes_slot}, leader) != 0;
  }
  Lanes::sync(active);
  count_failures(active, failed, bytes);
  return result;
}

template <class Lanes> GPUMEM_HEAP_DEVICE void heap_core<Lanes>::deallocate(void* block) {
  auto const active = Lanes::active();
  auto const offset = static_cast<std::size_t>(static_cast<unsigned char*>(block) - view_.data());
  auto const slab = static_cast<u32>(offset >> slab_log);
  u32 seen = 0;
  if (block != nullptr && offset >> slab_log < view_.layout().slabs)
    seen = Lanes::template load<order::relaxed>(state(slab));
  auto const kind = kind_of(seen);
  auto const inside = static_cast<u32>(offset & (slab_bytes - 1));
  bool const small = kind != 0 && kind != large && inside % (1u << (kind - 1 + smallest_log)) == 0;
  if (kind == large && inside == 0)
    free_large(slab, seen, block);
  else if (block != nullptr && !small)
    count_bad_frees(1, block);

  // The lanes whose blocks have their bits in one word.
  auto const index = small ? inside >> (kind - 1 + smallest_log) : 0;
  auto const group = Lanes::match(active, small ? slab * slab_words + index / 32 : none);
  auto const bits = Lanes::reduce_or(active, group, small ? 1u << index % 32 : 0);
  if (small && below(group, Lanes::lane()) == 0) {
    auto const old = Lanes::template fetch_or<order::acq_rel>(bit_words(slab) + index / 32, bits);
    auto const freed = Lanes::count(bits & ~old);
    if (freed != Lanes::count(group)) count_bad_frees(Lanes::count(group) - freed, block);
    if (freed != 0) add_freed(slab, kind, freed);
  }
  Lanes::sync(active);
}

} // namespace heap_detail
} // namespace gpumem
