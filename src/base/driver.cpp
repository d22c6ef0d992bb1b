// Loads the driver, counts its calls, and notes when it may not be called any more.
// SPDX-License-Identifier: Apache-2.0
module;
#include <gpumem/lock_attributes.hpp>
#include <cuda.h>
#include <dlfcn.h>
#include <pthread.h>
#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <iterator>
#include <new>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
module gpumem:driver.impl;
import :driver;
import :cuda;
import :locks;
import :process;
import :sync;

namespace gpumem {
namespace detail {
namespace {

inline constexpr char const* instead_of_a_device =
    "; without a GPU, a program runs on the simulated device: it calls gpumem::simulator::load() of "
    "<gpumem/simulator.hpp> first, or preloads libgpumem_simulator_driver.so";

inline constexpr std::size_t function_count = std::size(driver_function_names);

// Returns whether the name means a function with one more argument if a newer version of it is asked for. gpumem calls
// the old function, so load() asks for version 12.4.
bool newer_form(std::string_view name) noexcept {
  return name == "cuStreamGetCtx" || name == "cuCtxGetDevice" || name == "cuCtxSynchronize";
}

// The counters of one thread index (the number of a running thread). They stay when the thread ends: the next thread
// with this index adds to them.
struct alignas(64) call_counters {
  std::array<std::atomic<std::uint64_t>, function_count> calls{};
  call_counters* next = nullptr;
  unsigned thread_index = 0;
};

// Counts the calls of threads for whose counters the host has no memory.
constinit call_counters shared_counters{.thread_index = ~0u};
constinit std::atomic<call_counters*> all_counters{&shared_counters};

// Returns null if the host has no memory for the counters.
call_counters* own_counters() noexcept {
  auto const number = sync::thread_index();
  for (auto* block = all_counters.load(std::memory_order_acquire); block; block = block->next) {
    if (block->thread_index == number) return block;
  }
  auto* const block = new (std::nothrow) call_counters;
  if (!block) return nullptr;
  block->thread_index = number;
  block->next = all_counters.load(std::memory_order_relaxed);
  while (!all_counters.compare_exchange_weak(block->next, block, std::memory_order_acq_rel)) {}
  return block;
}

// The functions that run before the driver shuts down. A few parts of the library register one function each.
struct exit_list {
  sync::native_mutex mutex;
  std::array<void (*)() noexcept, 16> functions GPUMEM_GUARDED_BY(mutex){};
  std::size_t size GPUMEM_GUARDED_BY(mutex) = 0;
};

// Takes no host memory, since noexcept functions register their parts.
exit_list& exits() noexcept {
  alignas(exit_list) static std::byte place[sizeof(exit_list)];
  static auto* const list = ::new (place) exit_list;
  return *list;
}

bool is_loaded() noexcept { return loaded_driver.load(std::memory_order_acquire) != nullptr; }

// Does nothing in a forked child: the threads that the functions would stop do not exist there.
void run_exit_functions() {
  if (driver_gone.load(std::memory_order_acquire)) return;
  for (auto& list = exits();;) {
    void (*function)() noexcept = nullptr;
    {
      sync::scoped_lock const lock{list.mutex};
      if (list.size > 0) function = list.functions[--list.size];
    }
    if (!function) break;
    function();
  }
  if (is_loaded()) driver_gone.store(true, std::memory_order_release);
}

// Runs in the child, which has one thread.
void on_fork() {
  if (this_process.load() != process_kind::in_use) return;
  this_process.store(process_kind::child);
  driver_gone.store(true);
  loaded_driver.store(&absent_driver);
}

// Registered when the library is loaded: so before any fork of a process that has used gpumem.
[[maybe_unused]] int const fork_handler = pthread_atfork(nullptr, nullptr, on_fork);

// CCCL's cuda_error asks the runtime for a text when it is constructed. In a child, threads that do not exist there may
// hold the runtime's locks. So a child throws a copy of an exception that its parent has constructed.
std::atomic<cuda_error const*> made_for_children{nullptr};

void prepare_fork() {
  static auto const* const made = new cuda_error{static_cast<cudaError_t>(CUDA_ERROR_DEINITIALIZED), "gpumem"};
  made_for_children.store(made, std::memory_order_release);
}

// Has a text of its own. That of CCCL begins with the path of a source file.
class described_error final : public cuda_error {
public:
  described_error(cuda_error const& error, std::string const& text) : cuda_error{error}, text_{text} {}
  char const* what() const noexcept override { return text_.what(); }

private:
  std::runtime_error text_; // its copies do not throw, as an exception's must not
};

// Returns CUDA's name of an error: that part of CCCL's text after the place in the source and before the last colon.
std::string cuda_text(cuda_error const& error) {
  std::string_view text = error.what();
  if (text.starts_with(__FILE__)) text.remove_prefix(std::min(text.find(' ', std::size(__FILE__)) + 1, text.size()));
  return std::string{text.substr(0, text.rfind(':'))};
}

// Returns the text of an error. After a sticky error (one after which the device is lost), the text says that the
// process has to be restarted.
std::string describe_result(CUresult result, char const* call) {
  auto const call_text = std::string{call};
  auto const text = call_text.starts_with("gpumem: ") ? call_text : "gpumem: " + call_text;
  if (forked()) {
    return text + ": CUDA error " + std::to_string(result) +
           ": this process was forked after gpumem was used, so it cannot use gpumem";
  }
  if (result == CUDA_ERROR_DEINITIALIZED) return text + ": the process is exiting";
  if (result == CUDA_ERROR_CONTEXT_IS_DESTROYED) {
    return text + ": the device was reset; restart the process to use gpumem on it again";
  }
  return is_sticky(result) ? text + ": the device is lost; restart the process to use gpumem on it again" : text;
}

} // namespace

void count_driver_call(driver_function function) noexcept {
  // A reference would be initialized at its first use. In a shared library its flag is a second variable to look up.
  thread_local constinit call_counters* counters = nullptr;
  if (!counters) [[unlikely]] {
    counters = own_counters();
    if (!counters) {
      shared_counters.calls[static_cast<unsigned>(function)].fetch_add(1, std::memory_order_relaxed);
      return;
    }
  }
  auto& counter = counters->calls[static_cast<unsigned>(function)];
  counter.store(counter.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
}

void at_driver_exit(void (*function)() noexcept) {
  auto& list = exits();
  sync::scoped_lock const lock{list.mutex};
  if (list.size == list.functions.size()) std::abort(); // each part registers once, not once per object
  // Even without a driver, functions have to run at exit. If a driver is loaded later, its own exit handler would run
  // before the handler registered here. So the loader registers run_exit_functions() again, and that call runs first.
  if (list.size == 0 && !is_loaded()) std::atexit(run_exit_functions);
  list.functions[list.size++] = function;
}

// Fills the table of functions. If that fails, keeps the error.
class driver_loader {
public:
  driver_table table;
  std::string error;
  CUresult code = CUDA_SUCCESS;

  driver_loader() {
    if (load_all() && (code = table.init.function_(0)) != CUDA_SUCCESS) fail(code, "cuInit failed");
    if (code == CUDA_ERROR_NO_DEVICE) error += instead_of_a_device;
    pthread_atfork(prepare_fork, nullptr, nullptr);
    if (!error.empty()) return;
    std::atexit(run_exit_functions);
    loaded_driver.store(&table, std::memory_order_release);
  }

private:
  using lookup_function = CUresult (*)(char const*, void**, int, cuuint64_t, CUdriverProcAddressQueryResult*);

  bool load_all() {
    void* const library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    if (!library) return fail(CUDA_ERROR_NO_DEVICE, std::string{"no CUDA driver: "} + dlerror());
    auto const lookup = reinterpret_cast<lookup_function>(dlsym(library, "cuGetProcAddress_v2"));
    if (!lookup) return fail(CUDA_ERROR_NOT_SUPPORTED, "the CUDA driver is older than 12.0");
    bool complete = true;
    visit_entries(table, [&](auto& entry, char const* name) { complete = complete && load(lookup, entry, name); });
    return complete;
  }

  template <class Entry> bool load(lookup_function lookup, Entry& entry, char const* name) {
    void* found = nullptr;
    auto const flags = CU_GET_PROC_ADDRESS_LEGACY_STREAM;
    auto const version = newer_form(name) ? 12040 : CUDA_VERSION;
    auto const result = lookup(name, &found, version, flags, nullptr);
    if (result != CUDA_SUCCESS || !found) {
      return fail(CUDA_ERROR_NOT_FOUND, std::string{"the CUDA driver lacks "} + name);
    }
    entry.function_ = reinterpret_cast<decltype(entry.function_)>(found);
    return true;
  }

  bool fail(CUresult result, std::string message) {
    code = result;
    error = std::move(message);
    return false;
  }
};

namespace {
driver_loader const& the_loader() {
  set_in_use();
  static auto* const loader = new driver_loader;
  return *loader;
}
} // namespace

driver_table const& load_driver() {
  auto const& loader = the_loader();
  if (!loader.error.empty()) throw_cuda_error(loader.code, loader.error.c_str());
  return loader.table;
}

void throw_if_child() {
  if (forked()) throw_cuda_error(CUDA_ERROR_DEINITIALIZED, "gpumem");
}
} // namespace detail

bool driver_api::driver_available() noexcept try {
  return !detail::forked() && detail::the_loader().error.empty();
} catch (std::bad_alloc const&) { return false; }

std::uint64_t driver_api::driver_calls() noexcept {
  std::uint64_t sum = 0;
  for (auto* block = detail::all_counters.load(std::memory_order_acquire); block; block = block->next) {
    for (auto const& counter : block->calls) sum += counter.load(std::memory_order_relaxed);
  }
  return sum;
}

std::uint64_t driver_api::driver_calls(std::string_view name) noexcept {
  std::uint64_t sum = 0;
  for (unsigned i = 0; i < detail::function_count; ++i) {
    if (detail::driver_function_names[i] != name) continue;
    for (auto* block = detail::all_counters.load(std::memory_order_acquire); block; block = block->next) {
      sum += block->calls[i].load(std::memory_order_relaxed);
    }
  }
  return sum;
}

void driver_api::check(CUresult result, char const* call) {
  if (result != CUDA_SUCCESS) throw_cuda_error(result, call);
}

void driver_api::throw_cuda_error(CUresult result, char const* call) {
  auto const text = detail::describe_result(result, call);
  auto const* const made = detail::made_for_children.load(std::memory_order_acquire);
  if (made && detail::forked()) throw detail::described_error{*made, text};
  // If the host has no memory for the text, CCCL's constructor ends the process. This trial allocation throws
  // std::bad_alloc first.
  constexpr std::size_t more_than_a_text = 1024;
  ::operator delete(::operator new(more_than_a_text)); // a plain call, which no compiler may remove
  auto const status = detail::forked() ? CUDA_ERROR_DEINITIALIZED : result;
  cuda_error const plain{static_cast<cudaError_t>(status), ""};
  throw detail::described_error{plain, text + ": " + detail::cuda_text(plain)};
}

bool driver_api::is_sticky(CUresult error) noexcept {
  switch (error) {
  case CUDA_ERROR_DEINITIALIZED:
  case CUDA_ERROR_ECC_UNCORRECTABLE:
  case CUDA_ERROR_NVLINK_UNCORRECTABLE:
  case CUDA_ERROR_ILLEGAL_ADDRESS:
  case CUDA_ERROR_LAUNCH_TIMEOUT:
  case CUDA_ERROR_CONTEXT_IS_DESTROYED:
  case CUDA_ERROR_ASSERT:
  case CUDA_ERROR_HARDWARE_STACK_ERROR:
  case CUDA_ERROR_ILLEGAL_INSTRUCTION:
  case CUDA_ERROR_MISALIGNED_ADDRESS:
  case CUDA_ERROR_INVALID_ADDRESS_SPACE:
  case CUDA_ERROR_INVALID_PC:
  case CUDA_ERROR_LAUNCH_FAILED:
  case CUDA_ERROR_TENSOR_MEMORY_LEAK:
  case CUDA_ERROR_CONTAINED:
  case CUDA_ERROR_MPS_CLIENT_TERMINATED:
  case CUDA_ERROR_EXTERNAL_DEVICE:
  case CUDA_ERROR_UNKNOWN: return true;
  default: return false; // a wrong argument, or a lack of resources that may pass
  }
}

} // namespace gpumem
