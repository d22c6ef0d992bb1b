# Tests what `run.sh package` refuses, the files of its archives, that two archives of a commit are equal, and its list
# of parts. The archive of the C library is made of this build, whose objects a release would compile anew.
# SPDX-License-Identifier: Apache-2.0
# usage: package_test.py SOURCE BUILD
import contextlib
import io
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import unittest
import unittest.mock
from pathlib import Path

SOURCE, BUILD = (Path(path) for path in sys.argv[1:3])
sys.path.insert(0, str(SOURCE / "cmake/packaging"))
sys.dont_write_bytecode = True
import package  # noqa: E402
import spdx  # noqa: E402
import wheel  # noqa: E402

FILES = {"CMakeLists.txt": "project(gpumem VERSION 1.2.3 LANGUAGES CXX)\n", "LICENSE": "Apache-2.0\n",
         "CHANGELOG.md": "# Changes\n\n## 1.2.3 (2026-11-29)\n\n- One.\n\n## 1.2.2 (2026-11-01)\n",
         "test/packaging/abi/libgpumem_c-1.2.3.abi": "<abi-corpus/>\n",
         "cmake/packaging/debian/control": "Source: gpumem\n",
         ".gitignore": "/dist/\n",
         "tool with a blank.sh": "#!/bin/sh\n"}


