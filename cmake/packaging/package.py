#!/usr/bin/env python3
# Makes the files of a release: the source archive, the archive of the C library, the wheel, a list of what is in them,
# and their checksums. The same commit and tools give the same bytes, in any folder and at any time.
# SPDX-License-Identifier: Apache-2.0
# usage: package.py [--output dist] [--torch-headers FOLDER | --without-torch] [--source-only | --twice] [--only-check]
import argparse
import hashlib
import io
import lzma
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

sys.dont_write_bytecode = True
import abi  # noqa: E402
import spdx  # noqa: E402
import wheel  # noqa: E402

sys.path.append(str(Path(__file__).resolve().parents[1] / "setup"))
import torch_parts  # noqa: E402

ROOT = Path(__file__).resolve().parents[2]
DEBIAN = "cmake/packaging/debian/"
TARGETS = ["gpumem_c", "gpumem_simulator_driver", "gpumem_simulator_runtime", "gpumem-report", "gpumem-top",
           "gpumem-replay", "gpumem-advise"]
COMPONENTS = ["c", "c_development", "simulator", "tools"]  # of cmake/gpumem_install.cmake


class Refused(Exception):
    """The tree cannot be packaged; the text says why."""


def git(root, *arguments):
    try:
        told = subprocess.run(["git", "-c", "core.quotePath=off", "-C", root, *arguments], check=True,
                              capture_output=True, text=True).stdout
    except FileNotFoundError:
        raise Refused("there is no git, which tells the files of a release") from None
    except subprocess.CalledProcessError as error:
        raise Refused(f"{root} is no clone of gpumem: git says: {error.stderr.strip()}") from None
    return told


def release(root):
    """Returns the version and the second of the commit. Raises Refused unless the tree is that of a release."""
    if Path(git(root, "rev-parse", "--show-toplevel").strip()).resolve() != Path(root).resolve():
        raise Refused(f"{root} is no clone of gpumem")
    changed = [line[3:] for line in git(root, "status", "--porcelain").splitlines()]
    if changed:
        more = f" and {len(changed) - 1} more" if len(changed) > 1 else ""
        raise Refused(f"the tree differs from its commit in {changed[0]}{more}: commit the changes or remove them")
    version = re.search(r"project\(gpumem VERSION ([\d.]+)", (root / "CMakeLists.txt").read_text())[1]
    heading = re.search(r"^## (.+)$", (root / "CHANGELOG.md").read_text(), re.M)
    newest = heading[1] if heading else "nothing"
    if not re.fullmatch(re.escape(version) + r" \(\d{4}-\d\d-\d\d\)", newest):
        raise Refused(f"the version of CMakeLists.txt is {version}, and CHANGELOG.md begins with '{newest}' where "
                      f"'{version} (year-month-day)' must stand")
    if not (root / f"test/packaging/abi/libgpumem_c-{version}.abi").exists():
        raise Refused(f"test/packaging/abi/libgpumem_c-{version}.abi is missing: write it by "
                      "`python3 cmake/packaging/abi.py write`")
    return version, int(git(root, "log", "-1", "--format=%ct"))


def source_files(root):
    """Returns the committed files as (name, mode, bytes), and those of Debian's packages a second time in debian/."""
    files = []
    for line in git(root, "ls-files", "--stage", "-z").split("\0"):
        if not line:
            continue
        mode, name = line[:6], line.split("\t", 1)[1]
        files.append((name, 0o755 if mode == "100755" else 0o644, (root / name).read_bytes()))
    return files + [(name.replace(DEBIAN, "debian/", 1), mode, data) for name, mode, data in files
                    if name.startswith(DEBIAN)]


def folder_files(folder):
    """Returns the files of a folder as (name, mode, bytes), and links as (name, None, target)."""
    files = []
    for path in folder.rglob("*"):
        name = str(path.relative_to(folder))
        if path.is_symlink():
            files.append((name, None, os.readlink(path).encode()))
        elif path.is_file():
            files.append((name, 0o755 if os.access(path, os.X_OK) else 0o644, path.read_bytes()))
    return files


