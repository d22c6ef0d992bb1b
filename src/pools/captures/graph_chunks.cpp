// Gets the chunks of a graph memory from its upstream, and finds the block that holds an address.
// SPDX-License-Identifier: Apache-2.0
module;
#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>
module gpumem:graph_chunks.impl;
import :graph_chunks;
import :block;
import :cuda;
import :error;
import :pool_upstream;
import :range_allocator;
import :stream;

namespace gpumem::detail {
namespace {

inline constexpr std::size_t small_chunk = std::size_t{2} << 20; // bytes
inline constexpr std::size_t largest_small = small_chunk / 2;    // larger requests get a chunk of their size
// The first granule of each chunk is never given out. A chunk is a live block of the upstream, so no block here begins
// where a block of the upstream begins. So the address tells a free whether the block is the upstream's or is graph
// memory.
inline constexpr std::size_t header = granule;

} // namespace

// Gets memory with the key of the host, so that any stream can use it at each launch of the graph.
expected<chunk, failure> graph_chunks::draw(pool_upstream& upstream, std::size_t bytes,
                                            std::size_t alignment) noexcept {
  auto const slack = alignment > granule ? alignment : 0;
  if (bytes > PTRDIFF_MAX - slack - 2 * granule) return unexpected<failure>{failure{outcome::too_large, 0, bytes}};
  auto const exact = header + ((bytes + granule - 1) & ~(granule - 1)) + slack;
  relaxed_capture const relaxed; // allows driver calls that are unsafe in a capture
  auto size = exact <= largest_small ? small_chunk : exact;
  auto const key = stream_key::host().as_chunk();
  auto drawn = upstream.allocate(key, size);
  if (!drawn && size != exact) drawn = upstream.allocate(key, size = exact);
  if (!drawn) return unexpected<failure>{drawn.error()};
  chunk made;
  made.base = reinterpret_cast<std::uintptr_t>(*drawn) + header;
  made.bytes = size - header;
  return made;
}

void graph_chunks::give_back(pool_upstream& upstream, chunk const& drawn) noexcept {
  relaxed_capture const mode; // allows driver calls while another thread captures
  chunk whole;
  whole.base = drawn.base - header;
  whole.bytes = bytes_from_upstream(drawn);
  upstream.deallocate(whole);
}

std::size_t graph_chunks::bytes_from_upstream(chunk const& drawn) noexcept { return drawn.bytes + header; }

void graph_chunks::add(chunk const& drawn, range_allocator& ranges) {
  chunks_.reserve(chunks_.size() + 1);
  auto made = std::make_unique<chunk>(drawn);
  ranges.add(*made, {});
  chunks_.push_back(std::move(made));
}

block* graph_chunks::find_containing(void const* pointer) const noexcept {
  auto const address = reinterpret_cast<std::uintptr_t>(pointer);
  for (auto const& each : chunks_) {
    if (address >= each->base && address < each->end()) return each->find_containing(pointer);
  }
  return nullptr;
}

} // namespace gpumem::detail
