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
/// Throws the exception that belongs to the failure: out_of_memory for exhausted and too_large (with the statistics),
/// cuda_error for device_lost and driver_error, std::invalid_argument for invalid_argument, acquire_error for the rest.
[[noreturn]] void throw_failure(failure const& why, out_of_memory_info const& info = {});

} // namespace extend

} // namespace gpumem

namespace gpumem::detail {

// The one text of each rule.
char const* text_of(broken_rule rule) noexcept;
inline constexpr char const* unidentified_stream = "a stream that cannot be identified; its handle may be dead";

// Keeps the rule, so that the exception can become a failure and an exception again. `where`: the resource or the call
// that the text names; null: none.
export class rule_error final : public std::invalid_argument {
public:
  explicit rule_error(broken_rule rule, char const* where = nullptr);
  broken_rule rule() const noexcept { return rule_; }

private:
  broken_rule rule_;
};
failure failure_of(broken_rule rule, std::size_t bytes) noexcept;

// Throws a rule_error that names the call.
[[noreturn]] void throw_moved_from(char const* call = nullptr);
// As throw_failure(); the text also names the resource, unless that is null.
[[noreturn]] void throw_failure_in(char const* resource, failure const& why, out_of_memory_info const& info = {});

} // namespace gpumem::detail
