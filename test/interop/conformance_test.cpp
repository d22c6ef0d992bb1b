// The contract of a resource, checked for every resource, and for stacks of adaptors over them.
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
#include <ostream>
#include <random>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <cuda.h>

import gpumem;

#include "subject.hpp"

namespace {

namespace simulator = gpumem::simulator;

constexpr std::size_t kib = 1024, mib = 1024 * kib, pib = mib * mib * kib;

using conformance::subject;

/// A way to call a resource: synchronous, or in the order of a stream.
struct way {
  std::string name;
  std::function<void*(subject&, std::size_t, std::size_t)> allocate;
  std::function<void(subject&, void*, std::size_t, std::size_t)> deallocate;
  std::optional<gpumem::stream_ref> stream = std::nullopt;
};

struct block {
  void* pointer;
  std::size_t bytes;
};

std::size_t device_bytes() { return simulator::report().bytes_allocated; }

/// One resource under test. The destructor expects that it gave back all memory.
class run {
public:
  explicit run(conformance::stack const& of) : largest{of.largest}, held_{device_bytes()}, subject_{of.make()} {
    gpumem::device const where{home()};
    current_ = std::make_unique<gpumem::device_guard>(where);
    own_ = std::make_unique<gpumem::stream>(where);
    EXPECT_EQ(gpumem::driver_api::driver().stream_create(&foreign_, CU_STREAM_NON_BLOCKING), CUDA_SUCCESS);
  }
  ~run() {
    subject_.reset();
    // Adopting the stream and dropping the result ends the promise that it lives; an event then covers its last frees.
    { auto const promised = gpumem::stream::adopt(foreign_); }
    EXPECT_EQ(gpumem::driver_api::driver().stream_destroy(foreign_), CUDA_SUCCESS);
    own_.reset();
    EXPECT_EQ(gpumem::driver_api::driver().ctx_synchronize(),
              CUDA_SUCCESS); // afterwards the driver's default pool holds no memory
    current_.reset();
    EXPECT_EQ(simulator::run_until_idle(), 0u) << "device work was left waiting";
    for (auto const& finding : simulator::take_findings()) ADD_FAILURE() << finding.text;
    // A pool returns the memory that the host has seen complete; its library thread returns the rest.
    auto const latest = std::chrono::steady_clock::now() + std::chrono::seconds{10};
    while (device_bytes() != held_ && std::chrono::steady_clock::now() < latest) std::this_thread::yield();
    EXPECT_EQ(device_bytes(), held_) << "device memory was not given back";
  }
  run(run const&) = delete;
  run& operator=(run const&) = delete;

  int home() { return std::max(subject_->ordinal(), 0); }

  std::vector<way> ways() {
    auto const in_order = [](std::string name, gpumem::stream_ref stream) {
      return way{
          std::move(name), [stream](subject& r, std::size_t n, std::size_t a) { return r.allocate(stream, n, a); },
          [stream](subject& r, void* p, std::size_t n, std::size_t a) { r.deallocate(stream, p, n, a); }, stream};
    };
    return {way{"sync", [](subject& r, std::size_t n, std::size_t a) { return r.allocate_sync(n, a); },
                [](subject& r, void* p, std::size_t n, std::size_t a) { r.deallocate_sync(p, n, a); }},
            in_order("own stream", *own_),
            in_order("foreign stream", gpumem::stream_ref{foreign_}),
            in_order("default stream", gpumem::stream_ref{cudaStream_t{}}),
            in_order("legacy stream", gpumem::stream_ref{CU_STREAM_LEGACY}),
            in_order("thread's stream", gpumem::stream_ref{CU_STREAM_PER_THREAD})};
  }

