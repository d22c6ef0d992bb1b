// The order between streams: which work of other streams comes before the work of one stream. Work is counted in
// epochs.
// SPDX-License-Identifier: Apache-2.0
export module gpumem:stream_order;
import :std;
import :stream_epochs;
import :sync;

namespace gpumem::detail {

/// The streams after whose work one stream is ordered. Each entry has the index of another stream, and the newest epoch
/// of that other stream that comes before the work of the one stream. Small, and sorted by index.
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

/// Tells after which work of other streams the work of one stream, the owner, is ordered. Any thread.
export class stream_order {
public:
  // Returns whether work enqueued on the owner from now on comes after epoch `e` of the stream with that index.
  bool is_after(std::uint32_t index, epoch e) const;
  // Notes that the owner now waits for an event that ended epoch `e` of the stream with that index. `before`: the
  // snapshot() of that other stream when the event was recorded; the owner is ordered after these epochs too. Called
  // after the driver has accepted the wait.
  void add(std::uint32_t index, epoch e, vector_clock const& before);
  vector_clock snapshot() const;
  void clear() noexcept;

private:
  mutable sync::mutex mutex_;
  vector_clock clock_ __attribute__((guarded_by(mutex_)));
};

} // namespace gpumem::detail
