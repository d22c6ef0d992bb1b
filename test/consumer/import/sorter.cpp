// A user's program: Thrust with its host backend, in memory of a resource.
// SPDX-License-Identifier: Apache-2.0
#include <gpumem/simulator.hpp>
#include <thrust/sort.h>

import gpumem;
import gpumem.thrust;

int main() {
  gpumem::simulator::load();
  gpumem::stream stream{gpumem::device{0}};
  gpumem::device_vector<int> numbers(3, 2, gpumem::thrust_allocator<int>{stream, gpumem::host_resource{}});
  numbers[0] = 3;
  numbers[2] = 1;
  thrust::sort(numbers.begin(), numbers.end());
  return numbers[0] == 1 && numbers[1] == 2 && numbers[2] == 3 ? 0 : 1;
}
