// Finds and opens the library of the simulated device.
// SPDX-License-Identifier: Apache-2.0
#include "client_library.hpp"

#include <dlfcn.h>
#include <pthread.h>

#include <atomic>
#include <cstdlib>
#include <filesystem>
#include <mutex>
#include <string>
#include <system_error>
#include <vector>

#include "gpumem/simulator.hpp"

// The path of the library, in programs that link the target gpumem::simulator: cmake/simulator_path.cpp defines it.
// Other programs lack the symbol, so its address is null.
extern "C" [[gnu::weak]] char const* const gpumem_simulator_path;

namespace gpumem::simulator::detail {

namespace {

namespace fs = std::filesystem;

constexpr char const* file_name = "libgpumem_simulator_driver.so";

std::atomic<control const*> opened{nullptr};
std::atomic<bool> left_behind{false}; // true in a child process, if the library was opened before fork()

template <class Function> void take(void* library, Function& place, char const* name) {
  place = reinterpret_cast<Function>(::dlsym(library, name));
  if (place == nullptr) throw error(std::string("the simulated device's library lacks ") + name);
}

control* functions_of(void* library) {
  int (*version)() = nullptr;
  take(library, version, "gpumem_simulator_interface");
  if (version() != GPUMEM_SIMULATOR_INTERFACE)
    throw error("the simulated device's library has another interface version");
  auto* functions = new control;
  take(library, functions->reset, "gpumem_simulator_reset_with");
  take(library, functions->seed, "gpumem_simulator_seed");
  take(library, functions->step, "gpumem_simulator_step");
  take(library, functions->run_until_idle, "gpumem_simulator_run_until_idle");
  take(library, functions->fail_allocation, "gpumem_simulator_fail_allocation");
  take(library, functions->fail_call, "gpumem_simulator_fail_call");
  take(library, functions->sticky_error, "gpumem_simulator_sticky_error");
  take(library, functions->never_complete, "gpumem_simulator_never_complete");
  take(library, functions->work, "gpumem_simulator_work");
  take(library, functions->new_owner, "gpumem_simulator_new_owner");
  take(library, functions->allocated, "gpumem_simulator_allocated");
  take(library, functions->freed, "gpumem_simulator_freed");
  take(library, functions->use_recorded, "gpumem_simulator_use_recorded");
  take(library, functions->on_call, "gpumem_simulator_on_call");
  take(library, functions->on_block, "gpumem_simulator_on_block");
  take(library, functions->read_statistics, "gpumem_simulator_read_statistics");
  take(library, functions->visit_calls, "gpumem_simulator_visit_calls");
  take(library, functions->clear_calls, "gpumem_simulator_clear_calls");
  take(library, functions->visit_findings, "gpumem_simulator_visit_findings");
  return functions;
}

std::vector<fs::path> candidates() {
  if (char const* named = std::getenv("GPUMEM_SIMULATOR_LIBRARY")) return {named};
  std::vector<fs::path> all;
  std::error_code failed;
  fs::path const program = fs::read_symlink("/proc/self/exe", failed);
  if (!failed) {
    all.push_back(program.parent_path() / file_name);
    all.push_back(program.parent_path().parent_path() / "lib" / file_name);
    all.push_back(program.parent_path().parent_path() / GPUMEM_SIMULATOR_FOLDER / file_name);
  }
  if (&gpumem_simulator_path != nullptr) all.emplace_back(gpumem_simulator_path);
  return all;
}

/// Returns the simulated driver, if it was preloaded or the simulated runtime has opened it. Returns null if no driver
/// is loaded, and throws if a real one is.
void* present_driver() {
  void* present = ::dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
  if (present == nullptr || ::dlsym(present, "gpumem_simulator_interface") != nullptr) return present;
  ::dlclose(present);
  throw error("a real CUDA driver (libcuda.so.1) is already loaded in this process: load the simulated device before "
              "the first CUDA call");
}

void* open_first(std::vector<fs::path> const& paths) {
  std::string attempts;
  for (fs::path const& path : paths) {
    std::error_code failed;
    if (!fs::exists(path, failed)) {
      attempts += "\n  " + path.string() + ": no such file";
      continue;
    }
    if (void* library = ::dlopen(path.c_str(), RTLD_NOW | RTLD_GLOBAL)) return library;
    attempts += "\n  " + std::string(::dlerror());
  }
  throw error("the simulated device's library was not found; tried:" + attempts);
}

} // namespace

control const* loaded_control() noexcept { return opened.load(std::memory_order_acquire); }

control const& require_control() {
  if (left_behind.load()) throw error("the simulated device does not serve a forked child");
  control const* all = loaded_control();
  if (all == nullptr) throw error("the simulated device is not loaded: call gpumem::simulator::load() first");
  return *all;
}

bool open_library() {
  if (left_behind.load()) require_control();
  static std::mutex once;
  std::lock_guard const lock(once);
  if (loaded_control() != nullptr) return false;
  void* library = present_driver();
  if (library == nullptr) library = open_first(candidates());
  opened.store(functions_of(library), std::memory_order_release);
  ::pthread_atfork(nullptr, nullptr, [] {
    left_behind = true;
    opened = nullptr;
  });
  return true;
}

} // namespace gpumem::simulator::detail
