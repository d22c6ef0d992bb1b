// Two shared libraries and the program share one pool, and the program catches what a library throws. Arguments: the
// libraries.
// SPDX-License-Identifier: Apache-2.0
#include <gpumem/pool.hpp>

#include <dlfcn.h>

#include <cstddef>
#include <cstdio>

extern "C" {
#include "simulated.h"
}

namespace {

struct plugin {
  explicit plugin(char const* path) : library{dlopen(path, RTLD_NOW | RTLD_LOCAL)} {
    if (!library) std::fprintf(stderr, "%s\n", dlerror());
  }
  void* library;
  void* (*allocate)(gpumem_pool*, CUstream_st*,
                    std::size_t) = reinterpret_cast<decltype(allocate)>(dlsym(library, "plugin_allocate"));
  void (*free)(gpumem_pool*, CUstream_st*, void*,
               std::size_t) = reinterpret_cast<decltype(free)>(dlsym(library, "plugin_free"));
};

bool share_a_pool(plugin const& first, plugin const& second) {
  gpumem::pool pool{0, "limit=8MiB"};
  auto* const stream = static_cast<CUstream_st*>(simulated_stream(0));
  auto* const block = first.allocate(pool.handle(), stream, 1000);
  if (pool.statistics().live != 1000) return false;
  second.free(pool.handle(), stream, block, 1000);
  if (pool.statistics().live != 0) return false;
  try {
    (void)second.allocate(pool.handle(), stream, std::size_t{1} << 30);
  } catch (gpumem::out_of_memory const& e) { return e.info().limit == std::size_t{8} << 20; }
  return false;
}

} // namespace

int main(int argc, char** argv) {
  if (argc != 3) return 2;
  simulated_reset(1);
  return share_a_pool(plugin{argv[1]}, plugin{argv[2]}) && simulated_finish() == 0 ? 0 : 1;
}
