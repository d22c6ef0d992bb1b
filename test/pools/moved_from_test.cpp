// Handles that were moved from: each call says so.
// SPDX-License-Identifier: Apache-2.0
#include "../support/simulated.hpp"

#include <gpumem/pool_options.hpp>

#include <cstddef>
#include <cstdlib>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

import gpumem;
#include "../sources/recorded_misuse.hpp"

namespace {

using namespace gpumem::literals;
using gpumem::misuse;
using gpumem::outcome;

// Returns the text of the std::invalid_argument that the call throws.
template <class Call> std::string text_of(Call call) {
  try {
    call();
  } catch (std::invalid_argument const& e) { return e.what(); }
  return "nothing was thrown";
}

class moved_from : public simulated {
protected:
  // The moved-from state is tested.
  template <class Resource> void expect_to_say_so(Resource made) {
    EXPECT_TRUE(made.valid());
    auto other = std::move(made);
    EXPECT_FALSE(made.valid());
    EXPECT_EQ(text_of([&] { (void)made.allocate(s_, 100); }),
              "gpumem: allocate: the handle is empty; was it moved from?");
    EXPECT_EQ(text_of([&] { (void)made.allocate_sync(100); }),
              "gpumem: allocate_sync: the handle is empty; was it moved from?");
    EXPECT_EQ(text_of([&] { (void)made.acquire(s_, 100).wait(); }),
              "gpumem: acquire: the handle is empty; was it moved from?");
    EXPECT_THROW((void)gpumem::sync_wait(made.acquire_all({{s_, 100}, {s_, 200}})), std::invalid_argument);
    gpumem::failure const empty{outcome::invalid_argument, static_cast<int>(gpumem::broken_rule::moved_from), 100};
    EXPECT_EQ(made.try_allocate(s_, 100).error(), empty);
    EXPECT_EQ(made.acquire(s_, 100).try_now().error(), empty);
    EXPECT_THROW(made.device(), std::invalid_argument);
    EXPECT_THROW(gpumem::statistics_of(made), std::invalid_argument);
    EXPECT_THROW(gpumem::trim(made), std::invalid_argument);
    if constexpr (requires { made.trim(); }) EXPECT_THROW(made.trim(), std::invalid_argument);
    if constexpr (requires { made.statistics(); }) EXPECT_THROW(made.statistics(), std::invalid_argument);
    if constexpr (requires { made.upstream(); }) EXPECT_THROW(made.upstream(), std::invalid_argument);
    if constexpr (requires { made.options(); }) EXPECT_THROW(made.options(), std::invalid_argument);
    if constexpr (requires { made.close(); }) EXPECT_THROW(made.close(), std::invalid_argument);
    EXPECT_THROW(gpumem::statistics_adaptor<Resource>{made}, std::invalid_argument);
    EXPECT_THROW(gpumem::pool_resource<Resource>{made}, std::invalid_argument);
    expect_misuse_of_frees(made);
    gpumem::any_pool const erased{made};
    EXPECT_THROW((gpumem::buffer{s_, erased, 100}), std::invalid_argument);
    made = std::move(other);
    auto const block = made.acquire(s_, 100).wait();
    EXPECT_TRUE(block) << "a new value makes it usable again";
  }

  template <class Resource> void expect_misuse_of_frees(Resource& made) {
    char const bytes[100]{};
    auto* const pointer = const_cast<char*>(bytes);
    test::recorded_misuse const recorded;
    made.deallocate(s_, pointer, 100);
    made.deallocate_sync(pointer, 100);
    made.deallocate(s_, nullptr, 0);
    std::size_t frees = 2;
    if constexpr (requires { made.deallocate(s_, pointer); }) {
      made.deallocate(s_, pointer);
      ++frees;
    }
    ASSERT_EQ(test::seen.size(), frees);
    for (auto const& each : test::seen) {
      EXPECT_EQ(each.what, misuse::kind::moved_from);
      EXPECT_EQ(each.pointer, pointer);
    }
  }

