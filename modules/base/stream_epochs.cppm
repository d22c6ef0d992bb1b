// Counts the epochs of one stream, and its frees that no event covers yet.
// SPDX-License-Identifier: Apache-2.0
export module gpumem:stream_epochs;
import :std;
import :tuning;

namespace gpumem {

namespace extend {
/// A number that grows with each event recorded on a stream: an event of epoch e covers all frees of epochs up to e.
export using epoch = std::uint64_t;
} // namespace extend

namespace detail {

/// An epoch that was closed for an event, and the number of frees that the event covers if its record succeeds.
export struct closed_epoch {
  epoch number = 0;
  std::uint32_t frees = 0;
};

/// The epochs of one stream, and the counts of its unrecorded and its uncovered frees. The stream's events are in its
/// event_ring; a mortal stream also has a last_event, and only its frees are counted as uncovered.
/// Any thread may call all functions, but only one thread at a time may call close(), covered(), not_covered(),
/// lose_event() and restart().
export class stream_epochs {
public:
  explicit stream_epochs(epoch completed = 0) noexcept : completed_{completed} {}

  // Returns the epoch of memory that is freed now.
  inline epoch current() const noexcept { return now_.load(std::memory_order_acquire); }
  // Closes the current epoch and returns it. Called before an event is recorded, or the stream is queried, to cover the
  // epoch.
  inline epoch advance() noexcept { return now_.fetch_add(1, std::memory_order_acq_rel); }
  // Returns whether the host has seen all work of the epoch complete.
  inline bool completed(epoch e) const noexcept { return completed_.load(std::memory_order_acquire) >= e; }
  // Notes that the host has seen all work up to and including the epoch complete.
  void publish_completed(epoch e) noexcept;
  // Returns the newest epoch with an event, complete or not.
  inline epoch newest_recorded() const noexcept { return recorded_.load(std::memory_order_acquire); }

  // Counts a silent free. Returns false, and counts nothing, if no more frees or bytes may be silent before the next
  // event. If several threads free on one stream at the same time, some of their counts can be lost.
  [[gnu::always_inline]] inline bool count_silent(std::size_t bytes) noexcept {
    auto const frees = uncovered_frees() + 1;
    auto const sum = uncovered_bytes() + bytes;
    if (frees > silent_frees_.load(std::memory_order_relaxed) || sum >= tuning::max_silent_bytes) [[unlikely]]
      return false;
    uncovered_frees_.store(frees, std::memory_order_relaxed);
    uncovered_bytes_.store(sum, std::memory_order_relaxed);
    return true;
  }
  // Counts a free that is not silent. The caller then tries to record an event, and calls covered() if that succeeds.
  inline void count_uncovered(std::size_t bytes) noexcept {
    uncovered_frees_.fetch_add(1, std::memory_order_relaxed);
    uncovered_bytes_.fetch_add(bytes, std::memory_order_relaxed);
  }
  // Return the frees and bytes that no event covers; for a dead stream no event ever will.
  inline std::uint32_t uncovered_frees() const noexcept { return uncovered_frees_.load(std::memory_order_relaxed); }
  inline std::size_t uncovered_bytes() const noexcept { return uncovered_bytes_.load(std::memory_order_relaxed); }

  // Counts unrecorded frees. Returns whether an event is due: at `frees_per_event` frees or `max_bytes`.
  bool count_unrecorded(std::uint32_t frees, std::size_t bytes, std::size_t max_bytes) noexcept;
  void reset_unrecorded() noexcept;

  // Closes an epoch for an event that is recorded next. A *precise* epoch is one that no other thread can have read. So
  // only memory that the closing thread frees is tagged with it.
  closed_epoch close(bool precise = false) noexcept;
  // Notes that the event of the epoch was recorded: it covers the frees that close() counted.
  void covered(closed_epoch const& by_event) noexcept;
  // Notes that the event of the epoch was not recorded: the frees that close() counted are uncovered again.
  void not_covered(closed_epoch const& failed) noexcept;
  // Notes that an event was recorded but covers nothing, since it belongs to a graph capture. Afterwards `newest` is
  // the newest epoch with an event.
  void lose_event(epoch newest) noexcept;
  // Lets no more silent frees happen before the next event.
  inline void forbid_silent() noexcept { silent_frees_.store(0, std::memory_order_relaxed); }

  // Begins anew for another stream: all epochs so far count as complete. Must be called only if no free is uncovered.
  void restart() noexcept;

private:
  std::atomic<epoch> now_{1};
  std::atomic<epoch> completed_;
  std::atomic<epoch> recorded_{0};
  // Frees write these often, so they are kept on another cache line than the epochs, which every free reads.
  alignas(64) std::atomic<std::uint32_t> unrecorded_frees_{0};
  std::atomic<std::size_t> unrecorded_bytes_{0};
  std::atomic<std::uint32_t> uncovered_frees_{0};
  std::atomic<std::size_t> uncovered_bytes_{0};
  std::atomic<std::uint32_t> silent_frees_{0};  // how many silent frees may precede the next event
  std::atomic<std::uint32_t> covered_frees_{0}; // covered by events so far; a larger number allows more silent frees
};

} // namespace detail
} // namespace gpumem