  /// Allocates and frees at random, and frees everything at the end.
  static void mix(subject& from, way const& how, std::size_t most_bytes, unsigned steps, unsigned seed) {
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

  subject& resource() { return *subject_; }
  gpumem::stream& own() { return *own_; }
  std::size_t const largest;

private:
  std::size_t const held_;
  std::unique_ptr<subject> subject_;
  std::unique_ptr<gpumem::device_guard> current_;
  std::unique_ptr<gpumem::stream> own_;
  CUstream foreign_ = nullptr;
};

class contract : public simulated, public testing::WithParamInterface<conformance::group> {
protected:
  /// Calls the function with each resource of the group.
  static void for_each(std::function<void(run&)> const& test) {
    for (auto const& one : GetParam().stacks) {
      SCOPED_TRACE(one.name);
      run in{one};
      test(in);
    }
  }
};

INSTANTIATE_TEST_SUITE_P(of, contract, testing::ValuesIn(conformance::all_groups()),
                         [](auto const& each) { return each.param.name; });

TEST_P(contract, resource_equals_itself_and_its_copies) {
  for_each([](run& in) {
    auto& first = in.resource();
    auto const copy = first.copy();
    EXPECT_TRUE(first.equals(first));
    EXPECT_TRUE(copy->equals(first));
    void* const p = first.allocate_sync(kib, 256);
    copy->deallocate_sync(p, kib, 256);
  });
}

TEST_P(contract, live_blocks_do_not_overlap) {
  for_each([](run& in) {
    for (auto const& how : in.ways()) {
      SCOPED_TRACE(how.name);
      auto* const a = static_cast<std::byte*>(how.allocate(in.resource(), 8, 256));
      auto* const b = static_cast<std::byte*>(how.allocate(in.resource(), 8, 256));
      EXPECT_TRUE(a + 8 <= b || b + 8 <= a);
      how.deallocate(in.resource(), a, 8, 256);
      how.deallocate(in.resource(), b, 8, 256);
    }
  });
}

TEST_P(contract, every_size_can_be_allocated) {
  for_each([](run& in) {
    for (auto const& how : in.ways()) {
      for (std::size_t const bytes : {std::size_t{1}, std::size_t{4}, kib, mib, in.largest}) {
        SCOPED_TRACE(how.name + ", bytes " + std::to_string(bytes));
        void* const p = how.allocate(in.resource(), bytes, 256);
        EXPECT_NE(p, nullptr);
        EXPECT_EQ(reinterpret_cast<std::uintptr_t>(p) % 256, 0u);
        how.deallocate(in.resource(), p, bytes, 256);
      }
    }
  });
}

TEST_P(contract, zero_bytes_give_a_null_pointer_that_can_be_freed) {
  for_each([](run& in) {
    for (auto const& how : in.ways()) {
      SCOPED_TRACE(how.name);
      EXPECT_EQ(how.allocate(in.resource(), 0, 256), nullptr);
      how.deallocate(in.resource(), nullptr, 0, 256);
    }
  });
}

TEST_P(contract, every_power_of_two_is_an_alignment) {
  for_each([](run& in) {
    for (auto const& how : in.ways()) {
      for (std::size_t alignment = 1; alignment <= 4 * mib; alignment *= 2) {
        SCOPED_TRACE(how.name + ", alignment " + std::to_string(alignment));
        std::vector<void*> blocks;
        for (std::size_t i = 0; i < 3; ++i) {
          blocks.push_back(how.allocate(in.resource(), 100 + i, alignment));
          EXPECT_EQ(reinterpret_cast<std::uintptr_t>(blocks.back()) % alignment, 0u);
        }
        for (std::size_t i = 0; i < 3; ++i) how.deallocate(in.resource(), blocks[i], 100 + i, alignment);
      }
    }
  });
}

TEST_P(contract, invalid_alignments_are_refused) {
  for_each([](run& in) {
    for (auto const& how : in.ways()) {
      SCOPED_TRACE(how.name);
      for (std::size_t const alignment : {std::size_t{0}, std::size_t{3}, std::size_t{384}}) {
        EXPECT_THROW((void)how.allocate(in.resource(), kib, alignment), std::invalid_argument);
      }
    }
  });
}

TEST_P(contract, failed_request_changes_nothing) {
  for_each([](run& in) {
    auto const fits = [&in](auto const& how) {
      void* const p = how.allocate(in.resource(), kib, 256);
      EXPECT_NE(p, nullptr);
      how.deallocate(in.resource(), p, kib, 256);
    };
    for (auto const& how : in.ways()) fits(how); // afterwards a pool holds all memory that it will use
    auto const before = in.resource().statistics();
    auto const held = device_bytes();
    for (auto const& how : in.ways()) {
      SCOPED_TRACE(how.name);
      for (std::size_t const bytes : {pib, std::numeric_limits<std::size_t>::max() / 2, std::size_t{0} - 2}) {
        void* p = &in;
        EXPECT_THROW(p = how.allocate(in.resource(), bytes, 256), gpumem::out_of_memory);
        EXPECT_EQ(p, &in);
      }
      fits(how);
    }
    EXPECT_EQ(in.resource().statistics().live, before.live);
    EXPECT_EQ(device_bytes(), held);
  });
}

TEST_P(contract, many_blocks_of_any_size_do_not_overlap) {
  for_each([](run& in) {
    for (auto const& how : in.ways()) {
      SCOPED_TRACE(how.name);
      std::mt19937 random{1};
      std::vector<block> live;
      for (int i = 0; i < 100; ++i) {
        std::size_t const bytes = 1 + random() % (5 * mib);
        live.push_back({how.allocate(in.resource(), bytes, 256), bytes});
        ASSERT_NE(live.back().pointer, nullptr);
      }
      for (auto const& each : live) how.deallocate(in.resource(), each.pointer, each.bytes, 256);
    }
  });
}

TEST_P(contract, allocations_and_frees_can_be_in_any_order) {
  for_each([](run& in) {
    for (auto const& how : in.ways()) {
      SCOPED_TRACE(how.name);
      run::mix(in.resource(), how, 5 * mib, 200, 2);
    }
  });
}

TEST_P(contract, several_threads_can_allocate_at_once) {
  for_each([](run& in) {
    for (auto const& how : in.ways()) {
      SCOPED_TRACE(how.name);
      std::vector<std::thread> threads;
      for (unsigned i = 0; i < 4; ++i) {
        threads.emplace_back([&, i] {
          gpumem::device_guard const scope{gpumem::device{in.home()}};
          run::mix(in.resource(), how, mib, 50, i);
        });
      }
      for (auto& thread : threads) thread.join();
    }
  });
}

// A default stream is a different stream in each thread: the event orders the free after the allocation.
TEST_P(contract, another_thread_can_free_a_block) {
  constexpr int handed = 10;
  for_each([](run& in) {
    struct handed_over {
      block given;
      gpumem::event allocated;
    };
    for (auto const& how : in.ways()) {
      SCOPED_TRACE(how.name);
      std::mutex guard;
      std::condition_variable arrived;
      std::deque<handed_over> given;
      std::thread consumer{[&] {
        gpumem::device_guard const scope{gpumem::device{in.home()}};
        for (int i = 0; i < handed; ++i) {
          std::unique_lock held{guard};
          arrived.wait(held, [&] { return !given.empty(); });
          auto const next = std::move(given.front());
          given.pop_front();
          held.unlock();
          if (how.stream) next.allocated.make_wait(*how.stream);
          how.deallocate(in.resource(), next.given.pointer, next.given.bytes, 256);
        }
      }};
      std::mt19937 random{3};
      for (int i = 0; i < handed; ++i) {
        std::size_t const bytes = 1 + random() % mib;
        void* const p = how.allocate(in.resource(), bytes, 256);
        gpumem::event allocated{gpumem::device{in.home()}};
        if (how.stream) allocated.record(*how.stream);
        std::scoped_lock const held{guard};
        given.push_back({{p, bytes}, std::move(allocated)});
        arrived.notify_one();
      }
      consumer.join();
    }
  });
}

TEST_P(contract, work_may_use_a_block_until_its_free) {
  for_each([](run& in) {
    for (int round = 0; round < 20; ++round) {
      void* const p = in.resource().allocate(in.own(), mib, 256);
      bool ran = false;
      simulator::work(in.own(), {simulator::write(p, mib)}, std::chrono::microseconds{5}, [&] { ran = true; });
      in.resource().deallocate(in.own(), p, mib, 256);
      in.own().synchronize();
      EXPECT_TRUE(ran);
    }
  });
}

TEST_P(contract, memory_can_be_awaited) {
  for_each([](run& in) {
    auto const before = in.resource().statistics().live;
    {
      auto got = in.resource().try_acquire(in.own(), kib);
      ASSERT_TRUE(got);
      EXPECT_EQ(got->bytes(), kib);
      EXPECT_NE(got->data(), nullptr);
      auto const refused = in.resource().try_acquire(in.own(), pib);
      ASSERT_FALSE(refused);
      auto const why = refused.error().reason;
      EXPECT_TRUE(why == gpumem::outcome::exhausted || why == gpumem::outcome::too_large) << gpumem::to_string(why);
      EXPECT_EQ(refused.error().requested, pib);
    }
    EXPECT_EQ(in.resource().statistics().live, before);
  });
}

} // namespace
