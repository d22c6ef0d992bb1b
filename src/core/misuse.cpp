// The default handler of misuse: prints the misuse and aborts.
// SPDX-License-Identifier: Apache-2.0
module;
#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
module gpumem:misuse.impl;
import :misuse;
import :error;

namespace gpumem {
namespace {

// Appends text to a buffer; text that does not fit is cut off.
class text {
public:
  text(char* buffer, std::size_t room) noexcept : at_{buffer}, room_{room} {
    if (room_) *at_ = '\0';
  }
  template <class... Values> void add(char const* format, Values... values) noexcept {
    auto const wanted = std::snprintf(at_, room_, format, values...);
    if (wanted <= 0 || room_ == 0) return;
    auto const written = std::min(static_cast<std::size_t>(wanted), room_ - 1);
    at_ += written;
    room_ -= written;
  }

private:
  char* at_;
  std::size_t room_;
};

void add_event(text& line, block_event const& e) noexcept {
  bool const allocated = e.what == block_event::kind::allocated;
  line.add("\ngpumem:   %llu: %zu bytes at %p %s stream %llu by thread %u", static_cast<unsigned long long>(e.sequence),
           e.bytes, e.pointer, allocated ? "allocated for" : "freed on", static_cast<unsigned long long>(e.stream),
           e.thread);
}

void print_and_abort(misuse const& m) noexcept {
  std::array<char, 4096> line;
  describe(m, line.data(), line.size());
  std::fprintf(stderr, "%s\n", line.data());
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
  case misuse::kind::bad_stream: return detail::unidentified_stream;
  case misuse::kind::other_device: return detail::text_of(broken_rule::other_device);
  case misuse::kind::moved_from: return "a free through a handle that is empty; was it moved from?";
  case misuse::kind::moved_from_stream: return detail::text_of(broken_rule::moved_from_stream);
  case misuse::kind::unopened_device: return detail::text_of(broken_rule::unopened_device);
  case misuse::kind::recorded_late: return "a record_use() for a block that was freed";
  case misuse::kind::overrun: return "a write past the end of a block";
  case misuse::kind::underrun: return "a write before the start of a block";
  case misuse::kind::use_after_free: return "a write to a block after its free";
  }
  return "an unknown misuse";
}

void describe(misuse const& m, char* buffer, std::size_t room) noexcept {
  text line{buffer, room};
  line.add("gpumem: %s: %s: pointer %p", m.resource, to_string(m.what), m.pointer);
  if (m.overwritten) {
    line.add(", %zu bytes overwritten, the nearest at offset %td", m.overwritten, m.offset);
  } else {
    line.add(", %zu bytes given", m.given);
  }
  if (m.expected) line.add(m.overwritten ? ", block of %zu bytes" : ", %zu bytes expected", m.expected);
  line.add(", stream %llu", static_cast<unsigned long long>(m.stream));
  for (std::size_t i = 0; i < m.events; ++i) add_event(line, m.history[i]);
}

misuse_handler set_misuse_handler(misuse_handler handler) noexcept {
  return current_handler.exchange(handler ? handler : print_and_abort);
}

bool detail::found_later(misuse::kind kind) noexcept {
  return kind == misuse::kind::overrun || kind == misuse::kind::underrun || kind == misuse::kind::use_after_free;
}

void extend::report_misuse(misuse const& misuse) noexcept {
  if (!detail::found_later(misuse.what)) ++detail::refused_calls;
  current_handler.load()(misuse);
}

} // namespace gpumem
