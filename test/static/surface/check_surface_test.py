#!/usr/bin/env python3
# Shows that the check of the surface reads all kinds of declarations, and that it can fail.
# SPDX-License-Identifier: Apache-2.0
import sys
import tempfile
import unittest
from pathlib import Path

sys.dont_write_bytecode = True
sys.path.insert(0, str(Path(__file__).parent))
from check_surface import check, declared  # noqa: E402

UNIT = """
module;
#include <array> // export class no_name;
export module gpumem:unit;
namespace gpumem {
class hidden { int export_count; };
export class shown { public: void member() {} };
export class later;
export enum class kind : int { one, two };
export template <class T, int N = 2> class table {};
export template <class T> concept good = requires(T& t) { { t.size() } noexcept; };
export template <class T>
  requires good<T>
class guarded final : public table<T> {};
export template <class T>
  requires good<T>
table<T> make_table(T const& from, int count = 3) noexcept {
  return {};
}
export template <class T, class F> using alias = typename table<T, 3>::type;
export [[noreturn]] void end(char const* why);
export inline constexpr int limit = 3;
namespace detail { export class of_the_library {}; }
namespace extend {
export {
  using gpumem::extend::taken;
}
export using number = unsigned;
}
}
export namespace gpumem::literals {
constexpr unsigned long operator""_KiB(unsigned long long n) { return n * 1024; }
}
"""
NAMES = {("gpumem", name) for name in ("shown later kind table good guarded make_table alias end limit".split())}
NAMES |= {("gpumem::extend", "taken"), ("gpumem::extend", "number"), ("gpumem::literals", 'operator""_KiB')}


class CheckSurface(unittest.TestCase):
    def faults(self, names, unit=None):
        with tempfile.TemporaryDirectory() as folder:
            listed = "".join(f"using {space}::{name};\n" for space, name in names)
            for path, text in (("modules/base/unit.cppm", unit or UNIT), ("test/static/api_surface.cpp", listed)):
                Path(folder, path).parent.mkdir(parents=True, exist_ok=True)
                Path(folder, path).write_text(text)
            return check(Path(folder))

    def test_all_kinds_of_declarations_are_read(self):
        self.assertEqual(declared(UNIT)[0], NAMES)

    def test_same_names_are_silent(self):
        self.assertEqual(self.faults(NAMES), [])

    def test_name_that_is_not_listed(self):
        self.assertEqual(self.faults(NAMES - {("gpumem", "shown")}),
                         ["gpumem::shown is exported, and api_surface.cpp does not name it"])

    def test_name_that_is_not_exported(self):
        self.assertEqual(self.faults(NAMES | {("gpumem", "hidden")}),
                         ["api_surface.cpp names gpumem::hidden, which is not exported"])

    def test_hidden_name_that_is_public_too(self):
        own = UNIT + "\nnamespace gpumem::detail {\nclass shown;\n}\n"
        self.assertEqual(self.faults(NAMES, own), ["gpumem::detail::shown has the name of gpumem::shown"])
        same = own + "namespace gpumem {\nexport using shown = detail::shown;\n}\n"
        self.assertEqual(self.faults(NAMES, same), [])

    def test_defaulted_friend(self):
        own = UNIT.replace("int export_count;", "friend bool operator==(hidden const&,\n hidden const&) = default;")
        told = self.faults(NAMES, own)
        self.assertEqual(len(told), 1)
        self.assertIn("GCC needs a member", told[0])
        self.assertEqual(self.faults(NAMES, own.replace(" = default;", " { return true; }")), [])


if __name__ == "__main__":
    unittest.main()
