// Stack traces: the return addresses of a call, and their text.
// SPDX-License-Identifier: Apache-2.0
module;
#include <string>
export module gpumem:stack_trace;
import :std;

namespace gpumem::detail {

/// Writes the return addresses of the calling thread's stack into `frames`, and returns their number. The innermost
/// comes first, which lies in this function. The first call of the process may allocate host memory.
export std::size_t capture_stack(std::span<void*> frames) noexcept;

/// Returns a line of text for a return address: the function, and its file and line number if the program has debug
/// information and gpumem was built with libbacktrace. Throws std::bad_alloc. Any thread.
export std::string describe_frame(void* frame);

} // namespace gpumem::detail