def write_archive(path, top, files, epoch):
    """Writes a .tar.xz of the files below the folder `top`, sorted by name, with one time and no owner."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w", format=tarfile.GNU_FORMAT) as archive:
        for name, mode, data in sorted(files):
            entry = tarfile.TarInfo(f"{top}/{name}")
            entry.mtime = epoch
            if mode is None:
                entry.type, entry.linkname, entry.mode = tarfile.SYMTYPE, data.decode(), 0o777
                archive.addfile(entry)
            else:
                entry.size, entry.mode = len(data), mode
                archive.addfile(entry, io.BytesIO(data))
    path.write_bytes(lzma.compress(packed.getvalue(), preset=6))


def run(*command, **more):
    if subprocess.run([str(part) for part in command], **more).returncode != 0:
        raise Refused(f"this failed: {' '.join(map(str, command))}")


def build(source, folder):
    """Builds the C library and the tools of the unpacked source archive, and returns the build folder."""
    jobs = os.environ.get("CMAKE_BUILD_PARALLEL_LEVEL") or str(os.cpu_count())
    run("cmake", "--preset", "install", "-S", source, "-B", folder, "-DGPUMEM_BUILD_BENCH=ON",
        "-DCMAKE_INSTALL_PREFIX=/usr/local", "-DCMAKE_INSTALL_LIBDIR=lib", cwd=source, stdout=subprocess.DEVNULL)
    run("cmake", "--build", folder, "-j", jobs, "--target", *TARGETS, stdout=sys.stderr)
    return folder


def c_library_files(build_folder, source):
    """Returns the files of the C library and of the tools, stripped."""
    strip = wheel.cache(build_folder)["CMAKE_STRIP"]
    with tempfile.TemporaryDirectory() as scratch:
        for component in COMPONENTS:
            run("cmake", "--install", build_folder, "--prefix", scratch, "--component", component,
                stdout=subprocess.DEVNULL)
        for path in Path(scratch).rglob("*"):
            if path.is_file() and not path.is_symlink() and path.read_bytes()[:4] == b"\x7fELF":
                run(strip, "--strip-unneeded", path)
        shutil.copy(source / "LICENSE", scratch)
        shutil.copy(source / wheel.NOTICES, f"{scratch}/NOTICES")
        return folder_files(Path(scratch))


def check_output(root, output):
    """Raises Refused if the files in `output` would be changes of the clone."""
    if output.is_relative_to(root) and subprocess.run(
            ["git", "-C", root, "check-ignore", "--quiet", output / "SHA256SUMS"]).returncode != 0:
        raise Refused(f"git does not ignore {output}, which lies in the clone: the files there would make the tree differ "
                      "from its commit; leave --output out, or name a folder outside")


def get_headers(folder):
    """Gets the headers of the releases of PyTorch that the folder lacks, and names these."""
    lacking = [version for version in torch_parts.PARTS if not torch_parts.is_complete(folder, version)]
    if lacking:
        print(f"package.py: gets the headers of PyTorch {', '.join(lacking)} into {folder}", file=sys.stderr)
        if torch_parts.main(folder) != 0:
            raise Refused(f"{folder} lacks headers of PyTorch {', '.join(lacking)}: "
                          f"`python3 cmake/setup/torch_parts.py {folder}` gets them where the package index of pip is "
                          "reached; --without-torch makes a wheel whose users compile the class")


def check_interface(root, library, version):
    """Raises Refused unless the committed text has the library's interface. Another abidw may have written it."""
    text = root / f"test/packaging/abi/libgpumem_c-{version}.abi"
    with tempfile.NamedTemporaryFile(suffix=".abi") as file:
        now = Path(file.name)
        abi.write(library, now)
        changes, reverse = abi.differences(text, now), abi.differences(now, text)
        if changes or reverse:
            raise Refused(f"{text.relative_to(root)} is not the interface of the library that is released: write it by "
                          "`python3 cmake/packaging/abi.py write` from a build of this commit\n"
                          f"from the text to the library:\n{changes}from the library to the text:\n{reverse}")


