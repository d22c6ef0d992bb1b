#!/usr/bin/env python3
# Shows that the check of lengths can fail.
# SPDX-License-Identifier: Apache-2.0
import sys
import tempfile
import unittest
from pathlib import Path

sys.dont_write_bytecode = True
sys.path.insert(0, str(Path(__file__).parent))
from check_length import check  # noqa: E402


class CheckLength(unittest.TestCase):
    def faults(self, name, lines):
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, name)
            path.parent.mkdir(parents=True)
            path.write_text("\n" * lines)
            return check(Path(folder))

    def test_file_of_600_lines_is_accepted(self):
        self.assertEqual(self.faults("src/core/page.cpp", 600), [])

    def test_file_of_601_lines_is_reported(self):
        for name in ["modules/core/page.cppm", "bench/sort.cu", "test/page.py", "test/core/CMakeLists.txt"]:
            self.assertEqual(self.faults(name, 601), [f"{name}: 601 lines, at most 600"])

    def test_long_data_file_is_accepted(self):
        self.assertEqual(self.faults("test/mutants/mutants.txt", 601), [])


if __name__ == "__main__":
    unittest.main()
