// The sort for the simulated device, whose memory the host can access.
// SPDX-License-Identifier: Apache-2.0
#include "sort.hpp"

#include <algorithm>

void demo::host_sort::run(void* data) {
  auto const& [keys, count] = *static_cast<host_sort*>(data);
  std::sort(keys, keys + count);
}
