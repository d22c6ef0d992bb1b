// Allocators of others behind one table, so that they are measured in the same run by the same loops.
// SPDX-License-Identifier: Apache-2.0
module;

#include "peer.h"

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

export module peers;

import gpumem;

/// Allocators that gpumem is measured beside.
namespace peers {

/// One of them, made: what a replay or a benchmark needs of a resource. Copies are the same allocator. Any thread.
export class peer_resource {
public:
  /// Throws std::runtime_error if the peer cannot be had.
  peer_resource(gpumem_peer const& table, gpumem::device device);

  inline gpumem::expected<void*, gpumem::failure> try_allocate(gpumem::stream_ref stream, std::size_t bytes) noexcept {
    auto* const got = table_->allocate(self_.get(), bytes, stream.get());
    if (got || bytes == 0) return got;
    return gpumem::unexpected<gpumem::failure>{gpumem::failure{gpumem::outcome::exhausted, 0, bytes}};
  }
  inline void deallocate(gpumem::stream_ref stream, void* pointer, std::size_t bytes) noexcept {
    table_->deallocate(self_.get(), pointer, bytes, stream.get());
  }

  /// Only what is reserved: a peer's calls are not weighed down with counting.
  gpumem::statistics statistics() const;

private:
  gpumem_peer const* table_;
  std::shared_ptr<void> self_;
};

/// The driver's own pool, called without anything between, that keeps all it has.
export gpumem_peer const& driver_pool() noexcept;

/// The peers of a shared library that exports `gpumem_bench_peers`; it stays loaded. Throws std::runtime_error.
export std::vector<gpumem_peer const*> load_peers(std::string const& file);

export using ::gpumem_peer;

} // namespace peers
