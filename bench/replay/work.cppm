// Device work between the operations, its duration by events, and the reference on memory that was allocated
// beforehand.
// SPDX-License-Identifier: Apache-2.0
module;
#include <cuda.h>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <type_traits>
#include <vector>
export module replay:work;
import gpumem;
import :options;
import :plan;
import :replay_session;

namespace replay {

/// Brackets a pass: all streams wait for one start event, and one end event waits for all streams. The events are raw
/// driver events, so that a pool does not learn the order that they make.
export class gpu_stopwatch {
public:
  /// Throws cuda_error.
  gpu_stopwatch(gpumem::device device, std::span<stream_set const> sets);
  gpu_stopwatch(gpu_stopwatch const&) = delete;
  gpu_stopwatch& operator=(gpu_stopwatch const&) = delete;

  /// Call before the pass, with idle streams. Throws cuda_error.
  void begin();
  /// Call after the pass: waits for the device and returns milliseconds since `begin`. Throws cuda_error.
  double end();

private:
  struct event_closer {
    void operator()(CUevent event) const noexcept;
  };
  using event = std::unique_ptr<std::remove_pointer_t<CUevent>, event_closer>;
  static event make_event(unsigned flags);
  void each_stream(auto&& visit) const;

  gpumem::stream control_;
  std::span<stream_set const> sets_;
  event start_;
  event stop_;
  event join_;
};

/// The kernel, loaded into the device's primary context through the driver table, so that it works with a simulated
/// driver too. Launches are thread-safe.
export class work_kernel {
public:
  /// Throws cuda_error.
  work_kernel(gpumem::device device, double microseconds);
  work_kernel(work_kernel const&) = delete;
  work_kernel& operator=(work_kernel const&) = delete;
  ~work_kernel();

  /// Enqueues the kernel on the stream; it writes the first word of the block. Throws cuda_error.
  void launch(gpumem::stream_ref stream, void* block, std::uint64_t bytes) const;

private:
  gpumem::device device_;
  std::uint64_t nanoseconds_;
  CUmodule module_ = nullptr;
  CUfunction function_ = nullptr;
};

/// Counts the allocations of a pass and returns whether a kernel runs after one.
export class kernel_interval {
public:
  explicit kernel_interval(unsigned every) : every_{every} {}
  inline bool due(operation const& next) noexcept {
    if (!next.allocates || ++count_ < every_) return false;
    count_ = 0;
    return true;
  }

private:
  unsigned every_;
  unsigned count_ = 0;
};

/// Launches the kernel after every N-th allocation of a pass, even if the allocation failed, so that every pass over a
/// plan does the same work.
export class work_timer {
public:
  work_timer(work_kernel const& kernel, unsigned every, std::span<gpumem::stream_ref const> streams)
      : kernel_{kernel}, rhythm_{every}, streams_{streams} {}

  inline void before(operation const&) noexcept {}
  inline void after(operation const& next, void* block) {
    if (rhythm_.due(next)) kernel_.launch(streams_[next.stream], block, next.bytes);
  }

private:
  work_kernel const& kernel_;
  kernel_interval rhythm_;
  std::span<gpumem::stream_ref const> streams_;
};

/// Returns the number of kernels of one pass of one thread.
export std::uint64_t launches_of(plan const& operations, unsigned every);

/// Returns the device milliseconds of each of `repeat` passes that only launch kernels, after a warm-up pass. Throws
/// cuda_error.
export std::vector<double> time_preallocated(run_config const& what, replay_session& on, work_kernel const& kernel,
                                             gpu_stopwatch& line);

} // namespace replay
