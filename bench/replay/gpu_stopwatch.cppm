// How long the device took for what was enqueued on a group of streams, by events of the device.
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

/// Brackets a pass: all streams wait for one start, one end waits for all streams. The events are raw ones,
/// so that a pool does not learn of the order that they make.
export class gpu_stopwatch {
public:
  /// Throws cuda_error.
  gpu_stopwatch(gpumem::device device, std::span<stream_set const> sets);
  gpu_stopwatch(gpu_stopwatch const&) = delete;
  gpu_stopwatch& operator=(gpu_stopwatch const&) = delete;

  /// Before the pass, the streams being idle; throws cuda_error.
  void begin();
  /// After the pass: waits for the device; milliseconds since begin. Throws cuda_error.
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
