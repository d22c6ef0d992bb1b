// The memory of a heap for kernels on the host, and a check of its metadata while no kernel uses it.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gpumem/device_heap_core.hpp>

#include <sys/mman.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <map>
#include <new>
#include <string>
#include <vector>

namespace gpumem_test {

namespace parts = gpumem::heap_detail;

// The bytes that the heap gives for a request.
inline std::size_t granted_bytes(std::size_t bytes) {
  if (bytes > parts::slab_bytes) return (bytes + parts::slab_bytes - 1) / parts::slab_bytes * parts::slab_bytes;
  std::size_t result = 16;
  while (result < bytes) result *= 2;
  return result;
}

class heap_memory {
public:
  // The first kernels see `shown` bytes as the size, which says how many slots and caches they use.
  heap_memory(std::size_t reserve, std::size_t bytes, std::size_t shown)
      : layout_{parts::make_layout(reserve)}, data_bytes_{reserve}, metadata_bytes_{layout_.end(layout_.slabs)} {
    data_ = map(data_bytes_);
    metadata_ = map(metadata_bytes_);
    view_ = {data_, metadata_, reserve, shown};
    apply(parts::fill_of_begin(layout_));
    for (auto const& each : parts::fills_of_growth(layout_, 0, bytes / parts::slab_bytes)) apply(each);
    slabs_ = bytes / parts::slab_bytes;
  }
  heap_memory(heap_memory const&) = delete;
  heap_memory& operator=(heap_memory const&) = delete;
  ~heap_memory() {
    munmap(data_, data_bytes_);
    munmap(metadata_, metadata_bytes_);
  }

  gpumem::heap_view const& view() const { return view_; }
  gpumem::heap_view view_of(std::size_t shown) const { return {data_, metadata_, data_bytes_, shown}; }
  parts::layout const& layout() const { return layout_; }
  std::size_t slabs() const { return slabs_; }
  void set_slabs(std::size_t slabs) { slabs_ = slabs; }
  void apply(parts::fill const& each) const { std::memset(metadata_ + each.offset, each.value, each.bytes); }
  void reset() const {
    apply(parts::fill_of_begin(layout_));
    for (auto const& each : parts::fills_of_growth(layout_, 0, slabs_)) apply(each);
  }
  template <class T> T* at(std::size_t offset) const { return reinterpret_cast<T*>(metadata_ + offset); }
  std::uint64_t* slot(unsigned processor, unsigned kind) const {
    return at<std::uint64_t>(parts::layout::slots) + processor * parts::slot_stride + (kind - 1);
  }
  std::size_t offset_of(void const* block) const {
    return static_cast<std::size_t>(static_cast<unsigned char const*>(block) - data_);
  }
  gpumem::device_heap_statistics statistics() const { return parts::count_blocks(layout_, metadata_, slabs_); }

  // Blocks that are allocated, by their offset; their bytes.
  using block_map = std::map<std::size_t, std::size_t>;
  // Returns what is wrong with the metadata, or nothing.
  std::string error_of(block_map const& live) const;

private:
  static unsigned char* map(std::size_t bytes) {
    void* const memory =
        mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED) throw std::bad_alloc{};
    return static_cast<unsigned char*>(memory);
  }
  std::uint64_t const* set(unsigned index) const {
    return at<std::uint64_t>(layout_.sets()) + std::size_t{index} * layout_.set_words;
  }
  bool has(unsigned index, std::size_t slab) const { return (set(index)[slab / 64] >> slab % 64 & 1) != 0; }
  bool upper_levels_hold(unsigned index) const {
    auto const* const words = set(index);
    auto const* const level2 = words + layout_.words1;
    auto const* const level3 = level2 + layout_.words2;
    for (std::size_t i = 0; i != layout_.words1; ++i)
      if (words[i] != 0 && !(level2[i / 64] >> i % 64 & 1)) return false;
    for (std::size_t i = 0; i != layout_.words2; ++i)
      if (level2[i] != 0 && !(level3[i / 64] >> i % 64 & 1)) return false;
    return true;
  }

  parts::layout layout_;
  std::size_t data_bytes_, metadata_bytes_, slabs_ = 0;
  unsigned char *data_, *metadata_;
  gpumem::heap_view view_;
};

