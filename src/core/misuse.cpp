// The default misuse handler: say what happened, and abort.
// SPDX-License-Identifier: Apache-2.0
module;
#include <atomic>
#include <cstdio>
#include <cstdlib>
module gpumem:misuse.impl;
import :misuse;

namespace gpumem {
namespace {

void print_and_abort(misuse const& m) noexcept {
  std::fprintf(stderr, "gpumem: %s: %s: pointer %p, %zu bytes given", m.resource, to_string(m.what), m.pointer,
               m.given);
  if (m.expected) std::fprintf(stderr, ", %zu bytes expected", m.expected);
  std::fprintf(stderr, ", stream %llu\n", static_cast<unsigned long long>(m.stream));
  std::abort();
}

std::atomic<misuse_handler> current_handler{print_and_abort};

} // namespace

char const* to_string(misuse::kind value) noexcept {
  switch (value) {
  case misuse::kind::foreign_pointer: return "a pointer that it never gave out";
  case misuse::kind::double_free: return "a double free";
  case misuse::kind::wrong_size: return "a free with another size than the allocation's";
  case misuse::kind::use_after_close: return "a use after close";
  case misuse::kind::bad_stream: return "a stream that cannot be identified";
  }
  return "an unknown misuse";
}

misuse_handler set_misuse_handler(misuse_handler handler) noexcept {
  return current_handler.exchange(handler ? handler : print_and_abort);
}

void report_misuse(misuse const& what) noexcept { current_handler.load()(what); }

} // namespace gpumem
