// The outcomes of requests, and the exceptions that report failures.
// SPDX-License-Identifier: Apache-2.0
module;
#include <gpumem/outcome.hpp>
#include <new>
export module gpumem:error;
import :cuda;
import :std;

export namespace gpumem {

using gpumem::failure;
using gpumem::outcome;

/// Returns the name of the enumerator.
char const* to_string(outcome value) noexcept;

/// Statistics taken when memory ran out. Numbers of bytes, if not said otherwise; 0 if the resource does not know.
struct out_of_memory_info {
  std::size_t requested = 0;
  std::size_t live = 0;
  std::size_t reserved = 0;
  std::size_t largest_free = 0;
  std::size_t limit = 0; ///< 0: none
  std::size_t device_free = 0;
  std::size_t device_total = 0;
  std::uint64_t stream = 0; ///< the stream's id
  int device = -1;
  std::size_t free = 0;
  std::uint64_t free_ranges = 0;    ///< number of free ranges
  std::size_t free_in_use = 0;      ///< free bytes whose last use the host has not yet seen complete
  std::uint64_t in_use_streams = 0; ///< number of streams with such uses
  std::size_t quarantined = 0;      ///< in the quarantine of a hardened pool
};

/// Thrown when memory is exhausted or the request is larger than it can ever be.
class out_of_memory : public std::bad_alloc {
public:
  out_of_memory(outcome what, out_of_memory_info const& info);
  char const* what() const noexcept override { return text_.what(); }
  inline outcome reason() const noexcept { return reason_; }
  inline out_of_memory_info const& info() const noexcept { return info_; }

private:
  out_of_memory_info info_;
  std::runtime_error text_; // copies without throwing, as an exception must
  outcome reason_;
};

/// Thrown for the outcomes that are neither exhaustion nor an error of the driver: stopped, deadline, closed, …
class acquire_error : public std::runtime_error {
public:
  explicit acquire_error(failure const& why);
  inline outcome reason() const noexcept { return why_.reason; }
  inline failure const& why() const noexcept { return why_; }

private:
  failure why_;
};

namespace extend {
/// Throws the exception that belongs to the failure: out_of_memory for exhausted and too_large (with the statistics),
/// cuda_error for device_lost and driver_error, std::invalid_argument for invalid_argument, acquire_error for the rest.
[[noreturn]] void throw_failure(failure const& why, out_of_memory_info const& info = {});

} // namespace extend

} // namespace gpumem
