// Measures with device events how long the device took for the work that was enqueued on a group of streams.
// SPDX-License-Identifier: Apache-2.0
module;

#include <memory>
#include <span>
#include <type_traits>

#include <cuda.h>

export module replay:gpu_stopwatch;

import gpumem;
import :streams;

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

} // namespace replay
