// Random replacement among live blocks. Sizes, slots and streams are drawn from a seed before the clock starts.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <random>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

namespace bench {

/// Block sizes in bytes, logarithmically uniform: as many between 1 and 2 KiB as between 1 and 2 MiB.
struct size_distribution {
  std::size_t smallest;
  std::size_t largest;
};

/// One step: frees the block in the slot and allocates a new one there.
struct replacement {
  std::uint32_t slot;
  std::uint32_t stream;
  std::size_t bytes;
};

inline std::vector<replacement> make_workload(std::uint64_t seed, std::size_t slots, std::size_t streams,
                                              size_distribution sizes, std::size_t count = std::size_t{1} << 16) {
  std::mt19937_64 random{seed};
  std::uniform_real_distribution<double> magnitude{std::log2(static_cast<double>(sizes.smallest)),
                                                   std::log2(static_cast<double>(sizes.largest))};
  std::vector<replacement> drawn(count);
  for (auto& each : drawn) {
    each.slot = static_cast<std::uint32_t>(random() % slots);
    each.stream = static_cast<std::uint32_t>(random() % streams);
    each.bytes = static_cast<std::size_t>(std::exp2(magnitude(random)));
  }
  return drawn;
}

/// The live blocks of one thread, by slot. Each is freed on the stream on which it was allocated.
template <class Resource, class Stream> class live_set {
public:
  live_set(Resource& from, std::span<Stream const> streams, std::size_t slots)
      : from_{&from}, streams_{streams}, blocks_(slots) {}
  live_set(live_set const&) = delete;
  live_set& operator=(live_set const&) = delete;
  ~live_set() {
    for (auto& each : blocks_) free(each);
  }

  /// Throws std::runtime_error if the resource has no memory.
  inline void replace(replacement const& next) {
    auto& block = blocks_[next.slot];
    free(block);
    allocate(block, next);
  }
  inline void free_one(std::uint32_t slot) { free(blocks_[slot]); }
  inline void allocate_one(replacement const& next) { allocate(blocks_[next.slot], next); }

  void fill(std::span<replacement const> workload) {
    for (std::uint32_t slot = 0; slot < blocks_.size(); ++slot) {
      auto const& like = workload[slot % workload.size()];
      allocate(blocks_[slot], {slot, like.stream, like.bytes});
      live_ += like.bytes;
    }
  }
  /// Live bytes after all slots were first filled.
  std::size_t filled_bytes() const noexcept { return live_; }

private:
  struct block {
    void* pointer = nullptr;
    std::size_t bytes = 0;
    std::uint32_t stream = 0;
  };
  inline void free(block& one) {
    if (one.pointer) from_->deallocate(streams_[one.stream], one.pointer, one.bytes);
    one.pointer = nullptr;
  }
  inline void allocate(block& one, replacement const& next) {
    auto const got = from_->try_allocate(streams_[next.stream], next.bytes);
    if (!got) [[unlikely]]
      throw std::runtime_error("no memory for " + std::to_string(next.bytes) + " bytes");
    one = {*got, next.bytes, next.stream};
  }

  Resource* from_;
  std::span<Stream const> streams_;
  std::vector<block> blocks_;
  std::size_t live_ = 0;
};

} // namespace bench
