// stream_work: copies, fills and waits that containers enqueue on their streams.
// SPDX-License-Identifier: Apache-2.0
export module gpumem:stream_work;
import :cuda;
import :device;
import :std;

namespace gpumem::detail {

// Enqueues work on the stream `on`. While this object lives, `home`, the device of the stream, is current. So the
// handle of a default stream means the stream that it meant when the container got it. All functions throw cuda_error,
// also if the device is lost. Copies and fills of 0 bytes do nothing.
//
// Copies and fills touch memory from the device that has it, because another device may have no access to it. If that
// is not `home`, a stream of that device does the work: it first waits for `on`, and `on` then waits for it.
class stream_work {
public:
  stream_work(stream_ref on, device home);

  void copy(void* to, void const* from, std::size_t bytes) const;
  void fill(void* to, std::byte value, std::size_t bytes) const;
  // These enqueue a host function that copies or fills, in the stream's order. They are for memory that no device can
  // access.
  void copy_by_host(void* to, void const* from, std::size_t bytes) const;
  void fill_by_host(void* to, std::byte value, std::size_t bytes) const;
  // Waits on the host for all enqueued work. Throws acquire_error if the stream captures a graph, since a wait would
  // invalidate the capture.
  void wait() const;
  // Throws acquire_error if the stream captures a graph.
  void refuse_capture() const;

private:
  void require(CUresult result, char const* what) const;
  template <class Call> void run_at(device where, Call call, char const* what) const;

  device home_;
  device_guard scope_;
  stream_ref on_;
};

} // namespace gpumem::detail
