#!/usr/bin/env python3
# Shows that the check of the pages finds files and names that do not exist.
# SPDX-License-Identifier: Apache-2.0
import sys
import tempfile
import unittest
from pathlib import Path

sys.dont_write_bytecode = True
sys.path.insert(0, str(Path(__file__).parent))
from check_maps import check  # noqa: E402

FILES = {"modules/pools/pool.cppm": "export class pool_engine { void free_slow(); };",
         "src/pools/pool.cpp": "module gpumem:pool; int steps;",
         "test/pools/pool_test.cpp": "int only_in_a_test;"}


class CheckMaps(unittest.TestCase):
    def missing(self, text):
        with tempfile.TemporaryDirectory() as folder:
            for name, content in {**FILES, "modules/README.md": text}.items():
                Path(folder, name).parent.mkdir(parents=True, exist_ok=True)
                Path(folder, name).write_text(content)
            told = check(Path(folder), ["modules/README.md"])
            return [line.removeprefix("modules/README.md: there is no ") for line in told]

    def test_files_from_the_root_or_the_page_are_accepted(self):
        self.assertEqual(self.missing("`src/pools/pool.cpp`, `pools/pool.cppm`, `pools/`, [a](pools/pool.cppm#b)"), [])

    def test_missing_files_are_found(self):
        self.assertEqual(self.missing("`src/pools/gone.cpp`\n| `a/` | [b](pools/b.md) [c](https://c.md) `gone.cpp` |"),
                         ["src/pools/gone.cpp", "pools/b.md", "a/", "gone.cpp"])

    def test_names_of_the_library_are_accepted(self):
        self.assertEqual(self.missing("`pool_engine`, `gpumem::pool_engine::free_slow()`, `gpumem:pool`, `pool.steps`"),
                         [])

    def test_missing_names_are_found(self):
        self.assertEqual(self.missing("`pool_state`, `pool_engine::gone()`, `only_in_a_test`; `two words`, bare_word"),
                         ["pool_state", "pool_engine::gone()", "only_in_a_test"])

    def test_names_of_other_libraries_in_a_glossary_are_accepted(self):
        table = "| term | elsewhere |\n|---|---|\n| `{}` | RMM: `pool_state` |\n"
        self.assertEqual(self.missing(table.format("steps")), [])
        self.assertEqual(self.missing(table.format("gone") + "\n| a | `gone_too` |\n"), ["gone", "gone_too"])

    def test_names_in_pictures_are_read_and_other_code_is_not(self):
        picture = "```mermaid\ngraph TD\n  a[pool_engine] --> b[pool_state]\n```\n"
        self.assertEqual(self.missing(picture + "```\ngone_x `y`\n```\n"), ["pool_state"])


if __name__ == "__main__":
    unittest.main()
