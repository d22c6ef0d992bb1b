// stream_pool: a fixed number of streams of one device, handed out in turn.
// SPDX-License-Identifier: Apache-2.0
export module gpumem:stream_pool;
import :cuda;
import :device;
import :std;
import :stream;

namespace gpumem {

/// A fixed number of gpumem's own streams of one device. They are valid as long as the stream_pool lives; afterwards
/// gpumem may use them for new stream objects. Not movable. Any thread.
export class stream_pool {
public:
  /// The number of streams that is used if the caller names none.
  static constexpr std::size_t default_size = 16;

  /// Makes `size` streams. `priority` is the stream priority of CUDA; lower is more urgent. Throws
  /// std::invalid_argument if `size` is 0. Also throws cuda_error and std::bad_alloc.
  explicit stream_pool(gpumem::device device = gpumem::device::current(), std::size_t size = default_size,
                       int priority = 0);
  stream_pool(stream_pool const&) = delete;
  stream_pool& operator=(stream_pool const&) = delete;

  /// Returns the next stream, round robin. All threads share one position. Leaves out streams that capture a graph:
  /// work on them would become part of it. If all streams capture, returns the next one. Asks the driver.
  stream_ref next() noexcept;

  /// Returns the stream whose number is `index` modulo size(). The same index always gives the same stream, so workers
  /// can be spread over the streams by their numbers.
  stream_ref operator[](std::size_t index) const noexcept { return streams_[index % streams_.size()]; }

  /// Returns the number of streams.
  std::size_t size() const noexcept { return streams_.size(); }
  /// Returns the device of the streams.
  gpumem::device device() const { return streams_.front().device(); }

  /// Waits on the host until all work enqueued on the streams so far is complete. Throws cuda_error.
  void synchronize();

private:
  std::vector<stream> streams_;
  std::atomic<std::size_t> next_{0};
};

} // namespace gpumem
