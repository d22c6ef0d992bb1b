// Sets of slabs of a heap for kernels, which are bit maps of three levels, and reservations of blocks of a slab.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gpumem/device_heap.hpp>

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

GPUMEM_HEAP_DEVICE inline std::uint64_t low_bits(std::uint32_t count) {
  return count >= 64 ? ~std::uint64_t{0} : (std::uint64_t{1} << count) - 1;
}

// Returns the bits that begin a row of `count` set ones.
GPUMEM_HEAP_DEVICE inline std::uint64_t find_rows(std::uint64_t bits, std::uint32_t count) {
  for (std::uint32_t length = 1; length < count;) {
    auto const more = length < count - length ? length : count - length;
    bits &= bits >> more;
    length += more;
  }
  return bits;
}

// Blocks that a thread has reserved: of a slab whose bits mark them, or in a row from the begin of the slab on.
struct reservation {
  std::uint32_t slab = 0;
  std::uint32_t count = 0; // 0: no block
  bool marked = false;
  std::uint32_t first_word = 0; // where the search for the bits begins
  std::uint32_t spread = 0;     // the number of blocks whose bits are in all words of the slab

  // Packed into one word, which a lane hands to others.
  GPUMEM_HEAP_DEVICE std::uint64_t pack() const {
    return std::uint64_t{slab} << 40 | std::uint64_t{first_word} << 32 | std::uint64_t{spread} << 19 | count << 1 |
           (marked ? 1u : 0u);
  }
  GPUMEM_HEAP_DEVICE static reservation unpack(std::uint64_t word) {
    return {static_cast<std::uint32_t>(word >> 40), static_cast<std::uint32_t>(word) >> 1 & 0x3ffff, (word & 1) != 0,
            static_cast<std::uint32_t>(word >> 32) & 0xff, static_cast<std::uint32_t>(word >> 19) & 0x1fff};
  }
  GPUMEM_HEAP_DEVICE static reservation of_slot(std::uint64_t slot) {
    return {slab_of(slot), reserved_of(slot), is_marked(slot), 0, reserved_of(slot)};
  }
};
// One of these blocks.
struct grant {
  reservation blocks;
  std::uint32_t index = 0;
};

// A set has a bit for each slab; a bit of an upper level says that the word below it may have bits. The thread that
// clears the last bit of a word clears the bit above it, and looks at the word again. Upper levels may be read from a
// cache: every loop has an acquire operation, after which it reads them anew.
template <class Lanes> class slab_set {
public:
  using u32 = std::uint32_t;
  using u64 = std::uint64_t;
  static constexpr u32 none = ~u32{0};

  GPUMEM_HEAP_DEVICE slab_set(u64* words, u32 words1, u32 words2) : words_{words}, words1_{words1}, words2_{words2} {}

  GPUMEM_HEAP_DEVICE u64 load(u32 word) const { return Lanes::template load<order::relaxed>(words_ + word); }
  // Returns whether one of the 64 words from a multiple of 64 on may have bits.
  GPUMEM_HEAP_DEVICE bool may_have(u32 word) const {
    return Lanes::template load<order::relaxed>(level2() + word / 64) != 0;
  }
  GPUMEM_HEAP_DEVICE void insert(u32 word, u64 bits) const {
    if (Lanes::template fetch_or<order::release>(words_ + word, bits) == 0) mark_upper(word);
  }
  // Takes all wanted bits of a word, or none.
  GPUMEM_HEAP_DEVICE bool take(u32 word, u64 wanted) const {
    auto const old = Lanes::template fetch_and<order::acquire>(words_ + word, ~wanted);
    auto const taken = old & wanted;
    if (taken != wanted && taken != 0) insert(word, taken);
    if (taken == wanted && (old & ~wanted) == 0) unmark_upper(word);
    return taken == wanted;
  }
  // Returns a slab of the set, which stays in the set; `none` if it is empty, or after some tries.
  GPUMEM_HEAP_DEVICE u32 find(u32 hint, u32 tries) const { return search(*this, 0, hint, tries); }
  // Takes `count` slabs side by side out of one word, at most 64. Returns the first; `none` if it found none. More than
  // one are given up after some tries.
  GPUMEM_HEAP_DEVICE u32 take_row(u32 count, u32 hint) const {
    return search(*this, count, hint, count == 1 ? none : 3);
  }

private:
  GPUMEM_HEAP_DEVICE u64* level2() const { return words_ + words1_; }
  GPUMEM_HEAP_DEVICE u64* level3() const { return words_ + words1_ + words2_; }
  GPUMEM_HEAP_DEVICE void mark_upper(u32 word) const;
  GPUMEM_HEAP_DEVICE void unmark_upper(u32 word) const;
  GPUMEM_HEAP_DEVICE void unmark_top(u32 upper) const;
  GPUMEM_HEAP_DEVICE static u32 search(slab_set set, u32 count, u32 hint, u32 tries);

  u64* words_;
  u32 words1_, words2_; // words of the lower levels
};

