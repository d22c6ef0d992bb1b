// Random programs on virtual pages, compared with a model: pages, reserved bytes, contents, and no findings.
// SPDX-License-Identifier: Apache-2.0
#include "virtual_pages.hpp"

#include <algorithm>
#include <iterator>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include <cuda.h>

namespace {

namespace simulator = gpumem::simulator;
using gpumem::extend::page_extent;
using gpumem::extend::page_info;

constexpr std::size_t addresses = 128 * mib;
constexpr int steps = 150;

/// Planted errors of the program or of the driver.
enum class trouble { none, refusals, forgotten_waits };

/// Counts of the operations.
struct tally {
  std::size_t maps = 0;
  std::size_t aliases = 0;
  std::size_t moves = 0;
  std::size_t unmaps = 0;
  std::size_t pinned = 0;   // unmaps that a pin prevented
  std::size_t refusals = 0; // of possible operations
};

class program {
public:
  program(std::uint64_t seed, trouble planted, tally& done) : chance_{seed}, planted_{planted}, done_{done} {}

  void run() {
    for (int i = 0; i < steps; ++i) {
      if (planted_ == trouble::refusals && below(8) == 0) refuse_something();
      switch (below(8)) {
      case 0:
      case 1:
      case 2: map(); break;
      case 3: alias(); break;
      case 4: move(); break;
      case 5: pin(); break;
      default: unmap();
      }
      if (testing::Test::HasFatalFailure()) return;
      compare();
    }
    stream_.synchronize();
    if (planted_ == trouble::forgotten_waits) return; // its writes may have gone to wrong pages
    for (auto const& [offset, page] : model_) EXPECT_EQ(stamp_at(offset), page->stamp) << "at " << offset / mib;
    for (auto const& [offset, page] : model_) EXPECT_EQ(stamp_at(offset + page->bytes - 4), page->stamp);
  }

private:
  struct physical {
    std::size_t bytes;
    std::uint32_t stamp;
    unsigned pins = 0;
  };
  using page_map = std::map<std::size_t, std::shared_ptr<physical>>;

  std::uint64_t below(std::uint64_t bound) { return chance_() % bound; }
  char* at(std::size_t offset) const { return static_cast<char*>(pages_.base()) + offset; }
  std::uint32_t stamp_at(std::size_t offset) const { return *reinterpret_cast<std::uint32_t const*>(at(offset)); }

  void write(std::size_t offset, std::uint32_t value) {
    auto const address = reinterpret_cast<CUdeviceptr>(at(offset));
    ASSERT_EQ(gpumem::driver_api::driver().memset_d32_async(address, value, 1, stream_.get()), CUDA_SUCCESS);
  }
  void stamp(std::size_t offset, physical& page) {
    page.stamp = ++stamps_;
    write(offset, page.stamp);
    write(offset + page.bytes - 4, page.stamp);
  }

  void refuse_something() {
    constexpr char const* calls[] = {"cuMemCreate", "cuMemMap", "cuMemSetAccess", "cuMemUnmap", "cuMemRelease"};
    simulator::fail_call(calls[below(std::size(calls))], 1 + below(3), CUDA_ERROR_NOT_PERMITTED);
  }

  bool is_vacant(page_extent run) const {
    return std::none_of(model_.begin(), model_.end(), [&](auto const& page) {
      return page.first < run.end() && page.first + page.second->bytes > run.offset;
    });
  }
  std::optional<page_map::iterator> some_page() {
    if (model_.empty()) return std::nullopt;
    return std::next(model_.begin(), static_cast<std::ptrdiff_t>(below(model_.size())));
  }

  /// Waits until no enqueued work uses the pages.
  void wait() {
    if (planted_ != trouble::forgotten_waits) stream_.synchronize();
  }

  void map() {
    auto const bytes = (1 + below(6)) * 2 * mib;
    auto const page = below(3) * 2 * mib;
    auto const random = below(addresses / mib / 2) * 2 * mib;
    auto const offset = below(2) == 0 ? pages_.find_extent(bytes) : std::optional{random};
    if (!offset) return;
    page_extent const run{*offset, bytes};
    bool const possible = run.end() <= addresses && is_vacant(run);
    auto const got = pages_.map(*offset, bytes, page);
    ASSERT_TRUE(!got || possible);
    ASSERT_TRUE(got || !possible || planted_ == trouble::refusals);
    done_.refusals += !got && possible;
    if (!got) return;
    ++done_.maps;
    for (auto end = offset.value(); end < run.end();) {
      auto const size = std::min(page != 0 ? page : 2 * mib, run.end() - end);
      auto const made = std::make_shared<physical>(physical{size, 0});
      model_.emplace(end, made);
      stamp(end, *made);
      end += size;
    }
  }