@unittest.skipUnless(shutil.which("git"), "there is no git")
class Tree(unittest.TestCase):
    def setUp(self):
        scratch = tempfile.TemporaryDirectory()
        self.addCleanup(scratch.cleanup)
        self.root = Path(scratch.name).resolve() / "clone"
        for name, text in FILES.items():
            (self.root / name).parent.mkdir(parents=True, exist_ok=True)
            (self.root / name).write_text(text)
        (self.root / "tool with a blank.sh").chmod(0o755)
        self.git("init", "--quiet")
        self.commit()

    def git(self, *arguments):
        who = {f"GIT_{role}_{part}": "one" for role in ("AUTHOR", "COMMITTER") for part in ("NAME", "EMAIL")}
        when = {f"GIT_{role}_DATE": "1750000000 +0000" for role in ("AUTHOR", "COMMITTER")}
        subprocess.run(["git", "-C", self.root, "-c", "commit.gpgSign=false", *arguments], check=True,
                       env={**os.environ, **who, **when})

    def commit(self):
        self.git("add", "--all")
        self.git("commit", "--quiet", "--message=one")

    def refused(self, change=None, text=None):
        """Commits a changed file if one is named, and returns why the tree is refused."""
        if change:
            (self.root / change).write_text(text)
            self.commit()
        with self.assertRaises(package.Refused) as caught:
            package.release(self.root)
        self.assertNotIn("\n", str(caught.exception))
        return str(caught.exception)

    def test_a_release(self):
        self.assertEqual(package.release(self.root), ("1.2.3", 1750000000))

    def test_changed_and_new_files(self):
        (self.root / "LICENSE").write_text("another\n")
        self.assertEqual(self.refused(),
                         "the tree differs from its commit in LICENSE: commit the changes or remove them")
        (self.root / "notes").write_text("new\n")
        self.assertIn("differs from its commit in LICENSE and 1 more", self.refused())

    def test_versions_that_differ(self):
        for heading in ("Unreleased", "1.2.2 (2026-11-01)", "1.2.3", "11.2.3 (2026-11-29)"):
            self.assertEqual(self.refused("CHANGELOG.md", f"# Changes\n\n## {heading}\n"),
                             f"the version of CMakeLists.txt is 1.2.3, and CHANGELOG.md begins with '{heading}' where "
                             "'1.2.3 (year-month-day)' must stand")
        self.assertIn("begins with 'nothing'", self.refused("CHANGELOG.md", "# Changes\n"))

    def test_a_release_without_the_text_of_its_interface(self):
        (self.root / "test/packaging/abi/libgpumem_c-1.2.3.abi").unlink()
        self.commit()
        self.assertIn("libgpumem_c-1.2.3.abi is missing: write it by `python3 cmake/packaging/abi.py write`",
                      self.refused())

    def test_no_clone(self):
        shutil.rmtree(self.root / ".git")
        self.assertIn("is no clone of gpumem", self.refused())
        (self.root.parent / "outer").mkdir()
        self.root.rename(self.root.parent / "outer/clone")
        self.root = self.root.parent / "outer/clone"
        subprocess.run(["git", "-C", self.root.parent, "init", "--quiet"], check=True)
        self.assertIn("is no clone of gpumem", self.refused())

    def test_the_source_archive_has_the_commits_files_and_debians_folder(self):
        made, = package.make(self.root, self.root.parent / "one", source_only=True)
        self.assertEqual(made.name, "gpumem-1.2.3.tar.xz")
        with tarfile.open(made) as archive:
            members = archive.getmembers()
            self.assertEqual([one.name for one in members],
                             sorted(f"gpumem-1.2.3/{name}" for name in [*FILES, "debian/control"]))
            self.assertEqual({(one.mtime, one.uid, one.gid, one.uname, one.gname) for one in members},
                             {(1750000000, 0, 0, "", "")})
            self.assertEqual({one.name for one in members if one.mode != 0o644}, {"gpumem-1.2.3/tool with a blank.sh"})
            self.assertEqual(archive.extractfile("gpumem-1.2.3/debian/control").read(), b"Source: gpumem\n")

    def test_two_source_archives_of_a_commit_are_equal(self):
        made = []
        for folder in ("one", "two"):
            for path in self.root.rglob("*"):
                os.utime(path, (len(made), len(made)))
            made.append(package.make(self.root, self.root.parent / folder, source_only=True)[0].read_bytes())
        self.assertEqual(*made)

    def test_the_command_ends_with_a_sentence(self):
        for folder in ("cmake/packaging", "cmake/setup"):
            shutil.copytree(SOURCE / folder, self.root / folder, dirs_exist_ok=True)
        command = [sys.executable, "-B", str(self.root / "cmake/packaging/package.py"), "--only-check"]
        said = subprocess.run(command, capture_output=True, text=True)
        self.assertEqual(said.returncode, 1)
        self.assertRegex(said.stderr, r"^package\.py: the tree differs from its commit in .*\n$")
        self.commit()
        said = subprocess.run(command, capture_output=True, text=True)
        self.assertEqual((said.returncode, said.stdout, said.stderr), (0, "", ""))
        said = subprocess.run([*command, "--output", str(self.root / "here")], capture_output=True, text=True)
        self.assertRegex(said.stderr, rf"^package\.py: git does not ignore {self.root}/here, which lies in the clone: .*\n$")
        self.assertEqual(said.returncode, 1)
        (self.root / ".gitignore").write_text("/here/\n")
        self.commit()
        said = subprocess.run([*command, "--output", str(self.root / "here")], capture_output=True, text=True)
        self.assertEqual((said.returncode, said.stderr), (0, ""))

    def test_headers_that_are_missing_are_named(self):
        folder = self.root / "torch"
        with unittest.mock.patch.object(package.torch_parts, "main", return_value=1) as getter, \
                contextlib.redirect_stderr(io.StringIO()) as said, self.assertRaises(package.Refused) as caught:
            package.get_headers(folder)
        getter.assert_called_once_with(folder)
        for text in (said.getvalue(), str(caught.exception)):
            self.assertIn(", ".join(package.torch_parts.PARTS), text)
        for version, parts in package.torch_parts.PARTS.items():
            (folder / version).mkdir(parents=True)
            (folder / version / "parts").write_text("\n".join(parts))
        package.get_headers(folder)

    @unittest.skipUnless(shutil.which("abidw"), "there is no abidw")
    def test_an_interface_that_is_not_the_librarys(self):
        library = BUILD / "src/c/libgpumem_c.so"
        path = self.root / "test/packaging/abi/libgpumem_c-1.2.3.abi"
        package.abi.write(library, path)
        text = path.read_text()
        package.check_interface(self.root, library, "1.2.3")
        # Debian 12's abidw and Debian 13's name the types by other hashes.
        name = re.search("type-id='([0-9a-f]{8})'", text)[1]
        path.write_text(text.replace(name, "fedcba98"))
        package.check_interface(self.root, library, "1.2.3")
        for part in "<elf-symbol name='gpumem_trim'[^\n]*\n *", "<function-decl name='gpumem_trim'.*?</function-decl>":
            text = re.sub(part, "", text, flags=re.S)
        path.write_text(text)  # the library has a function more
        with self.assertRaisesRegex(package.Refused, "1.2.3.abi is not the interface of the library(?s:.*)gpumem_trim"):
            package.check_interface(self.root, library, "1.2.3")
        path.write_text(text.replace("'live'", "'other'"))
        with self.assertRaisesRegex(package.Refused, "the member live of gpumem_statistics"):
            package.check_interface(self.root, library, "1.2.3")


