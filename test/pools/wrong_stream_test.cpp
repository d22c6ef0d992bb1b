// Streams that a resource refuses: a stream object that was moved from, and streams of devices that may not use the
// memory.
// SPDX-License-Identifier: Apache-2.0
#include "../support/simulated.hpp"

#include <gpumem/pool_options.hpp>

#include <cstddef>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include <cuda.h>

import gpumem;
#include "../sources/recorded_misuse.hpp"

namespace {

using namespace gpumem::literals;
using gpumem::broken_rule;
using gpumem::misuse;
using gpumem::outcome;

class wrong_stream : public simulated {
protected:
  // A call with the stream throws an exception that names the rule.
  template <class Call> void expect_refused(broken_rule rule, Call call) {
    try {
      call();
      ADD_FAILURE() << "nothing was thrown";
    } catch (std::invalid_argument const& e) {
      auto const* const word = rule == broken_rule::moved_from_stream ? "moved from" : "open_to";
      EXPECT_THAT(e.what(), testing::HasSubstr(word));
    }
  }
  // All requests on `wrong` are refused and change nothing, and a free on it is a misuse.
  template <class Resource> void expect_requests_to_be_refused(Resource made, gpumem::stream& wrong, broken_rule rule) {
    gpumem::failure const refused{outcome::invalid_argument, static_cast<int>(rule), 4_KiB};
    expect_refused(rule, [&] { (void)made.allocate(wrong, 4_KiB); });
    EXPECT_EQ(made.try_allocate(wrong, 4_KiB).error(), refused);
    EXPECT_EQ(gpumem::acquire(made, wrong, 4_KiB).try_now().error(), refused);
    EXPECT_EQ(gpumem::acquire(made, wrong, 4_KiB).wait_until({}).error(), refused);
    expect_refused(rule, [&] { (void)gpumem::sync_wait(gpumem::acquire(made, wrong, 4_KiB)); });
    expect_refused(rule, [&] { (void)gpumem::sync_wait(gpumem::acquire_all(made, {{own_, 4_KiB}, {wrong, 4_KiB}})); });
    EXPECT_EQ(made.try_allocate(wrong, 0).value_or(&wrong), nullptr);
  }
  template <class Resource> void expect_refusal(Resource made, gpumem::stream& wrong, broken_rule rule) {
    SCOPED_TRACE(typeid(Resource).name());
    expect_requests_to_be_refused(made, wrong, rule);
    auto const kind =
        rule == broken_rule::moved_from_stream ? misuse::kind::moved_from_stream : misuse::kind::unopened_device;
    for (std::size_t const bytes :
         {std::size_t{100}, std::size_t{100}, 40_KiB, 40_KiB, 1_MiB, 3_MiB}) { // cached in each way, or not at all
      test::recorded_misuse const told;
      auto* const p = made.allocate(own_, bytes);
      made.deallocate(wrong, p, bytes);
      ASSERT_EQ(test::seen.size(), 1u) << bytes;
      EXPECT_EQ(test::seen[0].what, kind);
      EXPECT_EQ(test::seen[0].pointer, p);
      made.deallocate(own_, p, bytes); // the block is still live
      EXPECT_EQ(test::seen.size(), 1u) << bytes;
    }
  }
  template <class Resource> void expect_blocks_to_stay(Resource made, gpumem::stream& wrong, broken_rule rule) {
    test::recorded_misuse const told;
    auto block = gpumem::acquire(made, own_, 1_MiB).wait();
    expect_refused(rule, [&] { static_cast<void>(block.use_on(wrong)); });
    expect_refused(rule, [&] { block.set_stream(wrong); });
    expect_refused(rule, [&] { block.reset(wrong); });
    EXPECT_EQ(block.bytes(), 1_MiB);
    EXPECT_EQ(block.stream(), own_);
    gpumem::buffer bytes{own_, made, 1_MiB};
    expect_refused(rule, [&] { static_cast<void>(bytes.use_on(wrong)); });
    expect_refused(rule, [&] { bytes.set_stream(wrong); });
    expect_refused(rule, [&] { (void)gpumem::buffer{wrong, made, 1_MiB}; });
    expect_refused(rule, [&] { (void)gpumem::stream_allocator<int>{wrong, made}.allocate(10); });
    EXPECT_TRUE(test::seen.empty());
  }

