// Stores the last failure of each thread, and turns exceptions and misuse into outcomes.
// SPDX-License-Identifier: Apache-2.0
#include "failure.hpp"

#include <cuda.h>

#include <array>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <exception>
#include <new>
#include <stdexcept>

import gpumem;

namespace gpumem::c {
namespace {

// Both enums have the same values, so that outcomes can be converted by a cast.
static_assert(GPUMEM_GRANTED == static_cast<int>(outcome::granted));
static_assert(GPUMEM_STOPPED == static_cast<int>(outcome::stopped));
static_assert(GPUMEM_DEADLINE == static_cast<int>(outcome::deadline));
static_assert(GPUMEM_CLOSED == static_cast<int>(outcome::closed));
static_assert(GPUMEM_TOO_LARGE == static_cast<int>(outcome::too_large));
static_assert(GPUMEM_EXHAUSTED == static_cast<int>(outcome::exhausted));
static_assert(GPUMEM_PREEMPTED == static_cast<int>(outcome::preempted));
static_assert(GPUMEM_STALLED == static_cast<int>(outcome::stalled));
static_assert(GPUMEM_CAPTURE_UNSUPPORTED == static_cast<int>(outcome::capture_unsupported));
static_assert(GPUMEM_DEVICE_LOST == static_cast<int>(outcome::device_lost));
static_assert(GPUMEM_INVALID_ARGUMENT == static_cast<int>(outcome::invalid_argument));
static_assert(GPUMEM_DRIVER_ERROR == static_cast<int>(outcome::driver_error));

// An array, because a std::string could run out of memory itself. The string would also be destroyed before other
// thread-local objects, whose destructors may still call this library.
thread_local std::array<char, 1024> sentence{};
thread_local gpumem_failure figures{};

gpumem_outcome keep(failure const& failure, char const* text, out_of_memory_info const& f = {}) noexcept {
  std::snprintf(sentence.data(), sentence.size(), "%s", text);
  figures = {sizeof figures, static_cast<std::uint32_t>(failure.reason),
             failure.code,   failure.requested,
             f.live,         f.reserved,
             f.largest_free, f.limit,
             f.device_free,  f.device_total,
             f.free,         f.free_ranges,
             f.free_in_use,  f.in_use_streams,
             f.quarantined,  f.stream,
             f.device};
  return static_cast<gpumem_outcome>(failure.reason);
}

gpumem_outcome keep(outcome reason, char const* text) noexcept { return keep(failure{reason, 0, 0}, text); }

outcome outcome_of_driver(int code) noexcept {
  auto const result = static_cast<CUresult>(code);
  if (result == CUDA_ERROR_OUT_OF_MEMORY) return outcome::exhausted;
  return driver_api::is_sticky(result) ? outcome::device_lost : outcome::driver_error;
}

void keep_misuse(misuse const& m) noexcept {
  if (detail::found_later(m.what)) { // the current call has not failed
    std::array<char, 4096> line{};
    describe(m, line.data(), line.size());
    std::fprintf(stderr, "%s\n", line.data());
    return;
  }
  misused = true;
  keep(outcome::invalid_argument, "");
  describe(m, sentence.data(), sentence.size());
}

} // namespace

constinit thread_local bool misused = false;

gpumem_outcome refuse(char const* function, char const* reason) noexcept {
  keep(outcome::invalid_argument, "");
  std::snprintf(sentence.data(), sentence.size(), "%s: %s", function, reason);
  return GPUMEM_INVALID_ARGUMENT;
}

gpumem_outcome refuse_exception() noexcept {
  try {
    throw;
  } catch (refused_call const& e) { return e.what; } catch (out_of_memory const& e) {
    return keep(detail::failure_of(e, e.info().requested), e.what(), e.info());
  } catch (std::bad_alloc const&) {
    return keep(outcome::exhausted, "gpumem: out of host memory");
  } catch (acquire_error const& e) { return keep(e.why(), e.what()); } catch (cuda_error const& e) {
    return keep({outcome_of_driver(e.status()), e.status(), 0}, e.what());
  } catch (detail::rule_error const& e) {
    return keep({outcome::invalid_argument, static_cast<int>(e.rule()), 0}, e.what());
  } catch (std::invalid_argument const& e) {
    return keep(outcome::invalid_argument, e.what());
  } catch (std::exception const& e) { return keep(outcome::driver_error, e.what()); } catch (...) {
    return keep(outcome::driver_error, "gpumem: an unknown failure");
  }
}

gpumem_failure const& last_failure() noexcept { return figures; }

char const* last_sentence() noexcept { return sentence.data(); }

void catch_misuse() noexcept { set_misuse_handler(keep_misuse); }

} // namespace gpumem::c
