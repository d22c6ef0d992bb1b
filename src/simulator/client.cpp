// The client side of the simulated device: the C++ functions of gpumem::simulator over its C control interface.
// SPDX-License-Identifier: Apache-2.0
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <stdexcept>
#include <system_error>

#include "client_library.hpp"
#include "gpumem/simulator.hpp"

// A weak symbol: the module library defines it too, and this library must also link without the module library.
extern "C" [[gnu::weak]] char const GPUMEM_CCCL_LINK_GUARD = 0;

namespace gpumem::simulator {

using detail::require_control;

namespace {

gpumem_simulator_options outside(options const& options) {
  if (options.devices < 1 || options.devices > 64)
    throw error("the number of simulated devices must be between 1 and 64");
  if (options.capacity == 0) throw error("the capacity of a simulated device is 0");
  return {options.devices,
          options.capacity,
          options.seed,
          static_cast<int>(options.mode),
          static_cast<std::uint64_t>(options.stall_timeout.count()),
          options.virtual_memory ? 1 : 0,
          options.pageable_memory ? 1 : 0,
          options.concurrent_managed_access ? 1 : 0};
}

int reset_to(options const& options, gpumem_simulator_options const& settings) {
  gpumem_simulator_details const details{options.strict_pool_destroy ? 1 : 0, options.keep_objects ? 1 : 0,
                                         options.name.c_str(), options.addresses};
  return require_control().reset(&settings, &details);
}

party inside(gpumem_simulator_party const& side) { return {side.stream, side.operation, side.action}; }

std::vector<finding> findings(bool take) {
  std::vector<finding> all;
  require_control().visit_findings(
      [](void* context, gpumem_simulator_finding const* record) {
        static_cast<std::vector<finding>*>(context)->push_back(
            {static_cast<finding_kind>(record->kind), inside(record->earlier), inside(record->later),
             record->block_address, record->block_bytes, record->block_number, record->missing, record->text});
      },
      &all, take ? 1 : 0);
  return all;
}

void enqueue(CUstream stream, touch const* first, std::size_t count, std::chrono::nanoseconds duration,
             std::function<void()> function) {
  std::vector<gpumem_simulator_touch> touches;
  for (std::size_t i = 0; i < count; ++i)
    touches.push_back({first[i].pointer, first[i].bytes, first[i].writes ? 1 : 0});
  if (duration < std::chrono::nanoseconds{0} || duration > std::chrono::years{1})
    throw std::invalid_argument{"gpumem: the duration of simulated work must be 0 to a year"};
  auto const nanoseconds = static_cast<std::uint64_t>(duration.count());
  bool const runs = static_cast<bool>(function);
  auto held = runs ? std::make_unique<std::function<void()>>(std::move(function)) : nullptr;
  int const result = require_control().work(
      stream, touches.data(), count, nanoseconds,
      runs ? +[](void* context) { (*static_cast<std::function<void()>*>(context))(); } : nullptr,
      runs ? +[](void* context) { delete static_cast<std::function<void()>*>(context); } : nullptr, held.release());
  if (result != 0) throw error("the simulated device refused work: driver error " + std::to_string(result));
}

} // namespace

void load(options const& options) {
  gpumem_simulator_options const settings = outside(options);
  if (detail::open_library()) reset_to(options, settings);
}

bool loaded() noexcept { return detail::loaded_control() != nullptr; }

namespace {

/// Returns whether the folder has a file nvidia0, nvidia1, …
bool has_numbered_device(std::filesystem::path const& files) {
  std::error_code failed;
  for (auto const& entry : std::filesystem::directory_iterator(files, failed)) {
    std::string const name = entry.path().filename().string();
    if (name.starts_with("nvidia") && name.size() > 6 && name[6] >= '0' && name[6] <= '9') return true;
  }
  return false;
}

} // namespace

bool available_real_device() {
  char const* folder = std::getenv("GPUMEM_SIMULATOR_DEVICE_FILES");
  std::filesystem::path const files = folder != nullptr ? folder : "/dev";
  std::error_code failed;
  return std::filesystem::exists(files / "nvidiactl", failed) && has_numbered_device(files);
}

bool auto_load(options const& options) {
  if (!available_real_device()) load(options);
  return loaded();
}

void reset(options const& options) {
  gpumem_simulator_options const settings = outside(options);
  if (reset_to(options, settings) != 0)
    throw error("the simulated device cannot be reset while a call waits in it or its work runs");
}

void seed(std::uint64_t number) { require_control().seed(number); }
std::uint64_t step(std::uint64_t operations) { return require_control().step(operations); }
std::uint64_t run_until_idle() { return require_control().run_until_idle(); }
void fail_allocation(std::uint64_t nth) { require_control().fail_allocation(nth); }
void fail_call(std::string const& name, std::uint64_t nth, CUresult result) {
  require_control().fail_call(name.c_str(), nth, result);
}
void sticky_error(CUresult result) { require_control().sticky_error(result); }

void never_complete(CUevent event) {
  if (require_control().never_complete(event) != 0) throw error("never_complete: no such event");
}

void work(cuda::stream_ref stream, std::initializer_list<touch> touches, std::chrono::nanoseconds duration,
          std::function<void()> function) {
  enqueue(stream.get(), touches.begin(), touches.size(), duration, std::move(function));
}

void work(cuda::stream_ref stream, std::vector<touch> const& touches, std::chrono::nanoseconds duration,
          std::function<void()> function) {
  enqueue(stream.get(), touches.data(), touches.size(), duration, std::move(function));
}

char const* to_string(finding_kind kind) noexcept {
  constexpr char const* names[] = {"unordered_access",      "unordered_reuse",
                                   "unordered_free",        "use_after_free",
                                   "unallocated_access",    "double_free",
                                   "unknown_free",          "wrong_size",
                                   "overlapping_grant",     "live_block_in_freed_memory",
                                   "dead_stream",           "dead_event",
                                   "call_in_host_function", "deadlock",
                                   "unmapped_access",       "access_without_right",
                                   "premature_unmap",       "dead_memory_handle",
                                   "early_pool_destroy"};
  return names[static_cast<int>(kind)];
}

summary report() {
  summary counts;
  counts.findings = findings(false);
  require_control().visit_calls(
      [](void* context, char const* name, std::uint64_t count) {
        static_cast<summary*>(context)->driver_calls[name] += count;
      },
      &counts);
  gpumem_simulator_statistics statistics;
  require_control().read_statistics(&statistics);
  counts.operations_run = statistics.operations_run;
  counts.operations_pending = statistics.operations_pending;
  counts.streams_created = statistics.streams_created;
  counts.streams_alive = statistics.streams_alive;
  counts.stream_handles_recycled = statistics.stream_handles_recycled;
  counts.event_handles_recycled = statistics.event_handles_recycled;
  counts.implicit_synchronizations = statistics.implicit_synchronizations;
  counts.bytes_allocated = statistics.bytes_allocated;
  counts.bytes_reserved = statistics.bytes_reserved;
  counts.mappings = statistics.mappings;
  return counts;
}

void clear_driver_calls() { require_control().clear_calls(); }

std::vector<finding> take_findings() { return findings(true); }

void expect_silent() {
  std::vector<finding> const found = take_findings();
  if (found.empty()) return;
  std::string text = "the simulated device has " + std::to_string(found.size()) + " findings:";
  for (finding const& one : found) text += "\n  " + one.text;
  throw error(text);
}

void set_schedule_hooks(void (*on_call)(void*), bool (*on_block)(void*), void* context) {
  require_control().on_call(on_call, context);
  require_control().on_block(on_block, context);
}

namespace detail {

std::uint64_t new_owner() noexcept {
  control const* device = loaded_control();
  return device == nullptr ? 0 : device->new_owner();
}

void allocated(std::uint64_t owner, CUstream stream, bool by_host, void* pointer, std::size_t bytes) noexcept {
  if (control const* device = loaded_control()) device->allocated(owner, stream, by_host ? 1 : 0, pointer, bytes);
}

void freed(std::uint64_t owner, CUstream stream, bool by_host, void* pointer, std::size_t bytes) noexcept {
  if (control const* device = loaded_control()) device->freed(owner, stream, by_host ? 1 : 0, pointer, bytes);
}

void use_recorded(CUstream stream, void* pointer) noexcept {
  if (control const* device = loaded_control()) device->use_recorded(stream, pointer);
}

} // namespace detail

} // namespace gpumem::simulator
