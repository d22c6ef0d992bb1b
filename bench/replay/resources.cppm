// The table of resources that can be replayed, by name, and statistics for resources that keep none.
// SPDX-License-Identifier: Apache-2.0
module;
#include <atomic>
#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>
export module replay:resources;
import gpumem;
import :options;
import :replay_session;
import :result;

namespace replay {

/// Forwards calls and counts live bytes: two atomic additions per call, little beside a driver call. Assumes that the
/// upstream takes a multiple of `granule` from the device for each block. Copies share their counts.
export template <class Upstream> class accounted_resource {
public:
  static constexpr std::size_t granule = 256; ///< the alignment that the driver guarantees

  explicit accounted_resource(Upstream upstream) : upstream_{upstream} {}

  inline auto try_allocate(gpumem::stream_ref stream, std::size_t bytes) noexcept {
    auto const got = upstream_.try_allocate(stream, bytes);
    if (got) {
      counts_->live.add(bytes);
      counts_->allocated.add(rounded(bytes));
    }
    return got;
  }

  inline void deallocate(gpumem::stream_ref stream, void* pointer, std::size_t bytes) noexcept {
    // counted before the free, since another thread may get the same memory at once
    counts_->live.subtract(bytes);
    counts_->allocated.subtract(rounded(bytes));
    upstream_.deallocate(stream, pointer, bytes);
  }

  gpumem::statistics statistics() const noexcept {
    gpumem::statistics all;
    all.live = counts_->live.now;
    all.allocated = all.reserved = counts_->allocated.now;
    all.peak_live = counts_->live.peak;
    all.peak_reserved = counts_->allocated.peak;
    return all;
  }

private:
  struct gauge {
    std::atomic<std::size_t> now = 0;
    std::atomic<std::size_t> peak = 0;

    inline void add(std::size_t bytes) noexcept {
      std::size_t const reached = now.fetch_add(bytes, std::memory_order_relaxed) + bytes;
      std::size_t seen = peak.load(std::memory_order_relaxed);
      while (seen < reached && !peak.compare_exchange_weak(seen, reached, std::memory_order_relaxed)) {}
    }
    inline void subtract(std::size_t bytes) noexcept { now.fetch_sub(bytes, std::memory_order_relaxed); }
  };
  struct counts {
    gauge live;
    gauge allocated;
  };

  // Only for blocks that were allocated, whose sizes are far from overflow.
  static constexpr std::size_t rounded(std::size_t bytes) noexcept { return (bytes + granule - 1) / granule * granule; }

  Upstream upstream_;
  std::shared_ptr<counts> counts_ = std::make_shared<counts>();
};

/// Adds the allocators of these libraries to the table. Call it before the other functions here. Throws
/// std::runtime_error.
export void add_peers(std::vector<std::string> const& libraries);

/// Returns the names in the order of the table, for the command line.
export std::vector<resource_name> resource_names();

/// Measures one trace over the resource that `what` names.
export result measure_by_name(run_config const& what);

} // namespace replay
