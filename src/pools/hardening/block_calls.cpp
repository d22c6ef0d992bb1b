// Shows the blocks of a pool to a tool.
// SPDX-License-Identifier: Apache-2.0
module;
#include <cstddef>
#include <optional>
module gpumem:block_calls.impl;
import :block_calls;
import :error;
import :nvtx_heaps;
import :pool_engine;
import :pool_upstream;
import :stream;

namespace gpumem::detail {

expected<void*, failure> region_calls::try_allocate(stream_key const& key, std::size_t bytes,
                                                    std::size_t alignment) noexcept {
  auto const result = engine_.try_allocate(key, bytes, alignment);
  if (!result || engine_.upstream().heaps()->add_region(*result, bytes)) return result;
  engine_.deallocate(key, *result, bytes);
  return unexpected<failure>{no_host_memory(bytes)};
}

void region_calls::deallocate(stream_key const& key, void* pointer, std::optional<std::size_t> bytes) noexcept {
  engine_.upstream().heaps()->remove_region(pointer, bytes);
  block_calls::deallocate(key, pointer, bytes);
}

void region_calls::return_part(stream_key const& key, void* pointer, std::size_t bytes) noexcept {
  engine_.upstream().heaps()->remove_region(pointer, bytes);
  block_calls::return_part(key, pointer, bytes);
}

} // namespace gpumem::detail
