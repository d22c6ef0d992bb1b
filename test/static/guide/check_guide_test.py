#!/usr/bin/env python3
# Shows that the check of the guide finds what its pages and programs lack.
# SPDX-License-Identifier: Apache-2.0
import sys
import tempfile
import unittest
from pathlib import Path

sys.dont_write_bytecode = True
sys.path.insert(0, str(Path(__file__).parent))
from check_guide import check  # noqa: E402

PROGRAM = "int main() {}\n"
SHOWN = f"`test/examples/a.cpp`\n```cpp\n{PROGRAM}```\n"
FILES = {"modules/guide/README.md": f"# The guide\n[a](a.md) [b](environment.md#the-library)\n{SHOWN}",
         "modules/guide/a.md": "# A page\n`pool_engine`\n",
         "modules/guide/environment.md": "## The library\n| `GPUMEM_SWITCH` | x |\n",
         "cmake/site/mkdocs.yml": "".join(f"- modules/guide/{page}.md\n" for page in ("README", "a", "environment")),
         "modules/pool.cppm": 'class pool_engine { bool on = is_set_in_environment("GPUMEM_SWITCH"); };',
         "test/examples/a.cpp": PROGRAM,
         "test/examples/programs.cmake": 'gpumem_add_example(a.cpp OUTPUT "a")\n'}


class CheckGuide(unittest.TestCase):
    def told(self, **changes):
        files = {**FILES, **{Path(name).as_posix(): text for name, text in changes.items()}}
        with tempfile.TemporaryDirectory() as folder:
            for name, content in files.items():
                Path(folder, name).parent.mkdir(parents=True, exist_ok=True)
                Path(folder, name).write_text(content)
            return check(Path(folder))

    def with_page(self, text):
        return self.told(**{"modules/guide/a.md": text})

    def test_a_guide_that_agrees_with_the_sources_is_accepted(self):
        self.assertEqual(self.told(), [])

    def test_the_site_has_all_pages_and_no_other(self):
        site = "- modules/guide/README.md\n- modules/guide/b.md\n- modules/guide/environment.md\n"
        self.assertEqual(self.told(**{"cmake/site/mkdocs.yml": site}),
                         ["cmake/site/mkdocs.yml: a.md is missing", "cmake/site/mkdocs.yml: there is no page b.md"])

    def test_programs_are_files(self):
        self.assertEqual(self.with_page(SHOWN.replace("main", "other")),
                         ["a.md: the program differs from test/examples/a.cpp"])
        self.assertEqual(self.with_page("\n```cpp\nint x;\n```\n"),
                         ["a.md: the line above a program names no file of test/: int x;"])
        self.assertEqual(self.with_page("`test/examples/b.c`\n```c\nint x;\n```\n"),
                         ["a.md: the program differs from test/examples/b.c", "a.md: there is no test/examples/b.c"])

    def test_other_blocks_have_a_known_kind(self):
        self.assertEqual(self.with_page("```sh\nls\n```\n```cpp foreign\nint x;\n```\n"), [])
        self.assertEqual(self.with_page("```\nls\n```\n"), ["a.md: unknown kind of code block: ''"])

    def test_examples_are_shown_run_and_short(self):
        self.assertEqual(self.told(**{"test/examples/b.cpp": PROGRAM * 41}),
                         ["b.cpp: 41 lines, at most 40", "b.cpp: no page shows it", "b.cpp: no test runs it"])

    def test_pages_are_short_and_in_the_index(self):
        self.assertEqual(self.with_page("a line\n" * 121), ["a.md: 121 lines, at most 120"])
        self.assertEqual(self.told(**{"modules/guide/b.md": "# B\n"}),
                         ["README.md: no link to b.md", "cmake/site/mkdocs.yml: b.md is missing"])

    def test_links_lead_to_pages_and_headings(self):
        self.assertEqual(self.with_page("# Some `pool_engine`, x\n[a](#some-pool_engine-x) [b](README.md#the-guide)"), [])
        self.assertEqual(self.with_page("[a](b.md) [b](../pool.cppm) [c](environment.md#other) [d](https://a.b/c)"),
                         ["a.md: the link b.md leads to no page of the guide",
                          "a.md: the link ../pool.cppm leads to no page of the guide",
                          "a.md: environment.md has no heading other", "a.md: there is no b.md"])

    def test_quoted_names_exist(self):
        self.assertEqual(self.with_page("`pool_engine` `pool_state`"), ["a.md: there is no pool_state"])

    def test_variables_are_those_that_are_read(self):
        page = "## The library\n| `GPUMEM_OTHER` | x |\n"
        self.assertEqual(self.told(**{"modules/guide/environment.md": page, "modules/b.py": "GPUMEM_OTHER"}),
                         ["environment.md: GPUMEM_SWITCH is missing", "environment.md: no source reads GPUMEM_OTHER"])
        self.assertEqual(self.told(**{"cmake/a.sh": 'x=${GPUMEM_NEW-}'}), ["environment.md: GPUMEM_NEW is missing"])


if __name__ == "__main__":
    unittest.main()
