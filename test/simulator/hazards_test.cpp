// Faults that stream-ordered pools have had, planted one at a time: the checker finds and reports each; the correct
// version has no findings.
// SPDX-License-Identifier: Apache-2.0
#include "support/driver.hpp"
#include "support/ordered_pool.hpp"

namespace {

using namespace std::chrono_literals;
using simulator::finding;
using simulator::finding_kind;
using simulator::read;
using simulator::write;

class hazard : public simulated_device {
protected:
  void SetUp() override {
    simulated_device::SetUp();
    a_ = new_stream();
    b_ = new_stream();
    c_ = new_stream();
  }

  ordered_pool pool(bug planted) { return {cu(), new_memory(4096), 4096, planted}; }

  /// Expects exactly one finding: `later` reuses this block, which was freed on `earlier`, and the order between them
  /// is missing.
  void expect_reuse(std::uint64_t earlier, std::uint64_t later, void const* block) {
    auto const all = simulator::take_findings();
    ASSERT_EQ(all.size(), 1u);
    finding const& found = all.front();
    EXPECT_EQ(found.kind, finding_kind::unordered_reuse) << found.text;
    EXPECT_EQ(found.earlier.stream, earlier) << found.text;
    EXPECT_EQ(found.later.stream, later) << found.text;
    EXPECT_EQ(found.block_address, address(block)) << found.text;
    EXPECT_NE(found.block_number, 0u) << found.text;
    EXPECT_EQ(found.missing, "stream " + std::to_string(later) + " is not ordered after free " +
                                 std::to_string(found.earlier.operation) + " of stream " + std::to_string(earlier));
  }

  /// p is used and freed on A, then B requests memory.
  void* reuse_on_another_stream(bug planted) {
    ordered_pool inner = pool(planted);
    simulator::checked checked(inner);
    void* p = checked.allocate(a_, 256);
    simulator::work(a_, {write(p, 256)}, 1us);
    checked.deallocate(a_, p, 256);
    inner.record(a_);
    EXPECT_EQ(checked.allocate(b_, 256), p);
    simulator::work(b_, {write(p, 256)}, 1us);
    return p;
  }

  /// Two neighbouring blocks freed on A and B coalesce, and C requests the range.
  void* merge_of_two_streams(bug planted) {
    ordered_pool inner = pool(planted);
    simulator::checked checked(inner);
    char* p = static_cast<char*>(checked.allocate(a_, 256));
    void* q = checked.allocate(b_, 256);
    simulator::work(a_, {write(p, 256)}, 1us);
    simulator::work(b_, {write(q, 256)}, 1us);
    checked.deallocate(a_, p, 256);
    checked.deallocate(b_, q, 256);
    inner.record(a_);
    inner.record(b_);
    EXPECT_EQ(checked.allocate(c_, 512), p);
    return p;
  }

  /// While an event is being recorded on A, another thread uses and frees p there.
  std::pair<void*, void*> free_during_record(bug planted) {
    ordered_pool inner = pool(planted);
    simulator::checked checked(inner);
    void* p = checked.allocate(a_, 256);
    inner.meanwhile([&] {
      simulator::work(a_, {write(p, 256)}, 1us);
      checked.deallocate(a_, p, 256);
    });
    inner.record(a_);
    return {p, checked.allocate(b_, 256)};
  }

  /// While a first allocation makes B wait for A, another thread allocates on B.
  std::pair<void*, void*> allocate_during_wait(bug planted) {
    ordered_pool inner = pool(planted);
    simulator::checked checked(inner);
    void* p = checked.allocate(a_, 512);
    simulator::work(a_, {write(p, 512)}, 1us);
    checked.deallocate(a_, p, 512);
    inner.record(a_);
    void* during = nullptr;
    inner.meanwhile([&] {
      during = checked.allocate(b_, 256);
      simulator::work(b_, {write(during, 256)}, 1us);
    });
    (void)checked.allocate(b_, 256);
    return {p, during};
  }

  /// A stream is destroyed, and another stream gets the same handle.
  std::pair<std::uint64_t, void*> recycled_handle(bug planted) {
    simulator::checked checked(pool(planted));
    CUstream const old = new_stream();
    std::uint64_t const old_id = id_of(old);
    void* p = checked.allocate(old, 256);
    simulator::work(old, {write(p, 256)}, 1us);
    checked.deallocate(old, p, 256);
    cu().stream_destroy(old);
    recycled_ = new_stream();
    EXPECT_EQ(recycled_, old);
    reused_ = checked.allocate(recycled_, 256);
    return {old_id, p};
  }

  /// A copy on A reads pinned memory, which is freed and granted again there; the host then fills it.
  void* host_write_on_reuse(bug planted) {
    void* memory = nullptr;
    EXPECT_EQ(cu().allocate_host(&memory, 4096), CUDA_SUCCESS);
    simulator::checked checked(ordered_pinned_pool(cu(), static_cast<char*>(memory), 4096, planted));
    char* target = new_memory(256);
    void* p = checked.allocate(a_, 256);
    cu().copy_async(address(target), address(p), 256, a_);
    checked.deallocate(a_, p, 256);
    EXPECT_EQ(checked.allocate(a_, 256), p);
    return p;
  }

