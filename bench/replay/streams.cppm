// The streams on which a trace is replayed.
// SPDX-License-Identifier: Apache-2.0
module;

#include <cstdint>
#include <span>
#include <vector>

#include <cuda.h>

export module replay:streams;

import gpumem;

namespace replay {

/// The streams of one thread: gpumem's own, or raw driver handles. Must outlive the resources used on them.
export class stream_set {
public:
  /// Throws cuda_error.
  stream_set(gpumem::device device, std::uint32_t count, bool foreign);
  stream_set(stream_set&& other) noexcept = default;
  stream_set& operator=(stream_set&&) = delete;
  ~stream_set();

  std::span<gpumem::stream_ref const> refs() const noexcept { return refs_; }

  /// Waits until all work on them is complete; throws cuda_error.
  void synchronize() const;

private:
  std::vector<gpumem::stream> own_;
  std::vector<CUstream> foreign_;
  std::vector<gpumem::stream_ref> refs_;
};

} // namespace replay
