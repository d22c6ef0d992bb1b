// Copies and fills that containers enqueue.
// SPDX-License-Identifier: Apache-2.0
export module gpumem:stream_work;
import :cuda;
import :device;
import :std;

namespace gpumem::detail {

// A stream with its device current, so that a default handle means the stream it meant when the container got it. All
// throw cuda_error, also of a device that is lost. 0 bytes are nothing.
class stream_work {
public:
  stream_work(stream_ref on, device home);

  void copy(void* to, void const* from, std::size_t bytes) const;
  void fill(void* to, std::byte value, std::size_t bytes) const;
  // The same by host functions, for memory that no device reaches.
  void copy_by_host(void* to, void const* from, std::size_t bytes) const;
  void fill_by_host(void* to, std::byte value, std::size_t bytes) const;
  // Waits on the host for all that is enqueued; throws acquire_error in a capture, which that would spoil.
  void wait() const;
  // Throws acquire_error on a stream that captures a graph.
  void refuse_capture() const;

private:
  void require(CUresult result, char const* what) const;

  device home_;
  device_guard scope_;
  stream_ref on_;
};

} // namespace gpumem::detail
