#!/usr/bin/env python3
"""Writes the header of tuning constants so that each is read from the environment when the program starts.
SPDX-License-Identifier: Apache-2.0

usage: tunable.py HEADER OUTPUT

GPUMEM_TUNING has pairs NAME=VALUE, separated by commas: bytes, counts and parts as they are in HEADER, times in
nanoseconds. Constants that it does not name keep their values. The program ends with status 2 at a name that is unknown,
and at a value that is no number or out of range: a count is at least 1, a time or a share is at least 0."""
import re
import sys
from pathlib import Path

CONSTANT = re.compile(r"^inline constexpr (\S+) (\w+) = ([^;]+);", re.MULTILINE)
READER = r"""
template <class Visit> void for_each_setting(Visit visit) {
  char const* const text = std::getenv("GPUMEM_TUNING");
  for (std::string_view left = text ? text : ""; !left.empty();) {
    auto const one = left.substr(0, left.find(','));
    left.remove_prefix(std::min(one.size() + 1, left.size()));
    auto const name = one.substr(0, one.find('='));
    auto const value = one.substr(std::min(name.size() + 1, one.size()));
    double number = -1;
    auto const [end, error] = std::from_chars(value.data(), value.data() + value.size(), number);
    visit(name, error == std::errc{} && end == value.data() + value.size() ? number : -1);
  }
}
[[noreturn]] inline void refuse(std::string_view name, char const* why) {
  std::fprintf(stderr, "GPUMEM_TUNING: %.*s: %s\n", static_cast<int>(name.size()), name.data(), why);
  std::exit(2);
}
inline bool check_settings() {
  for_each_setting([](std::string_view name, double number) {
    bool const known = std::find(std::begin(names), std::end(names), name) != std::end(names);
    if (!known) refuse(name, "no tuning constant has this name");
    if (!(number >= 0)) refuse(name, "the value is no number from 0 on");
  });
  return true;
}
template <class Value> Value tuned(std::string_view name, Value usual) {
  [[maybe_unused]] static bool const checked = check_settings();
  for_each_setting([&](std::string_view setting, double number) {
    if (setting != name) return;
    if constexpr (requires { typename Value::period; }) {
      if (number > 1e18) refuse(name, "the time is longer than 1e18 ns");
      usual = std::chrono::duration_cast<Value>(std::chrono::duration<double, std::nano>{number});
    } else {
      if (std::is_integral_v<Value> && (number < 1 || number > static_cast<double>(std::numeric_limits<Value>::max()) / 2))
        refuse(name, "the value is no count from 1 on, or is too large");
      usual = static_cast<Value>(number);
    }
  });
  return usual;
}
"""
INCLUDES = "algorithm charconv cstdio cstdlib iterator limits string_view system_error type_traits".split()


def main():
    if len(sys.argv) != 3:
        sys.exit(__doc__.split("\n\n")[1])
    text = Path(sys.argv[1]).read_text(encoding="utf-8")
    names = [name for _, name, _ in CONSTANT.findall(text)]
    if text.count("inline constexpr") != len(names):
        sys.exit(f"{sys.argv[1]}: a constant is not declared as in: inline constexpr TYPE NAME = VALUE;")
    namespace = "using namespace std::chrono_literals;\n"
    listed = ", ".join(f'"{name}"' for name in names)
    head = f"{namespace}\ninline constexpr std::string_view names[] = {{{listed}}};\n{READER}"
    text = CONSTANT.sub(r'inline \1 const \2 = tuned<\1>("\2", \3);', text).replace(namespace, head)
    text = text.replace("#include <chrono>", "\n".join(f"#include <{name}>" for name in [*INCLUDES, "chrono"]))
    output = Path(sys.argv[2])
    output.parent.mkdir(parents=True, exist_ok=True)
    if not output.exists() or output.read_text(encoding="utf-8") != text:
        output.write_text(text, encoding="utf-8")


main()
