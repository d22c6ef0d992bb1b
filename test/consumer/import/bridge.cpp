// A user's program whose device part is in a .cu file; a gpumem resource crosses to it by value.
// SPDX-License-Identifier: Apache-2.0
#include <gpumem/services.hpp>
#include <gpumem/simulator.hpp>

import gpumem;

int use_in_device_code(gpumem::any_pool pool, cuda::stream_ref stream);

int main() {
  gpumem::simulator::load();
  gpumem::stream stream{gpumem::device{0}};
  return use_in_device_code(gpumem::any_pool{gpumem::cuda_resource{}}, stream);
}
