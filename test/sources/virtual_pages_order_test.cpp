// A small pool that moves free pages instead of making new ones, under the checker. The correct pool has no findings
// and all stamps hold; each way to get the order wrong is found.
// SPDX-License-Identifier: Apache-2.0
#include "virtual_pages.hpp"

#include <algorithm>
#include <chrono>
#include <deque>
#include <memory>
#include <new>
#include <random>
#include <utility>
#include <vector>

namespace {

namespace simulator = gpumem::simulator;
using namespace std::chrono_literals;
using simulator::finding_kind;

constexpr std::size_t page = 2 * mib;

enum class bug { none, reuses_without_order, unmaps_behind_an_order_of_streams, moves_live_pages };

/// A block is a page. A free page is also mapped at a new place for the next request; the old mapping is removed after
/// the host has seen the free's event. A copy is another handle of the same pool.
class moving_pool {
public:
  explicit moving_pool(bug planted) : state_{std::make_shared<state>()} { state_->planted = planted; }

  void* allocate(gpumem::stream_ref on, std::size_t, std::size_t = 256) {
    unmap_what_may_go();
    auto& s = *state_;
    auto const to = s.pages.find_extent(page).value_or(0);
    if (s.planted == bug::moves_live_pages && !s.live.empty()) return live(s.pages.alias(s.live.front(), to));
    if (s.free.empty()) return live(s.pages.map(to, page));
    auto taken = std::move(s.free.front());
    s.free.pop_front();
    if (s.planted != bug::reuses_without_order) taken.freed->make_wait(on);
    auto* const made = live(s.pages.alias(taken.offset, to));
    s.leaving.push_back(std::move(taken));
    if (s.planted == bug::unmaps_behind_an_order_of_streams) {
      s.pages.unmap(s.leaving.back().offset, page);
      s.leaving.pop_back();
    }
    ++s.moved;
    return made;
  }

  void deallocate(gpumem::stream_ref on, void* pointer, std::size_t, std::size_t = 256) noexcept {
    auto& s = *state_;
    auto const offset = static_cast<std::size_t>(static_cast<char*>(pointer) - static_cast<char*>(s.pages.base()));
    std::erase(s.live, offset);
    s.free.push_back({offset, std::make_unique<gpumem::event>(gpumem::device{0})});
    s.free.back().freed->record(on);
  }

  void* allocate_sync(std::size_t, std::size_t = 256) { throw std::bad_alloc{}; }
  void deallocate_sync(void*, std::size_t, std::size_t = 256) noexcept {}

  std::size_t moved() const { return state_->moved; }
  std::size_t held() const { return state_->pages.mapped_bytes(); }

private:
  struct freed_page {
    std::size_t offset;
    std::unique_ptr<gpumem::event> freed;
  };
  struct state {
    gpumem::extend::virtual_pages pages{gpumem::device{0}, {.address_space = 256 * mib}};
    bug planted = bug::none;
    std::deque<freed_page> free;
    std::vector<freed_page> leaving;
    std::vector<std::size_t> live;
    std::size_t moved = 0;
  };

  void* live(gpumem::expected<gpumem::extend::page_extent, gpumem::failure> const& made) {
    if (!made) throw std::bad_alloc{};
    state_->live.push_back(made->offset);
    return static_cast<char*>(state_->pages.base()) + made->offset;
  }

  void unmap_what_may_go() {
    auto& s = *state_;
    std::erase_if(s.leaving,
                  [&](freed_page const& old) { return old.freed->is_done() && s.pages.unmap(old.offset, page); });
  }

  std::shared_ptr<state> state_;
};

class virtual_pages_order : public virtual_pages_test {
protected:
  struct block {
    std::uint32_t* data;
    std::size_t stream;
    std::uint32_t value;
  };

  /// Streams stamp blocks, and check the stamps before they free them. Returns the number of wrong stamps.
  static int play(simulator::checked<moving_pool>& pool, std::uint64_t seed) {
    int wrong = 0;
    std::mt19937_64 random{seed};
    std::vector<gpumem::stream> streams;
    streams.reserve(3);
    for (int i = 0; i < 3; ++i) streams.emplace_back(gpumem::device{0});
    std::vector<block> live;
    for (std::uint32_t i = 1; i <= 200; ++i) {
      auto const s = random() % streams.size();
      if (live.size() < 4 || (live.size() < 12 && random() % 2 == 0)) {
        auto* const data = static_cast<std::uint32_t*>(pool.allocate(streams[s], page));
        simulator::work(streams[s], {simulator::write(data, page)}, 5us, [data, i] { *data = i; });
        live.push_back({data, s, i});
        continue;
      }
      std::swap(live[random() % live.size()], live.back());
      auto const old = live.back();
      live.pop_back();
      simulator::work(streams[old.stream], {simulator::read(old.data, page)}, 5us,
                      [old, &wrong] { wrong += *old.data != old.value; });
      pool.deallocate(streams[old.stream], old.data, page);
    }
    for (auto const& old : live) pool.deallocate(streams[old.stream], old.data, page);
    for (auto& stream : streams) stream.synchronize();
    return wrong;
  }
};

TEST_F(virtual_pages_order, pool_that_moves_pages_in_order_has_no_findings) {
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    simulator::seed(seed);
    simulator::checked pool{moving_pool{bug::none}};
    EXPECT_EQ(play(pool, seed), 0);
    EXPECT_GT(pool.upstream_resource().moved(), 20u);
    EXPECT_LE(pool.upstream_resource().held(), 12 * page);
    EXPECT_TRUE(simulator::report().findings.empty()) << "seed " << seed;
  }
  EXPECT_EQ(device_bytes(), 0u);
}

class virtual_pages_wrong_order : public virtual_pages_order,
                                  public testing::WithParamInterface<std::pair<bug, finding_kind>> {};

TEST_P(virtual_pages_wrong_order, wrong_order_is_found) {
  auto const [planted, expected] = GetParam();
  simulator::seed(1);
  {
    simulator::checked pool{moving_pool{planted}};
    play(pool, 1);
  }
  auto const found = simulator::take_findings();
  EXPECT_TRUE(std::any_of(found.begin(), found.end(), [&](auto const& each) { return each.kind == expected; }));
}

INSTANTIATE_TEST_SUITE_P(bugs, virtual_pages_wrong_order,
                         testing::Values(std::pair{bug::reuses_without_order, finding_kind::unordered_reuse},
                                         std::pair{bug::unmaps_behind_an_order_of_streams,
                                                   finding_kind::premature_unmap},
                                         std::pair{bug::moves_live_pages, finding_kind::overlapping_grant}));

} // namespace
