// The table of resources that can be replayed, by name, and statistics for resources that keep none.
// SPDX-License-Identifier: Apache-2.0
module;
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>
export module replay:resources;
import gpumem;
import :options;
import :plan;
import :replay_session;
import :result;

namespace replay {

/// Returns the bytes that cuMemAlloc takes from the device for a block: a multiple of 512 bytes, or from 2 MiB up a
/// multiple of 2 MiB.
export constexpr std::size_t driver_bytes(std::size_t bytes) noexcept {
  std::size_t const granule = bytes < std::size_t{2} << 20 ? 512 : std::size_t{2} << 20;
  return (bytes + granule - 1) / granule * granule;
}

/// Forwards calls and counts live bytes: two atomic additions per call, little beside a driver call. Assumes that the
/// upstream takes driver_bytes() from the device for each block. Copies share their counts.
export template <class Upstream> class accounted_resource {
public:
  explicit accounted_resource(Upstream upstream) : upstream_{upstream} {}

  inline auto try_allocate(gpumem::stream_ref stream, std::size_t bytes) noexcept {
    auto const got = upstream_.try_allocate(stream, bytes);
    if (got) {
      counts_->live.add(bytes);
      counts_->allocated.add(driver_bytes(bytes));
    }
    return got;
  }

  inline void deallocate(gpumem::stream_ref stream, void* pointer, std::size_t bytes) noexcept {
    // counted before the free, since another thread may get the same memory at once
    counts_->live.subtract(bytes);
    counts_->allocated.subtract(driver_bytes(bytes));
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

/// One cold pass of one thread, which ends at the first request that fails.
export struct counted_pass {
  std::uint64_t peak_reserved = 0;
  std::uint64_t driver_calls = 0;
  std::uint64_t memory_calls = 0;    ///< driver calls that get, map, or return memory or addresses
  std::uint64_t unmapped = 0;        ///< calls of cuMemUnmap: pages that moved, or that went back
  std::optional<std::size_t> failed; ///< the failed request, as its place in the plan
};

/// Returns the number of driver calls of this process that get, map, or return memory or addresses.
export std::uint64_t memory_calls();

/// Replays the trace once over the resource that `what` names. After a failed request the blocks before it stay live.
/// Throws what measure_by_name() throws.
export counted_pass count_pass(run_config const& what);

/// The blocks of the resource `fixed`, which replays any trace: of the largest request, as many as are live at once.
export struct fixed_blocks {
  std::uint64_t bytes = 0;
  std::uint64_t count = 0;
};
export fixed_blocks fixed_blocks_of(plan const& of);

} // namespace replay
