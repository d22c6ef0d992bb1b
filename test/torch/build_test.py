# Tests gpumem_torch_build without PyTorch and, but for the library that build_library.py builds, without a compiler.
# SPDX-License-Identifier: Apache-2.0
import contextlib
import fcntl
import importlib.util
import io
import os
import runpy
import shutil
import subprocess
import sys
import tempfile
import types
import unittest
from pathlib import Path
from unittest import mock

import gpumem_torch
import gpumem_torch_build

# Writes its arguments to a file, then creates the file that it is asked for.
COMPILER = """#!/bin/sh
printf '%s\\n' "$*" >>"$COMPILER_LOG"
while [ "$1" != -o ]; do shift; done
printf made >"$2"
"""
FAILING = """#!/bin/sh
echo "no such instruction"
exit 1
"""
SOURCES = ["one.cpp", "two.cpp"]


class Build(unittest.TestCase):
    def setUp(self):
        scratch = tempfile.TemporaryDirectory()
        self.addCleanup(scratch.cleanup)
        self.root = Path(scratch.name)
        self.log = self.root / "log"
        self.cache = self.root / "cache"
        self.module = self.load()
        self.torch = self.stand_in()
        self.headers = self.root / "site/nvidia/cu13/include"
        self.write_headers(self.headers, 13000)
        change = mock.patch.dict(os.environ, {"GPUMEM_TORCH_CACHE": str(self.cache), "COMPILER_LOG": str(self.log),
                                              "CXX": self.script("compiler", COMPILER)})
        change.start()
        self.addCleanup(change.stop)
        for name in ("CUDA_HOME", "CUDA_PATH"):
            os.environ.pop(name, None)

    def load(self):
        """Loads the module as it is installed, beside a folder of sources."""
        sources = self.root / "gpumem_torch.sources"
        (sources / "gpumem").mkdir(parents=True)
        for name in [*SOURCES, "one.hpp", "gpumem/gpumem.h"]:
            (sources / name).write_text(f"// {name}")
        self.sources = sources
        path = shutil.copy(gpumem_torch_build.__file__, self.root)
        found = importlib.util.spec_from_file_location("installed", path)
        module = importlib.util.module_from_spec(found)
        found.loader.exec_module(module)
        return module

    def stand_in(self, version="2.11.0+cu130", cuda="13.0", revision="abc"):
        return types.SimpleNamespace(__file__=str(self.root / "site/torch/__init__.py"), __version__=version,
                                     version=types.SimpleNamespace(cuda=cuda, git_version=revision))

    def write_headers(self, folder, version):
        (folder / "crt").mkdir(parents=True)
        (folder / "crt/host_defines.h").touch()
        (folder / "cuda_runtime_api.h").write_text(f"#define CUDART_VERSION  {version}\n")

    def script(self, name, text):
        path = self.root / name
        path.write_text(text)
        path.chmod(0o755)
        return str(path)

    def commands(self):
        return self.log.read_text().splitlines() if self.log.exists() else []

    def builds(self):
        return len([line for line in self.commands() if "-shared" in line])

    def assert_fails(self, *sentences, torch=None):
        with self.assertRaises(self.module.BuildError) as caught:
            self.module.build(torch or self.torch)
        for sentence in [*sentences, "gpumem_torch.install(plug_in=True) needs no library"]:
            self.assertIn(sentence, str(caught.exception))

    def test_builds_once(self):
        path = self.module.build(self.torch)
        self.assertEqual(path.read_text(), "made")
        self.assertEqual(path.parent, self.cache)
        self.assertRegex(path.name, r"^torch-2\.11\.0\+cu130-[0-9a-f]{16}\.so$")
        self.assertEqual(sorted(os.listdir(self.cache)), sorted(["lock", path.name]))
        commands = self.commands()
        self.assertEqual(len(commands), len(SOURCES) + 1)
        for name in SOURCES:
            self.assertEqual(len([line for line in commands if f"/{name} " in line]), 1)
        for part in ("-std=c++20", f"-isystem {self.root}/site/torch/include", f"-isystem {self.headers}",
                     f"-I{self.sources}"):
            self.assertIn(part, commands[0])
        self.assertIn(f"-L{self.root}/site/torch/lib -lc10 -lc10_cuda", commands[-1])
        os.environ["CXX"] = self.script("failing", FAILING)
        self.assertEqual(self.module.build(self.torch), path)
        self.assertEqual(self.module.library_path(self.torch), path)
        self.assertEqual(self.builds(), 1)

    def test_builds_anew_for_other_versions_and_sources(self):
        made = {self.module.build(self.torch)}
        for other in (self.stand_in(version="2.10.0"), self.stand_in(revision="def"), self.stand_in(cuda="13.2")):
            made.add(self.module.build(other))
        for name in ("two.cpp", "one.hpp", "gpumem/gpumem.h"):
            (self.sources / name).write_text("// changed")
            made.add(self.module.build(self.torch))
        (self.sources / "three.cpp").touch()
        made.add(self.module.build(self.torch))
        self.assertEqual(len(made), 8)
        self.assertEqual(self.builds(), 8)
        self.assertTrue(all(path.exists() for path in made))

    def test_two_processes_build_once(self):
        code = ("import importlib.util, types; from types import SimpleNamespace as namespace\n"
                f"found = importlib.util.spec_from_file_location('installed', {self.module.__file__!r})\n"
                "module = importlib.util.module_from_spec(found); found.loader.exec_module(module)\n"
                "print('ready', flush=True)\n"
                f"print(module.build(namespace(__file__={self.torch.__file__!r}, __version__='2.11.0', "
                "version=namespace(cuda='13.0', git_version=''))))")
        self.cache.mkdir()
        with open(self.cache / "lock", "w") as lock:  # held until both have begun
            fcntl.flock(lock, fcntl.LOCK_EX)
            both = [subprocess.Popen([sys.executable, "-B", "-c", code], stdout=subprocess.PIPE, text=True)
                    for _ in range(2)]
            for process in both:
                self.assertEqual(process.stdout.readline(), "ready\n")
        paths = [process.communicate()[0] for process in both]
        self.assertEqual(paths[0], paths[1])
        self.assertEqual([process.returncode for process in both], [0, 0])
        self.assertEqual(self.builds(), 1)

    def test_versions_that_are_not_known(self):
        for version in ("2.8.1", "2.16.0", "1.13.0", "3.0.0"):
            self.assert_fails(f"PyTorch {version} is not one of 2.9 to 2.15", torch=self.stand_in(version=version))
        for version in ("2.9.0", "2.15.1+cu132", "2.12.0a0"):
            self.module.build(self.stand_in(version=version))
        self.assert_fails("PyTorch 2.11.0+cpu is built without CUDA",
                          torch=self.stand_in(version="2.11.0+cpu", cuda=None))
        self.assertEqual(self.builds(), 3)

    def test_libraries_of_the_wheel(self):
        self.assertIsNone(self.module.shipped(self.torch))
        classes = self.root / "gpumem_torch.classes"
        classes.mkdir()
        (classes / "torch-2.11.so").touch()
        for version in ("2.11.0", "2.11.3+cu126"):
            self.assertEqual(self.module.shipped(self.stand_in(version=version)), classes / "torch-2.11.so")
        for version in ("2.12.0", "2.11.0a0+gitabc", "2.11.0.dev20260101+cu130", "2.11.0+vendor"):
            self.assertIsNone(self.module.shipped(self.stand_in(version=version)))
        with self.assertRaises(self.module.BuildError):
            self.module.shipped(self.stand_in(version="2.11.0+cpu", cuda=None))
        self.assertEqual(self.builds(), 0)

    def test_a_library_of_the_wheel_that_does_not_load(self):
        classes = self.root / "gpumem_torch.classes"
        classes.mkdir()
        (classes / "torch-2.11.so").touch()
        opened = []

        def open_library(path, mode=0):
            opened.append(path)
            if path.startswith(str(classes)):
                raise OSError("undefined symbol")
            return mock.Mock()

        with mock.patch.object(gpumem_torch, "library", return_value=types.SimpleNamespace(_name="the C library")), \
                mock.patch.object(gpumem_torch.ctypes, "CDLL", open_library), \
                mock.patch.dict(sys.modules, {"gpumem_torch_build": self.module}):
            gpumem_torch._load_allocator(self.torch)
        self.assertEqual(opened, ["the C library", str(classes / "torch-2.11.so"),
                                  str(self.module.library_path(self.torch))])
        self.assertEqual(self.builds(), 1)

    def test_compilers(self):
        os.environ["CXX"] = "/nonexistent/compiler"
        self.assert_fails("no C++ compiler was found (/nonexistent/compiler); set CXX to one")
        del os.environ["CXX"]
        with mock.patch.dict(os.environ, {"PATH": str(self.root)}):
            self.assert_fails("no C++ compiler was found (g++, c++ or clang++); set CXX to one")
        self.script("clang++", COMPILER)
        with mock.patch.dict(os.environ, {"PATH": f"{self.root}:/usr/bin:/bin"}), \
                mock.patch.object(self.module.shutil, "which",
                                  lambda name: str(self.root / name) if name == "clang++" else None):
            self.module.build(self.torch)
        self.assertEqual(self.builds(), 1)

    def test_a_compiler_that_fails(self):
        os.environ["CXX"] = self.script("failing", FAILING)
        self.assert_fails(f"the compiler failed: {self.root}/failing -std=c++20", "no such instruction")
        self.assertEqual(os.listdir(self.cache), ["lock"])
        os.environ["CXX"] = str(self.root / "compiler")
        self.assertTrue(self.module.build(self.torch).exists())

    def test_headers_of_cuda(self):
        other = self.stand_in(cuda="99.0")
        self.assert_fails("the headers of CUDA 99's runtime were not found",
                          f"{self.root}/site/nvidia/cu99/include: not there",
                          "install the wheels nvidia-cuda-runtime and nvidia-cuda-crt of CUDA 99", "set CUDA_HOME",
                          torch=other)
        os.environ["CUDA_HOME"] = str(self.root / "toolkit")
        self.write_headers(self.root / "toolkit/include", 13000)
        self.assert_fails(f"{self.root}/toolkit/include: of another CUDA", torch=other)
        (self.root / "toolkit/include/cuda_runtime_api.h").write_text("#define CUDART_VERSION 99010\n")
        (self.root / "toolkit/include/crt/host_defines.h").unlink()
        self.assert_fails(f"{self.root}/toolkit/include: without crt/host_defines.h", torch=other)
        (self.root / "toolkit/include/crt/host_defines.h").touch()
        self.module.build(other)
        self.assertIn(f"-isystem {self.root}/toolkit/include", self.commands()[0])

    def test_toolkits_on_the_path(self):
        other = self.stand_in(cuda="99.0")
        self.write_headers(self.root / "cuda/include", 99000)
        (self.root / "cuda/bin").mkdir()
        (self.root / "cuda/bin/nvcc").touch(0o755)
        with mock.patch.dict(os.environ, {"PATH": f"{self.root}/cuda/bin:{os.environ['PATH']}"}):
            self.module.build(other)
        self.assertIn(f"-isystem {self.root}/cuda/include", self.commands()[0])

    def test_folders_that_cannot_be_written_to(self):
        (self.root / "file").touch()
        os.environ["GPUMEM_TORCH_CACHE"] = str(self.root / "file/cache")
        self.assert_fails(f"the folder {self.root}/file/cache cannot be written to",
                          "set GPUMEM_TORCH_CACHE to another")
        (self.root / "sealed/lock").mkdir(parents=True)
        os.environ["GPUMEM_TORCH_CACHE"] = str(self.root / "sealed")
        self.assert_fails(f"the folder {self.root}/sealed cannot be written to")

    def test_folders_of_the_cache(self):
        del os.environ["GPUMEM_TORCH_CACHE"]
        with mock.patch.dict(os.environ, {"XDG_CACHE_HOME": str(self.root / "xdg"), "HOME": str(self.root / "home")}):
            self.assertEqual(self.module.build(self.torch).parent, self.root / "xdg/gpumem_torch")
            del os.environ["XDG_CACHE_HOME"]
            self.assertEqual(self.module.build(self.torch).parent, self.root / "home/.cache/gpumem_torch")

    def test_sources(self):
        for name in SOURCES:
            (self.sources / name).unlink()
        self.assert_fails(f"its sources are missing from {self.sources}")
        self.assertTrue(gpumem_torch_build.library_path(self.torch).name.startswith("torch-2.11.0"))  # the source tree

    def test_as_a_program(self):
        def run(torch):
            with mock.patch.dict(sys.modules, {"torch": torch}), contextlib.redirect_stdout(io.StringIO()) as told:
                try:
                    runpy.run_path(self.module.__file__, run_name="__main__")
                except SystemExit as end:
                    return end.code
            return told.getvalue()
        self.assertEqual(run(self.torch), f"{self.module.library_path(self.torch)}\n")
        (self.root / "gpumem_torch.classes").mkdir()
        (self.root / "gpumem_torch.classes/torch-2.11.so").touch()
        self.assertEqual(run(self.torch), f"{self.root}/gpumem_torch.classes/torch-2.11.so\n")
        self.assertEqual(run(None), "gpumem_torch: this Python has no PyTorch")
        self.assertIn("PyTorch 2.8.0 is not one of", run(self.stand_in(version="2.8.0")))


if __name__ == "__main__":
    unittest.main()
