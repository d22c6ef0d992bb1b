// Each resource, each adaptor over each, and each pair of adaptors on a real device: kernels stamp and check the
// blocks.
// SPDX-License-Identifier: Apache-2.0
#include "device_test.hpp"

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <functional>
#include <memory>
#include <ostream>
#include <random>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include <cuda.h>

import gpumem;

#include "subject.hpp"

namespace {

using conformance::subject;

/// Random allocations and frees on two streams and by the host. A free is in the order of the block's last kernel.
class stamped_run {
public:
  stamped_run(subject& from, std::size_t most, unsigned long long* wrong) : from_{from}, most_{most}, wrong_{wrong} {}

  void run(int steps) {
    for (int i = 0; i < steps; ++i) {
      if (live_.size() < 4 || (live_.size() < 24 && random_() % 2)) {
        allocate();
      } else {
        std::swap(live_[random_() % live_.size()], live_.back());
        free(live_.back());
        live_.pop_back();
      }
    }
    for (auto const& each : live_) free(each);
    live_.clear();
    for (auto& each : streams_) each.synchronize();
  }

private:
  struct block {
    void* data;
    std::size_t bytes;
    std::uint64_t value;
    std::size_t home;
    bool by_host;
  };

  void allocate() {
    block made{nullptr, 8 * (1 + random_() % (most_ / 8)), ++values_, random_() % 2, random_() % 4 == 0};
    auto& home = streams_[made.home];
    made.data = made.by_host ? from_.allocate_sync(made.bytes, 256) : from_.allocate(home, made.bytes, 256);
    stamp::write(home.get(), made.data, made.bytes, made.value, random_() % 8 ? 0 : 20);
    live_.push_back(made);
  }

  void free(block const& of) {
    stamp::check(streams_[of.home].get(), of.data, of.bytes, of.value, wrong_, random_() % 8 ? 0 : 20);
    if (of.by_host) {
      streams_[of.home].synchronize();
      return from_.deallocate_sync(of.data, of.bytes, 256);
    }
    auto const where = random_() % 2;
    if (where != of.home) {
      happened_.record(streams_[of.home]);
      streams_[where].wait(happened_);
    }
    from_.deallocate(streams_[where], of.data, of.bytes, 256);
  }

  subject& from_;
  std::size_t most_;
  unsigned long long* wrong_;
  std::uint64_t values_ = 0;
  std::mt19937_64 random_{1};
  std::vector<block> live_;
  std::vector<gpumem::stream> streams_ = [] {
    std::vector<gpumem::stream> made;
    for (int i = 0; i < 2; ++i) made.emplace_back(gpumem::device{0});
    return made;
  }();
  gpumem::event happened_{gpumem::device{0}};
};

class conformance_on_device : public device_test, public testing::WithParamInterface<conformance::group> {};

INSTANTIATE_TEST_SUITE_P(of, conformance_on_device, testing::ValuesIn(conformance::all_groups()),
                         [](auto const& each) { return each.param.name; });

// Returns null for a stack that needs a second device, or memory that this device cannot access, where there is none.
std::unique_ptr<subject> make(conformance::stack const& of) {
  try {
    return of.make();
  } catch (gpumem::cuda_error const& why) {
    if (static_cast<CUresult>(why.status()) != CUDA_ERROR_NOT_SUPPORTED) throw;
    std::printf("skipped: %s: %s\n", of.name.c_str(), why.what());
  } catch (std::invalid_argument const& why) {
    if (gpumem::device::count() > 1) throw;
    std::printf("skipped: %s: %s\n", of.name.c_str(), why.what());
  }
  return nullptr;
}

TEST_P(conformance_on_device, work_reads_its_own_bytes) {
  for (auto const& each : GetParam().stacks) {
    SCOPED_TRACE(each.name);
    if (!each.on_device) continue;
    auto const resource = make(each);
    if (!resource || resource->ordinal() > 0) continue;
    for (std::size_t const most : {std::size_t{4096}, std::size_t{2} << 20})
      stamped_run{*resource, most, wrong_}.run(100);
    EXPECT_EQ(resource->statistics().live, 0u);
  }
}

} // namespace
