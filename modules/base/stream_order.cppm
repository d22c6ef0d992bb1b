// The order between streams: after which epochs of other streams the work of one stream comes. An epoch is the number
// of a section of a stream's work, which an event ends.
// SPDX-License-Identifier: Apache-2.0
export module gpumem:stream_order;
import :std;
import :stream_epochs;
import :sync;

namespace gpumem::detail {

/// A list of streams, each with the newest of its epochs after which one given stream is ordered. A stream is named by
/// its index. Small and sorted.
export class vector_clock {
public:
  // Returns the newest epoch listed for the stream with this index; 0 if the list has none.
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

/// The streams after whose work one stream is ordered. Any thread.
export class stream_order {
public:
  // Returns whether work enqueued from now on is ordered after the epoch of the stream with that index.
  bool is_after(std::uint32_t index, epoch e) const;
  // Notes that the stream now waits for an event of epoch `e` of the stream with that index. `before`: the epochs after
  // which that other stream was ordered when the event was recorded. This stream is then ordered after them too. Called
  // after the driver has accepted the wait.
  void add(std::uint32_t index, epoch e, vector_clock const& before);
  vector_clock snapshot() const;
  void clear() noexcept;

private:
  mutable sync::mutex mutex_;
  vector_clock clock_ __attribute__((guarded_by(mutex_)));
};

} // namespace gpumem::detail