  /// After the free, A spins on a flag that B sets after it got its memory.
  CUresult wait_for_a_spinning_stream(bug planted) {
    ordered_pool inner = pool(planted);
    simulator::checked checked(inner);
    flag_ = new_memory(4);
    void* p = checked.allocate(a_, 256);
    simulator::work(a_, {write(p, 256)}, 1us);
    checked.deallocate(a_, p, 256);
    if (planted == bug::none) inner.record(a_);
    cu().wait_value(a_, address(flag_), 1, CU_STREAM_WAIT_VALUE_GEQ);
    void* q = checked.allocate(b_, 256);
    EXPECT_EQ(q, p);
    simulator::work(b_, {write(q, 256)}, 1us);
    cu().write_value(b_, address(flag_), 1, 0);
    return cu().stream_synchronize(b_);
  }

  CUstream a_ = nullptr;
  CUstream b_ = nullptr;
  CUstream c_ = nullptr;
  CUstream recycled_ = nullptr;
  void* reused_ = nullptr;
  char* flag_ = nullptr;
};

TEST_F(hazard, unordered_reuse_is_found) {
  void const* p = reuse_on_another_stream(bug::ignores_order);
  expect_reuse(id_of(a_), id_of(b_), p);
}
TEST_F(hazard, ordered_reuse_is_silent) { reuse_on_another_stream(bug::none); }

TEST_F(hazard, merge_that_drops_a_use_is_found) {
  void const* p = merge_of_two_streams(bug::drops_use_in_merge);
  expect_reuse(id_of(a_), id_of(c_), p);
}
TEST_F(hazard, merge_that_keeps_both_uses_is_silent) { merge_of_two_streams(bug::none); }

TEST_F(hazard, counter_read_after_the_record_is_found) {
  auto const [freed, granted] = free_during_record(bug::reads_after_record);
  EXPECT_EQ(freed, granted);
  expect_reuse(id_of(a_), id_of(b_), freed);
}
TEST_F(hazard, counter_read_before_the_record_is_silent) {
  auto const [freed, granted] = free_during_record(bug::none);
  EXPECT_NE(freed, granted);
}

TEST_F(hazard, clock_published_early_is_found) {
  auto const [freed, during] = allocate_during_wait(bug::publishes_early);
  EXPECT_EQ(freed, during);
  expect_reuse(id_of(a_), id_of(b_), freed);
}
TEST_F(hazard, clock_published_after_the_wait_is_silent) {
  auto const [freed, during] = allocate_during_wait(bug::none);
  EXPECT_EQ(freed, during);
}

TEST_F(hazard, recycled_handle_is_found) {
  auto const [old_id, p] = recycled_handle(bug::keys_by_handle);
  EXPECT_EQ(reused_, p);
  expect_reuse(old_id, id_of(recycled_), p);
}
TEST_F(hazard, stream_known_by_its_id_is_silent) {
  auto const [old_id, p] = recycled_handle(bug::none);
  EXPECT_NE(reused_, p);
}

TEST_F(hazard, host_write_to_reused_memory_is_found) {
  void const* p = host_write_on_reuse(bug::forgets_the_host);
  auto const all = simulator::take_findings();
  ASSERT_EQ(all.size(), 1u);
  EXPECT_EQ(all.front().kind, finding_kind::unordered_reuse);
  EXPECT_EQ(all.front().earlier.stream, id_of(a_));
  EXPECT_EQ(all.front().later.stream, 0u);
  EXPECT_EQ(all.front().block_address, address(p));
  EXPECT_EQ(all.front().missing, "the host has not seen free " + std::to_string(all.front().earlier.operation) +
                                     " of stream " + std::to_string(id_of(a_)) + " complete");
}
TEST_F(hazard, host_memory_granted_after_completion_is_silent) { host_write_on_reuse(bug::none); }

TEST_F(hazard, wait_that_closes_a_cycle_is_found) {
  EXPECT_EQ(wait_for_a_spinning_stream(bug::waits_on_late_event), CUDA_ERROR_TIMEOUT);
  auto const all = simulator::take_findings();
  ASSERT_EQ(all.size(), 1u);
  EXPECT_EQ(all.front().kind, finding_kind::deadlock);
  std::string const a = "stream " + std::to_string(id_of(a_));
  std::string const b = "stream " + std::to_string(id_of(b_));
  EXPECT_NE(all.front().text.find("cuStreamSynchronize for " + b), std::string::npos) << all.front().text;
  EXPECT_NE(all.front().text.find(a + " is at wait for a value"), std::string::npos) << all.front().text;
  EXPECT_NE(all.front().text.find(b + " is at wait for an event"), std::string::npos) << all.front().text;
  *reinterpret_cast<std::uint32_t*>(flag_) = 1;
  EXPECT_EQ(simulator::run_until_idle(), 0u);
}
TEST_F(hazard, wait_on_an_event_recorded_at_the_free_is_silent) {
  EXPECT_EQ(wait_for_a_spinning_stream(bug::none), CUDA_SUCCESS);
  EXPECT_EQ(simulator::run_until_idle(), 0u);
}

} // namespace
