// How a call of the C ABI fails: a code for the caller, and a sentence that the calling thread keeps.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gpumem/gpumem.h>

namespace gpumem::c {

/// Keeps "function: why" and gives GPUMEM_INVALID_ARGUMENT.
gpumem_outcome refuse(char const* function, char const* why) noexcept;

/// Keeps what the exception being handled says and gives its outcome.
gpumem_outcome refuse_exception() noexcept;

char const* last_sentence() noexcept;

/// Makes misuse an outcome of the call instead of the end of the process. This library's handler only: other copies of
/// gpumem in the process have their own.
void catch_misuse() noexcept;

/// Whether a misuse was reported on this thread since the last question; its sentence is then kept.
bool take_misuse() noexcept;

/// Thrown where a call within has failed and has kept its sentence.
struct refused_call {
  gpumem_outcome what;
};
inline void require(gpumem_outcome outcome) {
  if (outcome != GPUMEM_GRANTED) throw refused_call{outcome};
}

/// Does the work; what it throws, and misuse that it is told of, become the outcome.
template <class Work> gpumem_outcome outcome_of(Work work) noexcept {
  take_misuse();
  try {
    work();
  } catch (...) { return refuse_exception(); }
  return take_misuse() ? GPUMEM_INVALID_ARGUMENT : GPUMEM_GRANTED;
}

} // namespace gpumem::c
