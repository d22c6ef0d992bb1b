// Growth that waits in the line of a pool, calls of several threads, and a forked child.
// SPDX-License-Identifier: Apache-2.0
#include "../pools/upstream.hpp"

#include <gpumem/pool_options.hpp>

#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <memory>
#include <optional>
#include <stop_token>
#include <thread>
#include <vector>

import gpumem;
import gpumem.growable;
#include "../support/coroutine_probes.hpp"
#include "../support/manual_executor.hpp"
#include "../pools/waiting_fixture.hpp"
#include "growable_fixture.hpp"

namespace {

using gpumem_test::MiB;

class growable_waits : public gpumem_test::growable_fixture {};

TEST_F(growable_waits, growth_waits_in_the_line_of_the_pool) {
  pool r{device, {.limit = 100 * MiB, .max_overtakes = 0}};
  buffer kv{r, a, {.reserve = GiB, .initial = 10 * MiB}};
  auto block = r.acquire(b, 60 * MiB).wait();
  growth first{kv.grow_to(a, 80 * MiB, here())};
  request second{*this, r, b, 20 * MiB};
  EXPECT_FALSE(first.ended());
  EXPECT_FALSE(second.ended()) << "overtook the buffer";
  EXPECT_EQ(kv.bytes(), 10 * MiB);
  block.reset();
  run_until_ended(first);
  EXPECT_EQ(first.ended(), outcome::granted);
  EXPECT_EQ(kv.bytes(), 80 * MiB);
  EXPECT_EQ(kv.mapped_bytes(), 80 * MiB) << "no more than what was set aside";
  run_until([&] { return second.ended().has_value(); });
  EXPECT_EQ(second.ended(), outcome::granted);
  second.block().reset();
  EXPECT_LE(r.statistics().peak_reserved, 100 * MiB);
}

TEST_F(growable_waits, growth_stops_and_meets_its_deadline) {
  pool r{device, {.limit = 100 * MiB}};
  buffer kv{r, a, {.reserve = GiB, .initial = 10 * MiB}};
  auto block = r.acquire(b, 60 * MiB).wait();
  std::stop_source source;
  growth stopped{kv.grow_to(a, 80 * MiB, here(), source.get_token())};
  source.request_stop();
  run_all();
  EXPECT_EQ(stopped.ended(), outcome::stopped);
  auto const late = std::chrono::steady_clock::now() + std::chrono::milliseconds{2};
  EXPECT_EQ(reason_of(kv.grow_to(a, 80 * MiB).wait_until(late)), outcome::deadline);
  EXPECT_THROW(kv.grow_to(a, 80 * MiB, {.deadline = late}).wait(), gpumem::acquire_error);
  growth destroyed{kv.grow_to(a, 80 * MiB, here())};
  destroyed.destroy();
  EXPECT_EQ(kv.bytes(), 10 * MiB);
  EXPECT_EQ(kv.mapped_bytes(), 10 * MiB);
  buffer other{r, a, {.reserve = GiB}};
  growth low{kv.grow_to(a, 60 * MiB, here())}, high{other.grow_to(a, 60 * MiB, here({.priority = 1}))};
  block.reset();
  run_until_ended(high);
  EXPECT_EQ(high.ended(), outcome::granted);
  EXPECT_FALSE(low.ended());
  other = {};
  run_until_ended(low);
  EXPECT_EQ(kv.bytes(), 60 * MiB);
}

// The growth needs a whole page of 32 MiB. While it waits for one, others get what the limit leaves.
TEST_F(growable_waits, growth_by_a_large_page_leaves_the_rest_to_others) {
  pool r{device, {.limit = 64 * MiB}};
  auto block = r.acquire(b, 48 * MiB).wait();
  buffer kv{r, a, {.reserve = GiB, .page = 32 * MiB}};
  growth waits{kv.grow_to(a, MiB, here())};
  run_all();
  EXPECT_FALSE(waits.ended());
  auto const other = r.acquire(b, 8 * MiB).try_now();
  EXPECT_FALSE(other) << "overtook the buffer";
  block.reset();
  run_until_ended(waits);
  EXPECT_EQ(waits.ended(), outcome::granted);
  EXPECT_EQ(kv.mapped_bytes(), 32 * MiB);
  EXPECT_TRUE(r.acquire(b, 8 * MiB).try_now());
}

TEST_F(growable_waits, growth_in_a_hardened_pool_takes_quarantined_memory) {
  pool r{device, {.limit = 64 * MiB, .hardened = {.enabled = true}}};
  buffer kv{r, a, {.reserve = GiB, .initial = 2 * MiB, .page = 2 * MiB, .name = "cache"}};
  auto const seen = r.copy_memory();
  EXPECT_TRUE(std::ranges::any_of(seen.blocks,
                                  [](auto const& each) { return gpumem::detail::label_text(each.label) == "cache"; }));
  auto block = r.acquire(a, 40 * MiB).wait();
  growth waits{kv.grow_to(a, 30 * MiB, here())};
  EXPECT_FALSE(waits.ended());
  block.reset();
  a.synchronize();
  static_cast<void>(kv.try_grow_to(a, 28 * MiB));
  run_until_ended(waits);
  EXPECT_EQ(waits.ended(), outcome::granted);
  EXPECT_EQ(kv.bytes(), 30 * MiB);
}

// Otherwise a buffer whose growth waits could never give back what that growth waits for.
TEST_F(growable_waits, discard_of_the_buffer_itself_lets_its_growth_go_on) {
  pool r{device, {.limit = 64 * MiB}};
  buffer kv{r, a, {.reserve = GiB, .initial = 64 * MiB, .page = 2 * MiB}};
  write(a, kv, 0, 64 * MiB);
  growth waiting{kv.grow_to(a, 80 * MiB, here())};
  EXPECT_FALSE(waiting.ended());
  kv.discard(a, 0, 16 * MiB);
  run_until_ended(waiting);
  EXPECT_EQ(waiting.ended(), outcome::granted);
  EXPECT_EQ(kv.bytes(), 80 * MiB);
  growth restored{kv.restore(a, 0, 8 * MiB, here())};
  EXPECT_FALSE(restored.ended());
  kv.shrink_to(a, 40 * MiB);
  run_until_ended(restored);
  EXPECT_EQ(restored.ended(), outcome::granted);
  EXPECT_EQ(kv.mapped_bytes(), 32 * MiB);
  EXPECT_LE(r.statistics().peak_reserved, 64 * MiB);
  write(a, kv, 16 * MiB, 24 * MiB);
}

// A growth to 80 MiB is granted first, and maps all or most of what the others lack.
TEST_F(growable_waits, growths_of_one_buffer_ask_for_what_they_lack_now) {
  pool r{device, {.limit = 100 * MiB, .max_overtakes = 0}};
  buffer kv{r, a, {.reserve = GiB, .initial = 10 * MiB, .page = 2 * MiB}};
  auto block = r.acquire(b, 60 * MiB).wait();
  growth first{kv.grow_to(a, 80 * MiB, here())}, less{kv.grow_to(a, 70 * MiB, here())};
  growth more{kv.grow_to(a, 90 * MiB, here())};
  request other{*this, r, b, 20 * MiB};
  growth last{kv.grow_to(a, 75 * MiB, here())};
  EXPECT_EQ(r.statistics().waiting_bytes, (70 + 60 + 80 + 20 + 66) * MiB);
  EXPECT_FALSE(first.ended() || less.ended() || more.ended() || last.ended());
  block.reset();
  run_until_ended(first);
  run_until_ended(less);
  run_until_ended(last);
  EXPECT_EQ(last.ended(), outcome::granted) << "it takes nothing from those before it";
  run_until_ended(more);
  EXPECT_EQ(more.ended(), outcome::granted) << "it lacks 10 MiB, and 20 are left";
  EXPECT_FALSE(other.ended());
  EXPECT_EQ(kv.mapped_bytes(), 90 * MiB);
  EXPECT_EQ(r.statistics().waiting_bytes, 20 * MiB);
  kv.shrink_to(a, 0);
  a.synchronize();
  run_until([&] { return other.ended().has_value(); });
  other.block().reset();
}

// The growth that does not wait overtakes those that do.
TEST_F(growable_waits, growth_that_does_not_wait_satisfies_those_that_do) {
  pool r{device, {.limit = 64 * MiB}};
  buffer kv{r, a, {.reserve = GiB, .initial = 16 * MiB, .page = 2 * MiB}};
  auto block = r.acquire(b, 40 * MiB).wait();
  growth blocked{kv.grow_to(a, 64 * MiB, here())}, waits{kv.grow_to(a, 64 * MiB, here())};
  EXPECT_EQ(r.statistics().waiting_bytes, 96 * MiB);
  EXPECT_TRUE(kv.try_grow_to(a, 24 * MiB));
  EXPECT_EQ(r.statistics().waiting_bytes, 80 * MiB);
  block.reset();
  run_until_ended(blocked);
  run_until_ended(waits);
  EXPECT_EQ(kv.mapped_bytes(), 64 * MiB);
  EXPECT_LE(r.statistics().peak_reserved, 64 * MiB);
}

// A request as that of a buffer. Its first attempt in a turn is refused, and another growth of the buffer is granted
// before it parks, so that it lacks nothing any more. The next attempt succeeds.
class satisfied_growth final : public gpumem::detail::lack {
public:
  explicit satisfied_growth(gpumem::detail::pool_state& pool) noexcept : pool_{pool} {}
  gpumem::expected<void*, gpumem::failure> try_allocate(gpumem::extend::stream_key const&, std::size_t,
                                                        std::size_t) noexcept {
    if (++attempts_ == 3) return &attempts_;
    if (attempts_ == 2) bytes_ = 0;
    return gpumem::unexpected<gpumem::failure>{{gpumem::outcome::exhausted, 0, bytes_}};
  }
  void deallocate(gpumem::extend::stream_key const&, void*, std::size_t, std::size_t) noexcept {}
  std::optional<gpumem::device> where() noexcept { return pool_.where(); }
  bool admit(gpumem::extend::waiter& item) noexcept {
    item.set_lack(*this);
    return pool_.admit_with(item, [&] {
      return item.allocate_parts(
          [&](gpumem::extend::request_part const& one) { return try_allocate(one.stream, one.bytes, one.alignment); },
          [](gpumem::extend::request_part const&) {});
    });
  }
  bool cancel_waiter(gpumem::extend::waiter& item) noexcept { return pool_.cancel_waiter(item); }
  gpumem::statistics read_statistics() { return pool_.read_statistics(); }
  char const* resource_name() noexcept { return pool_.resource_name(); }
  std::size_t bytes() const noexcept override { return bytes_; }
  int attempts() const noexcept { return attempts_; }

private:
  gpumem::detail::pool_state& pool_;
  std::size_t bytes_ = 8 * MiB;
  int attempts_ = 0;
};

class satisfied_resource : public gpumem::extend::resource_base<satisfied_resource, satisfied_growth> {
public:
  explicit satisfied_resource(satisfied_growth& growth) noexcept : growth_{&growth} {}
  satisfied_growth& state() const noexcept { return *growth_; }

private:
  satisfied_growth* growth_;
};

TEST_F(growable_waits, growth_that_another_one_satisfies_in_its_turn_does_not_park) {
  pool r{device, {.limit = 64 * MiB}};
  auto const block = r.acquire(b, 60 * MiB).wait();
  satisfied_growth growth{*static_cast<gpumem::detail::pool_state*>(r.services().state)};
  auto const late = std::chrono::steady_clock::now() + gpumem_test::longest_wait();
  auto const got = satisfied_resource{growth}.acquire(a, 8 * MiB).wait_until(late);
  EXPECT_TRUE(got) << to_string(got.error().reason);
  EXPECT_EQ(growth.attempts(), 3);
}

class growable_ends : public gpumem_test::growable_fixture {};

TEST_F(growable_ends, forked_child_changes_nothing) {
  pool r{device};
  auto kv = std::make_unique<buffer>(r, a, gpumem::growable_options{.reserve = GiB, .initial = 4 * MiB});
  auto const child = fork();
  if (child == 0) {
    auto const grown = kv->try_grow_to(a, 64 * MiB);
    bool refuses = false;
    try {
      kv->shrink_to(a, 0);
    } catch (gpumem::cuda_error const&) { refuses = true; }
    kv.reset();
    _exit(reason_of(grown) == outcome::device_lost && refuses ? 0 : 1);
  }
  int status = -1;
  waitpid(child, &status, 0);
  EXPECT_EQ(status, 0);
  EXPECT_TRUE(kv->try_grow_to(a, 64 * MiB));
}

// The calls of several threads on one buffer do not mix, whatever order they come in.
TEST_F(growable_ends, threads_share_a_buffer) {
  pool r{device, {.limit = 64 * MiB}};
  buffer kv{r, a, {.reserve = 64 * MiB, .initial = 64 * MiB, .discarded = true}};
  std::vector<std::thread> threads;
  for (std::size_t i = 0; i < 4; ++i) {
    threads.emplace_back([&, i] {
      gpumem::device_guard const here{device};
      gpumem::stream mine{device};
      auto const offset = i * 16 * MiB;
      for (int n = 0; n < 100; ++n) {
        ASSERT_TRUE(kv.try_restore(mine, offset, 16 * MiB));
        kv.discard(mine, offset + 4 * MiB, 8 * MiB);
        kv.discard(mine, offset, 4 * MiB);
        kv.discard(mine, offset + 12 * MiB, 4 * MiB);
        if (n % 8 == 0) mine.synchronize();
      }
    });
  }
  for (auto& each : threads) each.join();
  EXPECT_EQ(kv.mapped_bytes(), 0u);
  EXPECT_EQ(r.statistics().lent, 0u);
  EXPECT_LE(r.statistics().peak_reserved, 64 * MiB);
  EXPECT_TRUE(is_consistent(r));
}

} // namespace
