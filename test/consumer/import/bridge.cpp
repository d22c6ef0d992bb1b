// A user's program whose device part is in a .cu file; a gpumem resource crosses to it by value. Its argument says
// whether the program links the CUDA runtime as a shared library: "Shared" or "Static".
// SPDX-License-Identifier: Apache-2.0
#include <gpumem/services.hpp>
#include <gpumem/simulator.hpp>

#include <cuda_runtime_api.h>
#include <dlfcn.h>

#include <string_view>

import gpumem;

int use_in_device_code(gpumem::any_pool pool, cuda::stream_ref stream);

int main(int, char** arguments) {
  Dl_info found{};
  if (dladdr(reinterpret_cast<void*>(&cudaGetErrorString), &found) == 0) return 3;
  bool const shared = std::string_view{found.dli_fname}.find("libcudart") != std::string_view::npos;
  if (shared != (std::string_view{arguments[1]} == "Shared")) return 2;

  gpumem::simulator::load();
  gpumem::stream stream{gpumem::device{0}};
  return use_in_device_code(gpumem::any_pool{gpumem::cuda_resource{}}, stream);
}