  gpumem::device const device_{0}, other_{1};
  gpumem::device_guard const current_{device_};
  gpumem::stream own_{device_}, far_{other_};
};

TEST_F(wrong_stream, moved_from_stream_is_refused_by_each_resource) {
  gpumem::stream gone{device_};
  gpumem::stream const now{std::move(gone)};
  auto const check = [&](auto made) { expect_refusal(made, gone, broken_rule::moved_from_stream); };
  gpumem::pool_resource const pool{device_};
  check(pool);
  check(gpumem::pool_resource{gpumem::cuda_resource{device_}});
  check(gpumem::pool_resource{device_, {.hardened = {.enabled = true}}});
  check(gpumem::arena_resource{gpumem::cuda_resource{device_}});
  check(gpumem::binning_resource{pool});
  check(gpumem::statistics_adaptor{pool});
  check(gpumem::limiting_adaptor{pool, {.limit = 64_MiB}});
  check(gpumem::tracking_adaptor{pool});
  check(gpumem::statistics_adaptor{gpumem::any_pool{pool}});
  check(gpumem::cuda_resource{device_});
  check(gpumem::async_resource{device_});
  check(gpumem::pinned_resource{device_});
  check(gpumem::host_resource{});
  expect_blocks_to_stay(pool, gone, broken_rule::moved_from_stream);
  expect_blocks_to_stay(gpumem::cuda_resource{device_}, gone, broken_rule::moved_from_stream);
  EXPECT_THROW((void)gpumem::any_pool{pool}.allocate(gone, 100, 256), std::invalid_argument);
}

TEST_F(wrong_stream, stream_of_another_device_is_refused_unless_the_pool_is_open_to_it) {
  auto const check = [&](auto made) { expect_refusal(made, far_, broken_rule::unopened_device); };
  gpumem::pool_resource pool{device_};
  check(pool);
  check(gpumem::pool_resource{device_, {.hardened = {.enabled = true}}});
  check(gpumem::pool_resource{pool});
  check(gpumem::pool_resource{gpumem::any_pool{pool}});
  check(gpumem::statistics_adaptor{pool});
  check(gpumem::statistics_adaptor{gpumem::any_pool{pool}});
  expect_requests_to_be_refused(gpumem::limiting_adaptor{pool, {.limit = 64_MiB}}, far_, broken_rule::unopened_device);
  check(gpumem::fixed_size_resource{pool, {.block_size = 4_MiB}});
  expect_requests_to_be_refused(gpumem::monotonic_resource{pool}, far_, broken_rule::unopened_device);
  expect_requests_to_be_refused(gpumem::graph_resource{pool}, far_, broken_rule::unopened_device);
  expect_blocks_to_stay(pool, far_, broken_rule::unopened_device);
  expect_blocks_to_stay(gpumem::statistics_adaptor{gpumem::any_pool{pool}}, far_, broken_rule::unopened_device);

  auto* const p = pool.allocate(own_, 1_MiB);
  EXPECT_THROW(pool.record_use(p, far_), std::invalid_argument);
  pool.open_to(other_);
  pool.record_use(p, far_);
  pool.deallocate(own_, p, 1_MiB);
  gpumem::pool_resource over{pool};
  gpumem::fallback_adaptor two{pool, gpumem::cuda_resource{device_}};
  auto const serves = [&](auto& made) {
    auto* const q = made.allocate(far_, 1_MiB);
    gpumem::simulator::work(far_, {gpumem::simulator::write(q, 1_MiB)});
    made.deallocate(far_, q, 1_MiB);
    gpumem::acquire(made, own_, 1_MiB).wait().set_stream(far_);
  };
  serves(pool);
  serves(over);
  serves(two);
  gpumem::pool_resource opened{device_, {}, {.peers = {other_}}};
  serves(opened);
}

TEST_F(wrong_stream, misuse_of_monotonic_and_graph_memory_is_reported) {
  gpumem::pool_resource const pool{device_};
  test::recorded_misuse const told;
  auto const check = [&](auto made) {
    test::seen.clear();
    auto* const p = made.allocate(own_, 4_KiB);
    made.deallocate(far_, p, 4_KiB);
    ASSERT_EQ(test::seen.size(), 1u);
    EXPECT_EQ(test::seen[0].what, misuse::kind::unopened_device);
    made.deallocate(own_, p, 4_KiB);
    EXPECT_EQ(test::seen.size(), 1u);
  };
  check(gpumem::monotonic_resource{pool});
  check(gpumem::graph_resource{pool});
}

// A request on such a stream does not wait behind others.
TEST_F(wrong_stream, request_is_refused_while_others_wait) {
  gpumem::pool_resource pool{device_, {.limit = 4_MiB}};
  auto* const all = pool.allocate(own_, 4_MiB);
  auto const waits = [&]() -> gpumem::task<> { (void)co_await pool.acquire(own_, 4_MiB); };
  auto const refused = [&]() -> gpumem::task<> { // resumes only after the request has ended
    try {
      (void)co_await pool.acquire(far_, 4_MiB);
      ADD_FAILURE() << "granted";
    } catch (std::invalid_argument const&) { pool.deallocate(own_, all, 4_MiB); }
  };
  gpumem::sync_wait(gpumem::when_all(waits(), refused()));
}

TEST_F(wrong_stream, memory_without_a_known_device_serves_all_streams) {
  auto const serves = [&](auto made) {
    auto* const p = made.allocate(far_, 1_MiB);
    made.deallocate(far_, p, 1_MiB);
  };
  serves(gpumem::pool_resource{gpumem::cuda_resource{device_}}); // the program may have enabled peer access
  serves(gpumem::pool_resource{gpumem::managed_resource{device_}});
  serves(gpumem::pool_resource{gpumem::statistics_adaptor{gpumem::pinned_resource{device_}}});
  serves(gpumem::statistics_adaptor{gpumem::managed_resource{device_}});
}

} // namespace
