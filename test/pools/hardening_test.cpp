// The faults that a hardened pool finds, and the history of the memory in its reports.
// SPDX-License-Identifier: Apache-2.0
#include "upstream.hpp"

#include <gpumem/pool_options.hpp>

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <mutex>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include <cuda.h>

import gpumem;
#include "hardened_pool.hpp"

namespace {

using namespace gpumem_test;
using gpumem::block_event;
using gpumem::misuse;
using gpumem::pool_resource;
using pool = pool_resource<recording_upstream>;

class hardening_test : public hardened_test {
protected:
  recording_upstream upstream;
};

TEST_F(hardening_test, correct_program_has_no_findings) {
  pool r{upstream, hardened()};
  for (std::size_t const bytes : {1u, 255u, 256u, 1000u, 65536u, 65537u, 1u << 20}) {
    auto* const p = r.allocate(s, bytes);
    simulator::work(s, {simulator::write(p, bytes)}, {}, [=] { std::memset(p, 7, bytes); });
    r.deallocate(s, p, bytes);
  }
  EXPECT_TRUE(synchronized(r));
  EXPECT_EQ(r.statistics().quarantined, 0u);
}

TEST_F(hardening_test, overrun_is_reported_with_the_history_of_the_block) {
  pool r{upstream, hardened()};
  auto* const p = bytes_at(r.allocate(s, 1000));
  scribble(s, p + 998, 6);
  r.deallocate(t, p, 1000);
  EXPECT_TRUE(take_reports().empty()) << "no work has run";
  EXPECT_TRUE(synchronized(r));
  auto const found = only();
  EXPECT_EQ(found.what, misuse::kind::overrun);
  EXPECT_EQ(found.pointer, p);
  EXPECT_EQ(found.expected, 1000u);
  EXPECT_EQ(found.offset, 1000);
  EXPECT_EQ(found.overwritten, 4u);
  EXPECT_EQ(found.stream, t.key().identity().id());
  EXPECT_STREQ(found.resource, "tested");
  ASSERT_EQ(found.seen.size(), 2u);
  EXPECT_EQ(found.seen[0].what, block_event::kind::allocated);
  EXPECT_EQ(found.seen[0].stream, s.key().identity().id());
  EXPECT_EQ(found.seen[0].bytes, 1000u);
  EXPECT_EQ(found.seen[1].what, block_event::kind::freed);
  EXPECT_EQ(found.seen[1].stream, t.key().identity().id());
  EXPECT_GT(found.seen[1].sequence, found.seen[0].sequence);
}

TEST_F(hardening_test, underrun_is_reported) {
  pool r{upstream, hardened()};
  auto* const p = bytes_at(r.allocate(s, 1000));
  scribble(s, p - 3, 5);
  r.deallocate(s, p, 1000);
  EXPECT_TRUE(synchronized(r));
  auto const found = only();
  EXPECT_EQ(found.what, misuse::kind::underrun);
  EXPECT_EQ(found.offset, -1);
  EXPECT_EQ(found.overwritten, 3u);
}

TEST_F(hardening_test, aligned_blocks_have_guards) {
  pool r{upstream, hardened()};
  auto* const p = bytes_at(r.allocate(s, 5000, 4096));
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(p) % 4096, 0u);
  scribble(s, p - 256, 1);
  scribble(s, p + 5000, 1);
  r.deallocate(s, p, 5000, 4096);
  EXPECT_TRUE(synchronized(r));
  auto const found = take_reports();
  ASSERT_EQ(found.size(), 2u);
  EXPECT_EQ(found[0].what, misuse::kind::overrun);
  EXPECT_EQ(found[1].what, misuse::kind::underrun);
  EXPECT_EQ(found[1].offset, -256);
}

