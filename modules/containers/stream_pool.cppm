// Some streams of one device, dealt out in turn.
// SPDX-License-Identifier: Apache-2.0
export module gpumem:stream_pool;
import :cuda;
import :device;
import :std;
import :stream;

namespace gpumem {

/// A fixed number of gpumem's own streams of a device. What it deals out is valid as long as the pool lives; afterwards
/// the streams are given to others. Does not move. Any thread.
export class stream_pool {
public:
  static constexpr std::size_t default_size = 16;

  /// Throws std::invalid_argument for no streams, cuda_error, std::bad_alloc. Priority as the driver's.
  explicit stream_pool(gpumem::device where = gpumem::device::current(), std::size_t size = default_size,
                       int priority = 0);
  stream_pool(stream_pool const&) = delete;
  stream_pool& operator=(stream_pool const&) = delete;

  /// The streams in turn: each call gives the next, from whichever thread.
  stream_ref next() noexcept;

  /// One and the same stream for one index; from size() on the indices begin again, so that any number of workers can
  /// be spread by their number.
  stream_ref operator[](std::size_t index) const noexcept { return streams_[index % streams_.size()]; }

  std::size_t size() const noexcept { return streams_.size(); }
  gpumem::device device() const { return streams_.front().device(); }

  /// Waits on the host until all work enqueued on its streams so far is complete. Throws cuda_error.
  void synchronize();

private:
  std::vector<stream> streams_;
  std::atomic<std::size_t> next_{0};
};

} // namespace gpumem
