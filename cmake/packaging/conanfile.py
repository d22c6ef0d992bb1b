# The Conan 2 recipe: conan create cmake/packaging --profile:all cmake/packaging/clang.profile
# SPDX-License-Identifier: Apache-2.0
import re
from pathlib import Path

from conan import ConanFile
from conan.errors import ConanInvalidConfiguration
from conan.tools.build import check_min_cppstd
from conan.tools.cmake import CMake, CMakeToolchain, cmake_layout
from conan.tools.files import copy
from conan.tools.scm import Version


class Gpumem(ConanFile):
    name = "gpumem"
    description = "GPU memory for modern C++"
    license = "Apache-2.0"
    package_type = "static-library"
    settings = "os", "arch", "compiler", "build_type"
    # The folder into which pip put nvidia-cuda-cccl and the toolkit. Without it CMake looks where README.md says.
    options = {"wheels": [None, "ANY"]}
    default_options = {"wheels": None}

    def set_version(self):
        root = Path(self.recipe_folder).parents[1]
        self.version = re.search(r"project\(gpumem VERSION ([\d.]+)", (root / "CMakeLists.txt").read_text())[1]

    def export_sources(self):
        root = Path(self.recipe_folder).parents[1]
        for pattern in ("CMakeLists.txt", "LICENSE", "cmake/*", "modules/*", "src/*"):
            copy(self, pattern, root, self.export_sources_folder, excludes="cmake/packaging/*")

    def layout(self):
        cmake_layout(self, generator="Ninja")

    def validate(self):
        compiler = self.settings.compiler
        if self.settings.os != "Linux":
            raise ConanInvalidConfiguration("gpumem needs Linux")
        if compiler != "clang" or Version(compiler.version) < 19:
            raise ConanInvalidConfiguration("gpumem needs clang 19 or newer (see clang.profile)")
        check_min_cppstd(self, 20)
        if str(compiler.get_safe("cppstd")).startswith("gnu"):
            raise ConanInvalidConfiguration("gpumem's modules need a cppstd without extensions: 20, not gnu20")
        if compiler.libcxx != "libstdc++11":
            raise ConanInvalidConfiguration("gpumem needs compiler.libcxx=libstdc++11")

    def generate(self):
        toolchain = CMakeToolchain(self, generator="Ninja")
        toolchain.cache_variables.update({"GPUMEM_BUILD_TESTS": "OFF", "GPUMEM_BUILD_BENCH": "OFF"})
        if self.options.wheels:
            toolchain.cache_variables["GPUMEM_WHEELS"] = str(self.options.wheels)
        toolchain.generate()

    def build(self):
        cmake = CMake(self)
        cmake.configure()
        cmake.build()

    def package(self):
        CMake(self).install()

    def package_info(self):
        # The library's own package files, since Conan's would not name the modules.
        self.cpp_info.set_property("cmake_find_mode", "none")
        self.cpp_info.builddirs = ["lib/cmake/gpumem", "lib/cmake/gpumem_c"]
        if self.options.wheels:
            self.buildenv_info.define_path("GPUMEM_WHEELS", str(self.options.wheels))
