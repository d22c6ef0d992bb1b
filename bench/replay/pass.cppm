// One run through a plan over a resource: the timed loop.
// SPDX-License-Identifier: Apache-2.0
module;

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

export module replay:pass;

import gpumem;
import :plan;

namespace replay {

/// The state of one thread between the operations of a pass. Made before the clock starts.
export struct pass_state {
  explicit pass_state(plan const& of) : blocks(of.blocks) {}

  std::vector<void*> blocks; ///< by block number; null if there is no block or its allocation failed
  std::uint64_t failures = 0;
  std::optional<gpumem::failure> fatal; ///< the first failure other than a lack of memory
};

/// A watch that does nothing.
export struct no_timer {
  inline void before(operation const&) noexcept {}
  inline void after(operation const&, void*) noexcept {}
};

/// Stores the nanoseconds of each call, including the clock.
export class call_timer {
public:
  explicit call_timer(std::size_t calls) { nanoseconds_.reserve(calls); }

  inline void before(operation const&) noexcept { begin_ = clock::now(); }
  inline void after(operation const&, void*) noexcept {
    nanoseconds_.push_back(std::chrono::duration<double, std::nano>(clock::now() - begin_).count());
  }
  std::span<double> nanoseconds() noexcept { return nanoseconds_; }

private:
  using clock = std::chrono::steady_clock;
  clock::time_point begin_;
  std::vector<double> nanoseconds_;
};

/// Runs the plan. `streams` are indexed by stream number. Skips the free of a block whose allocation failed.
export template <class Resource, class Watch>
void run_pass(Resource& resource, plan const& of, std::span<gpumem::stream_ref const> streams, pass_state& state,
              Watch& watch) {
  for (operation const& next : of.operations) {
    void*& block = state.blocks[next.block];
    if (next.allocates) {
      watch.before(next);
      auto const got = resource.try_allocate(streams[next.stream], next.bytes);
      block = got ? *got : nullptr;
      watch.after(next, block);
      if (!got) [[unlikely]] {
        ++state.failures;
        auto const what = got.error().reason;
        bool const lacking = what == gpumem::outcome::exhausted || what == gpumem::outcome::too_large;
        if (!lacking && !state.fatal) state.fatal = got.error();
      }
    } else if (block != nullptr) {
      watch.before(next);
      resource.deallocate(streams[next.stream], block, next.bytes);
      watch.after(next, block);
    }
  }
}

/// Frees the blocks that the plan leaves live, so that the next pass starts from the same state.
export template <class Resource>
void free_live_at_end(Resource& resource, plan const& of, std::span<gpumem::stream_ref const> streams,
                      pass_state& state) {
  for (operation const& next : of.live_at_end) {
    if (void*& block = state.blocks[next.block]; block != nullptr) {
      resource.deallocate(streams[next.stream], block, next.bytes);
      block = nullptr;
    }
  }
}

} // namespace replay
