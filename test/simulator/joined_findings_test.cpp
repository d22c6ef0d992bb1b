// One missing order between two operations is one finding, whatever memory they touch; other findings stay apart.
// SPDX-License-Identifier: Apache-2.0
#include "support/naive_pool.hpp"
#include "support/pages.hpp"

#include <cstddef>
#include <optional>
#include <set>
#include <string>
#include <vector>

namespace {

using namespace std::chrono_literals;
using simulator::finding_kind;
using simulator::read;
using simulator::write;

class joined_findings : public simulated_pages {
protected:
  static constexpr std::size_t count = 8;

  void SetUp() override {
    simulated_pages::SetUp();
    at_ = reserve(count * page);
    for (std::size_t i = 0; i < count; ++i) lay(at_ + i * page);
    a_ = new_stream();
    b_ = new_stream();
  }
  void write_all(CUstream stream) { simulator::work(stream, {write(at_, count * page)}, 1us); }

  static void expect_range(simulator::finding const& found, char const* first, std::size_t bytes) {
    EXPECT_EQ(found.block_address, address(first));
    EXPECT_EQ(found.block_bytes, bytes);
    EXPECT_NE(found.text.find("(" + std::to_string(bytes) + " bytes at "), std::string::npos) << found.text;
  }

  char* at_ = nullptr;
  CUstream a_ = nullptr;
  CUstream b_ = nullptr;
};

TEST_F(joined_findings, pages_of_one_missing_order_are_one_finding) {
  write_all(a_);
  simulator::work(b_, {read(at_ + page + 64, 4 * page)}, 1us);
  auto const found = only_finding();
  EXPECT_EQ(found.kind, finding_kind::unordered_access);
  expect_range(found, at_ + page, 5 * page);
  EXPECT_NE(found.text.find(" and 4 more ("), std::string::npos) << found.text;
}

TEST_F(joined_findings, one_page_is_named_alone) {
  write_all(a_);
  simulator::work(b_, {read(at_ + page, 64)}, 1us);
  auto const found = only_finding();
  expect_range(found, at_ + page, page);
  EXPECT_EQ(found.text.find("more"), std::string::npos) << found.text;
}

TEST_F(joined_findings, pages_touched_twice_count_once) {
  simulator::work(a_, {write(at_, 64), write(at_ + page, page), write(at_ + 128, 64)}, 1us);
  simulator::work(b_, {read(at_, 2 * page)}, 1us);
  expect_range(only_finding(), at_, 2 * page);
}

TEST_F(joined_findings, each_earlier_operation_has_a_finding) {
  CUstream const c = new_stream();
  simulator::work(a_, {read(at_, count * page)}, 1us);
  simulator::work(c, {read(at_, count * page)}, 1us);
  simulator::work(a_, {}, 1us);
  write_all(b_);
  auto const found = simulator::take_findings();
  ASSERT_EQ(found.size(), 2u);
  EXPECT_EQ((std::set{found[0].earlier.stream, found[1].earlier.stream}), (std::set{id_of(a_), id_of(c)}));
  for (auto const& each : found) expect_range(each, at_, count * page);
}

TEST_F(joined_findings, each_later_operation_has_a_finding) {
  write_all(a_);
  simulator::work(b_, {read(at_, page)}, 1us);
  simulator::work(b_, {read(at_ + page, 2 * page)}, 1us);
  auto const found = simulator::take_findings();
  ASSERT_EQ(found.size(), 2u);
  expect_range(found[0], at_, page);
  expect_range(found[1], at_ + page, 2 * page);
}

TEST_F(joined_findings, pages_apart_have_a_finding_each) {
  write_all(a_);
  simulator::work(b_, {read(at_, page), read(at_ + 2 * page, 2 * page)}, 1us);
  auto const found = simulator::take_findings();
  ASSERT_EQ(found.size(), 2u);
  expect_range(found[0], at_, page);
  expect_range(found[1], at_ + 2 * page, 2 * page);
}

TEST_F(joined_findings, pages_unmapped_too_early_are_one_finding) {
  write_all(a_);
  EXPECT_EQ(unmap(at_, count * page), CUDA_SUCCESS);
  auto const found = only_finding();
  EXPECT_EQ(found.kind, finding_kind::premature_unmap);
  expect_range(found, at_, count * page);
}

TEST_F(joined_findings, pages_that_lose_their_access_too_early_are_one_finding) {
  write_all(a_);
  EXPECT_EQ(allow(at_, count * page, 0, CU_MEM_ACCESS_FLAGS_PROT_NONE), CUDA_SUCCESS);
  auto const found = only_finding();
  EXPECT_EQ(found.later.action, "cuMemSetAccess");
  expect_range(found, at_, count * page);
}

class joined_blocks : public joined_findings {
protected:
  void SetUp() override {
    joined_findings::SetUp();
    pool_.emplace(naive_pool(at_, count * page));
  }
  std::optional<simulator::checked<naive_pool>> pool_;
};

TEST_F(joined_blocks, parts_of_a_block_are_one_finding) {
  void* const block = pool_->allocate(a_, 3 * page);
  std::vector<simulator::touch> parts;
  for (std::size_t i = 0; i < 12; ++i) parts.push_back(write(static_cast<char*>(block) + i * page / 4, 64));
  simulator::work(a_, parts, 1us);
  simulator::work(b_, {read(block, 3 * page)}, 1us);
  auto const found = simulator::take_findings();
  ASSERT_EQ(found.size(), 2u);
  EXPECT_EQ((std::set{found[0].earlier.action, found[1].earlier.action}),
            (std::set<std::string>{"allocation", "work"}));
  for (auto const& each : found) expect_range(each, static_cast<char*>(block), 3 * page);
  pool_->deallocate(b_, block, 3 * page);
}

TEST_F(joined_blocks, free_and_reuse_of_a_block_are_one_finding_each) {
  void* const block = pool_->allocate(a_, 3 * page);
  order(a_, b_);
  simulator::work(b_, {write(block, 64), write(static_cast<char*>(block) + page, 64)}, 1us);
  pool_->deallocate(a_, block, 3 * page);
  EXPECT_EQ(only_finding().kind, finding_kind::unordered_free);
  ASSERT_EQ(pool_->allocate(b_, 3 * page), block);
  auto const found = only_finding();
  EXPECT_EQ(found.kind, finding_kind::unordered_reuse);
  expect_range(found, static_cast<char*>(block), 3 * page);
}

TEST_F(joined_blocks, two_blocks_have_a_finding_each) {
  void* const first = pool_->allocate(a_, page);
  void* const second = pool_->allocate(a_, page);
  ASSERT_EQ(static_cast<char*>(first) + page, second);
  simulator::work(a_, {write(first, 2 * page)}, 1us);
  simulator::work(b_, {read(first, 2 * page)}, 1us);
  auto const found = simulator::take_findings();
  ASSERT_EQ(found.size(), 2u);
  expect_range(found[0], static_cast<char*>(first), page);
  expect_range(found[1], static_cast<char*>(second), page);
}

} // namespace
