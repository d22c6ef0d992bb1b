// The texts of labels, and their numbers.
// SPDX-License-Identifier: Apache-2.0
module;
#include <cstddef>
#include <cstdint>
#include <deque>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
module gpumem:labels.impl;
import :labels;
import :sync;

namespace gpumem::detail {
namespace {

constexpr std::uint32_t last_label = (std::uint32_t{1} << 16) - 1; // the first and the last one have texts of their own

struct label_entry {
  std::string text;
  std::uint32_t uses = 0; // objects of label_use
  bool stays = true;      // until the process exits
  std::uint32_t next_unused = 0;
};

struct label_list {
  sync::mutex mutex;
  std::deque<label_entry> entries __attribute__((guarded_by(mutex))) = {{}}; // by number; texts stay in place
  std::unordered_map<std::string_view, std::uint32_t> numbers __attribute__((guarded_by(mutex)));
  std::uint32_t unused __attribute__((guarded_by(mutex))) = 0; // the first entry without a text; 0: none
};

// Never destroyed: reports at the exit of the process read it.
label_list& all_labels() {
  static auto* const list = new label_list;
  return *list;
}

// Returns the number of the text, which is new if `stays` of its entry is false and it has no uses.
std::uint32_t find_or_add(label_list& list, std::string_view text) __attribute__((requires_capability(list.mutex))) {
  if (auto const found = list.numbers.find(text); found != list.numbers.end()) return found->second;
  if (list.unused == 0) {
    auto const number = static_cast<std::uint32_t>(list.entries.size());
    if (number > last_label) return last_label;
    list.entries.push_back({.text = {}, .stays = false});
    if (number == last_label) {
      list.entries.back() = {.text = "(other labels)"};
      return last_label;
    }
    list.unused = number;
  }
  auto const number = list.unused;
  auto& entry = list.entries[number];
  entry.text = text;
  list.numbers.emplace(entry.text, number);
  list.unused = std::exchange(entry.next_unused, 0);
  return number;
}

std::uint32_t begin_use(std::string_view text) {
  if (text.empty()) return 0;
  auto& list = all_labels();
  sync::lock const lock{list.mutex};
  auto const number = find_or_add(list, text);
  ++list.entries[number].uses;
  return number;
}

} // namespace

std::uint32_t label_number(std::string_view text) {
  if (text.empty()) return 0;
  auto& list = all_labels();
  sync::lock const lock{list.mutex};
  auto const number = find_or_add(list, text);
  list.entries[number].stays = true;
  return number;
}

std::string label_text(std::uint32_t number) {
  auto& list = all_labels();
  sync::lock const lock{list.mutex};
  return list.entries[number].text;
}

label_use::label_use(std::string_view text) : number_{begin_use(text)} {}

label_use::~label_use() {
  if (number_ == 0) return;
  auto& list = all_labels();
  sync::lock const lock{list.mutex};
  auto& entry = list.entries[number_];
  if (--entry.uses > 0 || entry.stays) return;
  list.numbers.erase(entry.text);
  entry.text.clear();
  entry.next_unused = std::exchange(list.unused, number_);
}

} // namespace gpumem::detail
