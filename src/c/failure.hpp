// Failures of calls of the C ABI: an outcome for the caller, and a text that the calling thread keeps.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gpumem/gpumem.h>

namespace gpumem::c {

/// Keeps "function: why" and returns GPUMEM_INVALID_ARGUMENT.
gpumem_outcome refuse(char const* function, char const* why) noexcept;

/// Keeps the text of the exception being handled and returns its outcome.
gpumem_outcome refuse_exception() noexcept;

/// Returns the text that the calling thread keeps.
char const* last_sentence() noexcept;

/// Returns the figures of the calling thread's last failed call.
gpumem_failure const& last_failure() noexcept;

/// Makes misuse an outcome of the call instead of the end of the process. Sets the handler of this library only: other
/// copies of gpumem in the process have their own.
void catch_misuse() noexcept;

/// Whether a misuse was reported on this thread during the current call; its text is then kept. Constant-initialized,
/// so that the read needs no call.
extern constinit thread_local bool misused;

/// Thrown if an inner call has failed and has kept its text.
struct refused_call {
  gpumem_outcome what;
};
inline void require(gpumem_outcome outcome) {
  if (outcome != GPUMEM_GRANTED) throw refused_call{outcome};
}

/// Runs the work. An exception that it throws, or a misuse that is reported meanwhile, becomes the outcome.
template <class Work> gpumem_outcome outcome_of(Work work) noexcept {
  misused = false; // a misuse may have been reported outside such a call
  try {
    work();
  } catch (...) { return refuse_exception(); }
  return misused ? GPUMEM_INVALID_ARGUMENT : GPUMEM_GRANTED;
}

} // namespace gpumem::c