class Archive(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.files = package.c_library_files(BUILD, SOURCE)
        cls.version = wheel.cache(BUILD)["CMAKE_PROJECT_VERSION"]

    def test_its_files(self):
        headers = {f"include/gpumem/{path.name}" for path in (SOURCE / "modules/bridge/gpumem").iterdir()}
        names = {name for name, _, _ in self.files}
        self.assertLessEqual({"include/gpumem/gpumem.h", "include/gpumem/pool.hpp"}, names)
        tools = {f"bin/{name}" for name in ("gpumem-report", "gpumem-top", "gpumem-replay", "gpumem-advise")}
        benches = {f"bin/{name}" for name in ("gpumem-bench", "gpumem-completion-bench", "gpumem-waiting-bench")}
        runtime = next(name for name in names if name.startswith("lib/gpumem/libcudart.so."))
        self.assertEqual(names - headers - tools - benches, {
            "LICENSE", "NOTICES", "lib/libgpumem_c.so", "lib/libgpumem_c.so.0", f"lib/libgpumem_c.so.{self.version}", runtime,
            "lib/gpumem/libgpumem_simulator_driver.so", "lib/pkgconfig/gpumem_c.pc",
            "lib/cmake/gpumem_c/gpumem_cConfig.cmake", "lib/cmake/gpumem_c/gpumem_cConfigVersion.cmake",
            f"lib/cmake/gpumem_c/gpumem_cConfig-{wheel.cache(BUILD)['CMAKE_BUILD_TYPE'].lower()}.cmake"})

    def test_links_lead_to_the_library(self):
        links = {name: data.decode() for name, mode, data in self.files if mode is None}
        self.assertEqual(links, {"lib/libgpumem_c.so": "libgpumem_c.so.0",
                                 "lib/libgpumem_c.so.0": f"libgpumem_c.so.{self.version}"})

    def test_the_library_is_stripped_and_names_no_folder_of_the_machine(self):
        data = next(data for name, _, data in self.files if name == f"lib/libgpumem_c.so.{self.version}")
        for folder in (SOURCE, BUILD):
            self.assertFalse(str(folder).encode() in data, folder)
        with tempfile.NamedTemporaryFile() as library:
            library.write(data)
            library.flush()
            sections = subprocess.run([wheel.cache(BUILD)["CMAKE_READELF"], "-SW", library.name], check=True,
                                      capture_output=True, text=True).stdout
        self.assertIn(" .dynsym ", sections)
        for section in (" .debug_", " .symtab "):
            self.assertNotIn(section, sections)

    def test_the_list_of_parts_is_whole(self):
        made = []
        with tempfile.TemporaryDirectory() as folder:
            for name in ("source", "library", "wheel"):
                made.append(Path(folder) / name)
                made[-1].write_text(name)
            text = spdx.document("1.2.3", 1750000000, made, self.files, BUILD, ["torch-2.9.so"])
            self.assertEqual(spdx.document("1.2.3", 1750000000, made, self.files[::-1], BUILD, ["torch-2.9.so"]), text)
        listed = json.loads(text)
        self.assertEqual(listed["spdxVersion"], "SPDX-2.3")
        self.assertEqual(listed["creationInfo"]["created"], "2025-06-15T15:06:40Z")
        names = {one["SPDXID"] for one in [listed, *listed["packages"], *listed["files"]]}
        self.assertEqual(len(names), 1 + len(listed["packages"]) + len(listed["files"]))
        for one in listed["relationships"]:
            self.assertLessEqual({one["spdxElementId"], one["relatedSpdxElement"]}, names)
        notices = next(data for name, _, data in self.files if name == "NOTICES").decode()
        foreign = {one["name"] for one in listed["packages"]} - {"gpumem", "libgpumem", "gpumem-torch"}
        self.assertEqual(set(re.findall(r"^Part: (.+)$", notices, re.M)), foreign)
        versions = {one["name"]: one.get("versionInfo") for one in listed["packages"]}
        self.assertEqual(versions["PyTorch"], "2.9")
        for name in ("CCCL", "CUDA runtime", "CLI11", "nlohmann-json"):
            self.assertRegex(versions[name], r"^\d+\.\d+")
        self.assertEqual(len(listed["files"]), len([one for one in self.files if one[1] is not None]))


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