template <class Lanes> GPUMEM_HEAP_DEVICE void slab_set<Lanes>::mark_upper(u32 word) const {
  auto const upper = word / 64;
  if (Lanes::template fetch_or<order::release>(level2() + upper, u64{1} << word % 64) == 0)
    Lanes::template fetch_or<order::release>(level3() + upper / 64, u64{1} << upper % 64);
}

template <class Lanes> GPUMEM_HEAP_DEVICE void slab_set<Lanes>::unmark_top(u32 upper) const {
  auto const bit = u64{1} << upper % 64;
  Lanes::template fetch_and<order::acquire>(level3() + upper / 64, ~bit);
  if (Lanes::template load<order::relaxed>(level2() + upper) != 0)
    Lanes::template fetch_or<order::release>(level3() + upper / 64, bit);
}

template <class Lanes> GPUMEM_HEAP_DEVICE void slab_set<Lanes>::unmark_upper(u32 word) const {
  auto const bit = u64{1} << word % 64;
  if (Lanes::template fetch_and<order::acquire>(level2() + word / 64, ~bit) == bit) unmark_top(word / 64);
  if (load(word) != 0) mark_upper(word);
}

// A search for a row begins at the lowest address; a thread that loses a race looks further away, so that many threads
// spread. Large rows spread at once, and so does a search for any slab, whose `count` is 0.
template <class Lanes>
GPUMEM_HEAP_DEVICE std::uint32_t slab_set<Lanes>::search(slab_set set, u32 count, u32 hint, u32 tries) {
  u32 window = count == 0 ? 4096 : count;
  for (u32 top = 0; top != set.words2_ / 64 && tries != 0;) {
    auto const tops = Lanes::peek(set.level3() + top);
    if (tops == 0) {
      ++top;
      continue;
    }
    auto const choice = [](u32 all, u32 wide) { return all < wide ? all : wide; };
    auto const upper =
        top * 64 + select_bit<Lanes>(tops, hint / 64 % choice(Lanes::count(tops), window > 64 ? window / 64 : 1));
    auto const uppers = Lanes::peek(set.level2() + upper);
    if (uppers == 0) {
      set.unmark_top(upper); // the bit above stands for nothing
      --tries;
      continue;
    }
    auto const word =
        upper * 64 + select_bit<Lanes>(uppers, hint % choice(Lanes::count(uppers), window < 64 ? window : 64));
    auto const bits = set.load(word);
    if (bits == 0) {
      set.unmark_upper(word);
      --tries;
      continue;
    }
    if (auto const starts = find_rows(bits, count); starts != 0) {
      auto const first = select_bit<Lanes>(starts, hint / 4096 % Lanes::count(starts));
      if (count == 0 || set.take(word, low_bits(count) << first)) return word * 64 + first;
    }
    --tries;
    if (window < 4096) window *= 8;
    hint = hint * 1664525u + 1013904223u;
  }
  return none;
}

} // namespace heap_detail
} // namespace gpumem