inline std::string heap_memory::error_of(block_map const& live) const {
  for (unsigned i = 0; i != parts::layout::set_count; ++i)
    if (!upper_levels_hold(i)) return "a bit of a set has none above it: set " + std::to_string(i);

  // Which place has each block of a slab: nothing, a bit, a cache, a slot, or a thread.
  std::vector<std::vector<unsigned char>> places(slabs_);
  std::vector<unsigned> reserved(slabs_, 0); // by marked slots
  std::vector<bool> of_large(slabs_, false);
  auto const name = [](std::size_t slab) { return " of slab " + std::to_string(slab); };
  auto const* const states = at<std::uint32_t>(layout_.states());
  for (std::size_t slab = 0; slab != slabs_; ++slab) {
    auto const kind = parts::kind_of(states[slab]);
    if (kind == 0 || kind == parts::large) {
      auto const* const bits = at<std::uint32_t>(layout_.bits()) + slab * parts::slab_words;
      for (unsigned i = 0; i != parts::slab_words; ++i)
        if (bits[i] != 0) return "a free or large slab has bits:" + name(slab);
      continue;
    }
    auto& blocks = places[slab];
    blocks.resize(parts::slab_bytes >> (kind + 3));
    auto const* const bits = at<std::uint32_t>(layout_.bits()) + slab * parts::slab_words;
    for (std::size_t i = 0; i != parts::slab_words * 32; ++i)
      if ((bits[i / 32] >> i % 32 & 1) != 0) {
        if (i >= blocks.size()) return "a bit of no block" + name(slab);
        ++blocks[i];
      }
  }
  std::string wrong;
  auto const claim = [&](std::size_t offset, unsigned kind, char const* what) {
    auto const slab = offset / parts::slab_bytes;
    if (slab >= slabs_ || parts::kind_of(states[slab]) != kind)
      wrong = std::string{what} + " has a block of a slab of another class:" + name(slab);
    else if (places[slab][(offset % parts::slab_bytes) >> (kind + 3)]++ != 0)
      wrong = std::string{what} + " has a block that is elsewhere too:" + name(slab);
  };
  for (unsigned processor = 0; processor != layout_.processors; ++processor)
    for (unsigned kind = 1; kind <= parts::class_count; ++kind) {
      auto const size = at<int>(layout_.cache_sizes())[processor * parts::slot_stride + kind - 1];
      auto const capacity =
          kind <= 7 ? int{parts::cache_entries} : static_cast<int>(parts::cache_entries >> (kind - 7));
      if (size < -32 || size > capacity) return "the size of a cache is " + std::to_string(size);
      auto const* const cache = at<std::uint32_t>(layout_.caches()) +
                                (std::size_t{processor} * parts::class_count + kind - 1) * parts::cache_entries;
      for (unsigned i = 0; i != parts::cache_entries; ++i)
        if (cache[i] != 0 && cache[i] != parts::cache_gap)
          claim(std::size_t{cache[i] - 1} << (kind + 3), kind, "a cache");
      auto const value = *slot(processor, kind);
      auto const taken = parts::taken_of(value), count = parts::reserved_of(value);
      if (taken < count && parts::is_marked(value) && parts::slab_of(value) < slabs_)
        reserved[parts::slab_of(value)] += count - taken;
      else
        for (std::size_t i = taken; i < count; ++i)
          claim(std::size_t{parts::slab_of(value)} * parts::slab_bytes + (i << (kind + 3)), kind, "a slot");
    }
  for (auto const& [offset, bytes] : live) {
    auto const slab = offset / parts::slab_bytes;
    if (bytes <= parts::slab_bytes) {
      unsigned kind = 1;
      while (std::size_t{8} << kind < bytes) ++kind;
      claim(offset, kind, "a thread");
    } else if (states[slab] != parts::make_state(parts::large, static_cast<std::uint32_t>(bytes / parts::slab_bytes))) {
      wrong = "a large block has another state:" + name(slab);
    } else {
      for (std::size_t i = 0; i != bytes / parts::slab_bytes; ++i) {
        of_large[slab + i] = true;
        if (i != 0 && states[slab + i] != 0) wrong = "a large block has a slab with a state:" + name(slab + i);
      }
    }
  }
  if (!wrong.empty()) return wrong;
  for (std::size_t slab = 0; slab != slabs_; ++slab) {
    auto const kind = parts::kind_of(states[slab]), count = parts::count_of(states[slab]);
    if (kind == parts::large && !of_large[slab]) return "a large block is lost:" + name(slab);
    bool const is_free = kind == 0 && !of_large[slab];
    if (has(0, slab) != is_free) return (is_free ? "a free slab is in no set:" : "a used slab is free:") + name(slab);
    if (kind == 0 || kind == parts::large) continue;
    std::size_t bits = 0;
    auto const* const words = at<std::uint32_t>(layout_.bits()) + slab * parts::slab_words;
    for (unsigned i = 0; i != parts::slab_words; ++i) bits += static_cast<unsigned>(__builtin_popcount(words[i]));
    if (bits != count + reserved[slab])
      return std::to_string(bits) + " bits for " + std::to_string(count) + " freed blocks and " +
             std::to_string(reserved[slab]) + " reserved ones" + name(slab);
    for (auto const each : places[slab])
      if (each != 1) return (each == 0 ? "a block is lost" : "a block is in two places") + name(slab);
    auto const capacity = places[slab].size(), many = capacity <= 16 ? 1 : capacity / 16;
    if (count == capacity) return "a slab whose blocks are all freed is not free:" + name(slab);
    if (count >= many && !has(2 * kind - 1, slab)) return "a slab with many freed blocks is in no set:" + name(slab);
    if (count != 0 && count < many && !has(2 * kind, slab) && !has(2 * kind - 1, slab))
      return "a slab with few freed blocks is in no set:" + name(slab);
  }
  for (std::size_t slab = slabs_; slab != layout_.slabs; ++slab)
    if (has(0, slab)) return "a slab that is not there is free:" + name(slab);
  return {};
}

} // namespace gpumem_test