TEST_F(hardening_test, alignments_hold_with_guards_of_any_size) {
  for (std::size_t const guard : {0, 1, 700, 768, 1280, 5000}) {
    pool r{upstream, hardened({.guard = guard})};
    for (std::size_t alignment = 256; alignment <= 8192; alignment *= 2) {
      auto* const p = r.allocate(s, 1000, alignment);
      EXPECT_EQ(reinterpret_cast<std::uintptr_t>(p) % alignment, 0u) << guard;
      r.deallocate(s, p, 1000, alignment);
    }
    simulator::run_until_idle();
  }
}

TEST_F(hardening_test, write_after_the_free_is_reported) {
  pool r{upstream, hardened()};
  auto* const p = bytes_at(r.allocate(s, 1000));
  r.deallocate(s, p, 1000);
  scribble(s, p + 100, 2);
  EXPECT_TRUE(synchronized(r));
  auto const found = only();
  EXPECT_EQ(found.what, misuse::kind::use_after_free);
  EXPECT_EQ(found.offset, 100);
  EXPECT_EQ(found.overwritten, 2u);
  EXPECT_EQ(found.expected, 1000u);
}

TEST_F(hardening_test, freed_large_block_is_checked_at_both_ends) {
  pool r{upstream, hardened({.poison = 4 * KiB})};
  for (std::ptrdiff_t const at : {0, 2047, 2048, 65536 - 2049, 65536 - 2048, 65535}) {
    auto* const p = bytes_at(r.allocate(s, 64 * KiB));
    r.deallocate(s, p, 64 * KiB);
    scribble(s, p + at, 1);
    EXPECT_TRUE(synchronized(r));
    auto const found = take_reports();
    bool const seen = at < 2048 || at >= 65536 - 2048;
    ASSERT_EQ(found.size(), seen ? 1u : 0u) << at;
    if (seen) EXPECT_EQ(found[0].offset, at);
  }
}

TEST_F(hardening_test, new_and_freed_memory_is_filled_with_a_pattern) {
  pool r{upstream, hardened()};
  auto* const p = bytes_at(r.allocate(s, 1000));
  simulator::run_until_idle();
  EXPECT_EQ(static_cast<unsigned char>(p[0]), 0xfa);
  EXPECT_EQ(static_cast<unsigned char>(p[999]), 0xfa);
  r.deallocate(s, p, 1000);
  simulator::run_until_idle();
  EXPECT_EQ(static_cast<unsigned char>(p[500]), 0xdf);
}

TEST_F(hardening_test, history_lists_the_last_events_of_a_pointer) {
  pool r{upstream, hardened({.quarantine = 0, .history = 3})};
  auto* const p = bytes_at(r.allocate(s, 1000));
  EXPECT_TRUE(r.history(p - 1).empty());
  ASSERT_EQ(r.history(p + 999).size(), 1u);
  EXPECT_EQ(r.history(p)[0].pointer, p);
  EXPECT_EQ(r.history(p)[0].sequence, 1u);
  EXPECT_EQ(r.history(p)[0].thread, gpumem::detail::sync::thread_index());
  r.deallocate(t, p, 1000);
  ASSERT_TRUE(synchronized(r));
  ASSERT_EQ(r.allocate(t, 1000), p);
  r.deallocate(s, p, 1000);
  auto const last = r.history(p);
  ASSERT_EQ(last.size(), 3u) << "the first is forgotten";
  EXPECT_EQ(last[0].sequence, 2u);
  EXPECT_EQ(last[2].sequence, 4u);
  EXPECT_EQ(last[2].what, block_event::kind::freed);
  EXPECT_TRUE(pool{upstream}.history(p).empty());
}

TEST_F(hardening_test, memory_freed_by_the_host_is_checked) {
  pool r{upstream, hardened()};
  auto* const p = bytes_at(r.allocate_sync(1000));
  auto* const q = bytes_at(r.allocate_sync(1000));
  simulator::run_until_idle();
  p[1000] = 1;
  r.deallocate_sync(p, 1000);
  r.deallocate_sync(q, 1000);
  r.deallocate(s, r.allocate(s, 1000), 1000); // any call poisons freed blocks whose uses are complete
  simulator::run_until_idle();
  q[0] = 1;
  EXPECT_TRUE(synchronized(r));
  auto const found = take_reports();
  ASSERT_EQ(found.size(), 2u);
  EXPECT_EQ(found[0].what, misuse::kind::overrun);
  EXPECT_EQ(found[0].pointer, p);
  EXPECT_EQ(found[1].what, misuse::kind::use_after_free);
  EXPECT_EQ(found[1].pointer, q);
  EXPECT_EQ(found[1].offset, 0);
}

