# Reads the recipes of Conan, vcpkg, conda and Debian: they compile, and name the project's version.
# SPDX-License-Identifier: Apache-2.0
# usage: recipes_test.py SOURCE VERSION
import json
import os
import re
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

    def test_the_recipe_of_conda_has_the_version(self):
        self.assertIn(f'\n  version: "{VERSION}"\n', (PACKAGING / "conda/recipe.yaml").read_text())

    def test_debians_packages_have_the_version_and_what_is_installed(self):
        debian = PACKAGING / "debian"
        self.assertTrue((debian / "changelog").read_text().startswith(f"gpumem ({VERSION}) "))
        packages = {line.split()[1] for line in (debian / "control").read_text().splitlines()
                    if line.startswith("Package: ")}
        self.assertEqual(packages, {path.stem for path in debian.glob("*.install")})
        self.assertTrue(os.access(debian / "rules", os.X_OK))
        installed = (PACKAGING.parent / "gpumem_install.cmake").read_text()
        components = re.search(r"for component in (.*); do", (debian / "rules").read_text())[1].split()
        for component in components:
            self.assertRegex(installed, rf"COMPONENT {component}\b")

    @unittest.skipUnless(shutil.which("conan"), "there is no conan")
    def test_conan_reads_the_recipe(self):
        with tempfile.TemporaryDirectory() as home:
            said = subprocess.run(["conan", "inspect", PACKAGING, "--format=json"], check=True, capture_output=True,
                                  text=True, env={**os.environ, "CONAN_HOME": home}).stdout
        self.assertEqual([json.loads(said)[key] for key in ("name", "version")], ["gpumem", VERSION])


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
