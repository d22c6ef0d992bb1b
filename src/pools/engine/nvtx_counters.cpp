// Registers and samples counters by NVTX's interface for counters.
// SPDX-License-Identifier: Apache-2.0
module;
#if __has_include(<nvtx3/nvToolsExtCounters.h>)
#define GPUMEM_HAS_NVTX_COUNTERS 1
#define NVTX_AS_SYSTEM_HEADER
#include <nvtx3/nvToolsExtCounters.h>
#endif
#include <gpumem/statistics.hpp>
#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
module gpumem:nvtx_counters.impl;
import :nvtx_counters;

namespace gpumem::detail {

#ifdef GPUMEM_HAS_NVTX_COUNTERS
namespace {

// A domain of this name is the same in all of the library.
nvtxDomainHandle_t counter_domain() noexcept {
  static auto const made = nvtxDomainCreateA("gpumem");
  return made;
}

using counted = std::uint64_t statistics::*;
constexpr std::array<std::pair<char const*, counted>, 4> kinds{{{": live bytes", &statistics::live},
                                                                {": reserved bytes", &statistics::reserved},
                                                                {": cached bytes", &statistics::cached},
                                                                {": waiting requests", &statistics::waiting}}};

} // namespace

// A tool that takes counters has set the address of nvtxCounterRegister() when the initialisation returns.
bool nvtx_counters::tool_listens() noexcept {
  static bool const result = [] {
    NVTX_EXT_COUNTERS_VERSIONED_ID(nvtxExtCountersInitOnce)();
    auto const function = NVTX_EXT_COUNTERS_VERSIONED_ID(nvtxExtCountersSlots)[NVTX3EXT_CBID_nvtxCounterRegister + 1];
    return function != NVTX_EXTENSION_FRESH && function != NVTX_EXTENSION_DISABLED;
  }();
  return result;
}

nvtx_counters::nvtx_counters(char const* pool) {
  if (!tool_listens()) return;
  for (std::size_t i = 0; i < kinds.size(); ++i) {
    std::string const name = pool + std::string{kinds[i].first};
    nvtxCounterAttr_t attributes{};
    attributes.structSize = sizeof attributes;
    attributes.schemaId = NVTX_PAYLOAD_ENTRY_TYPE_INT64;
    attributes.name = name.c_str();
    attributes.scopeId = NVTX_SCOPE_NONE;
    attributes.counterId = NVTX_COUNTER_ID_NONE;
    ids_[i] = nvtxCounterRegister(counter_domain(), &attributes);
  }
}

void nvtx_counters::sample(statistics const& numbers) const noexcept {
  for (std::size_t i = 0; i < kinds.size(); ++i) {
    if (ids_[i] == NVTX_COUNTER_ID_NONE) continue;
    nvtxCounterSampleInt64(counter_domain(), ids_[i], static_cast<std::int64_t>(numbers.*kinds[i].second));
  }
}
#else
bool nvtx_counters::tool_listens() noexcept { return false; }
nvtx_counters::nvtx_counters(char const*) {}
void nvtx_counters::sample(statistics const&) const noexcept {}
#endif

} // namespace gpumem::detail
