# Makes the wheel of a build, installs it into an empty folder and allocates with it on the simulated device.
# SPDX-License-Identifier: Apache-2.0
# usage: wheel_test.py SOURCE BUILD SIMULATOR VERSION
import base64
import csv
import hashlib
import io
import os
import subprocess
import sys
import tempfile
import unittest
import zipfile
from pathlib import Path

SOURCE, BUILD, SIMULATOR = (Path(path) for path in sys.argv[1:4])
VERSION = sys.argv[4]
sys.path.insert(0, str(SOURCE / "cmake/packaging"))
sys.dont_write_bytecode = True
import wheel  # noqa: E402

USE = """
import sys, gpumem_torch as g
assert "torch" not in sys.modules
block = g.library().gpumem_torch_try_allocate(1 << 20, 0, None)
assert block, g.library().gpumem_last_error()
print(g.library()._name, g.version(), g.statistics(0)["live"])
import gpumem_torch_build as b
assert all(path.exists() for path in b._sources()) and b._folders()[0].name == "gpumem_torch.sources"
from types import SimpleNamespace as namespace
torch = lambda version: namespace(__version__=version, version=namespace(cuda="13.0"))
assert b.shipped(torch("2.10.1+cu130")).name == "torch-2.10.so" and b.shipped(torch("2.11.0")) is None
"""


