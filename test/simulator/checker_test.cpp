// The happens-before checker: what it reports, with which streams and which missing order, and which programs are
// correct.
// SPDX-License-Identifier: Apache-2.0
#include "support/driver.hpp"
#include "support/naive_pool.hpp"

#include <cstdlib>
#include <optional>

namespace {

using namespace std::chrono_literals;
using simulator::finding_kind;
using simulator::read;
using simulator::write;

class checker : public simulated_device {
protected:
  void order(CUstream first, CUstream second) {
    CUevent const e = new_event();
    cu().event_record(e, first);
    cu().stream_wait(second, e, 0);
  }
};

TEST_F(checker, unordered_work_of_two_streams_is_reported_with_the_missing_order) {
  CUstream const a = new_stream();
  CUstream const b = new_stream();
  char* memory = new_memory(1024);
  simulator::work(a, {}, 1us);
  simulator::work(a, {write(memory, 512)}, 1us);
  simulator::work(b, {read(memory + 256, 512)}, 1us);
  simulator::finding const found = only_finding();
  EXPECT_EQ(found.kind, finding_kind::unordered_access);
  EXPECT_EQ(found.earlier.stream, id_of(a));
  EXPECT_EQ(found.earlier.operation, 2u);
  EXPECT_EQ(found.later.stream, id_of(b));
  EXPECT_EQ(found.later.operation, 1u);
  EXPECT_EQ(found.block_address, address(memory));
  EXPECT_EQ(found.block_bytes, 1024u);
  std::string const missing =
      "stream " + std::to_string(id_of(b)) + " is not ordered after work 2 of stream " + std::to_string(id_of(a));
  EXPECT_EQ(found.missing, missing);
  EXPECT_NE(found.text.find("block 1"), std::string::npos) << found.text;
}

TEST_F(checker, reads_and_accesses_of_other_bytes_do_not_conflict) {
  char* memory = new_memory(1024);
  simulator::work(new_stream(), {read(memory, 512)}, 1us);
  simulator::work(new_stream(), {read(memory, 512)}, 1us);
  simulator::work(new_stream(), {write(memory + 512, 512)}, 1us);
}

TEST_F(checker, every_reader_is_remembered) {
  CUstream const a = new_stream();
  CUstream const b = new_stream();
  CUstream const c = new_stream();
  char* memory = new_memory(64);
  simulator::work(a, {read(memory, 64)}, 1us);
  simulator::work(b, {read(memory, 64)}, 1us);
  order(b, c);
  simulator::work(c, {write(memory, 64)}, 1us);
  EXPECT_EQ(only_finding().earlier.stream, id_of(a));
}

TEST_F(checker, order_by_events_through_a_third_stream_is_accepted) {
  CUstream const a = new_stream();
  CUstream const b = new_stream();
  CUstream const c = new_stream();
  char* memory = new_memory(64);
  simulator::work(a, {write(memory, 64)}, 1us);
  order(a, b);
  order(b, c);
  simulator::work(c, {write(memory, 64)}, 1us);
}

TEST_F(checker, order_by_the_legacy_stream_is_accepted) {
  char* memory = new_memory(64);
  simulator::work(new_stream(CU_STREAM_DEFAULT), {write(memory, 64)}, 1us);
  simulator::work(CU_STREAM_LEGACY, {read(memory, 64)}, 1us);
  simulator::work(new_stream(CU_STREAM_DEFAULT), {write(memory, 64)}, 1us);
  EXPECT_TRUE(simulator::report().findings.empty());
  simulator::work(new_stream(CU_STREAM_NON_BLOCKING), {write(memory, 64)}, 1us);
  EXPECT_EQ(only_finding().kind, finding_kind::unordered_access);
}

TEST_F(checker, destroyed_blocking_stream_is_still_before_the_legacy_stream) {
  char* memory = new_memory(64);
  CUstream const a = new_stream(CU_STREAM_DEFAULT);
  simulator::work(a, {write(memory, 64)}, 1us);
  simulator::run_until_idle();
  cu().stream_destroy(a);
  simulator::work(CU_STREAM_LEGACY, {write(memory, 64)}, 1us);
}

TEST_F(checker, only_completion_that_the_host_has_seen_is_an_order) {
  CUstream const a = new_stream();
  CUstream const b = new_stream();
  char* memory = new_memory(64);
  simulator::work(a, {write(memory, 64)}, 1us);
  EXPECT_EQ(cu().stream_synchronize(a), CUDA_SUCCESS);
  simulator::work(b, {write(memory, 64)}, 1us);
  EXPECT_TRUE(simulator::report().findings.empty());
  simulator::run_until_idle();
  simulator::work(a, {write(memory, 64)}, 1us);
  EXPECT_EQ(only_finding().kind, finding_kind::unordered_access);
}

TEST_F(checker, only_a_query_that_reports_completion_is_an_order) {
  CUstream const a = new_stream();
  CUstream const b = new_stream();
  CUevent const e = new_event();
  char* memory = new_memory(64);
  simulator::work(a, {write(memory, 64)}, 1us);
  cu().event_record(e, a);
  EXPECT_EQ(cu().event_query(e), CUDA_ERROR_NOT_READY);
  simulator::work(b, {write(memory, 64)}, 1us);
  EXPECT_EQ(only_finding().kind, finding_kind::unordered_access);
  simulator::run_until_idle();
  EXPECT_EQ(cu().event_query(e), CUDA_SUCCESS);
  EXPECT_EQ(cu().stream_query(b), CUDA_SUCCESS);
  simulator::work(new_stream(), {write(memory, 64)}, 1us);
}

TEST_F(checker, waits_for_a_flag_are_no_order) {
  CUstream const a = new_stream();
  CUstream const b = new_stream();
  char* memory = new_memory(64);
  char* flag = new_memory(4);
  simulator::work(a, {write(memory, 64)}, 1us);
  cu().write_value(a, address(flag), 1, 0);
  cu().wait_value(b, address(flag), 1, CU_STREAM_WAIT_VALUE_GEQ);
  simulator::work(b, {read(memory, 64)}, 1us);
  EXPECT_EQ(only_finding().kind, finding_kind::unordered_access);
  EXPECT_EQ(simulator::run_until_idle(), 0u);
}

TEST_F(checker, copies_and_fills_are_accesses) {
  CUstream const a = new_stream();
  CUstream const b = new_stream();
  char* memory = new_memory(64);
  char* other = new_memory(64);
  cu().fill_async(address(memory), 1, 64, a);
  cu().copy_async(address(other), address(memory), 64, b);
  simulator::finding const found = only_finding();
  EXPECT_EQ(found.earlier.action, "fill");
  EXPECT_EQ(found.later.action, "copy");
}

TEST_F(checker, work_outside_allocations_is_reported) {
  CUstream const s = new_stream();
  char* memory = new_memory(64);
  simulator::work(s, {write(memory + 32, 64)}, 1us);
  EXPECT_EQ(only_finding().kind, finding_kind::unallocated_access);
  cu().free(address(memory));
  simulator::work(s, {read(memory, 64)}, 1us);
  EXPECT_EQ(only_finding().kind, finding_kind::unallocated_access);
}

TEST_F(checker, clock_entry_is_reused_after_its_stream_is_destroyed) {
  char* memory = new_memory(64);
  for (int i = 0; i < 100; ++i) {
    CUstream const s = new_stream();
    simulator::work(s, {write(memory, 64)}, 1us);
    cu().stream_synchronize(s);
    cu().stream_destroy(s);
  }
  EXPECT_TRUE(simulator::report().findings.empty());
  CUstream const unseen = new_stream();
  simulator::work(unseen, {write(memory, 64)}, 1us);
  simulator::run_until_idle();
  cu().stream_destroy(unseen);
  simulator::work(new_stream(), {write(memory, 64)}, 1us);
  EXPECT_EQ(only_finding().kind, finding_kind::unordered_access);
}

class checked_resource : public checker {
protected:
  void SetUp() override {
    checker::SetUp();
    pool_.emplace(new_memory(1 << 20), 1 << 20);
  }
  simulator::checked<naive_pool> pool() { return simulator::checked<naive_pool>(*pool_); }
  std::optional<naive_pool> pool_;
};

TEST_F(checked_resource, use_after_free_and_double_free_are_reported) {
  CUstream const a = new_stream();
  auto checked = pool();
  void* p = checked.allocate(a, 256);
  checked.deallocate(a, p, 256);
  simulator::work(a, {read(p, 256)}, 1us);
  simulator::finding const used = only_finding();
  EXPECT_EQ(used.kind, finding_kind::use_after_free);
  EXPECT_EQ(used.earlier.action, "free");
  checked.deallocate(a, p, 256);
  EXPECT_EQ(only_finding().kind, finding_kind::double_free);
}

TEST_F(checked_resource, free_of_unknown_memory_or_wrong_size_is_reported) {
  CUstream const a = new_stream();
  auto checked = pool();
  char* p = static_cast<char*>(checked.allocate(a, 256));
  checked.deallocate(a, p, 128);
  EXPECT_EQ(only_finding().kind, finding_kind::wrong_size);
  checked.deallocate(a, p + (1 << 19), 64);
  EXPECT_EQ(only_finding().kind, finding_kind::unknown_free);
}

TEST_F(checked_resource, access_to_unallocated_bytes_is_reported) {
  CUstream const a = new_stream();
  auto checked = pool();
  char* p = static_cast<char*>(checked.allocate(a, 256));
  simulator::work(a, {write(p, 257)}, 1us);
  EXPECT_EQ(only_finding().kind, finding_kind::unallocated_access);
}

TEST_F(checked_resource, overlapping_live_blocks_are_reported) {
  CUstream const a = new_stream();
  auto checked = pool();
  void* p = checked.allocate(a, 256);
  pool_->put(p, 256); // without the adaptor's knowledge
  void* q = checked.allocate(a, 128);
  ASSERT_EQ(p, q);
  EXPECT_EQ(only_finding().kind, finding_kind::overlapping_grant);
}

TEST_F(checked_resource, free_before_a_use_on_another_stream_is_reported) {
  CUstream const a = new_stream();
  CUstream const b = new_stream();
  auto checked = pool();
  void* p = checked.allocate(a, 256);
  order(a, b);
  simulator::work(b, {read(p, 256)}, 1us);
  checked.deallocate(a, p, 256);
  simulator::finding const found = only_finding();
  EXPECT_EQ(found.kind, finding_kind::unordered_free);
  EXPECT_EQ(found.earlier.stream, id_of(b));
}

TEST_F(checked_resource, declared_use_is_allowed_at_the_free_but_not_at_the_reuse) {
  CUstream const a = new_stream();
  CUstream const b = new_stream();
  auto checked = pool();
  void* p = checked.allocate(a, 256);
  order(a, b);
  simulator::work(b, {read(p, 256)}, 1us);
  checked.record_use(p, b);
  checked.deallocate(a, p, 256);
  EXPECT_TRUE(simulator::report().findings.empty());
  (void)checked.allocate(a, 256);
  simulator::finding const found = only_finding();
  EXPECT_EQ(found.kind, finding_kind::unordered_reuse);
  EXPECT_EQ(found.earlier.stream, id_of(b));
}

TEST_F(checked_resource, memory_returned_to_the_driver_with_a_live_block_is_reported) {
  CUstream const a = new_stream();
  auto checked = pool();
  (void)checked.allocate(a, 256);
  cu().free(address(pool_->base()));
  EXPECT_EQ(only_finding().kind, finding_kind::live_block_in_freed_memory);
}

TEST_F(checked_resource, free_by_the_host_before_it_has_seen_the_last_use_is_reported) {
  CUstream const a = new_stream();
  auto checked = pool();
  void* p = checked.allocate_sync(256);
  simulator::work(a, {write(p, 256)}, 1us);
  checked.deallocate_sync(p, 256);
  simulator::finding const found = only_finding();
  EXPECT_EQ(found.kind, finding_kind::unordered_free);
  EXPECT_EQ(found.later.stream, 0u);
  EXPECT_EQ(found.missing, "the host has not seen work 1 of stream " + std::to_string(id_of(a)) + " complete");
}

TEST_F(checked_resource, checked_resources_can_be_nested) {
  CUstream const a = new_stream();
  auto outer = pool();
  auto inner = simulator::checked(naive_pool(static_cast<char*>(outer.allocate(a, 4096)), 4096));
  void* p = inner.allocate(a, 256);
  void* q = inner.allocate(a, 256);
  simulator::work(a, {write(p, 512)}, 1us);
  inner.deallocate(a, p, 256);
  inner.deallocate(a, q, 256);
  outer.deallocate(a, p, 4096);
  simulator::expect_silent();
  simulator::work(a, {write(p, 1)}, 1us);
  EXPECT_EQ(only_finding().kind, finding_kind::use_after_free);
}

TEST_F(checked_resource, forwards_properties_and_models_the_concepts) {
  using checked = simulator::checked<naive_pool>;
  static_assert(cuda::mr::resource_with<checked, cuda::mr::device_accessible>);
  static_assert(!cuda::has_property<checked, cuda::mr::host_accessible>);
  static_assert(cuda::has_property<simulator::checked<naive_pinned_pool>, cuda::mr::host_accessible>);
  static_assert(cuda::has_property<naive_pool, gpumem::extend::services>);
  static_assert(!cuda::has_property<checked, gpumem::extend::services>);
  checked one = pool();
  checked const copy = one;
  EXPECT_TRUE(one == copy);
  EXPECT_FALSE(one == pool());
  EXPECT_EQ(get_property(one, pool_name{}), 77);
  cuda::mr::any_resource<cuda::mr::device_accessible> const erased = one;
  CUstream const a = new_stream();
  auto mutable_copy = erased;
  void* p = mutable_copy.allocate(cuda::stream_ref(a), 256, 256);
  one.deallocate(a, p); // through a copy, without the size
  auto const tried = one.try_allocate(a, 256);
  EXPECT_EQ(*tried, p);
  one.deallocate(a, p, 256);
}

} // namespace
