// The contract of a resource, checked for every resource.
// SPDX-License-Identifier: Apache-2.0
#include "../support/simulated.hpp"

#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <limits>
#include <memory>
#include <mutex>
#include <optional>
#include <random>
#include <stdexcept>
#include <thread>
#include <utility>
#include <vector>

#include <cuda.h>

import gpumem;

#include "makers.hpp"

namespace {

namespace simulator = gpumem::simulator;

constexpr std::size_t kib = 1024, mib = 1024 * kib, gib = 1024 * mib, pib = mib * gib;

/// A way to call a resource: synchronous, or in the order of a stream.
template <class Resource> struct way {
  std::string name;
  std::function<void*(Resource&, std::size_t, std::size_t)> allocate;
  std::function<void(Resource&, void*, std::size_t, std::size_t)> deallocate;
  std::optional<gpumem::stream_ref> stream = std::nullopt;
};

struct block {
  void* pointer;
  std::size_t bytes;
};

template <class Maker> class conformance : public simulated {
protected:
  using resource = decltype(Maker::make());

  void SetUp() override {
    simulated::SetUp();
    held_ = device_bytes();
    resource_ = std::make_unique<resource>(Maker::make());
    gpumem::device const where{home()};
    current_ = std::make_unique<gpumem::device_guard>(where);
    own_ = std::make_unique<gpumem::stream>(where);
    ASSERT_EQ(gpumem::driver_api::driver().stream_create(&foreign_, CU_STREAM_NON_BLOCKING), CUDA_SUCCESS);
  }
  void TearDown() override {
    resource_.reset();
    // Adopting the stream and dropping the result ends the promise that it lives; an event then covers its last frees.
    { auto const promised = gpumem::stream::adopt(foreign_); }
    ASSERT_EQ(gpumem::driver_api::driver().stream_destroy(foreign_), CUDA_SUCCESS);
    own_.reset();
    EXPECT_EQ(gpumem::driver_api::driver().ctx_synchronize(),
              CUDA_SUCCESS); // afterwards the driver's default pool holds no memory
    current_.reset();
    simulated::TearDown();
    // A pool returns the memory that the host has seen complete; its library thread returns the rest.
    auto const latest = std::chrono::steady_clock::now() + std::chrono::seconds{10};
    while (device_bytes() != held_ && std::chrono::steady_clock::now() < latest) std::this_thread::yield();
    EXPECT_EQ(device_bytes(), held_) << "device memory was not given back";
  }

  int home() {
    auto const services = gpumem::extend::services_of(*resource_);
    auto const ordinal = services.table->device(services.state);
    return ordinal < 0 ? 0 : ordinal;
  }

  std::vector<way<resource>> ways() {
    auto const in_order = [](std::string name, gpumem::stream_ref stream) {
      return way<resource>{
          std::move(name), [stream](resource& r, std::size_t n, std::size_t a) { return r.allocate(stream, n, a); },
          [stream](resource& r, void* p, std::size_t n, std::size_t a) { r.deallocate(stream, p, n, a); }, stream};
    };
    return {way<resource>{"sync", [](resource& r, std::size_t n, std::size_t a) { return r.allocate_sync(n, a); },
                          [](resource& r, void* p, std::size_t n, std::size_t a) { r.deallocate_sync(p, n, a); }},
            in_order("own stream", *own_),
            in_order("foreign stream", gpumem::stream_ref{foreign_}),
            in_order("default stream", gpumem::stream_ref{cudaStream_t{}}),
            in_order("legacy stream", gpumem::stream_ref{CU_STREAM_LEGACY}),
            in_order("thread's stream", gpumem::stream_ref{CU_STREAM_PER_THREAD})};
  }

  /// Allocates and frees at random, and frees everything at the end.
  static void mix(resource& from, way<resource> const& how, std::size_t most_bytes, unsigned steps, unsigned seed) {
    std::mt19937 random{seed};
    std::vector<block> live;
    for (unsigned step = 0; step < steps; ++step) {
      if (live.empty() || random() % 100 < 53) {
        std::size_t const bytes = 1 + random() % most_bytes;
        live.push_back({how.allocate(from, bytes, 256), bytes});
        ASSERT_NE(live.back().pointer, nullptr);
      } else {
        std::swap(live[random() % live.size()], live.back());
        how.deallocate(from, live.back().pointer, live.back().bytes, 256);
        live.pop_back();
      }
    }
    for (auto const& last : live) how.deallocate(from, last.pointer, last.bytes, 256);
  }

  resource& subject() { return *resource_; }
  gpumem::stream& own() { return *own_; }

private:
  std::size_t held_ = 0;
  std::unique_ptr<resource> resource_;
  std::unique_ptr<gpumem::device_guard> current_;
  std::unique_ptr<gpumem::stream> own_;
  CUstream foreign_ = nullptr;
};

TYPED_TEST_SUITE(conformance, makers::resources, makers::names);

TYPED_TEST(conformance, resource_equals_itself_and_its_copies) {
  auto& subject = this->subject();
  auto copy = subject;
  EXPECT_TRUE(subject == subject);
  EXPECT_TRUE(copy == subject);
  EXPECT_FALSE(copy != subject);
  void* const p = subject.allocate_sync(kib, 256);
  copy.deallocate_sync(p, kib, 256);
}

TYPED_TEST(conformance, live_blocks_do_not_overlap) {
  for (auto const& how : this->ways()) {
    SCOPED_TRACE(how.name);
    auto* const a = static_cast<std::byte*>(how.allocate(this->subject(), 8, 256));
    auto* const b = static_cast<std::byte*>(how.allocate(this->subject(), 8, 256));
    EXPECT_TRUE(a + 8 <= b || b + 8 <= a);
    how.deallocate(this->subject(), a, 8, 256);
    how.deallocate(this->subject(), b, 8, 256);
  }
}

TYPED_TEST(conformance, every_size_can_be_allocated) {
  for (auto const& how : this->ways()) {
    for (std::size_t const bytes : {std::size_t{1}, std::size_t{4}, kib, mib, gib}) {
      SCOPED_TRACE(how.name + ", bytes " + std::to_string(bytes));
      void* const p = how.allocate(this->subject(), bytes, 256);
      EXPECT_NE(p, nullptr);
      EXPECT_EQ(reinterpret_cast<std::uintptr_t>(p) % 256, 0u);
      how.deallocate(this->subject(), p, bytes, 256);
    }
  }
}

TYPED_TEST(conformance, zero_bytes_give_a_null_pointer_that_can_be_freed) {
  for (auto const& how : this->ways()) {
    SCOPED_TRACE(how.name);
    EXPECT_EQ(how.allocate(this->subject(), 0, 256), nullptr);
    how.deallocate(this->subject(), nullptr, 0, 256);
  }
}

TYPED_TEST(conformance, every_power_of_two_is_an_alignment) {
  for (auto const& how : this->ways()) {
    for (std::size_t alignment = 1; alignment <= 4 * mib; alignment *= 2) {
      SCOPED_TRACE(how.name + ", alignment " + std::to_string(alignment));
      std::vector<void*> blocks;
      for (std::size_t i = 0; i < 3; ++i) {
        blocks.push_back(how.allocate(this->subject(), 100 + i, alignment));
        EXPECT_EQ(reinterpret_cast<std::uintptr_t>(blocks.back()) % alignment, 0u);
      }
      for (std::size_t i = 0; i < 3; ++i) how.deallocate(this->subject(), blocks[i], 100 + i, alignment);
    }
  }
}

TYPED_TEST(conformance, invalid_alignments_are_refused) {
  for (auto const& how : this->ways()) {
    SCOPED_TRACE(how.name);
    for (std::size_t const alignment : {std::size_t{0}, std::size_t{3}, std::size_t{384}}) {
      EXPECT_THROW(how.allocate(this->subject(), kib, alignment), std::invalid_argument);
    }
  }
}

TYPED_TEST(conformance, failed_request_changes_nothing) {
  auto const fits = [this](auto const& how) {
    void* const p = how.allocate(this->subject(), kib, 256);
    EXPECT_NE(p, nullptr);
    how.deallocate(this->subject(), p, kib, 256);
  };
  for (auto const& how : this->ways()) fits(how); // afterwards a pool holds all memory that it will use
  auto const before = gpumem::statistics_of(this->subject());
  auto const held = this->device_bytes();
  for (auto const& how : this->ways()) {
    SCOPED_TRACE(how.name);
    for (std::size_t const bytes : {pib, std::numeric_limits<std::size_t>::max() / 2, std::size_t{0} - 2}) {
      void* p = this;
      EXPECT_THROW(p = how.allocate(this->subject(), bytes, 256), gpumem::out_of_memory);
      EXPECT_EQ(p, this);
    }
    fits(how);
  }
  EXPECT_EQ(gpumem::statistics_of(this->subject()).live, before.live);
  EXPECT_EQ(this->device_bytes(), held);
}

TYPED_TEST(conformance, many_blocks_of_any_size_do_not_overlap) {
  for (auto const& how : this->ways()) {
    SCOPED_TRACE(how.name);
    std::mt19937 random{1};
    std::vector<block> live;
    for (int i = 0; i < 100; ++i) {
      std::size_t const bytes = 1 + random() % (5 * mib);
      live.push_back({how.allocate(this->subject(), bytes, 256), bytes});
      ASSERT_NE(live.back().pointer, nullptr);
    }
    for (auto const& each : live) how.deallocate(this->subject(), each.pointer, each.bytes, 256);
  }
}

TYPED_TEST(conformance, allocations_and_frees_can_be_in_any_order) {
  for (auto const& how : this->ways()) {
    SCOPED_TRACE(how.name);
    this->mix(this->subject(), how, 5 * mib, 200, 2);
  }
}

TYPED_TEST(conformance, several_threads_can_allocate_at_once) {
  for (auto const& how : this->ways()) {
    SCOPED_TRACE(how.name);
    std::vector<std::thread> threads;
    for (unsigned i = 0; i < 4; ++i) {
      threads.emplace_back([&, i] {
        gpumem::device_guard const scope{gpumem::device{this->home()}};
        this->mix(this->subject(), how, mib, 100, i);
      });
    }
    for (auto& thread : threads) thread.join();
  }
}

// A default stream is a different stream in each thread: the event orders the free after the allocation.
TYPED_TEST(conformance, another_thread_can_free_a_block) {
  struct handed_over {
    block given;
    gpumem::event allocated;
  };
  for (auto const& how : this->ways()) {
    SCOPED_TRACE(how.name);
    std::mutex guard;
    std::condition_variable arrived;
    std::deque<handed_over> given;
    std::thread consumer{[&] {
      gpumem::device_guard const scope{gpumem::device{this->home()}};
      for (int i = 0; i < 100; ++i) {
        std::unique_lock held{guard};
        arrived.wait(held, [&] { return !given.empty(); });
        auto const next = std::move(given.front());
        given.pop_front();
        held.unlock();
        if (how.stream) next.allocated.make_wait(*how.stream);
        how.deallocate(this->subject(), next.given.pointer, next.given.bytes, 256);
      }
    }};
    std::mt19937 random{3};
    for (int i = 0; i < 100; ++i) {
      std::size_t const bytes = 1 + random() % mib;
      void* const p = how.allocate(this->subject(), bytes, 256);
      gpumem::event allocated{gpumem::device{this->home()}};
      if (how.stream) allocated.record(*how.stream);
      std::scoped_lock const held{guard};
      given.push_back({{p, bytes}, std::move(allocated)});
      arrived.notify_one();
    }
    consumer.join();
  }
}

TYPED_TEST(conformance, work_may_use_a_block_until_its_free) {
  for (int round = 0; round < 20; ++round) {
    void* const p = this->subject().allocate(this->own(), mib, 256);
    bool ran = false;
    simulator::work(this->own(), {simulator::write(p, mib)}, std::chrono::microseconds{5}, [&] { ran = true; });
    this->subject().deallocate(this->own(), p, mib, 256);
    this->own().synchronize();
    EXPECT_TRUE(ran);
  }
}

TYPED_TEST(conformance, memory_can_be_awaited) {
  auto const before = gpumem::statistics_of(this->subject()).live;
  {
    auto got = gpumem::acquire(this->subject(), this->own(), kib).try_now();
    ASSERT_TRUE(got);
    EXPECT_EQ(got->bytes(), kib);
    EXPECT_NE(got->data(), nullptr);
    auto const refused = gpumem::acquire(this->subject(), this->own(), pib).try_now();
    ASSERT_FALSE(refused);
    EXPECT_EQ(refused.error().reason, gpumem::outcome::exhausted);
    EXPECT_EQ(refused.error().requested, pib);
  }
  EXPECT_EQ(gpumem::statistics_of(this->subject()).live, before);
}

} // namespace
