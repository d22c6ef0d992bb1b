// Misuse by callers is reported with the facts of the block, and changes nothing.
// SPDX-License-Identifier: Apache-2.0
#include "upstream.hpp"

#include <gpumem/pool_options.hpp>

#include <cstdint>
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

  void expect(misuse::kind what, void const* pointer, std::size_t given, std::size_t expected) {
    ASSERT_EQ(told.size(), 1u);
    EXPECT_EQ(told[0].what, what);
    EXPECT_EQ(told[0].pointer, pointer);
    EXPECT_EQ(told[0].given, given);
    EXPECT_EQ(told[0].expected, expected);
    EXPECT_EQ(told[0].stream, s.key().id());
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
  EXPECT_EQ(told[0].what, misuse::kind::bad_stream);
  EXPECT_TRUE(r.find(p)->live);
  r.deallocate(s, p, 1000);
}

} // namespace
