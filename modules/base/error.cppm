// The outcomes of requests, and the exceptions that report failures.
// SPDX-License-Identifier: Apache-2.0
module;
#include <gpumem/error.hpp>
export module gpumem:error;
import :cuda;
import :std;

export namespace gpumem {

using gpumem::acquire_error;
using gpumem::broken_rule;
using gpumem::failure;
using gpumem::out_of_memory;
using gpumem::out_of_memory_info;
using gpumem::outcome;
using gpumem::to_string;

namespace extend {
/// Throws the exception that belongs to the outcome in `failure`. exhausted and too_large: out_of_memory with the
/// statistics `info`. device_lost and driver_error: cuda_error. invalid_argument: std::invalid_argument. All others:
/// acquire_error.
[[noreturn]] void throw_failure(failure const& failure, out_of_memory_info const& info = {});

} // namespace extend

} // namespace gpumem

namespace gpumem::detail {

// Returns a text that says how a caller has broken this rule of the interface.
char const* text_of(broken_rule rule) noexcept;
inline constexpr char const* unidentified_stream = "a stream that cannot be identified; its handle may be dead";

// An exception that says which rule of the interface a caller has broken. It keeps the rule, so that the exception can
// be converted into a failure and back. `function` is the resource or the call that the text names; null for none.
export class rule_error final : public std::invalid_argument {
public:
  explicit rule_error(broken_rule rule, char const* function = nullptr);
  broken_rule rule() const noexcept { return rule_; }

private:
  broken_rule rule_;
};
failure failure_of(broken_rule rule, std::size_t bytes) noexcept;
// Converts the exception back into the failure for which it was thrown.
export failure failure_of(gpumem::out_of_memory const& thrown, std::size_t bytes) noexcept;
/// Returns the failure of an attempt for which the host had no memory.
inline failure no_host_memory(std::size_t bytes) noexcept { return {outcome::exhausted, -1, bytes}; }
/// Returns the failure of an attempt for which the process has no addresses, whether the driver or the option
/// `address_space` bounds them. The device may have memory.
inline failure no_addresses(outcome reason, std::size_t bytes) noexcept { return {reason, -2, bytes}; }
inline bool is_no_addresses(failure const& failure) noexcept {
  return (failure.reason == outcome::exhausted || failure.reason == outcome::too_large) && failure.code == -2;
}
/// Returns whether a request that failed so may wait. It may not if the host has no memory, since no free ends that.
inline bool may_wait_after(failure const& failure) noexcept {
  return failure.reason == outcome::exhausted && failure.code != -1;
}

// Throws a rule_error for the use of an object that was moved from. The text names the function `call`, unless that is
// null.
[[noreturn]] void throw_moved_from(char const* call = nullptr);
// Does what throw_failure() does. The exception's text also names the resource, unless `resource` is null.
[[noreturn]] void throw_failure_in(char const* resource, failure const& failure, out_of_memory_info const& info = {});

} // namespace gpumem::detail
