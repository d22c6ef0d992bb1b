// The order of streams: which epochs of other streams the work of one stream comes after.
// SPDX-License-Identifier: Apache-2.0
export module gpumem:stream_order;
import :std;
import :stream_epochs;
import :sync;

namespace gpumem::detail {

/// For each of some streams, by its index, the newest epoch that a stream is ordered after. Small and sorted.
export class vector_clock {
public:
  // Returns the newest epoch of the stream; 0 if there is none.
  epoch at(std::uint32_t index) const noexcept;
  void raise(std::uint32_t index, epoch newest);
  void join(vector_clock const& other);

private:
  struct entry {
    std::uint32_t index;
    epoch newest;
  };
  std::vector<entry> entries_;
};

/// The streams that one stream is ordered after. Any thread.
export class stream_order {
public:
  // Returns whether work enqueued from now on is ordered after the epoch of the stream with that index.
  bool is_after(std::uint32_t index, epoch e) const;
  // Notes that the stream now waits for an event: for the epoch of the stream on which the event was recorded, and for
  // all that stream was ordered `before` its record. Called after the driver has taken the wait.
  void add(std::uint32_t index, epoch e, vector_clock const& before);
  vector_clock snapshot() const;
  void clear() noexcept;

private:
  mutable sync::mutex mutex_;
  vector_clock clock_ __attribute__((guarded_by(mutex_)));
};

} // namespace gpumem::detail
