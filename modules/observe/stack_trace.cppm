// Stack traces: the return addresses of a call, and their text.
// SPDX-License-Identifier: Apache-2.0
module;
#include <string>
export module gpumem:stack_trace;
import :std;

namespace gpumem::detail {

/// Writes the return addresses of the calling thread's stack into `frames`, and returns their number. The first address
/// lies in this function, the second in its caller. The first call of the process may allocate host memory.
export std::size_t capture_stack(std::span<void*> frames) noexcept;

/// Returns a line of text for a return address: the function, if it is known. If the program has debug information and
/// gpumem was built with libbacktrace, also the file and line number. Throws std::bad_alloc. Any thread.
export std::string describe_frame(void* frame);

} // namespace gpumem::detail
