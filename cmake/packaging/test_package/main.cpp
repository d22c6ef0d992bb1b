// Allocates on the simulated device.
// SPDX-License-Identifier: Apache-2.0
#include <gpumem/simulator.hpp>
import gpumem;

int main() {
  gpumem::simulator::load({});
  gpumem::pool_resource pool{gpumem::device{0}};
  gpumem::stream stream{gpumem::device{0}};
  auto const block = gpumem::sync_wait(pool.acquire(stream, 1 << 20));
  return block.bytes() == 1 << 20 && gpumem::simulator::take_findings().empty() ? 0 : 1;
}
