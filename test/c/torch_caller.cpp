// A program built by another compiler that loads the library and runs out of memory, as PyTorch does. It catches the
// exception that the library throws, and then allocates less. Arguments: the library, the case.
// SPDX-License-Identifier: Apache-2.0
#include <gpumem/gpumem_torch.h>

#include <dlfcn.h>

#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <new>
#include <string>
#include <thread>

namespace {

constexpr std::size_t mib = std::size_t{1} << 20;
constexpr int device = 0;

void require(bool holds, char const* what) {
  if (holds) return;
  std::fprintf(stderr, "check failed: %s\n", what);
  std::exit(1);
}

void* open(char const* path) {
  auto* const library = dlopen(path, RTLD_LAZY);
  require(library != nullptr, library ? "" : dlerror());
  return library;
}

struct functions {
  explicit functions(char const* path) : library{open(path)} {}
  template <class Function> Function* get(char const* name) const {
    auto* const found = dlsym(library, name);
    require(found != nullptr, name);
    return reinterpret_cast<Function*>(found);
  }
  void* library;
  decltype(&gpumem_torch_configure) configure = get<decltype(gpumem_torch_configure)>("gpumem_torch_configure");
  decltype(&gpumem_torch_allocate) allocate = get<decltype(gpumem_torch_allocate)>("gpumem_torch_allocate");
  decltype(&gpumem_torch_free) free = get<decltype(gpumem_torch_free)>("gpumem_torch_free");
};

// An object that the exception's unwinding must destroy.
struct passed {
  explicit passed(int& count) : count{count} {}
  ~passed() { ++count; }
  int& count;
};

void* allocate(functions const& gpumem, std::size_t bytes, int& frames) {
  passed const one{frames};
  return gpumem.allocate(bytes, device, nullptr);
}

// Returns whether the allocation threw out of memory.
bool refused(functions const& gpumem, std::size_t bytes) {
  int frames = 0;
  try {
    gpumem.free(allocate(gpumem, bytes, frames), bytes, device, nullptr);
    return false;
  } catch (std::bad_alloc const& e) {
    require(std::strstr(e.what(), "gpumem: out of memory") != nullptr, e.what());
    require(frames == 1, "the frames between were destroyed");
    return true;
  }
}

// Allocates more than the limit, then as much as is left, then less.
void run_out(functions const& gpumem) {
  require(refused(gpumem, 128 * mib), "128 MiB are refused");
  int frames = 0;
  auto* const held = allocate(gpumem, 40 * mib, frames);
  require(held != nullptr, "40 MiB are granted");
  require(refused(gpumem, 40 * mib), "40 MiB more are refused");
  require(!refused(gpumem, 16 * mib), "16 MiB more are granted");
  gpumem.free(held, 40 * mib, device, nullptr);
  require(!refused(gpumem, 40 * mib), "40 MiB are granted again");
}

void on_this_thread(functions const& gpumem) { run_out(gpumem); }

void on_another_thread(functions const& gpumem) {
  std::thread{[&] { run_out(gpumem); }}.join();
}

// Passes an exception to another thread, as autograd does.
void on_another_thread_for_this_one(functions const& gpumem) {
  std::exception_ptr met;
  std::thread{[&] {
    try {
      gpumem.allocate(128 * mib, device, nullptr);
    } catch (...) { met = std::current_exception(); }
  }}.join();
  std::string told;
  try {
    require(met != nullptr, "the other thread has met with an exception");
    std::rethrow_exception(met);
  } catch (std::exception const& e) { told = e.what(); }
  met = nullptr;
  require(told.find("gpumem: out of memory") == 0, told.c_str());
  run_out(gpumem);
}

constexpr struct {
  char const* name;
  void (*run)(functions const&);
} cases[] = {
    {"on_this_thread", on_this_thread},
    {"on_another_thread", on_another_thread},
    {"on_another_thread_for_this_one", on_another_thread_for_this_one},
};

} // namespace

int main(int count, char** arguments) {
  require(count == 3, "there are two arguments");
  functions const gpumem{arguments[1]};
  require(gpumem.configure("limit=64MiB") == GPUMEM_GRANTED, "the limit is taken");
  for (auto const& each : cases) {
    if (std::strcmp(each.name, arguments[2]) != 0) continue;
    each.run(gpumem);
    std::puts("caught, and went on");
    return 0;
  }
  require(false, "the case is known");
}
