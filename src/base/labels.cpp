// The texts of labels, and their numbers.
// SPDX-License-Identifier: Apache-2.0
module;
#include <cstddef>
#include <cstdint>
#include <deque>
#include <string>
#include <string_view>
#include <unordered_map>
module gpumem:labels.impl;
import :labels;
import :sync;

namespace gpumem::detail {
namespace {

constexpr std::size_t max_labels = std::size_t{1} << 16; // the first and the last one have texts of their own

struct label_list {
  sync::mutex mutex;
  std::deque<std::string> texts __attribute__((guarded_by(mutex))) = {""}; // by number; texts stay in place
  std::unordered_map<std::string_view, std::uint32_t> numbers __attribute__((guarded_by(mutex)));
};

// Never destroyed: reports at the exit of the process read it.
label_list& all_labels() {
  static auto* const list = new label_list;
  return *list;
}

} // namespace

std::uint32_t label_number(std::string_view text) {
  if (text.empty()) return 0;
  auto& list = all_labels();
  sync::lock const lock{list.mutex};
  if (auto const found = list.numbers.find(text); found != list.numbers.end()) return found->second;
  auto const number = list.texts.size();
  if (number == max_labels) return max_labels - 1;
  list.texts.emplace_back(number == max_labels - 1 ? std::string_view{"(other labels)"} : text);
  try {
    list.numbers.emplace(list.texts.back(), static_cast<std::uint32_t>(number));
  } catch (...) {
    list.texts.pop_back();
    throw;
  }
  return static_cast<std::uint32_t>(number);
}

std::string const& label_text(std::uint32_t number) {
  auto& list = all_labels();
  sync::lock const lock{list.mutex};
  return list.texts[number];
}

} // namespace gpumem::detail
