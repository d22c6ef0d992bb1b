#!/usr/bin/env python3
# Tests of the installed package that need no build: language modes, refusals, tools, pkg-config, and what its files hold.
# Arguments: cmake, the C++ compiler, the source folder, the build folder, the installed package, its library folder,
# a folder for scratch files.
# SPDX-License-Identifier: Apache-2.0
import os
import re
import shutil
import subprocess
import sys
import unittest
from pathlib import Path

CMAKE, COMPILER, *FOLDERS, LIBRARY_FOLDER, SCRATCH = sys.argv[1:8]
SOURCE, BUILD, STAGE = map(Path, FOLDERS)
SCRATCH = Path(SCRATCH)
HERE = Path(__file__).parent
# No variable may lead to CUDA: the package knows where the headers were.
ENVIRONMENT = {k: v for k, v in os.environ.items() if not re.match("CUDA|GPUMEM|CXX|LD_PRELOAD", k)}
PER_IMPORTER = (4, 4)  # the CMake that compiles BMIs for each importer


def run(*command, **environment):
    """Returns the exit status, and the output with its lines joined, since CMake breaks sentences."""
    done = subprocess.run([str(c) for c in command], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                          env={**ENVIRONMENT, **environment})
    return done.returncode, " ".join(done.stdout.split())


def cmake_version():
    return tuple(map(int, re.search(r"(\d+)\.(\d+)", run(CMAKE, "--version")[1]).groups()))


def configure(source, folder, *options):
    return run(CMAKE, "-S", source, "-B", SCRATCH / folder, "-G", "Ninja", f"-DCMAKE_CXX_COMPILER={COMPILER}",
               f"-DCMAKE_PREFIX_PATH={STAGE}", *options)


def ninja():
    return re.search(r"^CMAKE_MAKE_PROGRAM:\w+=(.*)$", (BUILD / "CMakeCache.txt").read_text(), re.M)[1]


def steps_of(target, folder):
    """The commands that build a target, without those that ninja learns of while it builds."""
    done = subprocess.run([ninja(), "-C", folder, "-t", "commands", target], check=True, stdout=subprocess.PIPE, text=True)
    return done.stdout.splitlines()


class Modes(unittest.TestCase):
    def modes(self, *options):
        """Returns the language modes in which the modules of the package and the importers are compiled."""
        shutil.rmtree(SCRATCH / "modes", ignore_errors=True)
        status, output = configure(HERE, "modes", *options)
        self.assertEqual(status, 0, output)
        rules = (SCRATCH / "modes/build.ninja").read_text()
        flags = set(re.findall(r"^  FLAGS = .*?-std=(\S+)", rules, re.M))
        modules = re.findall(r"^build CMakeFiles/gpumem\S*\.bmi:.*\n(?:  .*\n)*?  INCLUDES = (.*)$", rules, re.M)
        self.assertIn(len(modules), (1, 5),
                      "the interfaces that a project compiles: gpumem, gpumem.thrust, gpumem.snapshot, gpumem.growable, "
                      "gpumem.device_heap")
        self.assertEqual([folders for folders in modules if f"{STAGE}/include" not in folders], [])
        return flags

    def test_modules_are_compiled_in_the_mode_of_the_project(self):
        newest = "26" if cmake_version() >= (3, 31) else "23"
        self.assertEqual(self.modes(f"-DCMAKE_CXX_STANDARD={newest}", "-DCMAKE_CXX_EXTENSIONS=OFF"), {f"c++{newest}"})
        self.assertEqual(self.modes("-DCMAKE_CXX_STANDARD=17", "-DCOMPONENTS=module;thrust;simulator;c"), {"gnu++20"})

    def test_targets_of_another_mode_are_refused(self):
        status, output = configure(HERE, "mixed", "-DCASE=mixed", "-DCMAKE_CXX_STANDARD=20")
        sentences = ["the target newer is compiled as gnu++23, gpumem's modules as gnu++20",
                     "the target strict is compiled as c++20, gpumem's modules as gnu++20",
                     "the target fast_math has the option -ffast-math",
                     "the target threads has the option -fopenmp=libomp"]
        if cmake_version() >= PER_IMPORTER:
            self.assertEqual(status, 0, output)
            return
        self.assertNotEqual(status, 0)
        for sentence in sentences:
            self.assertIn(sentence, output)
        self.assertNotIn("the target app ", output)

    def test_importers_without_exceptions_are_refused(self):
        told = re.compile(r"the target (\w+) is compiled with -fno-exceptions, and imports gpumem")
        status, output = configure(HERE, "exceptions", "-DCASE=exceptions")
        self.assertEqual((status, told.findall(output)), (1, ["by_option"]), output)
        status, output = configure(HERE, "exceptions", "-DFLAGS=-O2 -fno-exceptions")
        self.assertEqual((status, told.findall(output)), (1, ["app", "by_option"]), output)

    def test_targets_that_do_not_import_may_have_any_mode(self):
        status, output = configure(HERE, "harmless", "-DCASE=harmless", "-DCMAKE_CXX_STANDARD=20")
        self.assertEqual((status, "gpumem:" in output), (0, False), output)

    def test_refusals_name_their_reason(self):
        status, output = run(CMAKE, f"-DCMAKE_PREFIX_PATH={STAGE}", f"-DLIBRARY_FOLDER={LIBRARY_FOLDER}",
                             f"-DSCRATCH={SCRATCH / 'without the C ABI'}", "-P", HERE / "sentences.cmake")
        self.assertEqual(status, 0, output)


