// thread_safe_adaptor: calls of threads do not overlap, whatever the way of the call.
// SPDX-License-Identifier: Apache-2.0
#include "../support/simulated.hpp"

#include <gpumem/services.hpp>

#include <cuda/memory_resource>
#include <cuda/stream>

#include <atomic>
#include <cstddef>
#include <cstdlib>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

import gpumem;

#include "../support/parking_resource.hpp"

namespace thread_safe_test {

// A resource of another library that counts the calls that overlap.
class fragile_resource {
public:
  struct counts {
    std::atomic<int> inside{0};
    std::atomic<int> overlaps{0};
    long live = 0; // not atomic: a race is a finding of ThreadSanitizer
  };
  fragile_resource() : counts_{std::make_shared<counts>()} {}
  counts& seen() const { return *counts_; }

  void* allocate(cuda::stream_ref, std::size_t bytes, std::size_t = 256) { return allocate_sync(bytes); }
  void deallocate(cuda::stream_ref, void* p, std::size_t bytes, std::size_t = 256) noexcept {
    deallocate_sync(p, bytes);
  }
  void* allocate_sync(std::size_t bytes, std::size_t = 256) {
    enter(1);
    return std::aligned_alloc(256, (bytes + 255) / 256 * 256);
  }
  void deallocate_sync(void* p, std::size_t, std::size_t = 256) noexcept {
    enter(-1);
    std::free(p);
  }
  friend bool operator==(fragile_resource const& a, fragile_resource const& b) { return a.counts_ == b.counts_; }
  friend constexpr void get_property(fragile_resource const&, cuda::mr::device_accessible) noexcept {}

private:
  void enter(long change) noexcept {
    if (counts_->inside.fetch_add(1) != 0) counts_->overlaps.fetch_add(1);
    counts_->live += change;
    std::this_thread::yield();
    counts_->inside.fetch_sub(1);
  }
  std::shared_ptr<counts> counts_;
};

} // namespace thread_safe_test

namespace {

using thread_safe_test::fragile_resource;

class thread_safe : public simulated {
protected:
  gpumem::stream s_{gpumem::device{0}};
};

template <class Subject> void use_by_threads(Subject& subject) {
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&] {
      gpumem::device_guard const current{gpumem::device{0}};
      gpumem::stream own{gpumem::device{0}};
      for (int round = 0; round < 200; ++round) {
        void* const p = subject.allocate(own, 100);
        void* const q = subject.allocate_sync(100);
        auto const r = subject.acquire(own, 100).wait();
        subject.deallocate_sync(q, 100);
        subject.deallocate(own, p, 100);
      }
    });
  }
  for (auto& each : threads) each.join();
}

TEST_F(thread_safe, calls_do_not_overlap) {
  fragile_resource upstream;
  gpumem::thread_safe_adaptor subject{upstream};
  use_by_threads(subject);
  EXPECT_EQ(upstream.seen().overlaps, 0);
  EXPECT_EQ(upstream.seen().live, 0);
}

TEST_F(thread_safe, calls_over_an_erased_resource_do_not_overlap) {
  fragile_resource upstream;
  gpumem::thread_safe_adaptor subject{gpumem::mr::any_resource<gpumem::mr::device_accessible>{upstream}};
  use_by_threads(subject);
  EXPECT_EQ(upstream.seen().overlaps, 0);
  EXPECT_EQ(upstream.seen().live, 0);
}

TEST_F(thread_safe, requests_wait_where_the_upstream_lets_them) {
  test::parking_resource upstream{100};
  gpumem::thread_safe_adaptor subject{upstream};
  auto held = subject.acquire(s_, 100).wait();
  std::thread waiting{[&] { EXPECT_TRUE(subject.acquire(s_, 50).wait()); }};
  while (upstream.state().parked() == 0) std::this_thread::yield();
  held.reset();
  waiting.join();
}

TEST_F(thread_safe, adaptor_lives_until_its_last_block_is_freed) {
  gpumem::allocation kept;
  {
    gpumem::thread_safe_adaptor subject{fragile_resource{}};
    kept = subject.acquire(s_, 16).wait();
  }
  kept.reset(); // a sanitizer reports a lock that is used after the end of its state
  EXPECT_FALSE(kept);
}

} // namespace