  gpumem::device const device_{0};
  gpumem::stream s_{device_};
  gpumem::cuda_resource const chunks_{device_};
};

TEST_F(moved_from, pools_say_so) {
  expect_to_say_so(gpumem::pool_resource{device_});
  expect_to_say_so(gpumem::pool_resource{chunks_});
  expect_to_say_so(gpumem::pool_resource{chunks_, {.hardened = {.enabled = true}}});
  expect_to_say_so(gpumem::arena_resource{chunks_});
  expect_to_say_so(gpumem::fixed_size_resource{chunks_, {.block_size = 4_KiB}});
  expect_to_say_so(gpumem::binning_resource{chunks_, {.min_exponent = 10, .max_exponent = 12}});
  expect_to_say_so(gpumem::monotonic_resource{chunks_});
}

TEST_F(moved_from, adaptors_say_so) {
  gpumem::pool_resource const pool{device_};
  expect_to_say_so(gpumem::statistics_adaptor{pool});
  expect_to_say_so(gpumem::limiting_adaptor{gpumem::any_pool{pool}, {.limit = 1_MiB}});
  expect_to_say_so(gpumem::fallback_adaptor{pool, chunks_});
  expect_to_say_so(gpumem::tracking_adaptor{pool});
  expect_to_say_so(gpumem::thread_safe_adaptor{pool});
  expect_to_say_so(gpumem::scope{pool});
}

TEST_F(moved_from, sources_say_so) {
  expect_to_say_so(gpumem::async_resource{device_});
  auto const allocate = [](gpumem::stream_ref, std::size_t, std::size_t) { return std::aligned_alloc(256, 256); };
  auto const free = [](gpumem::stream_ref, void* pointer, std::size_t, std::size_t) { std::free(pointer); };
  expect_to_say_so(gpumem::callback_resource{device_, allocate, free});
}

TEST_F(moved_from, erased_pool_says_so) {
  gpumem::any_pool pool{gpumem::pool_resource{device_}};
  auto other = std::move(pool);
  EXPECT_THROW((void)gpumem::acquire(pool, s_, 100).wait(), std::invalid_argument);
  EXPECT_THROW(gpumem::trim(pool), std::invalid_argument);
  EXPECT_THROW(gpumem::statistics_of(pool), std::invalid_argument);
  EXPECT_THROW(gpumem::statistics_adaptor{pool}, std::invalid_argument);
  EXPECT_TRUE(gpumem::statistics_of(other));
}

TEST_F(moved_from, value_stays_valid) {
  auto source = chunks_;
  [[maybe_unused]] auto const other = std::move(source);
  EXPECT_TRUE(source.valid());
  EXPECT_EQ(source.device(), device_);
}

TEST_F(moved_from, stream_event_and_block_say_so) {
  gpumem::stream one{device_};
  [[maybe_unused]] auto const other = std::move(one);
  EXPECT_EQ(text_of([&] { one.synchronize(); }), "gpumem: stream: the handle is empty; was it moved from?");
  EXPECT_THROW(one.device(), std::invalid_argument);
  EXPECT_THROW((void)one.key(), std::invalid_argument);
  EXPECT_THROW(one.begin_capture(), std::invalid_argument);
  EXPECT_THROW((void)one.end_capture(), std::invalid_argument);

  gpumem::event happened{device_};
  [[maybe_unused]] auto const later = std::move(happened);
  EXPECT_EQ(text_of([&] { happened.record(s_); }), "gpumem: event: the handle is empty; was it moved from?");
  EXPECT_THROW(happened.make_wait(s_), std::invalid_argument);
  EXPECT_THROW(happened.is_done(), std::invalid_argument);
  EXPECT_THROW(happened.synchronize(), std::invalid_argument);

  gpumem::allocation block = gpumem::pool_resource{device_}.acquire(s_, 100).wait();
  [[maybe_unused]] auto const held = std::move(block);
  EXPECT_EQ(text_of([&] { block.set_stream(s_); }), "gpumem: allocation: the handle is empty; was it moved from?");
  EXPECT_THROW((void)block.use_on(s_), std::invalid_argument);
  EXPECT_EQ(block.data(), nullptr);
}

} // namespace
