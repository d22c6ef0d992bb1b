// Parses the text that describes a stack of resources.
// SPDX-License-Identifier: Apache-2.0
#include "stack_text.hpp"

#include <algorithm>
#include <cstddef>
#include <stdexcept>

#include "options.hpp"

namespace gpumem::c {
namespace {

constexpr int max_depth = 16;

[[noreturn]] void refuse(std::string const& reason) { throw std::invalid_argument{"gpumem: " + reason}; }

std::string in_quotes(std::string_view text) { return "'" + std::string{text} + "'"; }

bool is_name(std::string_view text) noexcept {
  auto const fits = [](char c) { return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '_'; };
  return !text.empty() && std::ranges::all_of(text, fits);
}

} // namespace

std::vector<std::string_view> split_outside(std::string_view text, char separator) {
  std::vector<std::string_view> parts;
  int open = 0;
  std::size_t begin = 0;
  for (std::size_t i = 0; i <= text.size(); ++i) {
    if (i < text.size() && text[i] == '(') ++open;
    if (i < text.size() && text[i] == ')') --open;
    if (open < 0) refuse("a parenthesis is closed that was not opened: " + in_quotes(text));
    if (i < text.size() && (text[i] != separator || open > 0)) continue;
    parts.push_back(trimmed(text.substr(begin, i - begin)));
    if (parts.back().empty()) refuse("a part is missing beside '" + std::string{separator} + "': " + in_quotes(text));
    begin = i + 1;
  }
  if (open > 0) refuse("a parenthesis is not closed: " + in_quotes(text));
  return parts;
}

bool layer_text::describes_stack(std::string_view text) noexcept {
  auto const all = trimmed(text);
  auto const end = all.find_first_of("(=,");
  if (end == std::string_view::npos) return is_name(all) && !is_option(all);
  return all[end] == '(' && is_name(trimmed(all.substr(0, end)));
}

layer_text layer_text::read(std::string_view text) { return read_nested(text, 0); }

layer_text layer_text::read_nested(std::string_view text, int depth) {
  if (depth >= max_depth) refuse("a stack has 16 layers at most");
  text = trimmed(text);
  layer_text layer;
  layer.depth_ = depth;
  auto const open = text.find('(');
  layer.name_ = trimmed(text.substr(0, open));
  if (!is_name(layer.name_)) refuse(in_quotes(text) + " is no resource: write name(resource, option=value)");
  if (open == std::string_view::npos) return layer;
  if (text.back() != ')') refuse("a ')' is missing at the end of " + in_quotes(text));
  auto const content = text.substr(open + 1, text.size() - open - 2);
  if (trimmed(content).empty()) return layer;
  for (auto const part : split_outside(content, ',')) {
    auto const equals = part.find('=');
    if (equals != std::string_view::npos && equals < part.find('(')) {
      layer.options_.emplace_back(trimmed(part.substr(0, equals)), trimmed(part.substr(equals + 1)));
    } else {
      layer.inner_.push_back(read_nested(part, depth + 1));
    }
  }
  return layer;
}

std::optional<std::string> layer_text::take(std::string_view option) {
  std::optional<std::string> value;
  for (auto at = options_.begin(); at != options_.end();) {
    if (at->first != option) {
      ++at;
      continue;
    }
    if (value) refuse("the option " + in_quotes(option) + " of " + name_ + " is given twice");
    if (at->second.empty()) refuse("the option " + in_quotes(option) + " of " + name_ + " has an empty value");
    value = std::move(at->second);
    at = options_.erase(at);
  }
  return value;
}

std::string layer_text::rest() const {
  std::string all;
  for (auto const& [name, value] : options_) all += (all.empty() ? "" : ",") + name + "=" + value;
  return all;
}

void layer_text::expect_no_more(std::string_view names) const {
  if (options_.empty()) return;
  auto const options = names.empty() ? ", which has none" : "; its options are " + std::string{names};
  refuse(in_quotes(options_.front().first) + " is no option of " + name_ + options);
}

} // namespace gpumem::c
