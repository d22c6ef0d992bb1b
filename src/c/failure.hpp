// Failures of calls of the C ABI: an outcome for the caller, and a text that the calling thread keeps.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gpumem/gpumem.h>

namespace gpumem::c {

/// Stores the text "function: why" for the calling thread and returns GPUMEM_INVALID_ARGUMENT.
gpumem_outcome refuse(char const* function, char const* reason) noexcept;

/// Stores, for the calling thread, the text of the exception that is being handled. Returns the exception's outcome.
gpumem_outcome refuse_exception() noexcept;

/// Returns the text of the calling thread's last failed call.
char const* last_sentence() noexcept;

/// Returns the details of the calling thread's last failed call.
gpumem_failure const& last_failure() noexcept;

/// Makes a misuse the outcome of the call that commits it; otherwise it would end the process. Sets the misuse handler
/// of this library only: other copies of gpumem in the process have their own.
void catch_misuse() noexcept;

/// Whether a misuse was reported on this thread during the current call; its text is stored then. It is
/// constant-initialized, so that reading it needs no function call.
extern constinit thread_local bool misused;

/// Thrown if an inner call of the C ABI has failed. That call has already stored its text.
struct refused_call {
  gpumem_outcome what;
};
inline void require(gpumem_outcome outcome) {
  if (outcome != GPUMEM_GRANTED) throw refused_call{outcome};
}

/// Runs the work and returns its outcome. An exception that the work throws, or a misuse that is reported meanwhile,
/// becomes the outcome.
template <class Work> gpumem_outcome outcome_of(Work work) noexcept {
  misused = false; // a misuse may have been reported outside outcome_of()
  try {
    work();
  } catch (...) { return refuse_exception(); }
  return misused ? GPUMEM_INVALID_ARGUMENT : GPUMEM_GRANTED;
}

} // namespace gpumem::c
