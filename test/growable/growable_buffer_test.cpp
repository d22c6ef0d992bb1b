// Buffers that grow in place: sizes, the order of streams, and what their pages cost.
// SPDX-License-Identifier: Apache-2.0
#include "../pools/upstream.hpp"

#include "../support/allocation_count.hpp"

#include <gpumem/pool_options.hpp>

#include <chrono>
#include <cstddef>
#include <memory>
#include <optional>
#include <stdexcept>
#include <stop_token>
#include <string>
#include <thread>
#include <utility>
#include <vector>

import gpumem;
import gpumem.growable;
#include "../support/coroutine_probes.hpp"
#include "../support/manual_executor.hpp"
#include "../pools/waiting_fixture.hpp"
#include "growable_fixture.hpp"

namespace {

using gpumem_test::MiB;
namespace simulator = gpumem::simulator;

class growable_sizes : public gpumem_test::growable_fixture {};

TEST_F(growable_sizes, address_stays_while_the_size_changes) {
  pool r{device};
  buffer kv{r, a, {.reserve = 64 * GiB, .initial = 3 * MiB}};
  auto* const first = kv.data();
  EXPECT_EQ(kv.bytes(), 3 * MiB);
  EXPECT_EQ(kv.mapped_bytes(), 4 * MiB);
  EXPECT_EQ(kv.reserved_addresses(), 64 * GiB);
  EXPECT_EQ(kv.granularity(), 2 * MiB);
  EXPECT_EQ(kv.as<int>().size(), 3 * MiB / sizeof(int));
  write(a, kv, 0, 3 * MiB);
  kv.resize(a, GiB);
  write(a, kv, 0, GiB);
  EXPECT_TRUE(kv.try_grow_to(a, GiB + 1));
  EXPECT_EQ(kv.bytes(), GiB + 1);
  kv.grow_to(a, 2 * GiB).wait();
  EXPECT_TRUE(kv.grow_to(a, 100).try_now()) << "less than the size changes nothing";
  EXPECT_EQ(kv.bytes(), 2 * GiB);
  kv.resize(a, 5);
  EXPECT_EQ(kv.bytes(), 5u);
  EXPECT_EQ(kv.mapped_bytes(), 2 * MiB);
  EXPECT_EQ(kv.data(), first);
  EXPECT_EQ(kv.stream().get(), a.get());
  EXPECT_TRUE(is_consistent(r));
}

TEST_F(growable_sizes, bytes_count_in_the_pool) {
  pool r{device, {.limit = 64 * MiB}};
  buffer kv{r, a, {.reserve = GiB, .initial = 32 * MiB, .name = "cache"}};
  auto const seen = r.statistics();
  EXPECT_EQ(seen.lent, 32 * MiB);
  EXPECT_EQ(seen.allocated, 32 * MiB);
  EXPECT_EQ(seen.live, 32 * MiB);
  EXPECT_EQ(reason_of(kv.try_grow_to(a, 66 * MiB)), outcome::exhausted);
  EXPECT_FALSE(can_have(r, a, 40 * MiB));
  kv.discard(a, 8 * MiB, 8 * MiB);
  std::size_t named = 0;
  for (auto const& each : r.copy_memory().blocks)
    if (each.label && gpumem::detail::label_text(each.label) == "cache") named += each.bytes;
  EXPECT_EQ(named, 24 * MiB) << "parts keep the name";
  EXPECT_NE(r.describe_memory().find("cache"), std::string::npos) << r.describe_memory();
}

// The advance is bounded, so a limit that has room for the growth alone is enough.
TEST_F(growable_sizes, nothing_is_mapped_in_advance_where_the_limit_forbids) {
  pool r{device, {.limit = 64 * MiB}};
  buffer kv{r, a, {.reserve = GiB}};
  EXPECT_TRUE(kv.try_grow_to(a, 60 * MiB));
  EXPECT_EQ(kv.mapped_bytes(), 60 * MiB);
  EXPECT_TRUE(kv.try_grow_to(a, 64 * MiB));
  EXPECT_EQ(r.statistics().reserved, 64 * MiB);
}

TEST_F(growable_sizes, growth_inside_mapped_pages_costs_nothing) {
  pool r{device};
  buffer kv{r, a, {.reserve = GiB, .initial = 64 * MiB}};
  kv.resize(a, 64 * MiB + 1);
  auto& engine = static_cast<gpumem::detail::pool_state*>(r.services().state)->engine();
  auto const locked = engine.read_counters().locked_calls;
  auto const driver_calls = gpumem::driver_api::driver_calls();
  auto const allocations = test::host_allocations();
  gpumem::extend::growth_awaitable<> const last = kv.grow_to(a, 66 * MiB);
  for (std::size_t bytes = 64 * MiB; bytes < 66 * MiB; bytes += 64 << 10) {
    ASSERT_TRUE(kv.try_grow_to(a, bytes));
    auto begun = last.operator co_await();
    ASSERT_TRUE(begun.await_ready());
  }
  EXPECT_EQ(test::host_allocations(), allocations);
  EXPECT_EQ(gpumem::driver_api::driver_calls(), driver_calls);
  EXPECT_EQ(engine.read_counters().locked_calls, locked);
  EXPECT_EQ(kv.bytes(), 66 * MiB);
}

TEST_F(growable_sizes, small_steps_make_few_calls_and_reserve_little) {
  pool r{device};
  buffer kv{r, a, {.reserve = 64 * GiB}};
  auto const before = calls("cuMemCreate");
  for (std::size_t used = MiB; used <= 40 * GiB; used += MiB) {
    kv.resize(a, used);
    ASSERT_LE(kv.mapped_bytes(), used / 50 * 51 + 64 * MiB) << used;
    if (used % GiB == 0) ASSERT_EQ(r.statistics().reserved, kv.mapped_bytes());
  }
  EXPECT_LE(calls("cuMemCreate") - before, 300u);
}

TEST_F(growable_sizes, large_growth_uses_few_pages) {
  pool r{device};
  buffer kv{r, a, {.reserve = 64 * GiB, .initial = GiB}};
  auto const before = calls("cuMemCreate");
  kv.resize(a, 2 * GiB);
  EXPECT_LE(calls("cuMemCreate") - before, 3u);
  buffer fine{r, a, {.reserve = GiB, .initial = 64 * MiB, .page = 4 * MiB}};
  EXPECT_EQ(calls("cuMemCreate") - before, 3u + 16u);
  fine.resize(a, 65 * MiB);
  EXPECT_EQ(fine.mapped_bytes(), 68 * MiB) << "whole pages";
  fine.shrink_to(a, 61 * MiB);
  EXPECT_EQ(fine.mapped_bytes(), 64 * MiB);
}

TEST_F(growable_sizes, buffer_is_moved_and_can_be_empty) {
  pool r{device};
  buffer one{r, a, {.reserve = GiB, .initial = 4 * MiB}};
  auto* const data = one.data();
  static_assert(std::is_nothrow_move_constructible_v<buffer> && std::is_nothrow_move_assignable_v<buffer>);
  buffer two{std::move(one)}, three;
  EXPECT_EQ(two.data(), data);
  EXPECT_FALSE(one);
  EXPECT_EQ(one.data(), nullptr);
  EXPECT_EQ(one.bytes() + one.reserved_addresses() + one.mapped_bytes(), 0u);
  EXPECT_THROW(one.resize(a, 1), std::invalid_argument);
  EXPECT_THROW(static_cast<void>(one.grow_to(a, 1)), std::invalid_argument);
  EXPECT_THROW(three.shrink_to(a, 0), std::invalid_argument);
  EXPECT_THROW(three.discard(a, 0, 0), std::invalid_argument);
  auto const failed = three.try_grow_to(a, 1);
  EXPECT_EQ(reason_of(failed), outcome::invalid_argument);
  EXPECT_EQ(failed.error().code, static_cast<int>(gpumem::broken_rule::moved_from));
  three = std::move(two);
  EXPECT_EQ(three.data(), data);
  three = buffer{};
  EXPECT_EQ(r.statistics().lent, 0u);
}

class growable_order : public gpumem_test::growable_fixture {};

TEST_F(growable_order, pages_leave_once_the_work_on_them_is_complete) {
  pool r{device};
  buffer kv{r, a, {.reserve = GiB, .initial = 32 * MiB, .page = 2 * MiB}};
  write(a, kv, 0, 32 * MiB);
  kv.discard(a, 8 * MiB, 4 * MiB);
  kv.shrink_to(a, 16 * MiB);
  EXPECT_EQ(kv.mapped_bytes(), 12 * MiB);
  EXPECT_EQ(r.trim(), 0u) << "work still runs there";
  a.synchronize();
  EXPECT_EQ(r.trim(), 20 * MiB);
  EXPECT_EQ(r.statistics().reserved, 12 * MiB);
  write(a, kv, 0, 8 * MiB);
  write(a, kv, 12 * MiB, 4 * MiB);
  EXPECT_TRUE(is_consistent(r));
}

TEST_F(growable_order, restore_before_that_keeps_the_pages) {
  pool r{device};
  buffer kv{r, a, {.reserve = GiB, .initial = 32 * MiB, .page = 2 * MiB}};
  write(a, kv, 0, 32 * MiB);
  auto const before = gpumem::driver_api::driver_calls("cuMemCreate");
  kv.discard(a, 8 * MiB, 8 * MiB);
  ASSERT_TRUE(kv.try_restore(a, 12 * MiB, 4 * MiB));
  kv.restore(a, 8 * MiB, 4 * MiB).wait();
  kv.shrink_to(a, 16 * MiB);
  ASSERT_TRUE(kv.try_grow_to(a, 32 * MiB));
  EXPECT_EQ(gpumem::driver_api::driver_calls("cuMemCreate"), before);
  EXPECT_EQ(kv.mapped_bytes(), 32 * MiB);
  write(a, kv, 0, 32 * MiB);
  EXPECT_TRUE(is_consistent(r));
}

// The second stream writes where the first one still works: the simulated device would report it.
TEST_F(growable_order, another_stream_restores_after_the_work) {
  pool r{device};
  buffer kv{r, a, {.reserve = GiB, .initial = 32 * MiB}};
  write(a, kv, 0, 32 * MiB);
  kv.discard(a, 8 * MiB, 8 * MiB);
  ASSERT_TRUE(kv.try_restore(b, 8 * MiB, 8 * MiB));
  write(b, kv, 8 * MiB, 8 * MiB);
  EXPECT_EQ(kv.stream().get(), b.get());
  gpumem::event done{device};
  done.record(b);
  a.wait(done);
  kv.shrink_to(a, 0);
}

// Otherwise a stream that always works and discards would keep all pages.
TEST_F(growable_order, pages_do_not_wait_for_work_on_their_neighbours) {
  pool r{device};
  buffer kv{r, a, {.reserve = GiB, .initial = 32 * MiB, .page = 2 * MiB}};
  write(a, kv, 0, 32 * MiB);
  kv.discard(a, 8 * MiB, 4 * MiB);
  a.synchronize();
  write(a, kv, 12 * MiB, 20 * MiB);
  kv.discard(a, 12 * MiB, 4 * MiB);
  EXPECT_EQ(r.trim(), 4 * MiB);
  a.synchronize();
  EXPECT_EQ(r.trim(), 4 * MiB);
}

// The page has 32 MiB. It stays, and counts in the pool, until its last part is discarded.
TEST_F(growable_order, page_stays_until_all_of_it_is_discarded) {
  pool r{device};
  buffer kv{r, a, {.reserve = GiB, .initial = 32 * MiB}};
  for (std::size_t offset : {0, 20, 8}) kv.discard(a, offset * MiB, 8 * MiB);
  a.synchronize();
  EXPECT_EQ(kv.mapped_bytes(), 8 * MiB);
  EXPECT_EQ(r.trim(), 0u);
  EXPECT_EQ(r.statistics().reserved, 32 * MiB);
  ASSERT_TRUE(kv.try_restore(b, 20 * MiB, 2 * MiB)) << "mapped already";
  kv.discard(b, 16 * MiB, 6 * MiB);
  kv.discard(b, 28 * MiB, 4 * MiB);
  b.synchronize();
  EXPECT_EQ(r.trim(), 32 * MiB);
  ASSERT_TRUE(kv.try_restore(a, 0, 32 * MiB));
  EXPECT_EQ(r.statistics().reserved, 32 * MiB);
  write(a, kv, 0, 32 * MiB);
}

TEST_F(growable_order, growth_does_not_restore_what_is_discarded) {
  pool r{device};
  buffer kv{r, a, {.reserve = GiB, .initial = 8 * MiB, .page = 2 * MiB}};
  kv.discard(a, 4 * MiB, 4 * MiB);
  kv.resize(a, 16 * MiB);
  EXPECT_EQ(kv.mapped_bytes(), 12 * MiB);
  kv.shrink_to(a, 6 * MiB);
  EXPECT_EQ(kv.mapped_bytes(), 4 * MiB);
  kv.resize(a, 8 * MiB);
  EXPECT_EQ(kv.mapped_bytes(), 6 * MiB) << "the page below the old size is still discarded";
  ASSERT_TRUE(kv.try_restore(a, 4 * MiB, 2 * MiB));
  EXPECT_TRUE(is_consistent(r));
}

// All bytes of a growth are mapped, also where a page of that size lies beyond the old size.
TEST_F(growable_order, growth_maps_the_rest_of_a_large_page) {
  pool r{device};
  gpumem::growable_options const options{.reserve = GiB, .initial = 2 * MiB, .discarded = true, .page = 32 * MiB};
  buffer empty{r, a, options};
  empty.resize(a, 32 * MiB);
  EXPECT_EQ(empty.mapped_bytes(), 30 * MiB) << "the first two are still discarded";
  write(a, empty, 2 * MiB, 30 * MiB);
  buffer kv{r, a, {.reserve = GiB, .initial = 32 * MiB, .page = 32 * MiB}};
  kv.discard(a, 4 * MiB, 6 * MiB);
  kv.shrink_to(a, 4 * MiB);
  EXPECT_EQ(kv.mapped_bytes(), 4 * MiB) << "what lies behind the discarded memory goes too";
  kv.resize(a, 32 * MiB);
  EXPECT_EQ(kv.mapped_bytes(), 32 * MiB);
  write(a, kv, 0, 32 * MiB);
  a.synchronize();
  EXPECT_TRUE(is_consistent(r));
}

TEST_F(growable_order, destructor_frees_in_the_order_of_the_last_stream) {
  pool r{device};
  {
    buffer kv{r, a, {.reserve = GiB, .initial = 8 * MiB}};
    kv.resize(b, 4 * MiB);
    write(b, kv, 0, 4 * MiB);
  }
  a.synchronize();
  EXPECT_EQ(r.trim(), 0u) << "the stream's work still runs";
  b.synchronize();
  EXPECT_EQ(r.trim(), 8 * MiB);
  EXPECT_EQ(r.statistics().lent, 0u);
}

TEST_F(growable_order, addresses_and_pool_last_until_the_work_is_complete) {
  auto const addresses = simulator::report().bytes_reserved;
  {
    std::optional<pool> r{std::in_place, device};
    buffer kv{*r, a, {.reserve = 4 * GiB, .initial = 8 * MiB}};
    r->close();
    EXPECT_EQ(reason_of(kv.try_grow_to(a, 64 * MiB)), outcome::closed);
    r.reset();
    write(a, kv, 0, 8 * MiB);
    kv.shrink_to(a, 2 * MiB);
  }
  EXPECT_GT(simulator::report().bytes_reserved, addresses);
  EXPECT_TRUE(wait_for_device_bytes(before()));
  wait_until([&] { return simulator::report().bytes_reserved <= addresses; });
}

class growable_errors : public gpumem_test::growable_fixture {};

TEST_F(growable_errors, texts_name_the_numbers) {
  pool r{device};
  buffer kv{r, a, {.reserve = 64 * MiB, .initial = 9 * MiB, .name = "cache"}};
  using wrong = std::invalid_argument;
  EXPECT_EQ(text_of<gpumem::out_of_memory>([&] { kv.resize(a, 65 * MiB); }),
            "gpumem: cache: a growth to 68157440 bytes exceeds the 67108864 bytes of reserved addresses");
  EXPECT_EQ(text_of<gpumem::out_of_memory>([&] { kv.grow_to(a, ~std::size_t{0}).wait(); }),
            "gpumem: cache: a growth to 18446744073709551615 bytes exceeds the 67108864 bytes of reserved addresses");
  EXPECT_EQ(reason_of(kv.try_grow_to(a, 65 * MiB)), outcome::too_large);
  EXPECT_EQ(reason_of(kv.grow_to(a, 65 * MiB).try_now()), outcome::too_large);
  growth const awaited{kv.grow_to(a, 65 * MiB, here())};
  EXPECT_EQ(awaited.ended(), outcome::too_large);
  EXPECT_EQ(text_of<wrong>([&] { kv.shrink_to(a, 10 * MiB); }),
            "gpumem: cache: cannot shrink to 10485760 bytes: the buffer has 9437184 bytes");
  EXPECT_EQ(text_of<wrong>([&] { kv.discard(a, MiB, 2 * MiB); }),
            "gpumem: cache: cannot discard 2097152 bytes at offset 1048576: both must be multiples of 2097152");
  EXPECT_EQ(text_of<wrong>([&] { kv.discard(a, 8 * MiB, 4 * MiB); }),
            "gpumem: cache: cannot discard 4194304 bytes at offset 8388608: the buffer has 9437184 bytes");
  EXPECT_THROW(kv.discard(a, 0, 0), wrong);
  EXPECT_THROW(kv.discard(a, ~std::size_t{0} - 2 * MiB + 1, 4 * MiB), wrong);
  kv.discard(a, 4 * MiB, 6 * MiB);
  EXPECT_EQ(text_of<wrong>([&] { kv.discard(a, 2 * MiB, 4 * MiB); }),
            "gpumem: cache: cannot discard 4194304 bytes at offset 2097152: the memory at offset 4194304 is discarded "
            "already");
  EXPECT_EQ(text_of<wrong>([&] { kv.restore(a, 2 * MiB, 4 * MiB).wait(); }),
            "gpumem: cache: cannot restore 4194304 bytes at offset 2097152: a part of them is not discarded");
  EXPECT_THROW(kv.restore(a, 2 * MiB, MiB).wait(), wrong);
  EXPECT_THROW(kv.restore(a, 10 * MiB, 2 * MiB).wait(), wrong);
  EXPECT_EQ(reason_of(kv.try_restore(a, 2 * MiB, 4 * MiB)), outcome::invalid_argument);
  EXPECT_EQ(kv.mapped_bytes(), 4 * MiB);
  EXPECT_TRUE(is_consistent(r));
}

TEST_F(growable_errors, wrong_options_are_refused) {
  pool r{device, {.limit = GiB}};
  using wrong = std::invalid_argument;
  auto const make = [&](gpumem::growable_options const& options) { return [&] { buffer{r, a, options}; }; };
  EXPECT_EQ(text_of<wrong>(make({.name = "x"})),
            "gpumem: x: a growable_buffer needs addresses: set growable_options::reserve");
  EXPECT_EQ(text_of<wrong>(make({.reserve = 5, .initial = 6, .name = "x"})),
            "gpumem: x: the initial 6 bytes exceed the 5 bytes of addresses");
  EXPECT_EQ(text_of<wrong>(make({.reserve = GiB, .page = 3 * MiB, .name = "x"})),
            "gpumem: x: pages of 3145728 bytes are no multiple of the granularity, 2097152 bytes");
  EXPECT_EQ(text_of<wrong>(make({.reserve = 4 * GiB, .page = GiB, .name = "x"})),
            "gpumem: x: pages of 1073741824 bytes are larger than 536870912 bytes, the most for this buffer");
  EXPECT_EQ(text_of<wrong>(make({.reserve = 4 * MiB, .page = 6 * MiB, .name = "x"})),
            "gpumem: x: pages of 6291456 bytes are larger than 4194304 bytes, the most for this buffer");
  EXPECT_THROW(make({.reserve = GiB, .page = ~std::size_t{0} / (2 * MiB) * (2 * MiB)})(), wrong);
  EXPECT_THROW(make({.reserve = 4 * GiB, .initial = 2 * GiB})(), gpumem::out_of_memory) << "more than the limit";
  pool moved{std::move(r)};
  EXPECT_EQ(text_of<wrong>(make({.reserve = GiB, .name = "x"})), "gpumem: x: the pool is empty; was it moved from?");
  pool chunks{device, {.pages = false}};
  EXPECT_THROW((buffer{chunks, a, {.reserve = GiB}}), wrong) << "a pool without pages";
  EXPECT_EQ(moved.statistics().reserved, 0u);
}

TEST_F(growable_errors, stream_of_another_device_is_refused) {
  pool r{device};
  gpumem::device const other{1};
  gpumem::stream far{other};
  buffer kv{r, a, {.reserve = GiB, .initial = 2 * MiB}};
  EXPECT_EQ(reason_of(kv.try_grow_to(far, 64 * MiB)), outcome::invalid_argument);
  EXPECT_EQ(reason_of(kv.try_grow_to(far, MiB)), outcome::invalid_argument) << "inside mapped pages";
  EXPECT_THROW(kv.resize(far, 2 * MiB), std::invalid_argument);
  EXPECT_THROW(kv.shrink_to(far, 0), std::invalid_argument);
  EXPECT_THROW(kv.discard(far, 0, 2 * MiB), std::invalid_argument);
  EXPECT_THROW((buffer{r, far, {.reserve = GiB}}), std::invalid_argument);
  EXPECT_THROW((buffer{r, far, {.reserve = GiB, .initial = 2 * MiB, .discarded = true}}), std::invalid_argument);
  EXPECT_EQ(kv.bytes(), 2 * MiB);
  EXPECT_EQ(r.statistics().lent, kv.mapped_bytes());
  r.open_to(other);
  EXPECT_TRUE(kv.try_grow_to(far, 64 * MiB));
  write(far, kv, 0, 64 * MiB);
  kv.discard(far, 2 * MiB, 2 * MiB);
  kv.shrink_to(far, MiB);
  EXPECT_EQ(kv.mapped_bytes(), 2 * MiB);
}

// From each driver call on, all calls of that function fail. The buffer is then as it was, and no memory is left
// behind.
TEST_F(growable_errors, refusals_of_the_driver_leave_nothing) {
  pool r{device, {.limit = 128 * MiB}};
  buffer kv{r, a, {.reserve = GiB, .initial = 8 * MiB, .page = 2 * MiB}};
  kv.discard(a, 2 * MiB, 2 * MiB);
  a.synchronize();
  r.trim();
  auto const refused_from = [&](char const* call, unsigned nth, auto grows) {
    // A fault that fires does not count for those after it, so these fire one after the other.
    for (unsigned i = 0; i < 100; ++i) simulator::fail_call(call, nth + i, CUDA_ERROR_NOT_PERMITTED);
    bool const granted{grows()};
    simulator::reset({.devices = 2, .mode = simulator::stepping::manual}); // forgets the faults
    a.synchronize();
    if (granted) return false;
    EXPECT_EQ(kv.bytes(), 8 * MiB);
    EXPECT_EQ(kv.mapped_bytes(), 6 * MiB);
    EXPECT_EQ(r.statistics().lent, 6 * MiB);
    EXPECT_EQ(r.statistics().reserved, 6 * MiB);
    EXPECT_TRUE(is_consistent(r)) << call << nth;
    return true;
  };
  for (auto const* const call : {"cuMemCreate", "cuMemMap", "cuMemSetAccess"}) {
    unsigned refused = 0;
    while (refused_from(call, refused + 1, [&] { return kv.try_grow_to(a, 40 * MiB); })) ++refused;
    EXPECT_EQ(refused, call == std::string{"cuMemSetAccess"} ? 1u : 16u) << call;
    kv.shrink_to(a, 8 * MiB);
    a.synchronize();
    r.trim();
    EXPECT_EQ(r.statistics().reserved, 6 * MiB);
    EXPECT_TRUE(refused_from(call, 1, [&] { return kv.try_restore(a, 2 * MiB, 2 * MiB); }));
  }
}

TEST_F(growable_errors, captures_refuse_changes_and_go_on) {
  pool r{device};
  buffer kv{r, a, {.reserve = GiB, .initial = 16 * MiB}};
  for (bool const raw : {false, true}) {
    if (raw) {
      gpumem::driver_api::check(
          gpumem::driver_api::driver().stream_begin_capture(a.get(), CU_STREAM_CAPTURE_MODE_GLOBAL), "begin");
    } else {
      a.begin_capture();
    }
    EXPECT_EQ(reason_of(kv.try_grow_to(a, 128 * MiB)), outcome::capture_unsupported);
    EXPECT_EQ(reason_of(kv.grow_to(a, 128 * MiB).try_now()), outcome::capture_unsupported);
    EXPECT_THROW(kv.resize(a, 128 * MiB), gpumem::acquire_error);
    EXPECT_THROW(kv.shrink_to(a, 0), gpumem::acquire_error);
    EXPECT_THROW(kv.discard(a, 0, 2 * MiB), gpumem::acquire_error);
    EXPECT_EQ(kv.bytes(), 16 * MiB);
    // Other streams go on beside the capture, and do not end it.
    EXPECT_TRUE(kv.try_grow_to(b, 128 * MiB));
    kv.discard(b, 0, 2 * MiB);
    EXPECT_TRUE(kv.try_restore(b, 0, 2 * MiB));
    kv.shrink_to(b, 16 * MiB);
    CUgraph graph = nullptr;
    EXPECT_EQ(gpumem::driver_api::driver().stream_end_capture(a.get(), &graph), CUDA_SUCCESS);
    gpumem::driver_api::driver().graph_destroy(graph);
    if (!raw) {
      gpumem::stream const ended{std::move(a)}; // ends the capture that the object knows of
      a = gpumem::stream{device};
    }
  }
}

class growable_pages : public gpumem_test::growable_fixture {};

TEST_F(growable_pages, peers_and_pins_hold_for_later_growth) {
  pool r{device};
  gpumem::device const other{1};
  gpumem::stream far{other};
  buffer kv{r, a, {.reserve = GiB, .initial = 4 * MiB, .page = 2 * MiB}};
  r.open_to(other);
  kv.resize(a, 8 * MiB);
  a.synchronize();
  simulator::work(far, {simulator::write(kv.data(), 8 * MiB)});
  far.synchronize();
  ASSERT_TRUE(r.pin(at(kv, 2 * MiB), 4 * MiB));
  EXPECT_FALSE(r.pin(at(kv, 8 * MiB), 16 * MiB)) << "not mapped";
  kv.resize(a, 64 * MiB);
  kv.shrink_to(a, 0);
  a.synchronize();
  r.trim();
  EXPECT_EQ(r.statistics().reserved, 4 * MiB) << "pinned pages stay mapped";
  kv.resize(a, 8 * MiB);
  write(a, kv, 0, 8 * MiB);
  r.unpin(at(kv, 2 * MiB), 4 * MiB);
  kv.shrink_to(a, 0);
  a.synchronize();
  r.trim();
  EXPECT_EQ(r.statistics().reserved, 0u);
}

TEST_F(growable_pages, buffers_of_one_limit_give_each_other_pages) {
  pool r{device, {.limit = 64 * MiB}};
  buffer one{r, a, {.reserve = GiB, .page = 2 * MiB}}, two{r, b, {.reserve = GiB, .page = 2 * MiB}};
  for (int i = 0; i < 4; ++i) {
    ASSERT_TRUE(one.try_grow_to(a, 48 * MiB)) << i;
    write(a, one, 0, 48 * MiB);
    EXPECT_EQ(reason_of(two.try_grow_to(b, 48 * MiB)), outcome::exhausted);
    one.shrink_to(a, 8 * MiB);
    a.synchronize();
    ASSERT_TRUE(two.try_grow_to(b, 48 * MiB)) << i;
    two.discard(b, 0, 32 * MiB);
    b.synchronize();
    auto* const block = r.allocate(a, 32 * MiB); // of the pool itself
    r.deallocate(a, block, 32 * MiB);
    two.shrink_to(b, 0);
    a.synchronize();
    b.synchronize();
  }
  EXPECT_LE(r.statistics().peak_reserved, 64 * MiB);
  EXPECT_TRUE(is_consistent(r));
}

// Pages of 32 MiB serve the pool after the buffer; larger ones go back to the device first.
TEST_F(growable_pages, pages_of_a_buffer_serve_the_pool) {
  pool r{device, {.limit = 256 * MiB}};
  for (std::size_t const page : {32, 128}) {
    buffer kv{r, a, {.reserve = GiB, .initial = 256 * MiB, .page = page * MiB}};
    kv.shrink_to(a, 0);
    a.synchronize();
    auto const before = calls("cuMemCreate");
    auto* const block = r.allocate(a, 100 * MiB);
    EXPECT_EQ(calls("cuMemCreate") > before, page > 32) << page;
    r.deallocate(a, block, 100 * MiB);
    a.synchronize();
    r.trim();
  }
}

// A page that moves is neither released nor created.
TEST_F(growable_pages, pages_of_one_buffer_move_to_another) {
  for (std::size_t const page : {2, 32, 64}) {
    pool r{device, {.limit = 256 * MiB}};
    gpumem::growable_options const options{.reserve = GiB, .page = page * MiB};
    buffer one{r, a, options}, two{r, a, options};
    one.resize(a, 256 * MiB);
    auto const before = calls("cuMemCreate");
    one.discard(a, 64 * MiB, 192 * MiB);
    a.synchronize();
    ASSERT_TRUE(two.try_grow_to(a, 64 * MiB));
    one.shrink_to(a, 0);
    a.synchronize();
    ASSERT_TRUE(two.try_grow_to(a, 256 * MiB));
    EXPECT_EQ(calls("cuMemCreate") > before, page > 32) << "larger pages go back to the device";
    write(a, two, 0, 256 * MiB);
    EXPECT_LE(r.statistics().peak_reserved, 256 * MiB);
    EXPECT_TRUE(is_consistent(r));
  }
}

} // namespace