class Projects(unittest.TestCase):
    def test_a_project_that_fetches_the_sources_gets_the_library_alone(self):
        status, output = configure(HERE / "../subproject", "subproject", f"-DGPUMEM_FOLDER={SOURCE}")
        self.assertEqual(status, 0, output)
        rules = (SCRATCH / "subproject/build.ninja").read_text()
        self.assertIn("/libgpumem.a:", rules)
        for other in ["test_", "gtest", "bench", "/install.util"]:
            self.assertFalse(re.search(rf"^build [^:]*_deps/gpumem-build/[^:]*{other}", rules, re.M), other)
        self.assertEqual(set(re.findall(r"^  FLAGS = .*?-std=(\S+)", rules, re.M)), {"c++23"})
        steps = steps_of("all", SCRATCH / "subproject")
        self.assertFalse([step for step in steps if re.search("simulator|thrust|src/c/", step)])
        self.assertLessEqual(len(steps), 55)
        _, output = configure(HERE / "../subproject", "subproject", "-DMIXED=ON")
        self.assertEqual("the target app is compiled as gnu++23, gpumem's modules as c++23" in output,
                         cmake_version() < PER_IMPORTER, output)

    def test_the_project_of_the_guide_can_be_configured(self):
        folder = SCRATCH / "guide project"
        folder.mkdir()
        shutil.copy(HERE / "../guide/CMakeLists.txt", folder)
        for source in ["app.cpp", "app_test.cpp", "plugin.cpp"]:
            (folder / source).write_text("int main() {}\n")
        status, output = configure(folder, "guide")
        self.assertEqual(status, 0, output)

    def test_the_projects_of_the_readme_can_be_configured(self):
        blocks = re.findall(r"^```cmake\n(.*?)^```", (SOURCE / "README.md").read_text(), re.S | re.M)
        self.assertEqual(len(blocks), 2)
        package, fetched = blocks
        fetched = fetched.replace("GIT_REPOSITORY CLONE GIT_TAG main", f'SOURCE_DIR "{SOURCE}"')
        for name, text in [("readme package", package),
                           ("readme fetched", package.replace("find_package(gpumem REQUIRED)\n", fetched))]:
            (SCRATCH / name).mkdir()
            (SCRATCH / name / "CMakeLists.txt").write_text(text)
            (SCRATCH / name / "app.cpp").write_text("import gpumem;\nint main() {}\n")
            status, output = configure(SCRATCH / name, f"{name} build")
            self.assertEqual(status, 0, output)
        self.assertIn("gpumem-build", "".join(steps_of("app", SCRATCH / "readme fetched build")))

    def test_the_first_project_can_be_configured(self):
        status, output = configure(HERE / "../first", "first")
        self.assertEqual(status, 0, output)

    def test_one_target_builds_what_is_installed_and_no_tool(self):
        status, output = run(ninja(), "-C", BUILD, "-t", "query", "gpumem_installed_files")
        self.assertEqual(status, 0, output)
        files = {re.sub(r"\.so.*", ".so", name) for name in re.findall(r"/(lib[\w.]+)", output)}
        self.assertEqual(files, {"libcudart.so", "libgpumem.a", "libgpumem_c.so", "libgpumem_device_heap.a", "libgpumem_growable.a",
                                 "libgpumem_simulator.a", "libgpumem_simulator_driver.so", "libgpumem_snapshot.a", "libgpumem_thrust.a"})

    def test_the_preset_install_has_no_tests_and_installs_all_or_nothing(self):
        folder, prefix = SCRATCH / "install", SCRATCH / "prefix"
        status, output = run(CMAKE, "--preset", "install", "-S", SOURCE, "-B", folder,
                             f"-DCMAKE_CXX_COMPILER={COMPILER}", "-DCMAKE_DISABLE_FIND_PACKAGE_GTest=ON")
        self.assertEqual(status, 0, output)
        rules = (folder / "build.ninja").read_text()
        self.assertFalse(re.findall(r"^build (?:test|bench)/\S+\.o:", rules, re.M))
        status, output = run(CMAKE, "--install", folder, "--prefix", prefix)
        self.assertNotEqual(status, 0)
        self.assertIn("gpumem is not built completely: libgpumem.a is missing", output)
        self.assertFalse(prefix.exists())


