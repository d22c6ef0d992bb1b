// Finds and opens the simulated driver: the one that is loaded already, or the one in the folder of this library.
// SPDX-License-Identifier: Apache-2.0
#include "driver_table.hpp"

#include <dlfcn.h>

#include <cstdio>
#include <cstdlib>
#include <string>

namespace simulated_runtime {

namespace {

constexpr char const* file_name = "libgpumem_simulator_driver.so";

void* refuse(char const* reason) {
  std::fprintf(stderr, "gpumem simulator: the simulated CUDA runtime has no driver: %s\n", reason);
  return nullptr;
}

void* open_library() {
  if (void* present = ::dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD)) {
    if (::dlsym(present, "gpumem_simulator_interface") != nullptr) return present;
    ::dlclose(present);
    return refuse("a real CUDA driver (libcuda.so.1) is loaded in this process");
  }
  std::string path;
  if (char const* named = std::getenv("GPUMEM_SIMULATOR_LIBRARY")) {
    path = named;
  } else if (Dl_info here{}; ::dladdr(reinterpret_cast<void const*>(&opened_driver), &here) != 0) {
    path = here.dli_fname;
    path.erase(path.rfind('/') + 1);
    path += file_name;
  }
  void* library = ::dlopen(path.c_str(), RTLD_NOW | RTLD_GLOBAL);
  return library != nullptr ? library : refuse(::dlerror());
}

#define GPUMEM_RUNTIME_TEXT(name) #name
#define GPUMEM_RUNTIME_NAME(name) GPUMEM_RUNTIME_TEXT(name)

driver_table const* table() {
  void* library = open_library();
  if (library == nullptr) return nullptr;
  static driver_table all;
#define GPUMEM_RUNTIME_TAKE(function)                                                                                  \
  all.function = reinterpret_cast<decltype(all.function)>(::dlsym(library, GPUMEM_RUNTIME_NAME(function)));            \
  if (all.function == nullptr) {                                                                                       \
    refuse(::dlerror());                                                                                               \
    return nullptr;                                                                                                    \
  }
  GPUMEM_RUNTIME_DRIVER_FUNCTIONS(GPUMEM_RUNTIME_TAKE)
#undef GPUMEM_RUNTIME_TAKE
  return &all;
}

/// Opens the driver as soon as this library is loaded, so that a later dlopen("libcuda.so.1") of the program finds it.
[[gnu::constructor]] void open_early() { opened_driver(); }

} // namespace

driver_table const* opened_driver() noexcept {
  static driver_table const* const all = table();
  return all;
}

} // namespace simulated_runtime
