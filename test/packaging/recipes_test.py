# Reads the recipes of Conan and vcpkg: they compile, and name the project's version.
# SPDX-License-Identifier: Apache-2.0
# usage: recipes_test.py SOURCE VERSION
import json
import os
import shutil
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

PACKAGING = Path(sys.argv[1]) / "cmake/packaging"
VERSION = sys.argv[2]


class Recipes(unittest.TestCase):
    def test_recipes_of_conan_are_python(self):
        for path in (PACKAGING / "conanfile.py", PACKAGING / "test_package/conanfile.py"):
            compile(path.read_text(), str(path), "exec")

    def test_the_port_of_vcpkg_has_the_version(self):
        port = json.loads((PACKAGING / "vcpkg/gpumem/vcpkg.json").read_text())
        self.assertEqual((port["name"], port["version"]), ("gpumem", VERSION))

    @unittest.skipUnless(shutil.which("conan"), "there is no conan")
    def test_conan_reads_the_recipe(self):
        with tempfile.TemporaryDirectory() as home:
            said = subprocess.run(["conan", "inspect", PACKAGING, "--format=json"], check=True, capture_output=True,
                                  text=True, env={**os.environ, "CONAN_HOME": home}).stdout
        self.assertEqual([json.loads(said)[key] for key in ("name", "version")], ["gpumem", VERSION])


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
