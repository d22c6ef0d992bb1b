// Events: a handle and its newest record.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "driver_api.hpp"
#include "stream.hpp"

namespace simulated {

struct event {
  CUevent handle = nullptr;
  std::uint64_t serial = 0;
  context* home = nullptr;
  unsigned flags = 0;
  std::shared_ptr<record> last;      // null if the event was never recorded; a query then returns success
  std::shared_ptr<capture> captured; // the capture in which the event was last recorded
  vector_clock captured_order;       // the nodes of that capture that come before the record
  std::vector<CUgraphNode> covered;  // a stream that waits for the event: its next node depends on these nodes
  bool never_next = false;           // injected fault: the next record never completes
};

} // namespace simulated
