// Tiny pools for tests: first fit, exact bookkeeping, and no stream order at all.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gpumem/simulator.hpp>

#include <cstddef>
#include <map>
#include <memory>
#include <new>
#include <optional>
#include <utility>

// Stands in for the property of gpumem's own resources.
struct gpumem::extend::services {};

/// A stateful property, to test that it is forwarded.
struct pool_name {
  using value_type = int;
};

/// Allocates the lowest bytes that fit, no matter which stream freed them and when.
class naive_pool {
public:
  naive_pool(char* base, std::size_t bytes) : state_(std::make_shared<state>(base)) { state_->free[base] = bytes; }

  void* take(std::size_t bytes) {
    for (auto range = state_->free.begin(); range != state_->free.end(); ++range) {
      if (range->second < bytes) continue;
      auto const [start, length] = *range;
      state_->free.erase(range);
      if (length > bytes) state_->free.emplace(start + bytes, length - bytes);
      return start;
    }
    throw std::bad_alloc();
  }
  void put(void* pointer, std::size_t bytes) noexcept { state_->free.emplace(static_cast<char*>(pointer), bytes); }

  void* allocate(cuda::stream_ref, std::size_t bytes, std::size_t = 256) { return take(bytes); }
  void deallocate(cuda::stream_ref, void* pointer, std::size_t bytes, std::size_t = 256) noexcept {
    put(pointer, bytes);
  }
  void deallocate(cuda::stream_ref, void* pointer) noexcept { put(pointer, 256); }
  void* allocate_sync(std::size_t bytes, std::size_t = 256) { return take(bytes); }
  void deallocate_sync(void* pointer, std::size_t bytes, std::size_t = 256) noexcept { put(pointer, bytes); }
  std::optional<void*> try_allocate(cuda::stream_ref, std::size_t bytes, std::size_t = 256) { return take(bytes); }
  void record_use(void*, cuda::stream_ref) {}

  char* base() const { return state_->base; }

  friend bool operator==(naive_pool const& a, naive_pool const& b) { return a.state_ == b.state_; }
  friend void get_property(naive_pool const&, cuda::mr::device_accessible) noexcept {}
  friend void get_property(naive_pool const&, gpumem::extend::services) noexcept {}
  friend int get_property(naive_pool const&, pool_name) noexcept { return 77; }

private:
  struct state {
    explicit state(char* at) : base(at) {}
    char* base;
    std::map<char*, std::size_t> free;
  };
  std::shared_ptr<state> state_;
};

/// The same over memory that the host can access.
class naive_pinned_pool : public naive_pool {
public:
  using naive_pool::naive_pool;
  friend void get_property(naive_pinned_pool const&, cuda::mr::host_accessible) noexcept {}
};
