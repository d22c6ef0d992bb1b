// The checker of virtual memory: accesses to unmapped addresses, missing access rights, mappings that are removed too
// early, one page at two addresses.
// SPDX-License-Identifier: Apache-2.0
#include "support/naive_pool.hpp"
#include "support/pages.hpp"

namespace {

using namespace std::chrono_literals;
using simulator::finding_kind;
using simulator::read;
using simulator::write;

class virtual_order : public simulated_pages {
protected:
  void SetUp() override {
    simulated_pages::SetUp();
    at_ = reserve(16 * page);
  }
  char* at_ = nullptr;
};

TEST_F(virtual_order, work_at_unmapped_addresses_is_reported) {
  CUstream const s = new_stream();
  lay(at_);
  simulator::work(s, {write(at_ + page - 64, 64)}, 1us);
  EXPECT_TRUE(simulator::report().findings.empty());
  simulator::work(s, {write(at_ + page - 64, 128)}, 1us);
  auto const found = only_finding();
  EXPECT_EQ(found.kind, finding_kind::unmapped_access);
  EXPECT_EQ(found.block_address, address(at_ + page));
  EXPECT_EQ(found.block_bytes, 64u);
  cu().copy_async(address(at_), address(at_ + 4 * page), 64, s);
  EXPECT_EQ(only_finding().kind, finding_kind::unmapped_access);
  cu().fill_async(address(at_ + 4 * page), 1, 64, s);
  EXPECT_EQ(only_finding().kind, finding_kind::unmapped_access);
  EXPECT_EQ(simulator::run_until_idle(), 0u);
  EXPECT_EQ(unmap(at_), CUDA_SUCCESS);
  EXPECT_EQ(only_finding().kind, finding_kind::premature_unmap);
  EXPECT_EQ(cu().free_addresses(address(at_), 16 * page), CUDA_SUCCESS);
  simulator::work(s, {read(at_, 64)}, 1us);
  EXPECT_EQ(only_finding().kind, finding_kind::unmapped_access) << "the addresses are not reserved either";
}

TEST_F(virtual_order, work_without_access_is_reported) {
  simulator::options two = stepped_by_hand();
  two.devices = 2;
  simulator::reset(two);
  at_ = reserve(16 * page);
  CUcontext other = nullptr;
  ASSERT_EQ(cu().retain(&other, 1), CUDA_SUCCESS);
  memory_handle const memory = create();
  ASSERT_EQ(map(at_, memory), CUDA_SUCCESS);
  CUstream const own = new_stream();
  simulator::work(own, {read(at_, 64)}, 1us);
  EXPECT_EQ(only_finding().kind, finding_kind::access_without_right);
  ASSERT_EQ(allow(at_, page, 0, CU_MEM_ACCESS_FLAGS_PROT_READ), CUDA_SUCCESS);
  simulator::work(own, {read(at_, 64)}, 1us);
  EXPECT_TRUE(simulator::report().findings.empty());
  simulator::work(own, {write(at_, 64)}, 1us);
  EXPECT_EQ(only_finding().kind, finding_kind::access_without_right);
  cu().set_current(other);
  CUstream const peer = new_stream();
  simulator::run_until_idle();
  cu().stream_synchronize(own);
  simulator::work(peer, {read(at_, 64)}, 1us);
  auto const found = only_finding();
  EXPECT_EQ(found.kind, finding_kind::access_without_right);
  EXPECT_NE(found.text.find("device 1"), std::string::npos) << found.text;
  ASSERT_EQ(allow(at_, page, 1), CUDA_SUCCESS);
  simulator::work(peer, {write(at_, 64)}, 1us);
  EXPECT_TRUE(simulator::report().findings.empty());
  cu().release(1);
}

// A copy between contexts touches each side from the device of its context, whichever stream it is on.
TEST_F(virtual_order, copy_between_contexts_needs_access_on_each_side) {
  simulator::options two = stepped_by_hand();
  two.devices = 2;
  simulator::reset(two);
  at_ = reserve(16 * page);
  CUcontext near = nullptr, far = nullptr;
  ASSERT_EQ(cu().get_current(&near), CUDA_SUCCESS);
  ASSERT_EQ(cu().retain(&far, 1), CUDA_SUCCESS);
  char* const there = at_ + 4 * page;
  ASSERT_EQ(map(at_, create()), CUDA_SUCCESS);
  ASSERT_EQ(map(there, create()), CUDA_SUCCESS);
  ASSERT_EQ(allow(at_, page, 0), CUDA_SUCCESS);
  ASSERT_EQ(allow(there, page, 1), CUDA_SUCCESS);
  CUstream const s = new_stream();
  EXPECT_EQ(cu().copy_peer_async(address(there), far, address(at_), near, 64, s), CUDA_SUCCESS);
  EXPECT_TRUE(simulator::report().findings.empty());
  EXPECT_EQ(cu().copy_async(address(there), address(at_), 64, s), CUDA_SUCCESS);
  EXPECT_EQ(only_finding().kind, finding_kind::access_without_right);
  EXPECT_EQ(cu().copy_peer_async(address(there), near, address(at_), near, 64, s), CUDA_SUCCESS);
  EXPECT_EQ(only_finding().kind, finding_kind::access_without_right);
  EXPECT_EQ(cu().copy_peer_async(address(there), far, address(at_), far, 64, s), CUDA_SUCCESS);
  EXPECT_EQ(only_finding().kind, finding_kind::access_without_right);
  EXPECT_EQ(cu().copy_peer_async(address(there), nullptr, address(at_), near, 64, s), CUDA_ERROR_INVALID_CONTEXT);
  simulator::run_until_idle();
  cu().stream_synchronize(s);
  EXPECT_EQ(cu().copy_peer(address(there), far, address(at_), near, 64), CUDA_SUCCESS);
  EXPECT_EQ(cu().copy_peer(address(there), far, address(at_), nullptr, 64), CUDA_ERROR_INVALID_CONTEXT);
  simulator::run_until_idle();
  EXPECT_TRUE(simulator::report().findings.empty());
  cu().release(1);
}

TEST_F(virtual_order, unmapping_before_its_work_has_run_is_reported) {
  CUstream const s = new_stream();
  lay(at_);
  simulator::work(s, {}, 1us);
  simulator::work(s, {read(at_, 64)}, 1us);
  EXPECT_EQ(unmap(at_), CUDA_SUCCESS);
  auto const found = only_finding();
  EXPECT_EQ(found.kind, finding_kind::premature_unmap);
  EXPECT_EQ(found.earlier.stream, id_of(s));
  EXPECT_EQ(found.earlier.operation, 2u);
  EXPECT_EQ(found.later.stream, 0u);
  EXPECT_EQ(found.later.action, "cuMemUnmap");
  EXPECT_EQ(found.block_address, address(at_));
  EXPECT_EQ(found.missing, "the host has not seen work 2 of stream " + std::to_string(id_of(s)) + " complete");
}

TEST_F(virtual_order, unmapping_before_the_host_saw_its_work_complete_is_reported) {
  CUstream const s = new_stream();
  CUevent const e = new_event();
  lay(at_);
  lay(at_ + page);
  simulator::work(s, {write(at_, 64)}, 1us);
  cu().event_record(e, s);
  simulator::work(s, {write(at_ + page, 64)}, 1us);
  simulator::run_until_idle();
  EXPECT_EQ(cu().event_query(e), CUDA_SUCCESS);
  EXPECT_EQ(unmap(at_), CUDA_SUCCESS) << "the event covers the work";
  EXPECT_TRUE(simulator::report().findings.empty());
  EXPECT_EQ(unmap(at_ + page), CUDA_SUCCESS);
  EXPECT_EQ(only_finding().kind, finding_kind::premature_unmap);
}

TEST_F(virtual_order, order_between_streams_is_no_order_for_the_host) {
  CUstream const a = new_stream();
  CUstream const b = new_stream();
  lay(at_);
  simulator::work(a, {write(at_, 64)}, 1us);
  order(a, b);
  simulator::work(b, {write(at_, 64)}, 1us);
  EXPECT_EQ(unmap(at_), CUDA_SUCCESS);
  EXPECT_EQ(simulator::take_findings().size(), 2u) << "both streams are named";
}

TEST_F(virtual_order, access_removed_before_the_host_saw_its_last_use_is_reported) {
  CUstream const s = new_stream();
  lay(at_);
  simulator::work(s, {read(at_, 64)}, 1us);
  EXPECT_EQ(allow(at_, page, 0, CU_MEM_ACCESS_FLAGS_PROT_NONE), CUDA_SUCCESS);
  auto const found = only_finding();
  EXPECT_EQ(found.kind, finding_kind::premature_unmap);
  EXPECT_EQ(found.later.action, "cuMemSetAccess");
  cu().stream_synchronize(s);
  EXPECT_EQ(allow(at_), CUDA_SUCCESS) << "additional rights are never too early";
}

TEST_F(virtual_order, work_through_two_addresses_of_a_page_conflicts) {
  CUstream const a = new_stream();
  CUstream const b = new_stream();
  lay_twice(at_, at_ + 4 * page);
  simulator::work(a, {write(at_, 512)}, 1us);
  simulator::work(b, {read(at_ + 4 * page + 512, 512)}, 1us);
  EXPECT_TRUE(simulator::report().findings.empty()) << "other bytes";
  simulator::work(b, {read(at_ + 4 * page + 511, 512)}, 1us);
  auto const found = only_finding();
  EXPECT_EQ(found.kind, finding_kind::unordered_access);
  EXPECT_EQ(found.earlier.stream, id_of(a));
  EXPECT_EQ(found.later.stream, id_of(b));
  order(a, b);
  simulator::work(b, {write(at_ + 4 * page, 512)}, 1us);
  EXPECT_TRUE(simulator::report().findings.empty()) << "in order";
}

TEST_F(virtual_order, successive_pages_at_one_address_do_not_conflict) {
  CUstream const a = new_stream();
  CUstream const b = new_stream();
  lay_twice(at_, at_ + page);
  simulator::work(a, {write(at_ + page, 64)}, 1us);
  EXPECT_EQ(unmap(at_), CUDA_SUCCESS) << "the work goes through the other address";
  lay(at_);
  simulator::work(b, {write(at_, 64)}, 1us);
}

TEST_F(virtual_order, only_uses_through_a_mapping_make_its_unmapping_premature) {
  CUstream const a = new_stream();
  lay_twice(at_, at_ + page);
  simulator::work(a, {write(at_, 64)}, 1us);
  simulator::work(a, {write(at_ + page, 64)}, 1us); // hides the previous use from a checker that looks only at bytes
  EXPECT_EQ(unmap(at_), CUDA_SUCCESS);
  EXPECT_EQ(only_finding().earlier.operation, 1u);
  EXPECT_EQ(unmap(at_ + page), CUDA_SUCCESS);
  EXPECT_EQ(only_finding().earlier.operation, 2u);
}

TEST_F(virtual_order, graph_is_checked_when_it_is_launched) {
  CUstream const s = new_stream();
  lay(at_);
  ASSERT_EQ(cu().begin_capture(s, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL), CUDA_SUCCESS);
  cu().fill_async(address(at_), 1, 64, s);
  CUgraph graph = nullptr;
  ASSERT_EQ(cu().end_capture(s, &graph), CUDA_SUCCESS);
  CUgraphExec executable = nullptr;
  ASSERT_EQ(cu().instantiate(&executable, graph, 0), CUDA_SUCCESS);
  EXPECT_EQ(unmap(at_), CUDA_SUCCESS);
  EXPECT_TRUE(simulator::report().findings.empty());
  ASSERT_EQ(cu().launch_graph(executable, s), CUDA_SUCCESS);
  EXPECT_EQ(only_finding().kind, finding_kind::unmapped_access);
}

TEST_F(virtual_order, changing_mappings_breaks_a_capture_of_another_thread_unless_relaxed) {
  CUstream const s = new_stream();
  lay(at_);
  ASSERT_EQ(cu().begin_capture(s, CU_STREAM_CAPTURE_MODE_GLOBAL), CUDA_SUCCESS);
  CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
  cu().exchange_mode(&mode);
  lay(at_ + page);
  EXPECT_EQ(unmap(at_ + page), CUDA_SUCCESS);
  cu().exchange_mode(&mode);
  EXPECT_EQ(unmap(at_), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
  CUgraph graph = nullptr;
  EXPECT_EQ(cu().end_capture(s, &graph), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
}

class virtual_blocks : public virtual_order {
protected:
  using checked = simulator::checked<naive_pool>;
};

TEST_F(virtual_blocks, unmapping_of_a_live_block_is_reported) {
  CUstream const s = new_stream();
  lay(at_, 2 * page);
  lay(at_ + 2 * page, page);
  checked pool{naive_pool{at_, 3 * page}};
  void* spanning = pool.allocate(s, 2 * page + 256);
  ASSERT_EQ(spanning, at_);
  cu().stream_synchronize(s);
  EXPECT_EQ(unmap(at_ + 2 * page), CUDA_SUCCESS) << "only the end of the block is mapped";
  EXPECT_EQ(only_finding().kind, finding_kind::live_block_in_freed_memory);
}

TEST_F(virtual_blocks, free_of_a_block_alone_does_not_allow_unmapping) {
  CUstream const s = new_stream();
  lay(at_);
  checked pool{naive_pool{at_, page}};
  void* p = pool.allocate(s, 256);
  pool.deallocate(s, p, 256);
  EXPECT_EQ(unmap(at_), CUDA_SUCCESS);
  auto const found = only_finding();
  EXPECT_EQ(found.kind, finding_kind::premature_unmap);
  EXPECT_EQ(found.earlier.action, "free");
}

TEST_F(virtual_blocks, page_keeps_its_history_when_it_moves) {
  CUstream const a = new_stream();
  CUstream const b = new_stream();
  lay_twice(at_, at_ + page);
  checked lower{naive_pool{at_, page}};
  checked upper{naive_pool{at_ + page, page}};
  void* p = lower.allocate(a, 256);
  lower.deallocate(a, p, 256);
  void* q = upper.allocate(b, 256);
  EXPECT_EQ(only_finding().kind, finding_kind::unordered_reuse) << "the bytes are those that stream a used";
  upper.deallocate(b, q, 256);
}

TEST_F(virtual_blocks, blocks_in_one_page_at_two_addresses_are_found) {
  CUstream const s = new_stream();
  lay_twice(at_, at_ + page);
  checked lower{naive_pool{at_, page}};
  checked upper{naive_pool{at_ + page, page}};
  void* p = lower.allocate(s, 256);
  void* q = upper.allocate(s, 256);
  EXPECT_EQ(only_finding().kind, finding_kind::overlapping_grant);
  upper.deallocate(s, q, 256);
  simulator::take_findings();
  lower.deallocate(s, p, 256);
}

TEST_F(virtual_blocks, access_to_a_freed_block_is_reported_though_its_page_is_used_elsewhere) {
  CUstream const s = new_stream();
  lay_twice(at_, at_ + page);
  checked lower{naive_pool{at_, page}};
  checked upper{naive_pool{at_ + page, page}};
  void* p = lower.allocate(s, 256);
  lower.deallocate(s, p, 256);
  void* q = upper.allocate(s, 256);
  simulator::work(s, {write(q, 256)}, 1us);
  EXPECT_TRUE(simulator::report().findings.empty());
  simulator::work(s, {write(p, 256)}, 1us);
  EXPECT_EQ(only_finding().kind, finding_kind::unallocated_access);
  upper.deallocate(s, q, 256);
  simulator::work(s, {read(p, 256)}, 1us);
  EXPECT_EQ(only_finding().kind, finding_kind::use_after_free);
  upper.deallocate(s, q, 256);
  EXPECT_EQ(only_finding().kind, finding_kind::double_free);
}

TEST_F(virtual_blocks, access_to_unallocated_bytes_is_found) {
  CUstream const s = new_stream();
  lay(at_);
  checked pool{naive_pool{at_, page}};
  void* p = pool.allocate(s, 256);
  simulator::work(s, {write(at_ + 512, 64)}, 1us);
  EXPECT_EQ(only_finding().kind, finding_kind::unallocated_access);
  pool.deallocate(s, p, 256);
  cu().stream_synchronize(s);
  EXPECT_EQ(unmap(at_), CUDA_SUCCESS);
  lay(at_);
  simulator::work(s, {write(at_, page)}, 1us);
}

} // namespace
