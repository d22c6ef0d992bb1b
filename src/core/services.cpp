// Services of resources: they identify the stream, and check the request.
// SPDX-License-Identifier: Apache-2.0
module;
#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <new>
#include <optional>
#include <stdexcept>
module gpumem:services.impl;
import :services;
import :cuda;
import :device;
import :driver;
import :error;
import :stream;

namespace gpumem::detail {

expected<void*, failure> explain_request(stream_key const& key, std::optional<device> device, std::size_t bytes,
                                         std::size_t alignment, bool may_capture) noexcept {
  auto const refuse = [bytes](outcome what, int code = 0) {
    return expected<void*, failure>{unexpect, failure{what, code, bytes}};
  };
  if (!std::has_single_bit(alignment)) return unexpected<failure>{failure_of(broken_rule::alignment, bytes)};
  if (bytes > PTRDIFF_MAX || alignment > PTRDIFF_MAX - bytes) return refuse(outcome::too_large);
  if (!driver_alive()) return refuse(outcome::device_lost, CUDA_ERROR_DEINITIALIZED);
  if (device && device->lost()) return refuse(outcome::device_lost, device->lost_error());
  if (key.identity().capturing() && !may_capture) return refuse(outcome::capture_unsupported);
  return nullptr;
}

namespace {

// Returns outcome::device_lost if the error of `error` means that the device is lost; otherwise `error`.
failure lost_or(failure const& error, device device) noexcept {
  auto const code = device.interpret(static_cast<CUresult>(error.code));
  return device.lost() ? failure{outcome::device_lost, code, error.requested} : error;
}

} // namespace

expected<stream_key, failure> identify_other(stream_ref stream, std::optional<device> device,
                                             std::size_t bytes) noexcept {
  if (!driver_alive()) return unexpected<failure>{failure{outcome::device_lost, CUDA_ERROR_DEINITIALIZED, bytes}};
  try {
    return device ? identify(stream, *device) : identify(stream);
  } catch (...) {
    auto const why = current_failure(bytes);
    if (!device || why.code == 0) return unexpected<failure>{why};
    return unexpected<failure>{lost_or(why, *device)};
  }
}

// If the stream has no timeline and the host has no memory for one, this waits for the stream. A capturing stream
// cannot be waited for. In that case memory that is freed with the returned key stays in use for ever, which is the
// only safe answer.
expected<stream_key, failure> identify_for_free(stream_ref stream, std::optional<device> device,
                                                std::size_t bytes) noexcept {
  auto const key = identify_other(stream, device, bytes);
  if (key || key.error().reason != outcome::exhausted) return key;
  return wait_without_identity(stream.get());
}

expected<stream_key, failure> try_identify(stream_ref stream, services_handle const& services,
                                           std::size_t bytes) noexcept {
  try {
    return try_identify(stream, device_of(services), bytes);
  } catch (...) { return unexpected<failure>{current_failure(bytes)}; }
}

void add_statistics(statistics& sum, statistics const& statistics) noexcept {
  sum.live += statistics.live;
  sum.allocated += statistics.allocated;
  sum.cached += statistics.cached;
  sum.reserved += statistics.reserved;
  sum.reserved_in_all += statistics.reserved_in_all;
  sum.shards += statistics.shards;
  sum.lent += statistics.lent;
  sum.free += statistics.free;
  sum.free_ranges += statistics.free_ranges;
  sum.free_in_use += statistics.free_in_use;
  sum.quarantined += statistics.quarantined;
  sum.allocations += statistics.allocations;
  sum.frees += statistics.frees;
  sum.failures += statistics.failures;
  sum.waiting += statistics.waiting;
  sum.waiting_bytes += statistics.waiting_bytes;
  sum.oldest_wait_ns = std::max(sum.oldest_wait_ns, statistics.oldest_wait_ns);
  sum.largest_free = std::max(sum.largest_free, statistics.largest_free);
}

void throw_failure_of(services_handle const& services, CUstream stream, failure const& failure) {
  auto const* const name = name_of(services);
  if (failure.reason != outcome::exhausted && failure.reason != outcome::too_large) throw_failure_in(name, failure);
  auto const f = statistics_from(services).value_or(statistics{});
  out_of_memory_info facts{.requested = failure.requested,
                           .live = f.live,
                           .reserved = f.reserved,
                           .largest_free = f.largest_free,
                           .limit = f.limit,
                           .device = services.table->device(services.state),
                           .free = f.free,
                           .free_ranges = f.free_ranges,
                           .free_in_use = f.free_in_use,
                           .in_use_streams = f.in_use_streams,
                           .quarantined = f.quarantined,
                           .largest_block = f.largest_block,
                           .no_addresses = is_no_addresses(failure)};
  try {
    device const device{facts.device};
    relaxed_capture const relaxed; // the calls below must not end a capture
    if (auto const key = try_identify(stream_ref{stream}, device, failure.requested))
      facts.stream = key->identity().id();
    auto const memory = device.memory();
    facts.device_free = memory.free;
    facts.device_total = memory.total;
    facts.no_addresses = facts.no_addresses && memory.free >= failure.requested;
  } catch (...) {
    facts.device = -1; // these figures are optional; the failure must be thrown in any case
  }
  if (failure.reason == outcome::too_large || !services.table->append_holders) throw_failure_in(name, failure, facts);
  auto text = gpumem::out_of_memory::describe(failure.reason, facts, name);
  try {
    services.table->append_holders(services.state, failure.requested, &text);
  } catch (...) {} // the text is then shorter
  throw gpumem::out_of_memory{failure.reason, facts, text};
}

std::optional<device> device_of(services_handle const& services) {
  auto const ordinal = services.table->device(services.state);
  if (ordinal < 0) return std::nullopt;
  return device{ordinal};
}

bool has_access_of(memory_traits const& traits, memory_traits const& other) noexcept {
  if (other.host_accessible && !traits.host_accessible) return false;
  return traits.device_accessible || !other.device_accessible;
}

int current_ordinal() noexcept {
  try {
    return device::current().ordinal();
  } catch (...) { return -1; }
}

failure current_failure(std::size_t bytes) noexcept {
  try {
    throw;
  } catch (gpumem::out_of_memory const& e) { return failure_of(e, bytes); } catch (std::bad_alloc const&) {
    return {outcome::exhausted, 0, bytes};
  } catch (acquire_error const& e) { return e.why(); } catch (cuda_error const& e) {
    auto const code = static_cast<CUresult>(e.status());
    if (code == CUDA_ERROR_OUT_OF_MEMORY) return {outcome::exhausted, code, bytes};
    return {is_sticky(code) ? outcome::device_lost : outcome::driver_error, code, bytes};
  } catch (rule_error const& e) { return failure_of(e.rule(), bytes); } catch (std::invalid_argument const&) {
    return {outcome::invalid_argument, 0, bytes};
  } catch (...) { return {outcome::driver_error, 0, bytes}; }
}

} // namespace gpumem::detail
