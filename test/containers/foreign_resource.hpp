// A resource by CCCL's concept that is not gpumem's, over device memory; for files that have imported gpumem.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstddef>
#include <memory>
#include <new>

#include <cuda.h>

/// Copies share their records. Two that were made separately are equal if their numbers are.
class foreign_resource {
public:
  struct told {
    std::atomic<int> live{0};
    std::atomic<int> device_of_last_call{-1};
  };

  explicit foreign_resource(int number = 0) : told_{std::make_shared<told>()}, number_{number} {}

  void* allocate(gpumem::stream_ref, std::size_t bytes, std::size_t) { return draw(bytes); }
  void deallocate(gpumem::stream_ref, void* p, std::size_t, std::size_t) noexcept { give(p); }
  void* allocate_sync(std::size_t bytes, std::size_t) { return draw(bytes); }
  void deallocate_sync(void* p, std::size_t, std::size_t) noexcept { give(p); }

  std::shared_ptr<told> tells() const { return told_; }

  friend bool operator==(foreign_resource const& a, foreign_resource const& b) { return a.number_ == b.number_; }
  friend constexpr void get_property(foreign_resource const&, gpumem::mr::device_accessible) noexcept {}

private:
  void note() const { told_->device_of_last_call = gpumem::device::current().ordinal(); }
  void* draw(std::size_t bytes) {
    note();
    CUdeviceptr p{};
    if (gpumem::driver_api::driver().mem_alloc(&p, bytes) != CUDA_SUCCESS) throw std::bad_alloc{};
    ++told_->live;
    return reinterpret_cast<void*>(p);
  }
  void give(void* p) noexcept {
    note();
    gpumem::driver_api::driver().mem_free(reinterpret_cast<CUdeviceptr>(p));
    --told_->live;
  }
  std::shared_ptr<told> told_;
  int number_;
};