TEST_F(hardening_test, memory_freed_by_the_host_is_poisoned_after_many_other_frees) {
  pool r{upstream, hardened()};
  std::vector<void*> others;
  for (int i = 0; i < 200; ++i) others.push_back(r.allocate(s, 1000));
  auto* const p = bytes_at(r.allocate_sync(1000));
  simulator::run_until_idle();
  for (auto* const each : others) r.deallocate(s, each, 1000);
  r.deallocate_sync(p, 1000);
  r.deallocate(s, r.allocate(s, 1000), 1000);
  simulator::run_until_idle();
  p[0] = 1;
  EXPECT_TRUE(synchronized(r));
  EXPECT_EQ(only().what, misuse::kind::use_after_free);
}

TEST_F(hardening_test, recorded_use_is_not_poisoned) {
  pool r{upstream, hardened({.quarantine = 0})};
  auto* const p = bytes_at(r.allocate(s, 1000));
  gpumem::event ready{device};
  ready.record(s);
  t.wait(ready);
  std::atomic<int> wrong{0};
  scribble(s, p, 1000, 7);
  ready.record(s);
  t.wait(ready);
  simulator::work(t, {simulator::read(p, 1000)}, {}, [&] { wrong += p[0] != 7 || p[999] != 7; });
  r.record_use(p, t);
  r.deallocate(s, p, 1000);
  s.synchronize();
  for (int i = 0; i < 8; ++i) r.deallocate(s, r.allocate(s, 10), 10);
  EXPECT_TRUE(synchronized(r));
  EXPECT_EQ(wrong, 0);
  EXPECT_EQ(r.statistics().quarantined, 0u);
}

TEST_F(hardening_test, block_freed_by_its_destructor_is_poisoned_on_its_foreign_stream) {
  static auto* const create = driver_function<decltype(cuStreamCreate)>("cuStreamCreate");
  CUstream foreign = nullptr;
  create(&foreign, CU_STREAM_NON_BLOCKING);
  gpumem::stream_ref const on{foreign};
  pool r{upstream, hardened({.quarantine = 1 * MiB})};
  char* p = nullptr;
  {
    auto block = r.acquire(on, 1000).wait();
    p = bytes_at(block.data());
    scribble(on, p, 1000, 7);
  }
  simulator::run_until_idle();
  EXPECT_NE(p[0], 7) << "the destructor frees with the handle";
  r.deallocate(on, r.allocate(on, 10), 10); // records an event
  simulator::run_until_idle();
  r.deallocate(s, r.allocate(s, 10), 10); // sees the event complete
  simulator::run_until_idle();
  EXPECT_EQ(static_cast<unsigned char>(p[0]), 0xdf);
  scribble(s, p + 5, 1);
  simulator::run_until_idle();
  EXPECT_TRUE(synchronized(r));
  EXPECT_EQ(only().what, misuse::kind::use_after_free);
}

TEST_F(hardening_test, report_is_printed_with_the_history) {
  std::string text;
  {
    pool r{upstream, hardened()};
    auto* const p = bytes_at(r.allocate(s, 1000));
    scribble(s, p + 1010, 4);
    r.deallocate(t, p, 1000);
    EXPECT_TRUE(synchronized(r));
    auto found = only();
    found.history = found.seen.data();
    char line[1024];
    describe(found, line, sizeof line);
    text = line;
    char const* const id[] = {"allocated for stream ", "freed on stream "};
    EXPECT_NE(text.find("tested: a write past the end of a block"), std::string::npos) << text;
    EXPECT_NE(text.find("4 bytes overwritten, the nearest at offset 1010, block of 1000 bytes"), std::string::npos);
    EXPECT_NE(text.find(id[0] + std::to_string(s.key().identity().id())), std::string::npos) << text;
    EXPECT_NE(text.find(id[1] + std::to_string(t.key().identity().id())), std::string::npos) << text;
    char little[16];
    describe(found, little, sizeof little);
    EXPECT_EQ(std::string{little}, text.substr(0, 15));
    describe(found, nullptr, 0);
  }
}

