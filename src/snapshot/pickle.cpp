// Reads pickles of plain values, without the means to run what they name.
// SPDX-License-Identifier: Apache-2.0
module;
#include <bit>
#include <charconv>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <map>
#include <memory>
#include <stdexcept>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <variant>
#include <vector>
module gpumem.snapshot;

namespace gpumem {

void detail::throw_wrong_type() { throw std::invalid_argument{"gpumem: a value of the pickle has another type"}; }

namespace extend {

pickle_value const& pickle_value::operator[](std::string_view key) const {
  auto const& members = as<dictionary>();
  auto const found = members.find(key);
  if (found == members.end()) throw std::invalid_argument{"gpumem: the pickle has no " + std::string{key}};
  return found->second;
}

namespace {

using value = pickle_value;

// The stack of a pickle's reader, and the values that the pickle refers to later. A dictionary or a list of the pickle
// may be stored before its items come. So such values are shared until the end.
class pickle_reader {
public:
  explicit pickle_reader(std::string_view text) : text_{text} {}

  value read() {
    while (step()) {}
    if (stack_.size() != 1) fail("has no single value");
    return value_of(stack_.back(), 0);
  }

private:
  struct node;
  using reference = std::uint32_t; // index of a node
  // A value whose parts are nodes; those of a dictionary are keys and values in turn.
  struct node {
    value plain;
    enum class kind : std::uint8_t { plain, list, dictionary } kind = kind::plain; // plain: `plain` is the value
    std::vector<reference> parts;
  };

  [[noreturn]] void fail(std::string const& reason) const {
    throw std::invalid_argument{"gpumem: the pickle " + reason + ", at byte " + std::to_string(position_)};
  }
  std::string_view take(std::size_t bytes) {
    if (text_.size() - position_ < bytes) fail("is cut short");
    auto const taken = text_.substr(position_, bytes);
    position_ += bytes;
    return taken;
  }
  // Returns an unsigned number of this many bytes, the lowest first.
  std::uint64_t number(std::size_t bytes) {
    std::uint64_t made = 0;
    unsigned shift = 0;
    for (unsigned char const c : take(bytes)) {
      made |= std::uint64_t{c} << shift;
      shift += 8;
    }
    return made;
  }
  std::string_view line() {
    auto const end = text_.find('\n', position_);
    if (end == std::string_view::npos) fail("is cut short");
    auto const taken = text_.substr(position_, end - position_);
    position_ = end + 1;
    return taken;
  }
  std::uint64_t number_in_line() {
    auto digits = line();
    if (digits.ends_with('L')) digits.remove_suffix(1);
    std::uint64_t made = 0;
    bool const negative = digits.starts_with('-');
    if (negative) digits.remove_prefix(1);
    auto const [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), made);
    if (error != std::errc{} || end != digits.data() + digits.size()) fail("has a wrong number");
    return negative ? 0 - made : made;
  }

  void push(value plain) {
    nodes_.emplace_back().plain = std::move(plain);
    stack_.push_back(static_cast<reference>(nodes_.size() - 1));
  }
  void push_number(std::uint64_t bits) { push({static_cast<std::int64_t>(bits)}); }
  void push_text(std::string_view bytes) { push({std::make_shared<std::string const>(bytes)}); }
  void push_group(enum node::kind kind, std::vector<reference> parts = {}) {
    push({});
    nodes_.back().kind = kind;
    nodes_.back().parts = std::move(parts);
  }
  reference pop() {
    if (stack_.size() <= (marks_.empty() ? 0 : marks_.back())) fail("takes a value that is not there");
    auto const top = stack_.back();
    stack_.pop_back();
    return top;
  }
  std::vector<reference> pop_to_mark() {
    if (marks_.empty()) fail("has no mark");
    std::vector<reference> taken(stack_.begin() + static_cast<std::ptrdiff_t>(marks_.back()), stack_.end());
    stack_.resize(marks_.back());
    marks_.pop_back();
    return taken;
  }
  std::vector<reference> pop_count(std::size_t count) {
    std::vector<reference> taken(count);
    while (count-- > 0) taken[count] = pop();
    return taken;
  }
  reference peek() {
    auto const top = pop();
    stack_.push_back(top);
    return top;
  }
  node& top(enum node::kind kind) {
    auto const found = peek();
    if (nodes_[found].kind != kind) fail("adds items to another value");
    return nodes_[found];
  }
  void append(enum node::kind kind, std::vector<reference> const& items) {
    if (kind == node::kind::dictionary && items.size() % 2) fail("has a key without a value");
    auto& parts = top(kind).parts;
    parts.insert(parts.end(), items.begin(), items.end());
  }
  void store(std::uint64_t number) { stored_[number] = peek(); }
  void fetch(std::uint64_t number) {
    auto const found = stored_.find(number);
    if (found == stored_.end()) fail("refers to a value that was not stored");
    stack_.push_back(found->second);
  }
  void push_long(std::size_t bytes) {
    auto const digits = take(bytes);
    std::uint64_t made = 0;
    bool const negative = bytes > 0 && (static_cast<unsigned char>(digits.back()) & 0x80);
    if (negative) made = ~std::uint64_t{0};
    for (std::size_t i = 0; i < bytes; ++i) {
      auto const digit = static_cast<unsigned char>(digits[i]);
      if (i >= 8 && digit != (negative ? 0xff : 0)) fail("has an integer of more than 64 bits");
      if (i < 8) made = (made & ~(std::uint64_t{0xff} << (8 * i))) | std::uint64_t{digit} << (8 * i);
    }
    push_number(made);
  }

  bool step();
  bool step_of_groups(char operation);
  bool step_of_values(char operation);

