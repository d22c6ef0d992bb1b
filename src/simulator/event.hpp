// Events: a handle that points at its newest record.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>

#include "driver_api.hpp"
#include "stream.hpp"

namespace simulated {

struct event {
  CUevent handle = nullptr;
  std::uint64_t serial = 0;
  context* home = nullptr;
  unsigned flags = 0;
  std::shared_ptr<record> last;      // null: never recorded, which queries as complete
  std::shared_ptr<capture> captured; // its last record was in this capture
  vector_clock captured_order;       // what of the capture it stands for
  bool never_next = false;           // fault asked for before the event was recorded
};

} // namespace simulated
