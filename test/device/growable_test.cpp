// Buffers that grow on a real device: kernels stamp and check every page while the buffer changes, and a kernel is in
// flight all the time; graphs that were captured while the buffer was small run over the grown part.
// SPDX-License-Identifier: Apache-2.0
#include "device_test.hpp"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <random>
#include <utility>

import gpumem;
import gpumem.growable;

using namespace gpumem;

namespace {

constexpr std::size_t mib = std::size_t{1} << 20, unit = 2 * mib, units = 512;

// A buffer whose units have stamps, and the stamps that a correct one has; 0: the unit is not mapped.
class stamped_buffer {
public:
  stamped_buffer(pool_resource<cuda_resource>& pool, std::size_t page, std::uint64_t seed, unsigned long long* wrong)
      : step_{page ? page : unit}, buffer_{pool, streams_[0], {.reserve = units * unit, .page = page}}, random_{seed},
        wrong_{wrong} {}

  void step() {
    if (random_() % 4 == 0) change_stream();
    auto const kind = random_() % 4;
    if (kind == 0) grow();
    if (kind == 1) shrink();
    if (kind == 2) discard();
    if (kind == 3) restore();
    for (std::size_t at = random_() % 16; at < units; at += 16) check(at);
  }
  void check_all() {
    for (std::size_t at = 0; at < units; ++at) check(at);
  }
  stream& current() { return streams_[on_]; }
  std::size_t changes() const { return changes_; }

private:
  std::byte* address(std::size_t at) const { return static_cast<std::byte*>(buffer_.data()) + at * unit; }
  std::size_t size_in_units() const { return (buffer_.bytes() + unit - 1) / unit; }

  void change_stream() {
    event done{device{0}};
    done.record(current());
    on_ = 1 - on_;
    current().wait(done);
  }
  void write(std::size_t at) {
    values_[at] = ++last_;
    stamp::write(current().get(), address(at), unit, last_);
  }
  void check(std::size_t at) {
    if (values_[at]) stamp::check(current().get(), address(at), unit, values_[at], wrong_);
  }
  void grow() {
    auto const mapped = buffer_.mapped_bytes();
    if (!buffer_.try_grow_to(current(), random_() % (units * unit) + 1)) return;
    for (auto const end = end_ + (buffer_.mapped_bytes() - mapped) / unit; end_ < end; ++end_) write(end_);
    ++changes_;
  }
  void shrink() {
    auto const bytes = buffer_.bytes() - random_() % (buffer_.bytes() / 4 + 1);
    auto const last = std::min((bytes + step_ - 1) / step_ * step_ / unit, units);
    auto end = (bytes + unit - 1) / unit; // the page stays up to what is discarded in it
    while (end < last && values_[end]) ++end;
    while (end_ > end) {
      check(--end_);
      values_[end_] = 0;
    }
    buffer_.shrink_to(current(), bytes);
  }
  // Returns a random run of units below the size that are mapped, or of units that are not.
  std::pair<std::size_t, std::size_t> run_of(bool mapped) {
    auto const end = size_in_units();
    if (end == 0) return {};
    auto const first = random_() % end;
    auto last = first;
    while (last < std::min(end, first + 32) && (values_[last] != 0) == mapped) ++last;
    return {first, last - first};
  }
  void discard() {
    auto const [first, count] = run_of(true);
    if (count == 0) return;
    for (auto at = first; at < first + count; ++at) check(at);
    buffer_.discard(current(), first * unit, count * unit);
    std::fill_n(values_.begin() + static_cast<std::ptrdiff_t>(first), count, 0);
    ++changes_;
  }
  void restore() {
    auto const [first, count] = run_of(false);
    if (count == 0 || !buffer_.try_restore(current(), first * unit, count * unit)) return;
    for (auto at = first; at < first + count; ++at) write(at);
    ++changes_;
  }

  std::array<stream, 2> streams_{stream{device{0}}, stream{device{0}}};
  std::size_t step_;
  growable_buffer buffer_;
  std::mt19937_64 random_;
  unsigned long long* wrong_;
  std::size_t on_ = 0, end_ = 0, changes_ = 0;
  std::uint64_t last_ = 0;
  std::array<std::uint64_t, units> values_{};
};

class growable_on_device : public device_test {};

TEST_F(growable_on_device, pages_keep_their_stamps_beside_a_running_kernel) {
  unsigned volatile* flag = nullptr;
  void* made = nullptr;
  ASSERT_EQ(cudaHostAlloc(&made, sizeof(unsigned), cudaHostAllocDefault), cudaSuccess);
  flag = static_cast<unsigned volatile*>(made);
  *flag = 0;
  {
    stream busy{device{0}};
    for (std::size_t const page : {unit, 32 * mib, std::size_t{0}}) {
      pool_resource pool{device{0}, {.limit = 768 * mib}};
      stamped_buffer buffer{pool, page, 1 + page, wrong_};
      *flag = 0;
      stamp::wait_for(busy.get(), flag);
      for (int i = 0; i < 1'000; ++i) {
        buffer.step();
        if (i % 100 == 0) pool.trim();
      }
      buffer.check_all();
      EXPECT_EQ(cudaStreamQuery(busy.get()), cudaErrorNotReady) << "a call waited for the kernel";
      *flag = 1;
      std::printf("pages of %zu MiB: %zu changes; peak %zu MiB reserved\n", page / mib, buffer.changes(),
                  pool.statistics().peak_reserved / mib);
      EXPECT_GT(buffer.changes(), 300u);
      EXPECT_LE(pool.statistics().peak_reserved, 768 * mib);
      buffer.current().synchronize();
      busy.synchronize();
    }
  }
  EXPECT_EQ(cudaFreeHost(made), cudaSuccess);
}

TEST_F(growable_on_device, graph_that_was_captured_small_runs_over_the_grown_part) {
  pool_resource pool{device{0}};
  stream on{device{0}};
  growable_buffer buffer{pool, on, {.reserve = 1024 * mib, .initial = 2 * mib}};
  auto* const data = static_cast<std::byte*>(buffer.data());
  // The kernels touch addresses at which nothing is mapped yet.
  on.begin_capture();
  stamp::write(on.get(), data, 256 * mib, 3);
  stamp::check(on.get(), data + 128 * mib, 128 * mib, 3, wrong_);
  auto* const graph = on.end_capture();
  CUgraphExec executable = nullptr;
  ASSERT_EQ(cudaGraphInstantiate(&executable, graph, 0), cudaSuccess);
  for (int i = 0; i < 20; ++i) {
    buffer.resize(on, 256 * mib);
    ASSERT_EQ(cudaGraphLaunch(executable, on.get()), cudaSuccess);
    buffer.discard(on, 0, 64 * mib);
    if (i % 2) on.synchronize();
    if (i % 4 == 1) pool.trim();
    buffer.restore(on, 0, 64 * mib).wait();
    ASSERT_EQ(cudaGraphLaunch(executable, on.get()), cudaSuccess);
    buffer.shrink_to(on, 2 * mib);
  }
  on.synchronize();
  EXPECT_EQ(cudaGraphExecDestroy(executable), cudaSuccess);
  EXPECT_EQ(cudaGraphDestroy(graph), cudaSuccess);
}

} // namespace