  void alias() { copy_page(false); }
  void move() {
    wait();
    copy_page(true);
  }

  void copy_page(bool leave) {
    auto const from = some_page();
    if (!from) return;
    auto const [offset, page] = **from;
    auto const to =
        below(2) == 0 ? pages_.find_extent(page->bytes) : std::optional{below(addresses / mib / 2) * 2 * mib};
    if (!to) return;
    page_extent const run{*to, page->bytes};
    bool const possible = page->pins == 0 && run.end() <= addresses && is_vacant(run);
    auto const got = leave ? pages_.move(offset, *to) : pages_.alias(offset, *to);
    ASSERT_TRUE(!got || possible);
    ASSERT_TRUE(got || !possible || planted_ == trouble::refusals);
    if (!got) return;
    ++(leave ? done_.moves : done_.aliases);
    if (leave) model_.erase(*from);
    model_.emplace(*to, page);
    if (below(2) == 0) stamp(*to, *page);
  }

  void pin() {
    auto const which = some_page();
    if (!which) return;
    auto const& [offset, page] = **which;
    if (page->pins > 0) {
      pages_.unpin(at(offset), 1);
      --page->pins;
    } else if (below(4) == 0) {
      ASSERT_TRUE(pages_.pin(at(offset), page->bytes));
      ++page->pins;
    }
  }

  void unmap() {
    auto const which = some_page();
    if (!which) return;
    wait();
    auto last = *which;
    auto const offset = last->first;
    auto end = offset;
    bool pinned = false;
    do {
      pinned = pinned || last->second->pins > 0;
      end += last->second->bytes;
      ++last;
    } while (last != model_.end() && last->first == end && below(2) == 0);
    ASSERT_EQ(pages_.unmap(offset, end - offset), !pinned);
    ++(pinned ? done_.pinned : done_.unmaps);
    if (pinned) return;
    model_.erase(*which, last);
  }

  void compare() {
    std::vector<page_info> expected, told;
    std::map<physical const*, unsigned> uses;
    std::size_t bytes = 0;
    for (auto const& [offset, page] : model_) {
      if (++uses[page.get()] == 1) bytes += page->bytes;
    }
    for (auto const& [offset, page] : model_) {
      expected.push_back({{offset, page->bytes}, page->pins > 0, uses[page.get()] > 1});
    }
    pages_.visit([&](page_info const& page) { told.push_back(page); });
    EXPECT_EQ(simulator::report().bytes_allocated, pages_.mapped_bytes());
    if (planted_ == trouble::refusals) { // pages that the driver did not release are still there
      EXPECT_GE(pages_.mapped_bytes(), bytes);
      EXPECT_EQ(told.size(), expected.size());
      return;
    }
    EXPECT_EQ(told, expected);
    EXPECT_EQ(pages_.mapped_bytes(), bytes);
    EXPECT_EQ(simulator::report().mappings, model_.size());
  }

  std::mt19937_64 chance_;
  trouble planted_;
  tally& done_;
  gpumem::extend::virtual_pages pages_{gpumem::device{0}, {.address_space = addresses}};
  gpumem::stream stream_{gpumem::device{0}};
  page_map model_;
  std::uint32_t stamps_ = 0;
};

class virtual_pages_property : public virtual_pages_test {
protected:
  /// Runs the programs of the seeds; returns the counts of their operations.
  static tally play(int seeds, trouble planted) {
    tally done;
    for (int seed = 1; seed <= seeds && !HasFailure(); ++seed) {
      SCOPED_TRACE("seed " + std::to_string(seed));
      simulator::seed(static_cast<std::uint64_t>(seed));
      program{static_cast<std::uint64_t>(seed), planted, done}.run();
    }
    return done;
  }
};

TEST_F(virtual_pages_property, pages_bytes_and_contents_are_those_of_the_model) {
  auto const done = play(100, trouble::none);
  for (auto const count : {done.maps, done.aliases, done.moves, done.unmaps, done.pinned}) EXPECT_GT(count, 100u);
  EXPECT_EQ(device_bytes(), 0u);
}

TEST_F(virtual_pages_property, program_that_does_not_wait_is_found) {
  play(10, trouble::forgotten_waits);
  auto const found = simulator::take_findings();
  EXPECT_GT(found.size(), 10u);
  EXPECT_TRUE(std::all_of(found.begin(), found.end(), [](simulator::finding const& each) {
    return each.kind == simulator::finding_kind::premature_unmap;
  }));
}

TEST_F(virtual_pages_property, failed_driver_calls_change_nothing) {
  auto const done = play(50, trouble::refusals);
  for (auto const count : {done.maps, done.moves, done.unmaps, done.refusals}) EXPECT_GT(count, 50u);
}

} // namespace
