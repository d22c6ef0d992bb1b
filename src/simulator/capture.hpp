// Stream capture: the streams that take part, what each is ordered after, and the graph that comes out.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "driver_api.hpp"
#include "stream.hpp"

namespace simulated {

/// Captured work; launched as one operation that touches all that its nodes touch.
struct graph {
  std::vector<operation> nodes;
};

struct capture {
  struct member {
    stream_ptr on;
    std::uint64_t nodes = 0;
    vector_clock order; // by index of the member
  };

  std::uint64_t id = 0;
  CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_GLOBAL;
  std::uint64_t begun_by = 0; // number of the host thread
  bool invalid = false;
  std::vector<member> members; // the first is the origin
  std::shared_ptr<graph> made = std::make_shared<graph>();

  /// The stream as a member; joins it first if it is none yet.
  member& enter(const stream_ptr& on);

  /// Records an operation instead of enqueuing it.
  void add(const stream_ptr& on, operation&& node);

  /// Whether the origin is ordered after all work of all members.
  [[nodiscard]] bool joined() const;
};

} // namespace simulated
