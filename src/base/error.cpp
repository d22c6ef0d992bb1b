// The exceptions that belong to failures.
// SPDX-License-Identifier: Apache-2.0
module;
#include <cuda.h>
#include <cstddef>
#include <stdexcept>
#include <string>
module gpumem:error.impl;
import :error;
import :cuda;
import :driver;

namespace gpumem {

void extend::throw_failure(failure const& failure, out_of_memory_info const& info) {
  detail::throw_failure_in(nullptr, failure, info);
}

} // namespace gpumem

namespace gpumem::detail {
namespace {

std::string text_in(char const* function, char const* text) {
  return (function ? "gpumem: " + std::string{function} + ": " : std::string{"gpumem: "}) + text;
}

} // namespace

char const* text_of(broken_rule rule) noexcept {
  switch (rule) {
  case broken_rule::alignment: return "the alignment is not a power of two";
  case broken_rule::other_device: return "a default stream was given while another device is current";
  case broken_rule::moved_from: return "the handle is empty; was it moved from?";
  case broken_rule::moved_from_stream: return "the stream is empty; was it moved from?";
  case broken_rule::unopened_device:
    return "the device of the stream may not use this memory; call open_to() of the pool first";
  case broken_rule::inside_growth:
    return "a function that the pool calls while it gets memory or gives it back has asked the pool for the same";
  default: return "an argument is invalid";
  }
}

rule_error::rule_error(broken_rule rule, char const* function)
    : std::invalid_argument{text_in(function, text_of(rule))}, rule_{rule} {}

failure failure_of(broken_rule rule, std::size_t bytes) noexcept {
  return {outcome::invalid_argument, static_cast<int>(rule), bytes};
}

failure failure_of(gpumem::out_of_memory const& thrown, std::size_t bytes) noexcept {
  return thrown.info().no_addresses ? no_addresses(thrown.reason(), bytes) : failure{thrown.reason(), 0, bytes};
}

void throw_moved_from(char const* call) { throw rule_error{broken_rule::moved_from, call}; }

void throw_failure_in(char const* resource, failure const& failure, out_of_memory_info const& info) {
  switch (failure.reason) {
  case outcome::exhausted:
  case outcome::too_large: {
    auto filled = info;
    filled.requested = failure.requested;
    throw gpumem::out_of_memory{failure.reason, filled,
                                gpumem::out_of_memory::describe(failure.reason, filled, resource)};
  }
  case outcome::device_lost:
  case outcome::driver_error: {
    auto const code = static_cast<CUresult>(failure.code);
    bool const dead = failure.reason == outcome::driver_error && code == CUDA_ERROR_INVALID_HANDLE;
    throw_cuda_error(code, text_in(resource, dead ? unidentified_stream : "the device refused memory").c_str());
  }
  case outcome::invalid_argument: throw rule_error{static_cast<broken_rule>(failure.code), resource};
  default: throw acquire_error{failure};
  }
}

} // namespace gpumem::detail
