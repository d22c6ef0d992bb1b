// Stack traces by glibc, and their text by libbacktrace where it is linked.
// SPDX-License-Identifier: Apache-2.0
module;
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cxxabi.h>
#include <dlfcn.h>
#include <execinfo.h>
#include <memory>
#include <span>
#include <string>
module gpumem:stack_trace.impl;
import :stack_trace;

// The functions of libbacktrace that are called here. Its header lies among GCC's own headers, which other compilers
// must not use.
struct backtrace_state;
extern "C" {
using backtrace_error_function = void (*)(void*, char const*, int);
using backtrace_line_function = int (*)(void*, std::uintptr_t, char const*, int, char const*);
using backtrace_symbol_function = void (*)(void*, std::uintptr_t, char const*, std::uintptr_t, std::uintptr_t);
backtrace_state* backtrace_create_state(char const*, int, backtrace_error_function, void*);
int backtrace_pcinfo(backtrace_state*, std::uintptr_t, backtrace_line_function, backtrace_error_function, void*);
int backtrace_syminfo(backtrace_state*, std::uintptr_t, backtrace_symbol_function, backtrace_error_function, void*);
}

namespace gpumem::detail {
namespace {

std::string demangled(char const* name) {
  int status = 0;
  std::unique_ptr<char, decltype(&std::free)> const text{abi::__cxa_demangle(name, nullptr, nullptr, &status),
                                                         &std::free};
  return text ? text.get() : name;
}

#ifdef GPUMEM_WITH_LIBBACKTRACE
void ignore_error(void*, char const*, int) noexcept {}

// The text for one address: the function that lies there, and the functions into which it was inlined.
struct line {
  std::string text;
  bool failed = false;
};

int add_line(void* target, std::uintptr_t, char const* file, int number, char const* function) noexcept {
  auto& found = *static_cast<line*>(target);
  if (!file && !function) return 0;
  try {
    if (!found.text.empty()) found.text += ", inlined in ";
    if (function) found.text += demangled(function);
    if (file) found.text += std::string{function ? " at " : ""} + file + ":" + std::to_string(number);
  } catch (...) { found.failed = true; }
  return 0;
}

void add_symbol(void* target, std::uintptr_t address, char const* name, std::uintptr_t, std::uintptr_t) noexcept {
  add_line(target, address, nullptr, 0, name);
}

// Returns the text of a return address, or an empty text. The address follows the call, so the byte before it is looked
// up. Without debug information only the symbol table tells the function.
std::string line_of(void* frame) {
  static auto* const symbols = backtrace_create_state(nullptr, 1, ignore_error, nullptr);
  auto const call = reinterpret_cast<std::uintptr_t>(frame) - 1;
  line found;
  if (symbols) backtrace_pcinfo(symbols, call, add_line, ignore_error, &found);
  if (symbols && found.text.empty()) backtrace_syminfo(symbols, call, add_symbol, ignore_error, &found);
  return found.failed ? std::string{} : found.text;
}
#else
std::string line_of(void*) { return {}; }
#endif

std::string hexadecimal(std::uintptr_t value) {
  std::string digits;
  do { digits.insert(digits.begin(), "0123456789abcdef"[value % 16]); } while (value /= 16);
  return "0x" + digits;
}

} // namespace

[[gnu::noinline]] std::size_t capture_stack(std::span<void*> frames) noexcept {
  auto const count = ::backtrace(frames.data(), static_cast<int>(frames.size()));
  return static_cast<std::size_t>(count);
}

std::string describe_frame(void* frame) {
  auto line = line_of(frame);
  if (!line.empty()) return line;
  auto const address = reinterpret_cast<std::uintptr_t>(frame);
  Dl_info found{};
  if (!dladdr(frame, &found) || !found.dli_fname) return hexadecimal(address);
  auto const offset = hexadecimal(address - reinterpret_cast<std::uintptr_t>(found.dli_fbase));
  auto const place = std::string{found.dli_fname} + "+" + offset;
  return found.dli_sname ? demangled(found.dli_sname) + " in " + place : place;
}

} // namespace gpumem::detail
