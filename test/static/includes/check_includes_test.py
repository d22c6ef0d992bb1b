#!/usr/bin/env python3
# Shows that the check of includes can fail: small source trees with one fault each.
# SPDX-License-Identifier: Apache-2.0
import sys
import tempfile
import unittest
from pathlib import Path

sys.dont_write_bytecode = True
sys.path.insert(0, str(Path(__file__).parent))
from check_includes import check  # noqa: E402

STD = "module;\n#include <cstddef>\nexport module gpumem:std;\nexport namespace std {\nusing std::size_t;\n}\n"
COROUTINE = ("module;\n#include <coroutine>\nexport module gpumem:coroutine;\nexport namespace std {\n"
             "using std::suspend_never;\n}\n")
GOOD = {
    "modules/gpumem.cppm": "export module gpumem;\nimport :std;\nexport import :coroutine;\n",
    "modules/base/std.cppm": STD,
    "modules/base/coroutine.cppm": COROUTINE,
    "modules/bridge/gpumem/options.hpp": "#include <cstddef>\nstd::size_t bytes;\n",
    "modules/core/page.cppm": "module;\n#include <stdint.h>\nexport module gpumem:page;\nimport :std;\n"
                              "std::size_t most = SIZE_MAX; // not INT_MAX, nor std::vector\n",
    "src/core/page.cpp": "module;\n#include <gpumem/options.hpp>\nmodule gpumem:page.impl;\nstd::size_t more;\n",
    "test/bare.hpp": "std::string text;\n",
    "test/page_test.cpp": '#include <string>\nimport gpumem;\n#include "bare.hpp"\nstd::suspend_never never;\n'
                          "#if defined(EOF)\n#endif\n/* std::map */ auto words = \"std::map\"; cuda::std::span span;\n",
}


class CheckIncludes(unittest.TestCase):
    def faults(self, changes):
        with tempfile.TemporaryDirectory() as folder:
            for name, text in (GOOD | changes).items():
                path = Path(folder, name)
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(text)
            return check(Path(folder))

    def assert_told(self, changes, fault):
        self.assertEqual(self.faults(changes), [fault])

    def test_good_tree_is_silent(self):
        self.assertEqual(self.faults({}), [])

    def test_macro_beside_a_module_that_includes_its_header(self):
        self.assert_told({"modules/core/more.cppm": "export module gpumem:more;\nimport :page;\nauto a = SIZE_MAX;\n"},
                         "modules/core/more.cppm:3: SIZE_MAX without <cstdint> or <stdint.h>")

    def test_name_without_header(self):
        self.assert_told({"src/core/page.cpp": "module gpumem:page.impl;\nint a = 1'000;\nstd::mutex mutex; // '\n"},
                         "src/core/page.cpp:3: std::mutex without <mutex>")

    def test_name_that_the_imported_partition_only_includes(self):
        self.assert_told({"src/core/page.cpp": "module gpumem:page.impl;\nimport :std;\nstd::byte byte;\n"},
                         "src/core/page.cpp:3: std::byte without <cstddef>")

    def test_name_that_the_module_does_not_export(self):
        self.assert_told({"test/page_test.cpp": "import gpumem;\nstd::ptrdiff_t bytes;\n"},
                         "test/page_test.cpp:2: std::ptrdiff_t without <cstddef>")

    def test_name_that_a_bare_header_needs(self):
        self.assert_told({"test/page_test.cpp": 'import gpumem;\n#include "bare.hpp"\n'},
                         "test/bare.hpp:1, included by test/page_test.cpp: std::string without <string>")

    def test_name_of_an_algorithm_over_ranges(self):
        self.assert_told({"test/page_test.cpp": "#include <ranges>\nvoid f() { std::ranges::sort(g()); }\n"},
                         "test/page_test.cpp:2: std::ranges::sort without <algorithm>")

    def test_name_that_the_table_lacks(self):
        self.assert_told({"test/page_test.cpp": "std::flux_capacitor it;\n"},
                         "test/page_test.cpp:1: std::flux_capacitor without a row of standard_headers.py for it")


if __name__ == "__main__":
    unittest.main()
