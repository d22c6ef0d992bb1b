// Paged key/value caches over buffers that grow, as kvcached lays them out: the blocks of a sequence lie scattered over
// the layers, or a block holds all layers. Two models share a card, and give each other pages.
// SPDX-License-Identifier: Apache-2.0
#include "../pools/upstream.hpp"

#include <gpumem/pool_options.hpp>

#include <array>
#include <atomic>
#include <cstddef>
#include <memory>
#include <optional>
#include <random>
#include <stop_token>
#include <thread>
#include <utility>
#include <vector>

import gpumem;
import gpumem.growable;
#include "../support/coroutine_probes.hpp"
#include "../support/manual_executor.hpp"
#include "../pools/waiting_fixture.hpp"
#include "growable_fixture.hpp"

namespace {

using gpumem_test::MiB;
namespace simulator = gpumem::simulator;

// A cache of blocks, each with a page in every layer. With `contiguous` the pages of a block are adjacent, and one call
// maps them; otherwise each layer has addresses of its own for all blocks.
class kv_cache {
public:
  static constexpr std::size_t page = 2 * MiB;

  template <class Pool>
  kv_cache(Pool& from, gpumem::stream& on, std::size_t layers, std::size_t blocks, bool contiguous)
      : layers_{layers}, blocks_{blocks}, contiguous_{contiguous}, on_{on}, memory_{from,
                                                                                    on,
                                                                                    {.reserve = layers * blocks * page,
                                                                                     .initial = layers * blocks * page,
                                                                                     .discarded = true,
                                                                                     .page = page,
                                                                                     .name = "cache"}} {}

  // Maps a block in all layers. If there is memory for some of them only, maps none.
  bool map(std::size_t block) {
    if (contiguous_) return bool{memory_.restore(on_, offset(block, 0), layers_ * page).try_now()};
    for (std::size_t layer = 0; layer < layers_; ++layer) {
      if (memory_.try_restore(on_, offset(block, layer), page)) continue;
      while (layer > 0) memory_.discard(on_, offset(block, --layer), page);
      return false;
    }
    return true;
  }
  void unmap(std::size_t block) {
    if (contiguous_) return memory_.discard(on_, offset(block, 0), layers_ * page);
    for (std::size_t layer = 0; layer < layers_; ++layer) memory_.discard(on_, offset(block, layer), page);
  }
  // Work of a model's step: it writes the block in all layers.
  void use(std::size_t block) {
    std::vector<simulator::touch> touches;
    for (std::size_t layer = 0; layer < layers_; ++layer)
      touches.push_back(simulator::write(static_cast<std::byte*>(memory_.data()) + offset(block, layer), page));
    simulator::work(on_, touches);
  }
  std::size_t mapped_bytes() const { return memory_.mapped_bytes(); }
  std::size_t block_bytes() const { return layers_ * page; }

private:
  std::size_t offset(std::size_t block, std::size_t layer) const {
    return page * (contiguous_ ? block * layers_ + layer : layer * blocks_ + block);
  }

  std::size_t layers_, blocks_;
  bool contiguous_;
  gpumem::stream& on_;
  gpumem::growable_buffer memory_;
};

class kv_caches : public gpumem_test::growable_fixture, public testing::WithParamInterface<bool> {};

TEST_P(kv_caches, blocks_are_mapped_and_unmapped_in_any_order) {
  pool r{device, {.limit = 256 * MiB}};
  kv_cache cache{r, a, 4, 64, GetParam()};
  EXPECT_EQ(r.statistics().reserved, 0u) << "addresses alone";
  std::mt19937_64 random{7};
  std::vector<std::size_t> mapped, unmapped;
  for (std::size_t i = 0; i < 64; ++i) unmapped.push_back(i);
  bool was_full = false;
  for (int i = 0; i < 600; ++i) {
    auto& from = random() % 5 < 3 && !unmapped.empty() ? unmapped : mapped;
    if (from.empty()) continue;
    std::swap(from[random() % from.size()], from.back());
    auto const block = from.back();
    if (&from == &unmapped) {
      if (!cache.map(block)) {
        was_full = true;
        a.synchronize();
        continue;
      }
      cache.use(block);
      mapped.push_back(block);
    } else {
      cache.unmap(block);
      unmapped.push_back(block);
    }
    from.pop_back();
    ASSERT_EQ(cache.mapped_bytes(), mapped.size() * cache.block_bytes());
  }
  EXPECT_TRUE(was_full);
  EXPECT_LE(r.statistics().peak_reserved, 256 * MiB);
  EXPECT_TRUE(is_consistent(r));
}

// Every eighth block survives an eviction: the pages of the others go back, however the survivors are scattered.
TEST_P(kv_caches, eviction_frees_what_scattered_survivors_leave) {
  pool r{device};
  kv_cache cache{r, a, 4, 64, GetParam()};
  for (std::size_t i = 0; i < 64; ++i) ASSERT_TRUE(cache.map(i));
  for (std::size_t i = 0; i < 64; ++i)
    if (i % 8 != 0) cache.unmap(i);
  a.synchronize();
  EXPECT_EQ(r.trim(), 56 * cache.block_bytes());
  for (std::size_t i = 0; i < 64; i += 8) cache.use(i);
  for (std::size_t i = 1; i < 64; i += 8) ASSERT_TRUE(cache.map(i));
  EXPECT_EQ(r.statistics().reserved, 16 * cache.block_bytes());
}

TEST_P(kv_caches, two_models_give_each_other_pages) {
  for (bool const limited : {true, false}) { // without a limit the device itself is full
    if (!limited) simulator::reset({.devices = 2, .capacity = 80 * MiB, .mode = simulator::stepping::manual});
    {
      pool r{device, {.limit = limited ? 80 * MiB : 0}};
      kv_cache one{r, a, 4, 16, GetParam()}, two{r, b, 2, 32, GetParam()};
      for (int turn = 0; turn < 3; ++turn) {
        std::size_t granted = 0;
        while (granted < 16 && one.map(granted)) one.use(granted++);
        EXPECT_GE(granted, 8u);
        EXPECT_LE(one.mapped_bytes() + two.mapped_bytes(), 80 * MiB);
        while (granted > 0) one.unmap(--granted);
        a.synchronize();
        while (granted < 32 && two.map(granted)) two.use(granted++);
        EXPECT_GE(granted, 16u);
        while (granted > 2) two.unmap(--granted);
        b.synchronize();
        while (granted > 0) two.unmap(--granted);
      }
      EXPECT_TRUE(is_consistent(r));
    }
    a.synchronize();
    b.synchronize();
    simulator::run_until_idle();
  }
  EXPECT_TRUE(wait_for_device_bytes(before()));
  simulator::reset({.devices = 2, .mode = simulator::stepping::manual});
}

INSTANTIATE_TEST_SUITE_P(layouts, kv_caches, testing::Bool(),
                         [](auto const& one) { return one.param ? "contiguous" : "scattered"; });

} // namespace
