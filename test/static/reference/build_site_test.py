#!/usr/bin/env python3
# Shows that the script of the site names the tools that are missing, and writes nothing without them.
# SPDX-License-Identifier: Apache-2.0
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]


class BuildSite(unittest.TestCase):
    def test_missing_tools_are_named(self):
        with tempfile.TemporaryDirectory() as folder:
            # -S and -E hide the installed packages, the empty PATH hides doxygen.
            done = subprocess.run([sys.executable, "-S", "-E", ROOT / "cmake/site/build_site.py", ROOT, f"{folder}/out"],
                                  env={"PATH": folder}, text=True, capture_output=True)
            self.assertEqual(done.returncode, 1)
            self.assertRegex(done.stderr, r"^the site needs MkDocs, Material for MkDocs, doxygen.*run\.sh site")
            self.assertFalse(Path(folder, "out").exists())


if __name__ == "__main__":
    unittest.main()
