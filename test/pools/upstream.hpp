// An upstream for tests of pools: device memory whose calls are recorded, counted, and made to fail; and the fixture.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "../support/longest_wait.hpp"

#include <gpumem/simulator.hpp>
#include <gtest/gtest.h>

#include <cuda/memory_resource>
#include <cuda/stream>

#include <dlfcn.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <functional>
#include <memory>
#include <mutex>
#include <new>
#include <thread>
#include <vector>

#include <cuda.h>

namespace gpumem_test {

// Returns a function of the loaded driver.
template <class Function> Function* driver_function(char const* name) {
  return reinterpret_cast<Function*>(dlsym(dlopen("libcuda.so.1", RTLD_NOW), name));
}

// One call of the upstream: an allocation or a free, synchronous or in stream order.
struct upstream_call {
  void* pointer;
  std::size_t bytes;
  bool by_host;
};

// The state that the handles of one upstream share. Pools may free from the library's thread.
class upstream_state {
public:
  std::size_t capacity = SIZE_MAX;
  std::function<void()> on_draw; // runs before each allocation

  std::vector<upstream_call> draws() const {
    std::scoped_lock const held{mutex_};
    return draws_;
  }
  std::vector<upstream_call> returns() const {
    std::scoped_lock const held{mutex_};
    return returns_;
  }
  // Returns whether `count` frees have been made within 10 ms.
  bool wait_for_returns(std::size_t count) {
    std::unique_lock held{mutex_};
    return returned_.wait_for(held, std::chrono::milliseconds{10}, [&] { return returns_.size() >= count; });
  }

private:
  friend class recording_upstream;
  mutable std::mutex mutex_;
  std::condition_variable returned_;
  std::vector<upstream_call> draws_;
  std::vector<upstream_call> returns_;
  std::size_t drawn_ = 0;
  CUcontext context_ = nullptr; // of the thread that allocated first
};

// A resource by CCCL's concept, not gpumem's, over device memory. To a pool it looks stream-ordered.
class recording_upstream {
public:
  recording_upstream() : state_{std::make_shared<upstream_state>()} {}
  upstream_state& state() const { return *state_; }

  void* allocate(cuda::stream_ref, std::size_t bytes, std::size_t = 256) { return draw(bytes, false); }
  void deallocate(cuda::stream_ref, void* p, std::size_t bytes, std::size_t = 256) noexcept { give(p, bytes, false); }
  void* allocate_sync(std::size_t bytes, std::size_t = 256) { return draw(bytes, true); }
  void deallocate_sync(void* p, std::size_t bytes, std::size_t = 256) noexcept { give(p, bytes, true); }

  friend bool operator==(recording_upstream const& a, recording_upstream const& b) { return a.state_ == b.state_; }
  friend constexpr void get_property(recording_upstream const&, cuda::mr::device_accessible) noexcept {}

private:
  void* draw(std::size_t bytes, bool by_host) {
    if (auto const hook = state_->on_draw) hook();
    static auto* const allocate = driver_function<decltype(cuMemAlloc)>("cuMemAlloc_v2");
    static auto* const current = driver_function<decltype(cuCtxGetCurrent)>("cuCtxGetCurrent");
    std::scoped_lock const held{state_->mutex_};
    if (!state_->context_) current(&state_->context_);
    CUdeviceptr p{};
    if (bytes > state_->capacity - state_->drawn_ || allocate(&p, bytes) != CUDA_SUCCESS) throw std::bad_alloc{};
    state_->drawn_ += bytes;
    auto* const pointer = reinterpret_cast<void*>(p);
    state_->draws_.push_back({pointer, bytes, by_host});
    return pointer;
  }
  void give(void* p, std::size_t bytes, bool by_host) noexcept {
    static auto* const push = driver_function<decltype(cuCtxPushCurrent)>("cuCtxPushCurrent_v2");
    static auto* const pop = driver_function<decltype(cuCtxPopCurrent)>("cuCtxPopCurrent_v2");
    static auto* const free = driver_function<decltype(cuMemFree)>("cuMemFree_v2");
    push(state_->context_); // the library's thread has no current context
    EXPECT_NE(free(reinterpret_cast<CUdeviceptr>(p)), CUDA_ERROR_INVALID_CONTEXT);
    CUcontext popped = nullptr;
    pop(&popped);
    std::scoped_lock const held{state_->mutex_};
    state_->drawn_ -= bytes;
    state_->returns_.push_back({p, bytes, by_host});
    state_->returned_.notify_all();
  }
  std::shared_ptr<upstream_state> state_;
};

// Lets the device run until `count` chunks were freed; the library's thread may still be recording events. Returns
// false after ten seconds.
inline bool wait_for_releases(upstream_state& state, std::size_t count) {
  for (int i = 0; i < 1000; ++i) {
    gpumem::simulator::run_until_idle();
    if (state.wait_for_returns(count)) return true;
  }
  return false;
}

// Steps the device during its lifetime.
class running_device {
public:
  ~running_device() {
    ended_ = true;
    steps_.join();
  }

private:
  std::atomic<bool> ended_{false};
  std::thread steps_{[this] {
    while (!ended_) {
      gpumem::simulator::run_until_idle();
      std::this_thread::yield();
    }
  }};
};

// Allocates a block on a stream, uses it and frees it there, with the use still pending.
template <class Pool> void* freed_in_use(Pool& pool, cuda::stream_ref on, std::size_t bytes) {
  auto* const p = pool.allocate(on, bytes);
  gpumem::simulator::work(on, {gpumem::simulator::write(p, bytes)});
  pool.deallocate(on, p, bytes);
  return p;
}

// Device work runs only when a test steps it; every finding that a test does not expect is a failure.
class simulated_test : public testing::Test {
protected:
  static void SetUpTestSuite() { gpumem::simulator::load({.devices = 2, .mode = gpumem::simulator::stepping::manual}); }
  void TearDown() override {
    gpumem::simulator::run_until_idle();
    for (auto const& found : gpumem::simulator::take_findings()) ADD_FAILURE() << found.text;
  }
  static std::size_t device_bytes() { return gpumem::simulator::report().bytes_allocated; }
  // The library's thread releases memory of destroyed pools when late work completes. Returns false after a second.
  static bool wait_for_device_bytes(std::size_t bytes) {
    auto const end = std::chrono::steady_clock::now() + std::chrono::seconds{1};
    while (device_bytes() > bytes && std::chrono::steady_clock::now() < end) {
      gpumem::simulator::run_until_idle();
      std::this_thread::yield();
    }
    return device_bytes() <= bytes;
  }
};

} // namespace gpumem_test