TEST_F(hardening_test, checks_do_not_wait_and_make_few_driver_calls) {
  pool r{upstream, hardened({.quarantine = 16 * KiB})};
  constexpr std::uint64_t blocks = 50;
  r.deallocate(s, r.allocate(s, 1000), 1000);
  simulator::clear_driver_calls();
  for (std::uint64_t i = 0; i < blocks; ++i) {
    r.deallocate(s, r.allocate(s, 1000), 1000);
    simulator::run_until_idle();
  }
  auto calls = simulator::report().driver_calls;
  EXPECT_EQ(calls["cuMemsetD8Async"], 2 * blocks);
  EXPECT_LE(calls["cuEventRecord"], 2 * blocks) << "events of the free and of the copies";
  EXPECT_LE(calls["cuMemcpyDtoHAsync"], blocks);
  EXPECT_GT(calls["cuMemcpyDtoHAsync"], 0u) << "no block was checked";
  for (auto const* const waits : {"cuCtxSynchronize", "cuStreamSynchronize", "cuEventSynchronize"}) {
    EXPECT_EQ(calls[waits], 0u) << waits;
  }
}

// Lent pages have no guards, and the pages of freed blocks wait for the checks of these blocks.
TEST_F(hardening_test, freed_memory_is_lent_after_its_check) {
  auto options = hardened();
  options.limit = 64 * MiB;
  pool_resource r{gpumem::device{0}, options};
  gpumem::detail::page_lender lender{r, 128 * MiB};
  auto* const p = bytes_at(r.allocate(s, 40 * MiB));
  scribble(s, p + 40 * MiB - 1, 2);
  r.deallocate(s, p, 40 * MiB);
  EXPECT_FALSE(lender.try_allocate(s, 60 * MiB)) << "no work has run";
  EXPECT_TRUE(synchronized(r));
  EXPECT_EQ(only().what, misuse::kind::overrun);
  auto* const lent = lender.allocate(s, 60 * MiB);
  simulator::work(s, {simulator::write(lent, 60 * MiB)});
  lender.deallocate(s, lent, 60 * MiB);
  EXPECT_LE(r.statistics().peak_reserved, 64 * MiB);
}

TEST_F(hardening_test, contradicting_options_are_refused) {
  EXPECT_THROW((pool{upstream, {.hardened = {.quarantine = 1}}}), std::invalid_argument);
  EXPECT_THROW((pool{upstream, {.hardened = {.guard = 0}}}), std::invalid_argument);
  EXPECT_THROW((pool{upstream, {.limit = 512, .hardened = {.enabled = true}}}), std::invalid_argument);
  EXPECT_THROW((pool{upstream, hardened({.history = SIZE_MAX})}), std::invalid_argument);
  EXPECT_THROW((pool{upstream, hardened({.poison = SIZE_MAX})}), std::invalid_argument);
  EXPECT_THROW((pool{upstream, hardened({.guard = SIZE_MAX})}), std::invalid_argument);
}

TEST_F(hardening_test, pool_works_with_all_checks_off) {
  pool r{upstream, hardened({.guard = 0, .quarantine = 0, .poison = 0, .history = 0})};
  auto* const p = r.allocate(s, 256);
  EXPECT_EQ(r.statistics().allocated, 256u);
  r.deallocate(s, p, 256);
  EXPECT_TRUE(synchronized(r));
  EXPECT_TRUE(r.history(p).empty());
  r.deallocate(s, p, 256);
  EXPECT_EQ(only().what, misuse::kind::foreign_pointer) << "no history is kept";
}

} // namespace
