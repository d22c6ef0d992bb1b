// Batches of copies: their arguments, when they read their sources, and what the checker finds.
// SPDX-License-Identifier: Apache-2.0
#include "support/driver.hpp"

#include <array>
#include <cstring>
#include <limits>
#include <vector>

namespace {

using namespace std::chrono_literals;

constexpr std::size_t none = std::numeric_limits<std::size_t>::max();

/// The form before CUDA 13: it tells which copy failed.
using first_form = CUresult(CUdeviceptr*, CUdeviceptr*, size_t*, size_t, CUmemcpyAttributes*, size_t*, size_t, size_t*,
                            CUstream);

class batch_copy : public simulated_device {
protected:
  static CUmemcpyAttributes attributes(CUmemcpySrcAccessOrder order = CU_MEMCPY_SRC_ACCESS_ORDER_STREAM,
                                       unsigned flags = CU_MEMCPY_FLAG_DEFAULT) {
    CUmemcpyAttributes made{};
    made.srcAccessOrder = order;
    made.flags = flags;
    return made;
  }

  struct copies {
    std::vector<CUdeviceptr> to, from;
    std::vector<std::size_t> bytes;

    copies& add(void const* target, void const* source, std::size_t size) {
      to.push_back(address(target));
      from.push_back(address(source));
      bytes.push_back(size);
      return *this;
    }
  };

  static CUresult run(copies all, CUstream on, std::vector<CUmemcpyAttributes> how = {attributes()},
                      std::vector<std::size_t> first = {0}) {
    const decltype(&::cuMemcpyBatchAsync) call = entry{"cuMemcpyBatchAsync"};
    return call(all.to.data(), all.from.data(), all.bytes.data(), all.to.size(), how.data(), first.data(), how.size(),
                on);
  }

  static CUresult run_first_form(copies all, CUstream on, std::size_t& failed) {
    first_form* call = entry{"cuMemcpyBatchAsync", 12080};
    CUmemcpyAttributes how = attributes();
    std::size_t first = 0;
    return call(all.to.data(), all.from.data(), all.bytes.data(), all.to.size(), &how, &first, 1, &failed, on);
  }

  CUstream s_ = nullptr;
  char* a_ = nullptr;
  char* b_ = nullptr;

