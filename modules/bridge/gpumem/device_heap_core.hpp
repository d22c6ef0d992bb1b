// Allocation from a heap by the lanes of a warp. The same source is compiled for the device, and for the host by the
// tests, which emulate the lanes.
//
// Slabs of one size class have bits for their freed blocks, as in the GPU allocator of LLVM's libc. The lanes of a warp
// that ask for one class take blocks out of a slot of their multiprocessor by one atomic addition. A free
// sets bits before it counts them, and a lane reserves by the count: it then finds a bit, whichever blocks others take.
//
// Lanes: `Lanes` gives the lanes that are active together, match, ballot, shuffle and reductions over them, and atomic
// operations. No lane waits for another one without end.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gpumem/device_heap.hpp>
#include <gpumem/device_heap_sets.hpp>

#include <cstddef>
#include <cstdint>

namespace gpumem {
namespace heap_detail {

template <class Lanes> class heap_core {
public:
  GPUMEM_HEAP_DEVICE explicit heap_core(heap_view const& view) : view_{view} {}

  GPUMEM_HEAP_DEVICE void* allocate(std::size_t bytes);
  GPUMEM_HEAP_DEVICE void deallocate(void* block);

private:
  using u32 = std::uint32_t;
  using u64 = std::uint64_t;
  static constexpr u32 none = ~u32{0};
  static constexpr u32 few_tries = 4;
  static constexpr unsigned polls = 256; // of a slot that another thread fills, before a thread takes a slab of its own

  GPUMEM_HEAP_DEVICE static u32 capacity(u32 kind) { return 1u << (slab_log - smallest_log + 1 - kind); }
  // Slabs with at least this number of freed blocks are taken before free slabs, the others after them.
  GPUMEM_HEAP_DEVICE static u32 many(u32 kind) { return capacity(kind) <= 16 ? 1 : capacity(kind) / 16; }
  GPUMEM_HEAP_DEVICE static u32 word_count(u32 kind) { return capacity(kind) <= 32 ? 1 : capacity(kind) / 32; }
  // The most slabs side by side that one slot gets, and the most blocks that it gets in advance.
  GPUMEM_HEAP_DEVICE static u32 most_slabs_in_slot(u32 kind) {
    return capacity(kind) <= 64 ? 64 : 4096 / capacity(kind);
  }
  static constexpr u32 most_in_advance = 1024;
  static constexpr u32 most_waiting = 1u << (taken_bits - 1); // for a slot, before its count could overflow
  GPUMEM_HEAP_DEVICE static u32 below(u32 group, u32 lane) { return Lanes::count(group & ((1u << lane) - 1)); }

  template <class Word> GPUMEM_HEAP_DEVICE Word* at(std::size_t offset) const {
    return reinterpret_cast<Word*>(view_.metadata() + offset);
  }
  // The cache of a multiprocessor and class: a stack of freed blocks, whose entries are exchanged. A block that a
  // thread finds where it puts another goes back to its slab, so that no thread waits for another one.
  GPUMEM_HEAP_DEVICE int* cache_size(u32 processor, u32 kind) const {
    return at<int>(view_.layout().cache_sizes()) + processor * slot_stride + (kind - 1);
  }
  GPUMEM_HEAP_DEVICE u32* cache(u32 processor, u32 kind) const {
    return at<u32>(view_.layout().caches()) + (std::size_t{processor} * class_count + (kind - 1)) * cache_entries;
  }
  GPUMEM_HEAP_DEVICE static int cache_capacity(u32 kind) {
    return kind <= 7 ? cache_entries : static_cast<int>(cache_entries >> (kind - 7)); // 256 KiB at most
  }
  // Bits for the classes whose caches may have blocks above their sizes.
  GPUMEM_HEAP_DEVICE u32* gaps(u32 processor) const {
    return at<u32>(view_.layout().cache_sizes()) + processor * slot_stride + class_count;
  }
  // Where the multiprocessor took free slabs last: the word, from 1 on.
  GPUMEM_HEAP_DEVICE u64* home(u32 processor) const { return slot(processor, class_count + 1); }
  GPUMEM_HEAP_DEVICE header* counters() const { return at<header>(0); }
  GPUMEM_HEAP_DEVICE u64* slot(u32 processor, u32 kind) const {
    return at<u64>(layout::slots) + processor * slot_stride + (kind - 1);
  }
  GPUMEM_HEAP_DEVICE u32* state(u32 slab) const { return at<u32>(view_.layout().states()) + slab; }
  GPUMEM_HEAP_DEVICE u32* bit_words(u32 slab) const {
    return at<u32>(view_.layout().bits()) + std::size_t{slab} * slab_words;
  }
  GPUMEM_HEAP_DEVICE slab_set<Lanes> set(u32 index) const {
    auto const& heap = view_.layout();
    return {at<u64>(heap.sets()) + std::size_t{index} * heap.set_words, heap.words1, heap.words2};
  }
  GPUMEM_HEAP_DEVICE slab_set<Lanes> free_set() const { return set(0); }
  GPUMEM_HEAP_DEVICE slab_set<Lanes> set_of_many(u32 kind) const { return set(2 * kind - 1); }
  GPUMEM_HEAP_DEVICE slab_set<Lanes> set_of_few(u32 kind) const { return set(2 * kind); }
  GPUMEM_HEAP_DEVICE void* block_at(u32 slab, u32 index, u32 kind) const {
    return view_.data() + (std::size_t{slab} << slab_log) + (std::size_t{index} << (kind - 1 + smallest_log));
  }

  // Blocks of slabs.
  GPUMEM_HEAP_DEVICE void leave(slab_set<Lanes> set, u32 slab, u32 kind, u32 least);
  GPUMEM_HEAP_DEVICE reservation reserve_freed(slab_set<Lanes> set, u32 kind, u32 least, u32 most, u32 hint, u32 tries);
  GPUMEM_HEAP_DEVICE reservation reserve(u32 processor, u32 kind, u32 blocks, u32 hint);
  GPUMEM_HEAP_DEVICE u32 take_free(u32 processor, u32 count, u32 hint);
  GPUMEM_HEAP_DEVICE void* take_cached(u32 active, u32 processor, u32 kind);
  GPUMEM_HEAP_DEVICE u32 put_cached(u32 active, u32 processor, u32 kind, u32 number);
  GPUMEM_HEAP_DEVICE void free_marked(u32 active, bool frees, u32 slab, u32 index, u32 kind);
  GPUMEM_HEAP_DEVICE void empty_caches(u32 rank, u32 count);
  GPUMEM_HEAP_DEVICE void* take(u32 active, u32 processor, u32 kind, std::size_t bytes, bool wanted);
  GPUMEM_HEAP_DEVICE void add_freed(u32 slab, u32 kind, u32 count);
  GPUMEM_HEAP_DEVICE void give_back(reservation const& blocks, u32 used, u32 kind);
  GPUMEM_HEAP_DEVICE grant reserve_elsewhere(u32 kind);
  GPUMEM_HEAP_DEVICE void empty_slot(u32 processor, u32 kind);
  GPUMEM_HEAP_DEVICE u32 find_marked(u32 active, bool searches, grant const& found, u32 kind);
  GPUMEM_HEAP_DEVICE void* allocate_large(std::size_t bytes);
  GPUMEM_HEAP_DEVICE void free_large(u32 slab, u32 state, void* block);
  GPUMEM_HEAP_DEVICE void count_failures(u32 active, bool failed, std::size_t bytes);
  GPUMEM_HEAP_DEVICE void count_bad_frees(u32 count, void* block);

  heap_view const& view_;
};

// Removes a slab from the set of the slabs with at least `least` freed blocks, unless it has them again.
template <class Lanes>
GPUMEM_HEAP_DEVICE void heap_core<Lanes>::leave(slab_set<Lanes> set, u32 slab, u32 kind, u32 least) {
  auto const bit = u64{1} << slab % 64;
  set.take(slab / 64, bit);
  auto const seen = Lanes::template load<order::relaxed>(state(slab));
  if (kind_of(seen) != kind || count_of(seen) == 0) return;
  if (count_of(seen) >= least)
    set.insert(slab / 64, bit);
  else
    set_of_few(kind).insert(slab / 64, bit);
}

// Reserves freed blocks of a slab of the set, at most `most`. The set may have slabs with fewer blocks or of another
// class, which leave it. Many threads may look for few slabs, so that a thread gives up after some tries.
template <class Lanes>
GPUMEM_HEAP_DEVICE auto heap_core<Lanes>::reserve_freed(slab_set<Lanes> set, u32 kind, u32 least, u32 most, u32 hint,
                                                        u32 tries) -> reservation {
  while (tries-- != 0) {
    auto const slab = set.find(hint, tries);
    if (slab == none) return {};
    auto seen = Lanes::template load<order::relaxed>(state(slab));
    while (kind_of(seen) == kind && count_of(seen) >= least) {
      // Not all of them, so that the search for their bits is short.
      auto const spread = count_of(seen) - count_of(seen) / 4, count = spread < most ? spread : most;
      if (!Lanes::template compare_exchange<order::acquire>(state(slab), seen, seen - count)) continue;
      if (count_of(seen) - count < least) leave(set, slab, kind, least);
      return {slab, count, true, hint % word_count(kind), spread};
    }
    leave(set, slab, kind, least);
    hint = hint * 1664525u + 1013904223u;
  }
  return {};
}

// Takes free slabs side by side, first where the multiprocessor took the last ones. At first 16 slabs are its own.
template <class Lanes>
GPUMEM_HEAP_DEVICE std::uint32_t heap_core<Lanes>::take_free(u32 processor, u32 count, u32 hint) {
  auto const set = free_set();
  auto word = static_cast<u32>(Lanes::template load<order::relaxed>(home(processor)));
  auto const mask = word == 0 ? u64{0xffff} << processor % 4 * 16 : ~u64{0};
  word = word == 0 ? processor / 4 : word - 1;
  auto first = none;
  if (auto const starts = find_rows(set.load(word) & mask, count); starts != 0) {
    auto const bit = select_bit<Lanes>(starts, 0);
    if (set.take(word, low_bits(count) << bit)) first = word * 64 + bit;
  }
  if (first == none) {
    first = set.take_row(count, hint);
    if (first != none) Lanes::template store<order::relaxed>(home(processor), u64{first / 64 + 1});
  }
  return first;
}

// Reserves about `blocks` blocks: of a slab with many freed ones, of free slabs, or of a slab with few freed ones.
template <class Lanes>
GPUMEM_HEAP_DEVICE auto heap_core<Lanes>::reserve(u32 processor, u32 kind, u32 blocks, u32 hint) -> reservation {
  if (auto const freed = reserve_freed(set_of_many(kind), kind, many(kind), capacity(kind), hint, 4 * few_tries);
      freed.count != 0)
    return freed;
  auto slabs = (blocks + capacity(kind) - 1) / capacity(kind);
  if (slabs > most_slabs_in_slot(kind)) slabs = most_slabs_in_slot(kind);
  auto first = take_free(processor, slabs, hint);
  if (first == none && slabs != 1) {
    slabs = 1;
    first = take_free(processor, 1, hint);
  }
  if (first == none) return reserve_freed(set_of_few(kind), kind, 1, blocks, hint, none);
  for (u32 i = 0; i != slabs; ++i) Lanes::template store<order::relaxed>(state(first + i), make_state(kind, 0));
  return {first, slabs * capacity(kind), false, 0, 0};
}

// Counts freed blocks, whose bits are set. The thread that makes a slab full of them frees the slab.
template <class Lanes> GPUMEM_HEAP_DEVICE void heap_core<Lanes>::add_freed(u32 slab, u32 kind, u32 count) {
  auto const old = count_of(Lanes::template fetch_add<order::acq_rel>(state(slab), count));
  auto const word = slab / 64;
  auto const bit = u64{1} << slab % 64;
  if (old + count == capacity(kind)) {
    auto full = make_state(kind, capacity(kind));
    if (!Lanes::template compare_exchange<order::acquire>(state(slab), full, u32{0})) { // some are reserved again
      if (kind_of(full) == kind && count_of(full) != 0)
        (count_of(full) >= many(kind) ? set_of_many(kind) : set_of_few(kind)).insert(word, bit);
      return;
    }
    if (old != 0) {
      set_of_many(kind).take(word, bit);
      set_of_few(kind).take(word, bit);
    }
    Lanes::clear(bit_words(slab), word_count(kind));
    free_set().insert(word, bit);
  } else if (old < many(kind) && old + count >= many(kind)) {
    set_of_many(kind).insert(word, bit);
  } else if (old == 0) {
    set_of_few(kind).insert(word, bit);
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
    if (taken_of(old) < reserved_of(old)) return {reservation::of_slot(old), taken_of(old)};
    // This thread should fill the slot, and has found no memory.
    if (taken_of(old) == reserved_of(old)) Lanes::template exchange<order::release>(slot(i, kind), u64{0});
  }
  return {};
}

// Gives back the blocks that a slot has left.
template <class Lanes> GPUMEM_HEAP_DEVICE void heap_core<Lanes>::empty_slot(u32 processor, u32 kind) {
  auto seen = Lanes::template load<order::relaxed>(slot(processor, kind));
  do {
    if (taken_of(seen) >= reserved_of(seen)) return;
  } while (!Lanes::template compare_exchange<order::acquire>(slot(processor, kind), seen, u64{0}));
  auto const size = capacity(kind);
  for (u32 used = taken_of(seen); used < reserved_of(seen); used = (used / size + 1) * size) {
    auto const left = reserved_of(seen) - used / size * size;
    give_back({slab_of(seen) + used / size, left < size ? left : size, is_marked(seen)}, used % size, kind);
  }
}

// Finds a freed block for each lane that has reserved one. Other threads may take the bit that a lane saw, but a lane
// that has reserved a block always finds one.
template <class Lanes>
GPUMEM_HEAP_DEVICE std::uint32_t heap_core<Lanes>::find_marked(u32 active, bool searches, grant const& found,
                                                               u32 kind) {
  auto const words = kind == 0 ? 1 : word_count(kind);
  // As many lanes begin at a word as it should have bits.
  u32 word = searches ? (found.blocks.first_word + found.index * words / found.blocks.spread) % words : 0, index = 0;
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
      word = (word * 5 + 1) % words; // visits all words, which are a power of two
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
  auto const set = free_set();
  u32 lost = 0; // races
  for (u32 word = 0; word + words <= layout.words1; ++word) {
    if (word % 64 == 0 && !set.may_have(word)) {
      word += 63;
      continue;
    }
    u32 i = full;
    while (i != 0 && set.load(word + i - 1) == ~u64{0}) --i;
    if (i != 0) {
      word += i - 1;
      continue;
    }
    u64 last = low_bits(rest);
    if (full == 0) {
      auto const starts = find_rows(set.load(word), rest);
      if (starts == 0) continue;
      last <<= select_bit<Lanes>(starts, 0);
    }
    while (i != full && set.take(word + i, ~u64{0})) ++i;
    if (i == full && (rest == 0 || set.take(word + full, last))) {
      auto const slab = word * 64 + (full == 0 ? select_bit<Lanes>(last, 0) : 0);
      Lanes::template store<order::relaxed>(state(slab), make_state(large, count));
      return view_.data() + (std::size_t{slab} << slab_log);
    }
    while (i != 0) set.insert(word + --i, ~u64{0});
    if (full == 0 || lost++ < few_tries) --word; // which may have other rows
  }
  return nullptr;
}

template <class Lanes> GPUMEM_HEAP_DEVICE void heap_core<Lanes>::free_large(u32 slab, u32 seen, void* block) {
  if (!Lanes::template compare_exchange<order::acquire>(state(slab), seen, u32{0})) return count_bad_frees(1, block);
  auto const end = slab + count_of(seen);
  for (u32 i = slab; i < end;) {
    auto const count = 64 - i % 64 < end - i ? 64 - i % 64 : end - i;
    free_set().insert(i / 64, low_bits(count) << i % 64);
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

// Takes a block out of the cache for each lane with a class; null where the cache has none.
template <class Lanes> GPUMEM_HEAP_DEVICE void* heap_core<Lanes>::take_cached(u32 active, u32 processor, u32 kind) {
  auto const group = Lanes::match(active, kind);
  auto const rank = static_cast<int>(below(group, Lanes::lane()));
  int top = 0;
  if (kind != 0 && rank == 0) {
    auto* const size = cache_size(processor, kind);
    auto const wanted = static_cast<int>(Lanes::count(group));
    auto const seen = Lanes::peek(size);
    auto const count = seen < wanted ? seen : wanted;
    if (count > 0) {
      top = Lanes::template fetch_add<order::relaxed>(size, -count);
      auto const most = top < 0 ? 0 : top < count ? top : count; // others were faster
      if (most != count) Lanes::template fetch_add<order::relaxed>(size, count - most);
      top = top << 8 | most;
    }
  }
  top = Lanes::shuffle(active, top, Lanes::first(group));
  if (kind == 0 || rank >= (top & 0xff)) return nullptr;
  auto const place = (top >> 8) - 1 - rank;
  if (place >= cache_capacity(kind)) { // of a thread that takes it back
    Lanes::template fetch_add<order::relaxed>(cache_size(processor, kind), 1);
    return nullptr;
  }
  auto* const entry = cache(processor, kind) + place;
  auto number = Lanes::template exchange<order::acquire>(entry, u32{0});
  while (number == 0 || number == cache_gap) { // another thread may put its block there later
    u32 seen = 0;
    if (Lanes::template compare_exchange<order::relaxed>(entry, seen, cache_gap) || seen == cache_gap) return nullptr;
    number = Lanes::template exchange<order::acquire>(entry, u32{0});
  }
  return view_.data() + (std::size_t{number - 1} << (kind - 1 + smallest_log));
}

// Puts a block into the cache for each lane with a class. Returns the number of a block that must go to its slab, the
// same or another one; 0 if there is none.
template <class Lanes>
GPUMEM_HEAP_DEVICE std::uint32_t heap_core<Lanes>::put_cached(u32 active, u32 processor, u32 kind, u32 number) {
  auto const group = Lanes::match(active, kind);
  auto const rank = static_cast<int>(below(group, Lanes::lane()));
  int top = 0;
  if (kind != 0 && rank == 0) {
    auto* const size = cache_size(processor, kind);
    auto const room = cache_capacity(kind) - Lanes::peek(size);
    auto const wanted = static_cast<int>(Lanes::count(group));
    auto const count = room < wanted ? room : wanted;
    if (count > 0) top = Lanes::template fetch_add<order::relaxed>(size, count) << 8 | count;
  }
  top = Lanes::shuffle(active, top, Lanes::first(group));
  auto const place = (top >> 8) + rank;
  if (kind == 0 || rank >= (top & 0xff) || place < 0) return number;
  if (place >= cache_capacity(kind)) {
    Lanes::template fetch_add<order::relaxed>(cache_size(processor, kind), -1);
    return number;
  }
  auto const old = Lanes::template exchange<order::acq_rel>(cache(processor, kind) + place, number);
  if (old != cache_gap) return old;
  Lanes::template fetch_or<order::release>(gaps(processor), 1u << kind); // the size does not count this block
  return 0;
}

// Gives the blocks of all caches and slots back to their slabs; `count` lanes share the work.
template <class Lanes> GPUMEM_HEAP_DEVICE void heap_core<Lanes>::empty_caches(u32 rank, u32 count) {
  for (u32 i = rank; i < view_.layout().processors * class_count; i += count) {
    auto const processor = i / class_count, kind = i % class_count + 1;
    empty_slot(processor, kind);
    auto* const size = cache_size(processor, kind);
    bool const gap = (Lanes::template load<order::relaxed>(gaps(processor)) >> kind & 1) != 0;
    if (!gap && Lanes::template load<order::relaxed>(size) <= 0) continue;
    for (int place = 0; place != cache_capacity(kind); ++place) {
      auto* const entry = cache(processor, kind) + place;
      if (auto const seen = Lanes::template load<order::relaxed>(entry); seen == 0 || seen == cache_gap) continue;
      auto const number = Lanes::template exchange<order::acquire>(entry, u32{0});
      if (number == cache_gap) Lanes::template fetch_or<order::relaxed>(gaps(processor), 1u << kind);
      if (number == 0 || number == cache_gap) continue;
      Lanes::template fetch_add<order::relaxed>(size, -1);
      auto const offset = std::size_t{number - 1} << (kind - 1 + smallest_log);
      auto const slab = static_cast<u32>(offset >> slab_log);
      auto const index = static_cast<u32>(offset & (slab_bytes - 1)) >> (kind - 1 + smallest_log);
      Lanes::template fetch_or<order::release>(bit_words(slab) + index / 32, 1u << index % 32);
      add_freed(slab, kind, 1);
    }
  }
}

template <class Lanes> GPUMEM_HEAP_DEVICE void* heap_core<Lanes>::allocate(std::size_t bytes) {
  auto const active = Lanes::active();
  auto const kind = bytes > slab_bytes ? large : bytes == 0 ? 0 : bytes <= 16 ? 1 : Lanes::log2_ceiling(bytes) - 3;
  auto const processor = Lanes::processor() % view_.processors();
  bool const fits = kind != 0 && bytes <= std::size_t{view_.layout().slabs} * slab_bytes;
  void* result = take_cached(active, processor, kind == large ? 0 : kind);
  for (unsigned attempt = 0; attempt != 2; ++attempt) {
    auto const failures = Lanes::ballot(active, result == nullptr && fits);
    if (failures == 0) break;
    if (attempt != 0) {
      if (result == nullptr && fits) empty_caches(below(failures, Lanes::lane()), Lanes::count(failures));
      Lanes::sync(active);
    }
    auto* const block = take(active, processor, kind, bytes, result == nullptr && fits);
    if (result == nullptr) result = block;
  }
  count_failures(active, result == nullptr && kind != 0, bytes);
  return result;
}

// Takes a block for each lane that wants one, out of the slots and the slabs.
template <class Lanes>
GPUMEM_HEAP_DEVICE void* heap_core<Lanes>::take(u32 active, u32 processor, u32 kind, std::size_t bytes, bool wanted) {
  auto const lane = Lanes::lane();
  auto const blocks_of_slab = kind == 0 || kind == large ? 1 : capacity(kind);
  auto const hint = Lanes::noise();
  void* result = nullptr;
  if (wanted && kind == large) result = allocate_large(bytes);
  bool pending = wanted && kind != large;
  bool passes_slot = false; // after a wait without success

  for (u32 tries = 0; Lanes::ballot(active, pending); ++tries) {
    // The lanes that ask for one class. They take their blocks out of the slot.
    auto const group = Lanes::match(active, pending ? kind : 0);
    auto const size = Lanes::count(group), rank = below(group, lane);
    auto const leader = Lanes::first(group);
    u64 old = 0;
    if (pending && !passes_slot && rank == 0)
      old = Lanes::template fetch_add<order::acquire>(slot(processor, kind), u64{size});
    old = Lanes::shuffle(active, old, leader);
    grant found{reservation::of_slot(old), taken_of(old) + rank};
    bool granted = pending && found.index < found.blocks.count;

    // The lane that gets the number after the last block fills the slot, for itself and for the lanes that wait. No
    // other thread does until then. The other lanes wait, and then take slabs with many freed blocks; one lane
    // for several.
    auto const left = taken_of(old) < reserved_of(old) ? reserved_of(old) - taken_of(old) : 0;
    bool const fills = !passes_slot && taken_of(old) <= reserved_of(old) && left < size;
    bool const served = pending && !granted;
    auto const several = kind == 0 || kind == large ? 1 : passes_slot ? blocks_of_slab : many(kind);
    auto const server = fills ? left : left + (rank - left) / several * several;
    reservation blocks;
    if (served && rank == server) {
      auto const needed = size - rank;
      if (fills) {
        auto* const place = slot(processor, kind);
        auto const waiting = taken_of(Lanes::template load<order::relaxed>(place)) - reserved_of(old);
        // A slot gets twice as many blocks each time, or as many as its threads wait for.
        auto const advance = reserved_of(old) * 2 < most_in_advance ? reserved_of(old) * 2 : most_in_advance;
        blocks = reserve(processor, kind, waiting > advance ? waiting : advance, hint);
        auto const used = needed < blocks.count ? needed : blocks.count;
        Lanes::template exchange<order::release>(
            place, blocks.count == 0 ? u64{0} : make_slot(blocks.slab, blocks.count, blocks.marked, used));
      } else {
        auto const most = needed < several ? needed : several;
        if (passes_slot) {
          blocks = reserve(processor, kind, most, hint);
          if (most < blocks.count) give_back(blocks, most, kind);
        } else if (tries != 0) {
          blocks = reserve_freed(set_of_many(kind), kind, many(kind), most, hint, few_tries);
        }
      }
    }
    auto const server_lane = served ? select_bit<Lanes>(group, server) : lane;
    auto const packed = Lanes::shuffle(active, blocks.pack(), server_lane);
    bool waits = false;
    if (served) {
      found = {reservation::unpack(packed), rank - server};
      granted = found.index < found.blocks.count;
      waits = found.blocks.count == 0 && !fills && !passes_slot;
      if (found.blocks.count == 0 && !waits) {
        found = reserve_elsewhere(kind);
        granted = found.blocks.count != 0;
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
    if (waits && rank == 0 && taken_of(old) >= most_waiting) {
      passes_slot = true;
      for (u64 seen = old + size; seen >> taken_bits == old >> taken_bits && taken_of(seen) > reserved_of(seen) + size;)
        if (Lanes::template compare_exchange<order::relaxed>(slot(processor, kind), seen, seen - size)) break;
    } else if (waits && rank == 0) {
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

  // If a warp frees all blocks of a slab, they go to the slab, not into the cache. So do blocks that do not fit there.
  auto const shift = kind - 1 + smallest_log;
  auto const number = small ? static_cast<u32>((offset >> shift) + 1) : 0;
  auto const group = Lanes::match(active, small ? slab : none);
  bool const fits = small && Lanes::count(group) != capacity(kind) && offset >> shift < cache_gap - 1;
  u32 rest = 0;
  if constexpr (!Lanes::checks_frees)
    rest = put_cached(active, Lanes::processor() % view_.processors(), fits ? kind : 0, number);
  auto const whole = Lanes::checks_frees || !fits ? offset : std::size_t{rest - 1} << shift;
  free_marked(active, small && (Lanes::checks_frees || !fits || rest != 0), static_cast<u32>(whole >> slab_log),
              small ? static_cast<u32>(whole & (slab_bytes - 1)) >> shift : 0, kind);
}

// Frees blocks by their bits. The lanes whose blocks have their bits in one word do so together.
template <class Lanes>
GPUMEM_HEAP_DEVICE void heap_core<Lanes>::free_marked(u32 active, bool frees, u32 slab, u32 index, u32 kind) {
  if (Lanes::ballot(active, frees) == 0) return;
  auto const group = Lanes::match(active, frees ? slab * slab_words + index / 32 : none);
  auto bits = Lanes::reduce_or(active, group, frees ? 1u << index % 32 : 0);
  if (frees && below(group, Lanes::lane()) == 0) {
    // These may be all blocks of the slab. No other lane has one then, so that it is freed without its bits.
    if (auto whole = make_state(kind, 0);
        Lanes::count(bits) == capacity(kind) &&
        Lanes::template compare_exchange<order::acq_rel>(state(slab), whole, u32{0})) {
      free_set().insert(slab / 64, u64{1} << slab % 64);
      bits = 0;
      if constexpr (Lanes::checks_frees) // several lanes may have freed one block
        if (auto const freed = Lanes::count(group); freed != capacity(kind))
          count_bad_frees(freed - capacity(kind), block_at(slab, index, kind));
    }
  }
  if (frees && bits != 0 && below(group, Lanes::lane()) == 0) {
    auto const old = Lanes::template fetch_or<order::release>(bit_words(slab) + index / 32, bits);
    auto const freed = Lanes::count(bits & ~old);
    if (freed != Lanes::count(group)) count_bad_frees(Lanes::count(group) - freed, block_at(slab, index, kind));
    if (freed != 0) add_freed(slab, kind, freed);
  }
  Lanes::sync(active);
}

} // namespace heap_detail
} // namespace gpumem
