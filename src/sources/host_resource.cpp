// host_resource: its state, and memory by aligned operator new.
// SPDX-License-Identifier: Apache-2.0
module;
#include <algorithm>
#include <cstddef>
#include <limits>
#include <new>
module gpumem:host_resource.impl;
import :host_resource;
import :cuda;
import :device;
import :driver;
import :error;
import :process;
import :source_state;
import :stream;

namespace gpumem::detail {
namespace {

inline constexpr std::size_t any_alignment = std::numeric_limits<std::size_t>::max();

std::align_val_t host_alignment(std::size_t asked) noexcept {
  return std::align_val_t{std::max(asked, alignof(std::max_align_t))};
}

} // namespace

host_state::host_state() noexcept : source_state{"host_resource", any_alignment} {}

host_state& host_state::instance() {
  throw_if_child();
  set_in_use();
  static auto* const state = new host_state;
  return *state;
}

expected<void*, failure> host_state::allocate_memory(stream_key const&, std::size_t bytes,
                                                     std::size_t alignment) noexcept {
  if (auto* const base = ::operator new(bytes, host_alignment(alignment), std::nothrow)) return base;
  return unexpected<failure>{failure{outcome::exhausted, 0, bytes}};
}

bool host_state::free_memory(block const& returned) noexcept {
  ::operator delete(returned.base, host_alignment(returned.alignment));
  return true;
}

void host_state::mark_lost(stream_key const& key, CUresult error) noexcept {
  try {
    device{key.timeline().device()}.mark_lost(error);
  } catch (...) { // there is no driver any more, and so no device to mark
  }
}

} // namespace gpumem::detail