def make(root, output, torch=None, source_only=False):
    """Writes the files of the release into `output`, and returns their paths."""
    version, epoch = release(root)
    os.environ["SOURCE_DATE_EPOCH"] = str(epoch)
    output.mkdir(parents=True, exist_ok=True)
    name = f"gpumem-{version}"
    archive = output / f"{name}.tar.xz"
    write_archive(archive, name, source_files(root), epoch)
    if source_only:
        return [archive]
    with tempfile.TemporaryDirectory(dir=output) as scratch:
        with tarfile.open(archive) as packed:
            packed.extractall(scratch, **({"filter": "data"} if hasattr(tarfile, "data_filter") else {}))
        source = Path(scratch) / name
        built = build(source, Path(scratch) / "build")
        library = (built / "src/c" / wheel.LIBRARY).resolve()
        machine = wheel.machine_of(library)
        check_interface(root, library, version)
        files = c_library_files(built, source)
        binary = output / f"libgpumem-{version}-linux-{machine}.tar.xz"
        write_archive(binary, f"libgpumem-{version}", files, epoch)
        classes = wheel.torch_classes(source, built, torch) if torch else {}
        made = [archive, binary, wheel.make(built, output, classes)]
        listed = output / f"{name}.spdx.json"
        listed.write_text(spdx.document(version, epoch, made, files, built, sorted(classes)))
    made.append(listed)
    sums = output / "SHA256SUMS"
    sums.write_text("".join(f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}\n" for path in sorted(made)))
    return [*made, sums]


def make_twice(root, output, torch):
    """Makes the release a second time, in another folder, and compares."""
    made = make(root, output, torch)
    with tempfile.TemporaryDirectory(prefix="gpumem-second-time-") as folder:
        for path, again in zip(made, make(root, Path(folder), torch)):
            if path.read_bytes() != again.read_bytes():
                kept = path.with_name(path.name + ".second")
                shutil.copy(again, kept)
                raise Refused(f"{path.name} has other bytes the second time: {kept}")
    return made


def main(arguments):
    parser = argparse.ArgumentParser(description="Makes the archives, the wheel and the checksums of a release.")
    parser.add_argument("--output", type=Path, default=ROOT / "dist", help="folder of the files")
    headers = parser.add_mutually_exclusive_group()
    headers.add_argument("--torch-headers", type=Path, default=ROOT / ".tools/torch",
                         help="folder of PyTorch's headers, which gets those that it lacks: the wheel has a class for "
                         "each version in it")
    headers.add_argument("--without-torch", action="store_true", help="leave these classes out of the wheel")
    kind = parser.add_mutually_exclusive_group()
    parser.add_argument("--only-check", action="store_true", help="say whether the tree can be packaged, write nothing")
    kind.add_argument("--source-only", action="store_true", help="write the source archive alone")
    kind.add_argument("--twice", action="store_true", help="make all a second time elsewhere, and compare the bytes")
    asked = parser.parse_args(arguments)
    try:
        torch = None if asked.without_torch or asked.source_only else asked.torch_headers.resolve()
        release(ROOT)
        check_output(ROOT, asked.output.resolve())
        if asked.only_check:
            return
        if not asked.source_only and not shutil.which("abidw"):
            raise Refused("abidw is missing, which reads the library's interface: install Debian's abigail-tools")
        if torch:
            get_headers(torch)
        output = asked.output.resolve()
        made = make_twice(ROOT, output, torch) if asked.twice else make(ROOT, output, torch, asked.source_only)
    except Refused as why:
        sys.exit(f"package.py: {why}")
    for path in made:
        print(path)


if __name__ == "__main__":
    main(sys.argv[1:])