class Files(unittest.TestCase):
    def test_binaries_name_no_folder_of_this_machine(self):
        config = (STAGE / LIBRARY_FOLDER / "cmake/gpumem/gpumemConfig.cmake").read_text()
        hints = [Path(p) for p in re.findall(r'set\(GpumemCCCL\w*_HINT "(.*)"\)', config)]
        self.assertEqual(len(hints), 2)
        folders = [str(f).encode() for f in [SOURCE, BUILD, *hints]]
        found, searched = [], 0
        for path in sorted(p for p in STAGE.rglob("*") if p.is_file() and not p.is_symlink()):
            if path.name != "gpumemConfig.cmake":
                searched += 1
                found += [f"{path}: {f.decode()}" for f in folders if f in path.read_bytes()]
        self.assertGreater(searched, 100)
        self.assertEqual(found, [])

    def test_the_pages_of_the_guide_are_there(self):
        pages = sorted((SOURCE / "modules/guide").glob("*.md"))
        self.assertGreater(len(pages), 9)
        for page in pages:
            self.assertEqual((STAGE / "share/doc/gpumem" / page.name).read_text(), page.read_text())

    def test_the_library_has_the_name_of_its_major_version(self):
        _, output = run("readelf", "-d", STAGE / LIBRARY_FOLDER / "libgpumem_c.so")
        major = re.search(r"VERSION_MAJOR (\d+)", (STAGE / "include/gpumem/version.h").read_text())[1]
        self.assertIn(f"Library soname: [libgpumem_c.so.{major}]", output)

    def test_the_replay_tool_finds_the_simulated_device(self):
        tool = STAGE / "bin/gpumem-replay"
        if not (tool.exists() or (BUILD / "bench/gpumem-replay").exists()):
            self.skipTest("built without benchmarks")
        trace = SCRATCH / "trace.csv"
        trace.write_text("Thread,Time,Action,Pointer,Size,Stream\n1,00:00:00.000000,allocate,0x10,1024,0\n"
                         "1,00:00:00.000001,free,0x10,1024,0\n")
        status, output = run(tool, "--device", "simulated", trace)
        self.assertEqual(status, 0, output)

    def test_pkg_config_gives_the_flags_of_a_c_program(self):
        if not (shutil.which("pkg-config") and shutil.which("gcc")):
            self.skipTest("there is no pkg-config or no gcc")
        moved = SCRATCH / "moved"
        shutil.rmtree(moved, ignore_errors=True)
        for part in ["include/gpumem/gpumem.h", "include/gpumem/version.h", f"{LIBRARY_FOLDER}/pkgconfig/gpumem_c.pc",
                     *(f"{LIBRARY_FOLDER}/{p.name}" for p in (STAGE / LIBRARY_FOLDER).glob("libgpumem_c.so*"))]:
            (moved / part).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(STAGE / part, moved / part, follow_symlinks=False)
        status, flags = run("pkg-config", "--cflags", "--libs", "gpumem_c",
                            PKG_CONFIG_PATH=str(moved / LIBRARY_FOLDER / "pkgconfig"))
        self.assertEqual(status, 0, flags)
        program = SCRATCH / "main.c"
        program.write_text("#include <gpumem/gpumem.h>\nint main(void) { return gpumem_version() != GPUMEM_VERSION; }\n")
        status, output = run("gcc", program, "-o", SCRATCH / "main", *flags.split())
        self.assertEqual(status, 0, output)
        self.assertEqual(run(SCRATCH / "main", LD_LIBRARY_PATH=str(moved / LIBRARY_FOLDER))[0], 0)


if __name__ == "__main__":
    shutil.rmtree(SCRATCH, ignore_errors=True)
    SCRATCH.mkdir(parents=True)
    unittest.main(argv=sys.argv[:1], verbosity=2)
