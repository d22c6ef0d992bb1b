// Misuse by callers is reported with the facts of the block, and changes nothing.
// SPDX-License-Identifier: Apache-2.0
#include "upstream.hpp"

#include <gpumem/pool_options.hpp>

#include <array>
#include <cstdint>
#include <exception>
#include <optional>
#include <string>
#include <vector>

#include <cuda.h>

import gpumem;

namespace {

using gpumem::misuse;
using gpumem::pool_resource;

std::vector<misuse> told;

class pool_misuse : public gpumem_test::simulated_test {
protected:
  pool_misuse() {
    told.clear();
    before_ = gpumem::set_misuse_handler([](misuse const& m) noexcept { told.push_back(m); });
  }
  ~pool_misuse() override { gpumem::set_misuse_handler(before_); }
  void TearDown() override {
    if (auto const block = r.find(p); block && block->live) r.deallocate(s, p, 1000);
    simulated_test::TearDown();
  }

  void expect(misuse::kind what, void const* pointer, std::size_t given, std::size_t expected) {
    ASSERT_EQ(told.size(), 1u);
    EXPECT_EQ(told[0].what, what);
    EXPECT_EQ(told[0].pointer, pointer);
    EXPECT_EQ(told[0].given, given);
    EXPECT_EQ(told[0].expected, expected);
    EXPECT_EQ(told[0].stream, s.key().identity().id());
    EXPECT_STREQ(told[0].resource, "tested");
    EXPECT_EQ(r.statistics().live, 1000u);
    told.clear();
  }

