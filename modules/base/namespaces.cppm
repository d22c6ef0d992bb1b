// The namespaces of the library:
//   gpumem              for users: devices, streams, resources, pools, adaptors, executors, coroutines, containers
//   gpumem::mr          CCCL's concepts and types of memory resources
//   gpumem::literals    literals for sizes, such as 64_MiB
//   gpumem::extend      for authors of resources, adaptors, executors and tools
//   gpumem::driver_api  for callers of the CUDA driver
//   gpumem::detail      for the library itself and its tests
// The using-directives below let the library's own sources omit the inner namespaces. They are not exported to users.
// SPDX-License-Identifier: Apache-2.0
export module gpumem:namespaces;

namespace gpumem {

namespace extend {}
namespace driver_api {}

using namespace extend;
using namespace driver_api;

} // namespace gpumem
