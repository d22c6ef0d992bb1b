#!/usr/bin/env python3
# Shows that the script of the site names the tools that are missing, and writes nothing without them. Shows that the
# pages of the reference lead to the guide.
# SPDX-License-Identifier: Apache-2.0
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
sys.dont_write_bytecode = True
sys.path.insert(0, str(ROOT / "cmake/site"))
from build_site import link_back  # noqa: E402


class BuildSite(unittest.TestCase):
    def test_missing_tools_are_named(self):
        with tempfile.TemporaryDirectory() as folder:
            # -S and -E hide the installed packages, the empty PATH hides doxygen.
            done = subprocess.run([sys.executable, "-S", "-E", ROOT / "cmake/site/build_site.py", ROOT, f"{folder}/out"],
                                  env={"PATH": folder}, text=True, capture_output=True)
            self.assertEqual(done.returncode, 1)
            self.assertRegex(done.stderr, r"^the site needs MkDocs, Material for MkDocs, doxygen.*run\.sh site")
            self.assertFalse(Path(folder, "out").exists())

    def test_the_reference_leads_to_the_guide(self):
        with tempfile.TemporaryDirectory() as folder:
            page = Path(folder) / "index.html"
            page.write_text('<div id="projectbrief">GPU memory</div><p>text</p>\n')
            link_back(Path(folder))
            self.assertEqual(page.read_text(), '<div id="projectbrief"><a href="../modules/guide/index.html">The guide'
                                               '</a></div><p>text</p>\n')
            page.write_text("<p>another head</p>\n")
            with self.assertRaisesRegex(SystemExit, "has no place for the link to the guide"):
                link_back(Path(folder))


if __name__ == "__main__":
    unittest.main()
