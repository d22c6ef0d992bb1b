// The texts of labels, and their numbers.
// SPDX-License-Identifier: Apache-2.0
module;
#include <gpumem/lock_attributes.hpp>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
module gpumem:labels.impl;
import :labels;
import :sync;

namespace gpumem::detail {
namespace {

constexpr std::size_t max_labels = 65'535;
constexpr std::uint32_t other_labels = UINT32_MAX;

struct label_entry {
  std::string text;
  std::uint32_t uses = 0; // objects of label_use
  bool stays = false;     // until the process exits
};

struct label_list {
  sync::mutex mutex;
  std::unordered_map<std::uint32_t, label_entry> entries GPUMEM_GUARDED_BY(mutex); // these stay in place
  std::unordered_map<std::string_view, std::uint32_t> numbers GPUMEM_GUARDED_BY(mutex);
  std::uint32_t last GPUMEM_GUARDED_BY(mutex) = 0;
};

// Never destroyed: reports at the exit of the process read it.
label_list& all_labels() {
  static auto* const list = new label_list;
  return *list;
}

// Returns the number of the text; other_labels if there are too many texts.
std::uint32_t find_or_add(label_list& list, std::string_view text) GPUMEM_REQUIRES(list.mutex) {
  if (auto const found = list.numbers.find(text); found != list.numbers.end()) return found->second;
  if (list.entries.size() == max_labels) return other_labels;
  do { ++list.last; } while (list.last == 0 || list.last == other_labels || list.entries.contains(list.last));
  auto const entry = list.entries.try_emplace(list.last, label_entry{.text = std::string{text}}).first;
  try {
    list.numbers.emplace(entry->second.text, list.last);
  } catch (...) {
    list.entries.erase(entry);
    throw;
  }
  return list.last;
}

// Calls `change(entry)` for the text's entry, if it has one. Returns its number.
template <class Change> std::uint32_t number_of(std::string_view text, Change change) {
  if (text.empty()) return 0;
  auto& list = all_labels();
  sync::lock const lock{list.mutex};
  auto const number = find_or_add(list, text);
  if (number != other_labels) change(list.entries.find(number)->second);
  return number;
}

} // namespace

std::uint32_t label_number(std::string_view text) {
  return number_of(text, [](label_entry& entry) { entry.stays = true; });
}

std::string label_text(std::uint32_t number) {
  if (number == other_labels) return "(other labels)";
  auto& list = all_labels();
  sync::lock const lock{list.mutex};
  auto const found = list.entries.find(number);
  return found == list.entries.end() ? std::string{} : found->second.text;
}

label_use::label_use(std::string_view text) : number_{number_of(text, [](label_entry& entry) { ++entry.uses; })} {}

label_use::~label_use() {
  if (number_ == 0 || number_ == other_labels) return;
  auto& list = all_labels();
  sync::lock const lock{list.mutex};
  auto const found = list.entries.find(number_);
  if (--found->second.uses > 0 || found->second.stays) return;
  list.numbers.erase(found->second.text);
  list.entries.erase(found);
}

} // namespace gpumem::detail