  std::string key_of(reference key);
  value value_of(reference index, std::size_t depth);

  std::string_view text_;
  std::size_t position_ = 0;
  std::vector<node> nodes_;
  std::vector<reference> stack_;
  std::vector<std::size_t> marks_;
  std::map<std::uint64_t, reference> stored_;
  std::size_t key_bytes_ = 0; // of all dictionaries together: each has copies of its keys
};

// Reads one operation. Returns false at the end of the pickle.
bool pickle_reader::step() {
  auto const operation = take(1).front();
  switch (operation) {
  case '.': return false;
  case '\x80':
    if (number(1) > 5) fail("has an unknown protocol");
    return true;
  case '\x95': take(8); return true; // a frame, which is only a hint
  case 'q': store(number(1)); return true;
  case 'r': store(number(4)); return true;
  case 'p': store(number_in_line()); return true;
  case '\x94': store(stored_.size()); return true;
  case 'h': fetch(number(1)); return true;
  case 'j': fetch(number(4)); return true;
  case 'g': fetch(number_in_line()); return true;
  default: break;
  }
  if (step_of_groups(operation) || step_of_values(operation)) return true;
  --position_;
  static constexpr std::string_view runs = "cioRbPQ\x81\x82\x83\x84\x92\x93";
  if (runs.find(operation) != std::string_view::npos) fail("names something to import or to run, which is refused");
  fail("has an unknown operation");
}

bool pickle_reader::step_of_groups(char operation) {
  using kind = enum node::kind;
  switch (operation) {
  case '(': marks_.push_back(stack_.size()); return true;
  case '0': pop(); return true;
  case '1': pop_to_mark(); return true;
  case '2': stack_.push_back(peek()); return true;
  case ']': push_group(kind::list); return true;
  case '}': push_group(kind::dictionary); return true;
  case ')': push_group(kind::list); return true;
  case 'l':
  case 't': push_group(kind::list, pop_to_mark()); return true;
  case 'd': {
    auto items = pop_to_mark();
    push_group(kind::dictionary);
    append(kind::dictionary, items);
    return true;
  }
  case '\x85':
  case '\x86':
  case '\x87': push_group(kind::list, pop_count(static_cast<std::size_t>(operation - '\x85') + 1)); return true;
  case 'a': append(kind::list, pop_count(1)); return true;
  case 's': append(kind::dictionary, pop_count(2)); return true;
  case 'e': append(kind::list, pop_to_mark()); return true;
  case 'u': append(kind::dictionary, pop_to_mark()); return true;
  default: return false;
  }
}

bool pickle_reader::step_of_values(char operation) {
  switch (operation) {
  case 'N': push({}); return true;
  case '\x88': push({true}); return true;
  case '\x89': push({false}); return true;
  case 'K': push_number(number(1)); return true;
  case 'M': push_number(number(2)); return true;
  case 'J': push_number(static_cast<std::uint64_t>(static_cast<std::int32_t>(number(4)))); return true;
  case 'I':
    if (auto const rest = text_.substr(position_); rest.starts_with("00\n") || rest.starts_with("01\n")) {
      push({line() == "01"}); // the truth values of protocols 0 and 1
      return true;
    }
    push_number(number_in_line());
    return true;
  case 'L': push_number(number_in_line()); return true;
  case '\x8a': push_long(number(1)); return true;
  case '\x8b': push_long(number(4)); return true;
  case 'G': {
    std::uint64_t bits = 0;
    for (unsigned char const c : take(8)) bits = bits << 8 | c; // the highest byte comes first
    push({std::bit_cast<double>(bits)});
    return true;
  }
  case 'F': push({std::strtod(std::string{line()}.c_str(), nullptr)}); return true;
  case '\x8c':
  case 'U':
  case 'C': push_text(take(number(1))); return true;
  case 'V': push_text(line()); return true;
  case 'X':
  case 'T':
  case 'B': push_text(take(number(4))); return true;
  case '\x8d':
  case '\x8e': push_text(take(number(8))); return true;
  default: return false;
  }
}

std::string pickle_reader::key_of(reference key) {
  auto const& plain = nodes_[key].plain;
  if (auto const* const text = plain.get_if<std::string>()) {
    constexpr std::size_t most_copies = 16; // of the pickle's bytes; the keys of PyTorch take less than 4
    key_bytes_ += text->size();
    if (key_bytes_ / most_copies > text_.size()) fail("has keys without end");
    return *text;
  }
  if (auto const* const number = plain.get_if<std::int64_t>()) return std::to_string(*number);
  fail("has a key that is neither a text nor an integer");
}

// Returns the value of a node; builds it at the first call. Bounds the depth, since a list may hold itself.
value pickle_reader::value_of(reference index, std::size_t depth) {
  constexpr std::size_t deepest = 64;
  if (depth > deepest) fail("holds lists in lists without end");
  auto& result = nodes_[index];
  if (result.kind == node::kind::list) {
    value::list items;
    for (auto const each : result.parts) items.push_back(value_of(each, depth + 1));
    result.plain = {std::make_shared<value::list const>(std::move(items))};
  } else if (result.kind == node::kind::dictionary) {
    value::dictionary members;
    for (std::size_t i = 0; i < result.parts.size(); i += 2) {
      members.insert_or_assign(key_of(result.parts[i]), value_of(result.parts[i + 1], depth + 1));
    }
    result.plain = {std::make_shared<value::dictionary const>(std::move(members))};
  }
  result.kind = node::kind::plain;
  return result.plain;
}

} // namespace

pickle_value read_pickle(std::string_view text) { return pickle_reader{text}.read(); }

} // namespace extend

} // namespace gpumem
