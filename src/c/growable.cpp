// The functions of growable.h.
// SPDX-License-Identifier: Apache-2.0
#include "growable.hpp"

#include <cuda.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>

#include "copy_known.hpp"
#include "failure.hpp"
#include "options.hpp"
#include "stack_text.hpp"

import gpumem;
import gpumem.growable;

using gpumem::c::outcome_of;
using gpumem::c::refuse;

struct gpumem_growable {
  gpumem::growable_buffer buffer;
};

namespace gpumem::c {
namespace {

constexpr char const* no_buffer = "the buffer is NULL";

stream_ref stream_of(void* stream) noexcept { return stream_ref{static_cast<CUstream>(stream)}; }

acquire_options options_within(std::uint64_t nanoseconds) {
  using limits = std::numeric_limits<std::int64_t>;
  std::chrono::nanoseconds const longest{std::min<std::uint64_t>(nanoseconds, limits::max())};
  acquire_options options;
  auto const now = std::chrono::steady_clock::now();
  if (longest < options.deadline - now) options.deadline = now + longest;
  return options;
}

growable_options parse(std::string_view text) {
  if (text.find_first_of("()") != std::string_view::npos)
    throw std::invalid_argument{"gpumem: a buffer that grows takes name=value, not a resource"};
  auto values = layer_text::read("growable(" + std::string{text} + ")");
  growable_options options;
  auto const size = [&](char const* name, std::size_t& bytes) {
    auto const value = values.take(name);
    if (!value) return;
    auto const read = parse_size(*value);
    if (!read) throw std::invalid_argument{"gpumem: the option '" + std::string{name} + "' is not a size: " + *value};
    bytes = *read;
  };
  size("reserve", options.reserve);
  size("initial", options.initial);
  size("page", options.page);
  if (auto const discarded = values.take("discarded")) {
    if (*discarded != "on" && *discarded != "off")
      throw std::invalid_argument{"gpumem: the option 'discarded' must be on or off, not '" + *discarded + "'"};
    options.discarded = *discarded == "on";
  }
  if (auto name = values.take("name")) options.name = *std::move(name);
  values.expect_no_more("reserve, initial, discarded, page and name");
  if (!values.inner().empty())
    throw std::invalid_argument{"gpumem: the option '" + values.inner().front().name() + "' has no value"};
  return options;
}

// The parts of a handle of a pool that growable_buffer needs.
struct pool_handle {
  using state_type = detail::pool_state;
  extend::services_handle pool;
  static bool valid() noexcept { return true; }
  extend::services_handle services() const noexcept { return pool; }
};

} // namespace

gpumem_growable* make_growable(extend::services_handle pool, stream_ref stream, std::string_view options) {
  return new gpumem_growable{{pool_handle{pool}, stream, parse(options)}};
}

} // namespace gpumem::c

using gpumem::c::no_buffer;
using gpumem::c::options_within;
using gpumem::c::stream_of;

gpumem_outcome gpumem_growable_make(gpumem_pool* pool, void* stream, char const* options,
                                    gpumem_growable** buffer) noexcept {
  if (!pool) return refuse("gpumem_growable_make", "the pool is NULL; was it moved from?");
  if (!buffer) return refuse("gpumem_growable_make", "the out-pointer is NULL");
  return outcome_of([&] { *buffer = pool->make_growable(stream_of(stream), options ? options : ""); });
}

gpumem_outcome gpumem_growable_grow(gpumem_growable* buffer, void* stream, size_t bytes,
                                    uint64_t nanoseconds) noexcept {
  if (!buffer) return refuse("gpumem_growable_grow", no_buffer);
  return outcome_of([&] { buffer->buffer.grow_to(stream_of(stream), bytes, options_within(nanoseconds)).wait(); });
}

gpumem_outcome gpumem_growable_shrink(gpumem_growable* buffer, void* stream, size_t bytes) noexcept {
  if (!buffer) return refuse("gpumem_growable_shrink", no_buffer);
  return outcome_of([&] { buffer->buffer.shrink_to(stream_of(stream), bytes); });
}

gpumem_outcome gpumem_growable_discard(gpumem_growable* buffer, void* stream, size_t offset, size_t bytes) noexcept {
  if (!buffer) return refuse("gpumem_growable_discard", no_buffer);
  return outcome_of([&] { buffer->buffer.discard(stream_of(stream), offset, bytes); });
}

gpumem_outcome gpumem_growable_restore(gpumem_growable* buffer, void* stream, size_t offset, size_t bytes,
                                       uint64_t nanoseconds) noexcept {
  if (!buffer) return refuse("gpumem_growable_restore", no_buffer);
  return outcome_of(
      [&] { buffer->buffer.restore(stream_of(stream), offset, bytes, options_within(nanoseconds)).wait(); });
}

gpumem_outcome gpumem_growable_info(gpumem_growable* buffer, gpumem_growable_sizes* sizes) noexcept {
  if (!buffer) return refuse("gpumem_growable_info", no_buffer);
  if (!sizes) return refuse("gpumem_growable_info", "the out-pointer is NULL");
  bool copied = false;
  auto const outcome = outcome_of([&] {
    auto const& is = buffer->buffer;
    copied = gpumem::c::copy_known(gpumem_growable_sizes{sizeof(gpumem_growable_sizes), is.data(), is.bytes(),
                                                         is.mapped_bytes(), is.reserved_addresses(), is.granularity()},
                                   sizes);
  });
  if (outcome != GPUMEM_GRANTED || copied) return outcome;
  return refuse("gpumem_growable_info", "the size in the sizes is too small: write sizeof(gpumem_growable_sizes)");
}

gpumem_outcome gpumem_growable_free(gpumem_growable* buffer) noexcept {
  return outcome_of([&] { delete buffer; });
}
