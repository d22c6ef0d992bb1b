// The text of out_of_memory: who holds the memory, and what would have to be freed.
// SPDX-License-Identifier: Apache-2.0
#include "upstream.hpp"

#include <gpumem/error.hpp>
#include <gpumem/pool_options.hpp>

#include <cstddef>
#include <string>
#include <string_view>
#include <tuple>

import gpumem;

namespace {

constexpr std::size_t MiB = std::size_t{1} << 20;

class holders : public gpumem_test::simulated_test {
protected:
  // Returns the end of the text of a failed request, from the first holder on.
  template <class Resource> std::string refusal(Resource& from, std::size_t bytes) {
    try {
      std::ignore = from.allocate(stream, bytes);
    } catch (gpumem::out_of_memory const& error) {
      std::string_view const text = error.what();
      auto const first = text.find("; live of");
      return first == text.npos ? "" : std::string{text.substr(first)};
    }
    return "was granted";
  }
  std::string stream_text(gpumem::stream const& which) const {
    return "stream " + std::to_string(gpumem::extend::identify(which, device).identity().id());
  }
  gpumem::device device{0};
  gpumem::stream stream{device}, other{device};
};

TEST_F(holders, largest_three_come_first) {
  gpumem::pool_resource pool{device, {.limit = 64 * MiB}};
  gpumem::scope query{pool, "query"};
  auto const weights = pool.acquire(stream, 30 * MiB, {.label = "weights"}).wait();
  auto const a = query.acquire(stream, 12 * MiB).wait(), b = query.acquire(other, 8 * MiB).wait();
  auto const plain = pool.acquire(stream, 6 * MiB).wait(), least = pool.acquire(other, 4 * MiB).wait();
  auto const three = "; live of 'weights': 1 block, 30.0 MiB, of 'query': 2 blocks, 20.0 MiB, of " +
                     stream_text(stream) + ": 1 block, 6.0 MiB; ";
  EXPECT_EQ(refusal(pool, 20 * MiB), three + "16.0 MiB more must be freed: 'weights' has enough");
  EXPECT_EQ(refusal(pool, 50 * MiB), three + "46.0 MiB more must be freed: the first 2 have enough");
  EXPECT_EQ(refusal(pool, 62 * MiB), three + "58.0 MiB more must be freed: more than these have");
  EXPECT_EQ(refusal(query, 20 * MiB), three + "16.0 MiB more must be freed: 'weights' has enough");
  EXPECT_EQ(refusal(pool, 65 * MiB), ""); // no free can help
}

TEST_F(holders, free_memory_in_pieces_is_told_from_missing_memory) {
  gpumem::pool_resource pool{device, {.limit = 8 * MiB, .chunk_size = 8 * MiB}};
  void* blocks[4];
  for (auto& each : blocks) each = pool.allocate(stream, 2 * MiB);
  pool.deallocate(stream, blocks[0], 2 * MiB);
  pool.deallocate(stream, blocks[2], 2 * MiB);
  stream.synchronize();
  EXPECT_EQ(refusal(pool, 4 * MiB),
            "; live of " + stream_text(stream) + ": 2 blocks, 4.0 MiB; enough is free, but in pieces or still in use");
  pool.deallocate(stream, blocks[1], 2 * MiB);
  pool.deallocate(stream, blocks[3], 2 * MiB);
}

TEST_F(holders, a_limit_in_front_of_the_pool_names_only_the_holders) {
  gpumem::pool_resource pool{device, {.initial_size = 64 * MiB, .limit = 64 * MiB}};
  gpumem::limiting_adaptor limited{pool, {.limit = 24 * MiB}};
  auto const a = pool.acquire(stream, 20 * MiB, {.label = "a"}).wait();
  auto const b = limited.acquire(stream, 10 * MiB, {.label = "b"}).wait();
  auto const both = std::string{"; live of 'a': 1 block, 20.0 MiB, of 'b': 1 block, 10.0 MiB"};
  EXPECT_EQ(refusal(limited, 16 * MiB), both); // the pool has enough
  limited.set_limit(64 * MiB);
  EXPECT_EQ(refusal(limited, 40 * MiB), both + "; 6.0 MiB more must be freed: 'a' has enough"); // the pool's limit
}

TEST_F(holders, quarantined_blocks_are_named_as_such) {
  gpumem::pool_resource pool{device, {.limit = 64 * MiB, .hardened = {.enabled = true}}};
  auto const held = pool.acquire(stream, 8 * MiB, {.label = "held"}).wait();
  void* const freed = pool.allocate(stream, 32 * MiB);
  pool.set_label(freed, "freed");
  pool.deallocate(stream, freed, 32 * MiB);
  auto const from = pool.services();
  std::string text;
  from.table->append_holders(from.state, 0, &text);
  EXPECT_EQ(text, "; live of '(quarantine)': 1 block, 32.0 MiB, of 'held': 1 block, 8.0 MiB");
  stream.synchronize();
}

} // namespace
