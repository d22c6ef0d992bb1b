// Random programs over a small pool: with a correct pool no seed has findings and all stamps hold; a faulty pool is
// found.
// SPDX-License-Identifier: Apache-2.0
#include "support/driver.hpp"
#include "support/ordered_pool.hpp"

#include <array>
#include <random>

namespace {

using namespace std::chrono_literals;
using simulator::read;
using simulator::write;

constexpr int streams = 4;
constexpr int operations = 300;

class random_program : public simulated_device {
protected:
  random_program() : simulated_device({}) {}

  struct block {
    char* pointer;
    std::size_t bytes;
    int stream;
    std::uint32_t stamp;
  };

  /// One program: allocates and stamps blocks, checks the stamps and frees; sometimes records an event or waits on the
  /// host.
  void play(std::uint64_t seed, bug planted) {
    simulator::reset(options_of(seed));
    std::mt19937_64 chance(seed);
    std::array<CUstream, streams> on{};
    for (CUstream& s : on) s = new_stream();
    ordered_pool inner(cu(), new_memory(64 << 10), 64 << 10, planted);
    simulator::checked checked(inner);
    std::vector<block> live;
    for (int i = 0; i < operations; ++i) {
      int const s = static_cast<int>(chance() % streams);
      auto const dice = chance() % 16;
      if (dice == 0)
        cu().stream_synchronize(on[s]);
      else if (dice < 8 && live.size() < 32)
        allocate(checked, live, on, s, 256 * (1 + chance() % 4));
      else if (!live.empty())
        free(inner, checked, live, on, chance() % live.size());
    }
    simulator::run_until_idle();
  }

  void allocate(simulator::checked<ordered_pool>& pool, std::vector<block>& live,
                std::array<CUstream, streams> const& on, int s, std::size_t bytes) try {
    auto* p = static_cast<char*>(pool.allocate(on[s], bytes));
    std::uint32_t const stamp = ++stamps_;
    simulator::work(on[s], {write(p, bytes)}, 1us, [=] { *reinterpret_cast<std::uint32_t*>(p) = stamp; });
    live.push_back({p, bytes, s, stamp});
  } catch (std::bad_alloc const&) { ++refused_; }

  void free(ordered_pool& inner, simulator::checked<ordered_pool>& pool, std::vector<block>& live,
            std::array<CUstream, streams> const& on, std::size_t which) {
    block const old = live[which];
    live.erase(live.begin() + static_cast<std::ptrdiff_t>(which));
    simulator::work(on[old.stream], {read(old.pointer, old.bytes)}, 1us,
                    [this, old] { overwritten_ += *reinterpret_cast<std::uint32_t*>(old.pointer) != old.stamp; });
    pool.deallocate(on[old.stream], old.pointer, old.bytes);
    inner.record(on[old.stream]);
  }

  static simulator::options options_of(std::uint64_t seed) {
    simulator::options how;
    how.seed = seed;
    how.keep_objects = false;
    return how;
  }

  std::uint32_t stamps_ = 0;
  std::uint64_t overwritten_ = 0;
  std::uint64_t refused_ = 0;
};

TEST_F(random_program, correct_pool_has_no_findings_and_keeps_its_bytes) {
  for (std::uint64_t seed = 1; seed <= 100; ++seed) {
    play(seed, bug::none);
    ASSERT_NO_THROW(simulator::expect_silent()) << "seed " << seed;
    ASSERT_EQ(overwritten_, 0u) << "seed " << seed;
  }
}

class wrong_pool : public random_program, public testing::WithParamInterface<bug> {};

TEST_P(wrong_pool, wrong_pool_is_found_before_its_bytes_break) {
  std::uint64_t found = 0;
  std::uint64_t broken = 0;
  for (std::uint64_t seed = 1; seed <= 50; ++seed) {
    overwritten_ = 0;
    play(seed, GetParam());
    bool const told = !simulator::take_findings().empty();
    found += told;
    broken += overwritten_ != 0;
    EXPECT_FALSE(overwritten_ != 0 && !told) << "seed " << seed << " overwrote bytes without a finding";
  }
  EXPECT_GT(broken, 0u);
  EXPECT_GT(found, 45u);
}

INSTANTIATE_TEST_SUITE_P(bugs, wrong_pool, testing::Values(bug::ignores_order, bug::drops_use_in_merge));

TEST_F(random_program, equal_seeds_give_equal_runs) {
  auto const findings_of = [&](std::uint64_t seed) {
    play(seed, bug::ignores_order);
    std::vector<std::uint64_t> told;
    for (auto const& found : simulator::take_findings()) {
      told.push_back(found.block_number);
      told.push_back(found.later.operation);
    }
    told.push_back(simulator::report().operations_run);
    return told;
  };
  auto const first = findings_of(11);
  EXPECT_GT(first.size(), 1u);
  EXPECT_EQ(first, findings_of(11));
  EXPECT_NE(first, findings_of(12));
}

} // namespace