class Wheel(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(cls.folder.cleanup)
        cls.classes = {f"torch-{version}.so": SIMULATOR.read_bytes() for version in ("2.10", "2.9")}  # any libraries
        cls.path = wheel.make(BUILD, Path(cls.folder.name) / "dist", cls.classes)
        with zipfile.ZipFile(cls.path) as made:
            cls.files = {name: made.read(name) for name in made.namelist()}
        cls.about = f"gpumem_torch-{VERSION}.dist-info"

    def test_its_name_has_the_version_and_the_tag(self):
        tag = f"py3-none-{self.path.stem.split('-')[-1]}"
        self.assertEqual(self.path.name, f"gpumem_torch-{VERSION}-{tag}.whl")
        self.assertIn(f"Tag: {tag}\n", self.files[f"{self.about}/WHEEL"].decode())
        self.assertIn(f"\nVersion: {VERSION}\n", self.files[f"{self.about}/METADATA"].decode())
        self.assertRegex(tag, r"^py3-none-(many)?linux_(2_\d+_)?(x86_64|aarch64)$")

    def test_its_record_names_each_file_with_its_hash(self):
        rows = {name: (digest, size) for name, digest, size in
                csv.reader(io.StringIO(self.files[f"{self.about}/RECORD"].decode()))}
        self.assertEqual(rows.pop(f"{self.about}/RECORD"), ("", ""))
        digest = lambda data: base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
        self.assertEqual(rows, {name: ("sha256=" + digest(data), str(len(data))) for name, data in self.files.items()
                                if name != f"{self.about}/RECORD"})

    def test_it_has_all_sources_of_the_allocator_class(self):
        names = {path.name for path in (SOURCE / "src/torch").iterdir()}
        inside = {name.removeprefix(f"{wheel.SOURCES}/") for name in self.files if name.startswith(f"{wheel.SOURCES}/")}
        self.assertEqual(inside, names | {"gpumem/gpumem.h", "gpumem/gpumem_torch.h", "gpumem/version.h"})

    def test_it_has_the_classes_and_says_of_which_versions(self):
        inside = {name: data for name, data in self.files.items() if name.startswith("gpumem_torch.classes/")}
        self.assertEqual(inside, {f"gpumem_torch.classes/{name}": data for name, data in self.classes.items()})
        self.assertIn("the releases of PyTorch 2.9, 2.10. For another", self.files[f"{self.about}/METADATA"].decode())
        plain = wheel.metadata(VERSION, 34, 30, {})
        self.assertIn("`install`\ncompiles a class", plain)

    def test_two_builds_of_it_are_equal(self):
        again = wheel.make(BUILD, Path(self.folder.name) / "again", dict(reversed(self.classes.items())))
        self.assertEqual(again.read_bytes(), self.path.read_bytes())

    def test_an_installed_one_finds_its_library_and_needs_no_torch(self):
        place = Path(self.folder.name) / "site"
        if subprocess.run([sys.executable, "-m", "pip", "--version"], capture_output=True).returncode == 0:
            subprocess.run([sys.executable, "-m", "pip", "install", "--quiet", "--no-index", "--no-deps",
                            "--no-compile", "--disable-pip-version-check", "--root-user-action=ignore", "--target",
                            place, self.path], check=True)
        else:
            print("this Python has no pip; the wheel is only unpacked")
            zipfile.ZipFile(self.path).extractall(place)
        known = {name: value for name, value in os.environ.items() if name != "GPUMEM_LIBRARY"}
        said = subprocess.run([sys.executable, "-B", "-c", USE], check=True, capture_output=True, text=True, cwd=place,
                              env={**known, "PYTHONPATH": str(place), "LD_PRELOAD": str(SIMULATOR)}).stdout
        number = tuple(int(part) for part in VERSION.split("."))
        self.assertEqual(said, f"{place.resolve() / 'gpumem_torch.libs' / wheel.LIBRARY} {number} {1 << 20}\n")


class Classes(unittest.TestCase):
    def setUp(self):
        scratch = tempfile.TemporaryDirectory()
        self.addCleanup(scratch.cleanup)
        self.root = Path(scratch.name)
        self.parts = self.root / "parts"
        for version in ("2.9.1", "2.10.0", "2.10.11", "2.10.2", "notes"):
            headers = self.parts / version / "torch/include"
            headers.mkdir(parents=True)
            (headers / "number.h").write_text(f'inline char const* number() {{ return "of {version}"; }}')
        (self.root / "src/torch").mkdir(parents=True)
        (self.root / "src/torch/one.cpp").write_text(
            "#include <cuda_runtime_api.h>\n#include <number.h>\nchar const* hidden() { return number(); }\n"
            'extern "C" __attribute__((visibility("default"))) char const* shown() { return hidden(); }\n'
            'extern "C" __attribute__((visibility("default"))) char const* place() { return __FILE__; }')

    def test_each_version_has_one_for_its_newest_patch(self):
        made = wheel.torch_classes(self.root, BUILD, self.parts)
        self.assertEqual(list(made), ["torch-2.9.so", "torch-2.10.so"])
        self.assertIn(b"of 2.10.11\0", made["torch-2.10.so"])
        self.assertNotIn(b"hidden", made["torch-2.9.so"])
        for data in made.values():
            self.assertNotIn(str(self.root).encode(), data)
            library = self.root / "one.so"
            library.write_bytes(data)
            needed, _ = wheel.needs(wheel.cache(BUILD)["CMAKE_READELF"], library)
            self.assertLess({"libc10.so", "libc10_cuda.so"}, set(needed))
        self.assertEqual(wheel.torch_classes(self.root, BUILD, self.parts), made)


class PlatformTag(unittest.TestCase):
    def tag(self, libraries, *versions):
        return wheel.platform_tag(libraries, set(versions), "x86_64")

    def test_it_names_the_oldest_system_that_has_all_symbols(self):
        self.assertEqual(self.tag(["libc.so.6"], "GLIBC_2.2.5", "GLIBC_2.34"), "manylinux_2_34_x86_64")
        self.assertEqual(self.tag(["libc.so.6"], "GLIBC_2.17"), "manylinux_2_28_x86_64")
        self.assertEqual(self.tag(["libstdc++.so.6"], "GLIBC_2.34", "GLIBCXX_3.4", "GLIBCXX_3.4.30"),
                         "manylinux_2_35_x86_64")

    def test_it_claims_no_system_for_other_libraries_and_newer_runtimes(self):
        self.assertEqual(self.tag(["libc.so.6", "libbacktrace.so.0"], "GLIBC_2.17"), "linux_x86_64")
        self.assertEqual(self.tag(["libstdc++.so.6"], "GLIBC_2.17", "GLIBCXX_3.4.99"), "linux_x86_64")


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
