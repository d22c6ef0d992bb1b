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

expected<void*, failure> explain_request(stream_key const& key, std::optional<device> where, std::size_t bytes,
                                         std::size_t alignment, bool may_capture) noexcept {
  auto const refuse = [bytes](outcome what, int code = 0) {
    return expected<void*, failure>{unexpect, failure{what, code, bytes}};
  };
  if (!std::has_single_bit(alignment)) return unexpected<failure>{failure_of(broken_rule::alignment, bytes)};
  if (bytes > PTRDIFF_MAX || alignment > PTRDIFF_MAX - bytes) return refuse(outcome::too_large);
  if (!driver_alive()) return refuse(outcome::device_lost, CUDA_ERROR_DEINITIALIZED);
  if (where && where->lost()) return refuse(outcome::device_lost, where->lost_error());
  if (key.capturing() && !may_capture) return refuse(outcome::capture_unsupported);
  return nullptr;
}

namespace {

// Returns outcome::device_lost if the error of `why` means that the device is lost; otherwise `why`.
failure lost_or(failure const& why, device where) noexcept {
  auto const code = where.interpret(static_cast<CUresult>(why.code));
  return where.lost() ? failure{outcome::device_lost, code, why.requested} : why;
}

} // namespace

expected<stream_key, failure> identify_other(stream_ref stream, std::optional<device> where,
                                             std::size_t bytes) noexcept {
  if (!driver_alive()) return unexpected<failure>{failure{outcome::device_lost, CUDA_ERROR_DEINITIALIZED, bytes}};
  try {
    return where ? identify(stream, *where) : identify(stream);
  } catch (...) {
    auto const why = current_failure(bytes);
    if (!where || why.code == 0) return unexpected<failure>{why};
    return unexpected<failure>{lost_or(why, *where)};
  }
}

// If the stream has no timeline and the host has no memory for one, this waits for the stream. A capturing stream
// cannot be waited for. In that case memory that is freed with the returned key stays in use for ever, which is the
// only safe answer.
expected<stream_key, failure> identify_for_free(stream_ref stream, std::optional<device> where,
                                                std::size_t bytes) noexcept {
  auto const key = identify_other(stream, where, bytes);
  if (key || key.error().reason != outcome::exhausted) return key;
  return wait_without_identity(stream.get());
}

expected<stream_key, failure> try_identify(stream_ref stream, services_handle const& from, std::size_t bytes) noexcept {
  try {
    return try_identify(stream, device_of(from), bytes);
  } catch (...) { return unexpected<failure>{current_failure(bytes)}; }
}

void add_statistics(statistics& sum, statistics const& one) noexcept {
  sum.live += one.live;
  sum.allocated += one.allocated;
  sum.cached += one.cached;
  sum.reserved += one.reserved;
  sum.reserved_in_all += one.reserved_in_all;
  sum.shards += one.shards;
  sum.lent += one.lent;
  sum.free += one.free;
  sum.free_ranges += one.free_ranges;
  sum.free_in_use += one.free_in_use;
  sum.quarantined += one.quarantined;
  sum.allocations += one.allocations;
  sum.frees += one.frees;
  sum.failures += one.failures;
  sum.waiting += one.waiting;
  sum.waiting_bytes += one.waiting_bytes;
  sum.oldest_wait_ns = std::max(sum.oldest_wait_ns, one.oldest_wait_ns);
  sum.largest_free = std::max(sum.largest_free, one.largest_free);
}

void throw_failure_of(services_handle const& from, CUstream stream, failure const& why) {
  auto const* const name = name_of(from);
  if (why.reason != outcome::exhausted && why.reason != outcome::too_large) throw_failure_in(name, why);
  auto const f = statistics_from(from).value_or(statistics{});
  out_of_memory_info facts{.requested = why.requested,
                           .live = f.live,
                           .reserved = f.reserved,
                           .largest_free = f.largest_free,
                           .limit = f.limit,
                           .device = from.table->device(from.state),
                           .free = f.free,
                           .free_ranges = f.free_ranges,
                           .free_in_use = f.free_in_use,
                           .in_use_streams = f.in_use_streams,
                           .quarantined = f.quarantined,
                           .largest_block = f.largest_block,
                           .no_addresses = is_no_addresses(why)};
  try {
    device const where{facts.device};
    relaxed_capture const relaxed; // the calls below must not end a capture
    if (auto const key = try_identify(stream_ref{stream}, where, why.requested)) facts.stream = key->id();
    auto const memory = where.memory();
    facts.device_free = memory.free;
    facts.device_total = memory.total;
    facts.no_addresses = facts.no_addresses && memory.free >= why.requested;
  } catch (...) {
    facts.device = -1; // these figures are optional; the failure must be thrown in any case
  }
  throw_failure_in(name, why, facts);
}

std::optional<device> device_of(services_handle const& from) {
  auto const ordinal = from.table->device(from.state);
  if (ordinal < 0) return std::nullopt;
  return device{ordinal};
}

bool has_access_of(memory_traits const& one, memory_traits const& other) noexcept {
  if (other.host_accessible && !one.host_accessible) return false;
  return one.device_accessible || !other.device_accessible;
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
