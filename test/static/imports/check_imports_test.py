#!/usr/bin/env python3
# Shows that the check of imports can fail: small source trees with one fault each.
# SPDX-License-Identifier: Apache-2.0
import sys
import tempfile
import unittest
from pathlib import Path

sys.dont_write_bytecode = True
sys.path.insert(0, str(Path(__file__).parent))
from check_imports import check  # noqa: E402

GOOD = {
    "modules/gpumem.cppm": "export module gpumem;\nexport import :sync;\nexport import :waiter;\nexport import :pool;\n",
    "modules/base/sync.cppm": "module;\n#include <mutex>\nexport module gpumem:sync;\n",
    "modules/base/scheduled/sync.cppm": "export module gpumem:sync;\n",
    "modules/core/waiter.cppm": "export module gpumem:waiter;\nimport :sync; // import :pool;\n",
    "modules/pools/pool.cppm": "export module gpumem:pool;\nimport :sync;\nimport :waiter;\n",
    "src/base/sync.cpp": "module gpumem:sync.impl;\nimport :sync;\n",
    "src/core/waiter.cpp": "module gpumem:waiter.impl;\nimport :sync;\nimport :waiter;\n/*\nimport :pool;\n*/\n",
    "src/simulator/simulation.cpp": "int simulated;\n",
    "modules/thrust/thrust.cppm": "export module gpumem.thrust;\nimport gpumem;\n",
}


class CheckImports(unittest.TestCase):
    def faults(self, changes):
        with tempfile.TemporaryDirectory() as folder:
            for name, text in (GOOD | changes).items():
                path = Path(folder, name)
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(text)
            return check(Path(folder))

    def assert_told(self, changes, *parts):
        faults = self.faults(changes)
        self.assertEqual(len(faults), 1, faults)
        for part in parts:
            self.assertIn(part, faults[0])

    def test_good_tree_is_silent(self):
        self.assertEqual(self.faults({}), [])

    def test_upward_import_of_an_interface(self):
        self.assert_told({"modules/core/waiter.cppm": "export module gpumem:waiter;\nimport :up;\n",
                          "modules/pools/up.cppm": "export module gpumem:up;\n",
                          "modules/gpumem.cppm": GOOD["modules/gpumem.cppm"] + "export import :up;\n"},
                         "modules/core/waiter.cppm:2", "core imports :up upward, from pools")

    def test_upward_import_inside_the_pools(self):
        self.assert_told({"modules/pools/ranges/low.cppm": "export module gpumem:low;\nimport :high;\n",
                          "modules/pools/engine/high.cppm": "export module gpumem:high;\n",
                          "modules/gpumem.cppm": GOOD["modules/gpumem.cppm"] + "export import :low;\nexport import :high;\n"},
                         "modules/pools/ranges/low.cppm:2", "pools/ranges imports :high upward, from pools/engine")

    def test_upward_import_of_an_implementation(self):
        self.assert_told({"src/base/sync.cpp": "module gpumem:sync.impl;\nimport :up;\n",
                          "modules/pools/up.cppm": "export module gpumem:up;\n",
                          "modules/gpumem.cppm": GOOD["modules/gpumem.cppm"] + "export import :up;\n"},
                         "src/base/sync.cpp:2", "upward")

    def test_unit_that_imports_every_room(self):
        self.assert_told({"src/base/sync.cpp": "module gpumem;\n"}, "src/base/sync.cpp", "every layer")

    def test_cycle_within_a_room(self):
        self.assert_told({"modules/core/event.cppm": "export module gpumem:event;\nimport :waiter;\n",
                          "src/core/waiter.cpp": "module gpumem:waiter.impl;\nimport :waiter;\nimport :event;\n",
                          "modules/gpumem.cppm": GOOD["modules/gpumem.cppm"] + "export import :event;\n"},
                         "cycle: event -> waiter -> event")

    def test_implementation_imported_by_another(self):
        self.assert_told({"src/core/waiter.cpp": "module gpumem:waiter.impl;\nimport :sync.impl;\n"},
                         "which is no interface partition")

    def test_partition_that_the_table_of_contents_leaves_out(self):
        self.assert_told({"modules/core/more.cppm": "export module gpumem:more;\n"}, "does not list :more")

    def test_file_named_otherwise_than_its_partition(self):
        self.assert_told({"src/core/wait.cpp": "module gpumem:waiter.impl;\n"}, "is named otherwise")

    def test_unknown_room(self):
        self.assert_told({"src/misc/waiter.cpp": "module gpumem:waiter.impl;\n"}, "is in no layer")

    def test_import_of_the_whole_module(self):
        self.assert_told({"src/core/waiter.cpp": "module gpumem:waiter.impl;\nimport gpumem;\n"},
                         "imports the module gpumem")


if __name__ == "__main__":
    unittest.main()
