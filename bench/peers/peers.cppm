// Other allocators behind one table of functions, so that the same loops measure them in the same run.
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

/// Allocators that gpumem is compared with.
namespace peers {

/// A peer as a resource: what a replay or a benchmark needs of one. Copies refer to the same allocator. Thread-safe.
export class peer_resource {
public:
  /// Throws std::runtime_error if the peer cannot be made.
  peer_resource(gpumem_peer const& table, gpumem::device device);

  inline gpumem::expected<void*, gpumem::failure> try_allocate(gpumem::stream_ref stream, std::size_t bytes) noexcept {
    auto* const got = table_->allocate(self_.get(), bytes, stream.get());
    if (got || bytes == 0) return got;
    return gpumem::unexpected<gpumem::failure>{gpumem::failure{gpumem::outcome::exhausted, 0, bytes}};
  }
  inline void deallocate(gpumem::stream_ref stream, void* pointer, std::size_t bytes) noexcept {
    table_->deallocate(self_.get(), pointer, bytes, stream.get());
  }

  /// Only the peak of reserved bytes is filled: counting live bytes would slow down the peer's calls.
  gpumem::statistics statistics() const;

private:
  gpumem_peer const* table_;
  std::shared_ptr<void> self_;
};

/// Returns the driver's own pool, called directly; it keeps all memory that it has reserved.
export gpumem_peer const& driver_pool() noexcept;

/// Returns the peers of a shared library that exports `gpumem_bench_peers`. The library stays loaded. Throws
/// std::runtime_error.
export std::vector<gpumem_peer const*> load_peers(std::string const& file);

export using ::gpumem_peer;

} // namespace peers
