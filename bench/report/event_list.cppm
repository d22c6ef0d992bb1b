// Makes the events of a recording from rows. The readers of all file formats use it.
// SPDX-License-Identifier: Apache-2.0
module;
#include <cstddef>
#include <cstdint>
#include <limits>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>
export module report:event_list;
import gpumem;
import :events;

namespace report::detail {

using gpumem::extend::trace_record;

// Numbers keys in the order of their first rows. All keys after the last number share it.
export template <class Key> class numbering {
public:
  explicit numbering(std::vector<Key>& keys) : keys_{keys} {
    for (Key const& each : keys) numbers_.try_emplace(each, static_cast<std::uint16_t>(numbers_.size()));
  }
  std::uint16_t number_of(Key const& key) {
    constexpr std::uint16_t last = std::numeric_limits<std::uint16_t>::max();
    if (auto const found = numbers_.find(key); found != numbers_.end()) return found->second;
    if (keys_.size() > last) return last;
    auto const number = static_cast<std::uint16_t>(keys_.size());
    keys_.push_back(key);
    numbers_.emplace(key, number);
    return number;
  }

private:
  std::vector<Key>& keys_;
  std::unordered_map<Key, std::uint16_t> numbers_;
};

// Recorded times start again at midnight, and rows of several threads may be slightly out of order.
class elapsed_time {
public:
  std::uint64_t since_first(std::uint64_t recorded) {
    constexpr std::uint64_t day = 86'400'000'000;
    std::uint64_t const time = recorded % day;
    if (first_) latest_ = time;
    first_ = false;
    std::uint64_t const passed = (time + day - latest_) % day;
    if (passed < day / 2) {
      elapsed_ += passed;
      latest_ = time;
    }
    return elapsed_;
  }

private:
  bool first_ = true;
  std::uint64_t latest_ = 0, elapsed_ = 0;
};

export inline bool is_memory(trace_action action) {
  return action == trace_action::map || action == trace_action::unmap || action == trace_action::move;
}

// Returns whether memory can lie there.
export inline bool is_possible(std::uint64_t address, std::uint64_t bytes) {
  constexpr std::uint64_t end = std::uint64_t{1} << 56;
  return bytes <= end && address <= end - bytes;
}

// Returns the text with a blank for each control character: it is shown on terminals.
export inline std::string printable(std::string text) {
  for (char& c : text)
    if (static_cast<unsigned char>(c) < ' ' || c == '\x7f') c = ' ';
  return text;
}

export class event_list {
public:
  explicit event_list(recording& target)
      : target_{target}, streams_{target.streams}, threads_{target.threads}, labels_{target.labels} {}

  // Calls visit(event) for each event of a row.
  template <class Visit> void each(trace_record const& row, std::string_view label, Visit const& visit) {
    if (row.action <= trace_action::free && row.pointer == 0 && row.bytes == 0) return; // no block
    event next{.microseconds = times_.since_first(row.microseconds),
               .pointer = row.pointer,
               .bytes = row.bytes,
               .action = row.action,
               .served = row.served};
    if (!label.empty()) next.label = labels_.number_of(printable(std::string{label}));
    if (is_memory(row.action)) {
      if (row.action == trace_action::move) {
        event source = next;
        source.action = trace_action::unmap;
        source.pointer = row.stream;
        visit(source);
      }
    } else if (row.action != trace_action::label) {
      next.stream = streams_.number_of(row.stream);
      next.thread = threads_.number_of(row.thread);
    }
    visit(next);
  }
  void add(trace_record const& row, std::string_view label = {}) {
    each(row, label, [&](event const& next) { target_.events.push_back(next); });
  }

private:
  recording& target_;
  elapsed_time times_;
  numbering<std::uint64_t> streams_, threads_;
  numbering<std::string> labels_;
};

} // namespace report::detail
