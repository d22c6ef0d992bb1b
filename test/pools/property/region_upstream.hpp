// An upstream for the property test: hands out parts of one region in stream order, repeatably for each seed.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda/memory_resource>
#include <cuda/stream>

#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <new>

namespace gpumem_test {

// The state that the handles of one upstream share.
struct region {
  std::uintptr_t base = 0;
  std::size_t capacity = 0; // the most bytes handed out at once
  unsigned fail_every = 0;  // every n-th allocation fails; 0: none

  void* draw(std::size_t bytes) {
    std::scoped_lock const held{mutex_};
    ++draws_;
    if ((fail_every && draws_ % fail_every == 0) || bytes > capacity - drawn_) throw std::bad_alloc{};
    auto at = base;
    for (auto const& [first, size] : given_) {
      if (first - at >= bytes) break;
      at = first + size;
    }
    given_.emplace(at, bytes);
    drawn_ += bytes;
    return reinterpret_cast<void*>(at);
  }
  void give(void* p, std::size_t bytes) noexcept {
    std::scoped_lock const held{mutex_};
    given_.erase(reinterpret_cast<std::uintptr_t>(p));
    drawn_ -= bytes;
  }
  std::size_t drawn() {
    std::scoped_lock const held{mutex_};
    return drawn_;
  }

private:
  std::mutex mutex_;
  std::size_t drawn_ = 0;
  unsigned draws_ = 0;
  std::map<std::uintptr_t, std::size_t> given_; // live parts; allocation is first fit
};

// Inside gpumem::simulator::checked, memory counts as written by the stream of its allocation.
class region_upstream {
public:
  explicit region_upstream(region& of) : region_{&of} {}

  void* allocate(cuda::stream_ref, std::size_t bytes, std::size_t = 256) { return region_->draw(bytes); }
  void deallocate(cuda::stream_ref, void* p, std::size_t bytes, std::size_t = 256) noexcept { region_->give(p, bytes); }
  void* allocate_sync(std::size_t bytes, std::size_t = 256) { return region_->draw(bytes); }
  void deallocate_sync(void* p, std::size_t bytes, std::size_t = 256) noexcept { region_->give(p, bytes); }

  friend bool operator==(region_upstream const& a, region_upstream const& b) { return a.region_ == b.region_; }
  friend constexpr void get_property(region_upstream const&, cuda::mr::device_accessible) noexcept {}

private:
  region* region_;
};

} // namespace gpumem_test
