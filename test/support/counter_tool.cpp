// The tool's books, and its entry points for NVTX.
// SPDX-License-Identifier: Apache-2.0
#include "counter_tool.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <optional>
#include <ranges>
#include <string>
#include <utility>
#include <vector>

#define NVTX_NO_IMPL
#define NVTX_AS_SYSTEM_HEADER
#include <nvtx3/nvToolsExtCounters.h>

namespace test {

counter_tool& counter_tool::instance() {
  static auto* const made = new counter_tool;
  return *made;
}

std::optional<std::int64_t> counter_tool::newest(std::string const& name) const {
  std::scoped_lock const held{mutex_};
  for (auto const& each : std::views::reverse(counters_))
    if (each.name == name) return each.newest;
  return std::nullopt;
}

std::size_t counter_tool::samples() const {
  std::scoped_lock const held{mutex_};
  return samples_;
}

std::size_t counter_tool::counters() const {
  std::scoped_lock const held{mutex_};
  return counters_.size();
}

std::vector<std::string> counter_tool::faults() const {
  std::scoped_lock const held{mutex_};
  return faults_;
}

void counter_tool::refuse(bool refuses) {
  std::scoped_lock const held{mutex_};
  refuses_ = refuses;
}

std::uint64_t counter_tool::add(std::string name, bool right) {
  std::scoped_lock const held{mutex_};
  if (!right) faults_.push_back(name + ": one or more of the attributes is invalid");
  if (refuses_) return NVTX_COUNTER_ID_NONE;
  counters_.push_back({std::move(name), std::nullopt});
  return counters_.size();
}

void counter_tool::sample(std::uint64_t number, std::int64_t value) {
  std::scoped_lock const held{mutex_};
  ++samples_;
  if (number == 0 || number > counters_.size()) return faults_.push_back("sample: there is no such counter");
  counters_[number - 1].newest = value;
}

namespace {

std::uint64_t register_counter(nvtxDomainHandle_t, nvtxCounterAttr_t const* attributes) {
  bool const right = attributes->structSize == sizeof *attributes &&
                     attributes->schemaId == NVTX_PAYLOAD_ENTRY_TYPE_INT64 && attributes->name != nullptr &&
                     attributes->counterId == NVTX_COUNTER_ID_NONE;
  return counter_tool::instance().add(attributes->name, right);
}

void sample_counter(nvtxDomainHandle_t, std::uint64_t counter, std::int64_t value) {
  counter_tool::instance().sample(counter, value);
}

int attach(nvtxExtModuleInfo_t* module) {
  if (module->moduleId != NVTX_EXT_COUNTERS_MODULEID || module->compatId != NVTX_EXT_COUNTERS_COMPATID) return 0;
  auto* const slots = module->segments[0].functionSlots;
  slots[NVTX3EXT_CBID_nvtxCounterRegister] = reinterpret_cast<std::intptr_t>(&register_counter);
  slots[NVTX3EXT_CBID_nvtxCounterSampleInt64] = reinterpret_cast<std::intptr_t>(&sample_counter);
  return 1;
}

} // namespace
} // namespace test

/// NVTX calls the function to which this points when its interface for counters is first used.
extern "C" NvtxExtInitializeInjectionFunc_t InitializeInjectionNvtxExtension_fnptr = &test::attach;