  gpumem::device device = gpumem::device::current();
  gpumem::stream s{device};
  gpumem_test::recording_upstream upstream;
  pool_resource<gpumem_test::recording_upstream> r{upstream, {.name = "tested"}};
  char* p = static_cast<char*>(r.allocate(s, 1000));

private:
  gpumem::misuse_handler before_;
};

TEST_F(pool_misuse, foreign_pointer_is_reported) {
  int elsewhere = 0;
  r.deallocate(s, &elsewhere, 4);
  expect(misuse::kind::foreign_pointer, &elsewhere, 4, 0);
  told.clear();
  r.deallocate(s, p, 1000);
}

TEST_F(pool_misuse, pointer_into_a_block_is_reported) {
  r.deallocate(s, p + 256, 744);
  expect(misuse::kind::foreign_pointer, p + 256, 744, 1000);
  r.deallocate(s, p, 1000);
}

TEST_F(pool_misuse, double_free_of_coalesced_memory_is_reported) {
  auto* const q = r.allocate(s, 500);
  r.deallocate(s, q, 500);
  r.deallocate(s, q, 500);
  expect(misuse::kind::double_free, q, 500, 0);
  r.deallocate(s, q);
  expect(misuse::kind::double_free, q, 0, 0);
  r.record_use(q, s);
  expect(misuse::kind::recorded_late, q, 0, 0);
  r.deallocate(s, p, 1000);
  EXPECT_EQ(r.statistics().frees, 2u);
}

TEST_F(pool_misuse, wrong_size_is_reported) {
  r.deallocate(s, p, 999);
  expect(misuse::kind::wrong_size, p, 999, 1000);
  r.deallocate(s, p, 1000);
}

TEST_F(pool_misuse, allocation_after_close_is_reported) {
  std::optional<pool_resource<gpumem_test::recording_upstream>> closing{std::in_place, upstream};
  auto const services = closing->services();
  auto block = closing->acquire(s, 100).wait();
  closing.reset();
  EXPECT_EQ(services.table->try_allocate(services.state, s, 100, 256).error().reason, gpumem::outcome::closed);
  ASSERT_EQ(told.size(), 1u);
  EXPECT_EQ(told[0].what, misuse::kind::use_after_close);
  block.reset();
  r.deallocate(s, p, 1000);
}

TEST_F(pool_misuse, default_stream_of_another_device_is_reported) {
  {
    gpumem::device_guard const other{gpumem::device{1}};
    EXPECT_EQ(r.try_allocate(cuda::stream_ref{CU_STREAM_LEGACY}, 100).error().reason,
              gpumem::outcome::invalid_argument);
    r.deallocate(cuda::stream_ref{CU_STREAM_LEGACY}, p, 1000);
  }
  ASSERT_EQ(told.size(), 1u);
  EXPECT_EQ(told[0].what, misuse::kind::other_device);
  EXPECT_TRUE(r.find(p)->live);
  r.deallocate(s, p, 1000);
}

// Returns the text of the exception that the call throws.
template <class Call> std::string text_of(Call call) {
  try {
    call();
  } catch (std::exception const& e) { return e.what(); }
  return "nothing was thrown";
}

std::string described(misuse const& what) {
  std::array<char, 1024> text;
  gpumem::describe(what, text.data(), text.size());
  return text.data();
}

TEST_F(pool_misuse, each_rule_has_one_message) {
  gpumem::pool_resource named{gpumem::device{0}, {.name = "weights"}};
  gpumem::statistics_adaptor over{named};
  gpumem::any_pool erased{named};
  std::string const alignment = "gpumem: weights: the alignment is not a power of two";
  EXPECT_EQ(text_of([&] { (void)named.allocate(s, 10, 3); }), alignment);
  EXPECT_EQ(text_of([&] { (void)named.allocate_sync(10, 3); }), alignment);
  EXPECT_EQ(text_of([&] { (void)named.acquire(s, 10, {.alignment = 3}).wait(); }), alignment);
  EXPECT_EQ(text_of([&] { (void)over.allocate(s, 10, 3); }), alignment);
  EXPECT_EQ(text_of([&] { (void)erased.allocate(s, 10, 3); }), alignment);
  EXPECT_EQ(text_of([&] { (void)gpumem::acquire(erased, s, 10, {.alignment = 3}).wait(); }), alignment);
  EXPECT_EQ(text_of([&] { gpumem::buffer(s, named, 10, 3); }), "gpumem: the alignment is not a power of two");
  EXPECT_EQ(text_of([&] { gpumem::aligned_adaptor(named, {.alignment = 3}); }),
            "gpumem: aligned_adaptor: the alignment is not a power of two");

  auto* const block = named.allocate(s, 10);
  gpumem::stream_ref const legacy{CU_STREAM_LEGACY};
  std::string const other = "gpumem: weights: a default stream was given while another device is current";
  {
    gpumem::device_guard const elsewhere{gpumem::device{1}};
    EXPECT_EQ(text_of([&] { (void)named.allocate(legacy, 10); }), other);
    EXPECT_EQ(text_of([&] { (void)named.acquire(legacy, 10).wait(); }), other);
    EXPECT_EQ(text_of([&] { (void)over.allocate(legacy, 10); }), other);
    named.deallocate(legacy, block, 10);
    named.deallocate(legacy, block);
  }
  ASSERT_EQ(told.size(), 2u);
  for (auto const& each : told) EXPECT_TRUE(described(each).starts_with(other + ": pointer")) << described(each);
  named.deallocate(s, block, 10);
}

TEST_F(pool_misuse, dead_stream_is_named_with_the_pool) {
  gpumem::pool_resource named{gpumem::device{0}, {.name = "weights"}};
  gpumem::statistics_adaptor over{named};
  CUstream handle = nullptr;
  auto const& driver = gpumem::driver_api::driver();
  ASSERT_EQ(driver.stream_create(&handle, CU_STREAM_NON_BLOCKING), CUDA_SUCCESS);
  ASSERT_EQ(driver.stream_destroy(handle), CUDA_SUCCESS);
  gpumem::stream_ref const dead{handle};
  std::string const text = "gpumem: weights: a stream that cannot be identified; its handle may be dead";
  EXPECT_NE(text_of([&] { (void)named.allocate(dead, 10); }).find(text), std::string::npos);
  EXPECT_NE(text_of([&] { (void)named.acquire(dead, 10).wait(); }).find(text), std::string::npos);
  EXPECT_NE(text_of([&] { (void)over.allocate(dead, 10); }).find(text), std::string::npos);
  auto* const block = over.allocate(s, 10);
  named.deallocate(dead, block, 10);
  named.deallocate(dead, block);
  over.deallocate(dead, block, 10);
  ASSERT_EQ(told.size(), 3u);
  for (auto const& each : told) {
    EXPECT_EQ(each.what, misuse::kind::bad_stream);
    EXPECT_TRUE(described(each).starts_with(text)) << described(each);
  }
  over.deallocate(s, block, 10);
  gpumem::simulator::take_findings(); // the simulated device saw the destroyed stream too
}

TEST_F(pool_misuse, limit_and_initial_size_are_in_the_message) {
  EXPECT_EQ(text_of([] { gpumem::pool_resource(gpumem::device{0}, {.initial_size = 300, .limit = 256}); }),
            "gpumem: a pool's initial_size is larger than its limit: 300 > 256 bytes");
  EXPECT_EQ(text_of([] { gpumem::async_resource(gpumem::device{0}, {.initial_size = 300, .limit = 256}); }),
            "gpumem: async_options: initial_size is larger than its limit: 300 > 256 bytes");
}

} // namespace
