// The most bytes that the threads of a pass have live at once.
// SPDX-License-Identifier: Apache-2.0
module;

#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

export module replay:live_counter;

import :pace;
import :pass;
import :plan;

namespace replay {

/// The notes of one thread about a pass: the time of each `stride`-th operation of the plan, 0 if it was skipped, and
/// the allocations that failed.
export struct pass_notes {
  std::vector<std::int64_t> times;
  std::vector<std::size_t> failed; ///< their places in the plan, ascending
};

/// Returns the most requested bytes that all threads had live at once: puts the operations of all threads in the order
/// of their times. Operations between two times are spread evenly.
export std::uint64_t live_at_once(plan const& of, std::size_t stride, std::span<pass_notes const> threads);

/// Counts the live bytes of passes in which several threads run, whatever the resource knows about them. A thread
/// writes only its own notes, so that the threads do not wait for each other.
export class live_counter {
public:
  /// Notes every operation, or with `sparse` one of `sparse_stride`, which costs less time. Counts nothing for one
  /// thread, whose peak is that of the plan.
  live_counter(plan const& of, unsigned threads, bool sparse)
      : of_{of}, mask_{sparse ? sparse_stride - 1 : 0}, notes_(threads > 1 ? threads : 0) {
    for (pass_notes& each : notes_) each.times.resize(of.operations.size() / (mask_ + 1) + 1);
  }

  /// Runs the pass of one thread of the team.
  template <class Resource, class Member, class Watch> void run(Resource& resource, Member mine, Watch& watch) {
    if (notes_.empty()) return run_pass(resource, of_, mine.streams, mine.state, watch);
    noting both{*this, notes_[mine.number], watch};
    run_pass(resource, of_, mine.streams, mine.state, both);
  }
  /// Counts the pass that all threads have ended.
  void end_pass();
  /// Returns the most bytes that were live at once in a pass; 0 for one thread.
  std::uint64_t peak() const noexcept { return peak_; }

private:
  static constexpr std::size_t sparse_stride = 16;

  // A block is live from the end of its allocation to the begin of its free.
  template <class Watch> struct noting {
    live_counter const& counter;
    pass_notes& mine;
    Watch& other;

    inline void before(operation const& next) {
      if (!next.allocates) note(next);
      other.before(next);
    }
    inline void after(operation const& next, void* block) {
      other.after(next, block);
      if (!next.allocates) return;
      note(next);
      if (!block) [[unlikely]]
        mine.failed.push_back(counter.place_of(next));
    }
    inline void note(operation const& next) noexcept {
      std::size_t const place = counter.place_of(next);
      if ((place & counter.mask_) == 0) mine.times[place / (counter.mask_ + 1)] = steady_nanoseconds::now();
    }
  };
  inline std::size_t place_of(operation const& one) const noexcept {
    return static_cast<std::size_t>(&one - of_.operations.data());
  }

  plan const& of_;
  std::size_t mask_; // stride - 1
  std::vector<pass_notes> notes_;
  std::uint64_t peak_ = 0;
};

} // namespace replay