  void SetUp() override {
    simulated_device::SetUp();
    s_ = new_stream();
    a_ = new_memory(256);
    b_ = new_memory(256);
  }
};

TEST_F(batch_copy, it_copies_in_stream_order) {
  std::memset(a_, 1, 256);
  ASSERT_EQ(run(copies{}.add(b_, a_, 64).add(b_ + 128, a_ + 64, 32), s_), CUDA_SUCCESS);
  EXPECT_EQ(b_[0], 0) << "the copy ran during the call";
  cu().stream_synchronize(s_);
  EXPECT_EQ(b_[63], 1);
  EXPECT_EQ(b_[64], 0);
  EXPECT_EQ(b_[159], 1);
}

TEST_F(batch_copy, invalid_arguments_are_refused) {
  copies const one = copies{}.add(b_, a_, 64);
  copies const two = copies{one}.add(b_ + 64, a_ + 64, 64);
  EXPECT_EQ(run({}, s_), CUDA_ERROR_INVALID_VALUE) << "no copy";
  EXPECT_EQ(run(one, s_, {}, {}), CUDA_ERROR_INVALID_VALUE) << "no attributes";
  EXPECT_EQ(run(one, s_, {attributes(), attributes()}, {0, 1}), CUDA_ERROR_INVALID_VALUE) << "more than copies";
  EXPECT_EQ(run(two, s_, {attributes()}, {1}), CUDA_ERROR_INVALID_VALUE) << "copy 0 has no attributes";
  EXPECT_EQ(run(two, s_, {attributes(), attributes()}, {0, 0}), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(run(two, s_, {attributes(), attributes()}, {0, 2}), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(run(one, s_, {attributes(CU_MEMCPY_SRC_ACCESS_ORDER_INVALID)}), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(run(one, s_, {attributes(CU_MEMCPY_SRC_ACCESS_ORDER_MAX)}), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(run(one, s_, {attributes(CU_MEMCPY_SRC_ACCESS_ORDER_STREAM, 2)}), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(run(one, nullptr), CUDA_ERROR_INVALID_VALUE) << "the legacy stream";
  EXPECT_EQ(run(one, CU_STREAM_LEGACY), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(simulator::report().operations_pending, 0u);
  EXPECT_EQ(run(one, CU_STREAM_PER_THREAD), CUDA_SUCCESS);
  EXPECT_EQ(run(two, s_, {attributes(), attributes(CU_MEMCPY_SRC_ACCESS_ORDER_ANY, 1)}, {0, 1}), CUDA_SUCCESS);
  cu().context_synchronize();
  simulator::take_findings(); // the batches on two streams wrote the same bytes
}

TEST_F(batch_copy, its_first_form_tells_which_copy_failed) {
  std::size_t failed = 7;
  EXPECT_EQ(run_first_form(copies{}.add(b_, a_, 8).add(b_ + 8, nullptr, 8), s_, failed), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(failed, 1u);
  EXPECT_EQ(run_first_form({}, s_, failed), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(failed, none);
  EXPECT_EQ(run_first_form(copies{}.add(b_, a_, 8), s_, failed), CUDA_SUCCESS);
  EXPECT_EQ(failed, none);
}

TEST_F(batch_copy, a_source_in_stream_order_is_read_when_the_stream_reaches_it) {
  std::array<char, 64> own{};
  ASSERT_EQ(run(copies{}.add(a_, own.data(), own.size()), s_), CUDA_SUCCESS);
  own.fill(3); // unlike a usual copy, which reads pageable memory during the call
  cu().stream_synchronize(s_);
  EXPECT_EQ(a_[0], 3);
}

TEST_F(batch_copy, a_source_of_the_call_is_read_during_it) {
  std::array<char, 64> own{};
  own.fill(4);
  auto const how = attributes(CU_MEMCPY_SRC_ACCESS_ORDER_DURING_API_CALL);
  ASSERT_EQ(run(copies{}.add(a_, own.data(), own.size()), s_, {how}), CUDA_SUCCESS);
  own.fill(0);
  EXPECT_EQ(a_[0], 0);
  cu().stream_synchronize(s_);
  EXPECT_EQ(a_[0], 4);
}

TEST_F(batch_copy, a_source_in_stream_order_comes_after_earlier_work) {
  simulator::work(s_, {simulator::write(a_, 64)}, 1us);
  ASSERT_EQ(run(copies{}.add(b_, a_, 64), s_), CUDA_SUCCESS);
}

TEST_F(batch_copy, a_source_of_the_call_comes_in_no_order_after_earlier_work) {
  simulator::work(s_, {simulator::write(a_, 64)}, 1us);
  auto const how = attributes(CU_MEMCPY_SRC_ACCESS_ORDER_DURING_API_CALL);
  ASSERT_EQ(run(copies{}.add(b_, a_, 64), s_, {how}), CUDA_SUCCESS);
  auto const found = only_finding();
  EXPECT_EQ(found.kind, simulator::finding_kind::unordered_access);
  EXPECT_EQ(found.later.stream, 0u) << found.text;
}

TEST_F(batch_copy, a_source_of_any_time_comes_in_stream_order_only_if_cuda_allocated_it) {
  auto const how = attributes(CU_MEMCPY_SRC_ACCESS_ORDER_ANY);
  simulator::work(s_, {simulator::write(a_, 64)}, 1us);
  ASSERT_EQ(run(copies{}.add(b_, a_, 64), s_, {how}), CUDA_SUCCESS);
  EXPECT_TRUE(simulator::report().findings.empty());
  std::array<char, 64> own{};
  ASSERT_EQ(cu().register_host(own.data(), own.size(), 0), CUDA_SUCCESS);
  simulator::work(s_, {simulator::write(own.data(), own.size())}, 1us);
  ASSERT_EQ(run(copies{}.add(b_, own.data(), own.size()), s_, {how}), CUDA_SUCCESS);
  auto const found = only_finding();
  EXPECT_EQ(found.kind, simulator::finding_kind::unordered_access);
  EXPECT_EQ(found.later.stream, id_of(s_)) << found.text;
  cu().stream_synchronize(s_);
  EXPECT_EQ(cu().unregister_host(own.data()), CUDA_SUCCESS);
}

TEST_F(batch_copy, a_source_of_any_time_is_read_until_the_copy_ends) {
  ASSERT_EQ(run(copies{}.add(b_, a_, 64), s_, {attributes(CU_MEMCPY_SRC_ACCESS_ORDER_ANY)}), CUDA_SUCCESS);
  simulator::work(new_stream(), {simulator::write(a_, 64)}, 1us);
  EXPECT_EQ(only_finding().kind, simulator::finding_kind::unordered_access);
}

TEST_F(batch_copy, copies_of_one_batch_have_no_order) {
  ASSERT_EQ(run(copies{}.add(b_, a_, 64).add(a_ + 128, b_ + 63, 8), s_), CUDA_SUCCESS);
  EXPECT_NE(only_finding().text.find("copies 0 and 1 of a batch"), std::string::npos);
  ASSERT_EQ(run(copies{}.add(b_, a_, 64).add(b_ + 32, a_ + 64, 8), s_), CUDA_SUCCESS);
  EXPECT_EQ(only_finding().kind, simulator::finding_kind::unordered_access);
  ASSERT_EQ(run(copies{}.add(b_, a_, 64).add(b_ + 64, a_ + 32, 64).add(b_, a_, 0), s_), CUDA_SUCCESS)
      << "two may read the same bytes";
}

TEST_F(batch_copy, unordered_batches_are_found) {
  ASSERT_EQ(run(copies{}.add(b_, a_, 64), s_), CUDA_SUCCESS);
  ASSERT_EQ(run(copies{}.add(b_ + 32, a_, 64), new_stream()), CUDA_SUCCESS);
  EXPECT_EQ(only_finding().kind, simulator::finding_kind::unordered_access);
}

} // namespace
