#!/usr/bin/env python3
# Makes the wheel gpumem-torch: the C library of a build, the Python modules that find the library beside themselves,
# and the sources of the class that they compile for the PyTorch at hand. A release's wheel has this class compiled for
# several versions of PyTorch.
# SPDX-License-Identifier: Apache-2.0
# usage: wheel.py --build build/release --output dist [--torch-headers FOLDER]
import argparse
import base64
import csv
import hashlib
import io
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
LIBRARY = "libgpumem_c.so.0"
FOLDER = "gpumem_torch.libs"
SOURCES = "gpumem_torch.sources"
NOTICES = "cmake/packaging/debian/copyright"  # of the foreign parts in the binaries
CLASSES = "gpumem_torch.classes"
# PEP 600 lets a wheel rely on these libraries of the system.
PYTORCH = ("libc10.so", "libc10_cuda.so")  # loaded before the class
SYSTEM = re.compile(r"(libc|libm|libdl|libpthread|librt|libstdc\+\+|libgcc_s|ld-linux-[\w-]+)\.so\.\d+")
# The newest GLIBCXX_3.4.N that systems with a glibc 2.M have, as (M, N); auditwheel's policies say the same.
RUNTIMES = ((28, 24), (31, 28), (34, 29), (35, 30), (39, 33))


def cache(build):
    """The variables of a build folder."""
    lines = (build / "CMakeCache.txt").read_text().splitlines()
    return dict(re.findall(r"^([\w-]+):\w+=(.*)$", "\n".join(lines), re.M))


def needs(readelf, library):
    """The libraries that a library needs, and the versions of their symbols."""
    said = subprocess.run([readelf, "-W", "-d", "-V", str(library)], check=True, capture_output=True, text=True).stdout
    return re.findall(r"\(NEEDED\).*\[(.+?)\]", said), set(re.findall(r"\b(?:GLIBC|GLIBCXX)_[\d.]+\b", said))


def newest(versions, prefix):
    """The last number of the newest version with this prefix; 0 if there is none."""
    return max((int(v.removeprefix(prefix).split(".")[0]) for v in versions if v.startswith(prefix)), default=0)


def platform_tag(libraries, versions, machine):
    """manylinux_2_N where systems with glibc 2.N have all that the library needs; otherwise linux."""
    glibc, runtime = newest(versions, "GLIBC_2."), newest(versions, "GLIBCXX_3.4.")
    known = [m for m, n in RUNTIMES if n >= runtime]
    if not known or not all(SYSTEM.fullmatch(name) for name in libraries):
        return f"linux_{machine}"
    return f"manylinux_2_{max(glibc, known[0])}_{machine}"


def machine_of(library):
    number = int.from_bytes(library.read_bytes()[18:20], "little")
    return {62: "x86_64", 183: "aarch64"}.get(number) or sys.exit(f"wheel.py: unknown machine {number} of {library}")


def torch_folders(folder):
    """Returns the folders of PyTorch's parts by (major, minor); of several patch versions the newest one's."""
    found = {}
    for path in folder.glob("*.*.*/torch/include"):
        if not re.fullmatch(r"\d+\.\d+\.\d+", path.parts[-3]): continue  # a release candidate
        found.setdefault(tuple(map(int, path.parts[-3].split(".")))[:2], []).append(path.parent)
    return {key: max(paths, key=lambda path: int(path.parent.name.split(".")[2]))
            for key, paths in sorted(found.items())}


def torch_classes(root, build, folder):
    """Compiles the class of PyTorch's allocator for each version in the folder. Returns the libraries by file name."""
    known = cache(build)
    compiler, cuda = known["CMAKE_CXX_COMPILER"], known["GPUMEM_CUDA_INCLUDE_DIR"]
    compiled = {}
    with tempfile.TemporaryDirectory() as scratch:
        for name in PYTORCH:  # empty ones: the class only names the libraries, which are loaded when it is
            subprocess.run([compiler, "-shared", "-x", "c", "/dev/null", "-nostdlib", f"-Wl,-soname,{name}", "-o",
                            f"{scratch}/{name}"], check=True)
        joined = Path(scratch) / "class.cpp"  # of all files, in a third of the time
        joined.write_text("".join(f'#include "{path}"\n' for path in sorted((root / "src/torch").glob("*.cpp"))))
        for (major, minor), torch in torch_folders(folder).items():
            made = Path(scratch) / f"torch-{major}.{minor}.so"
            subprocess.run([
                compiler, "-std=c++20", "-O2", "-fPIC", "-fvisibility=hidden", "-shared", str(joined), "-o", str(made),
                f"-I{root / 'modules/bridge'}", "-isystem", str(torch / "include"), "-isystem", cuda,
                *(f"-ffile-prefix-map={place}/=" for place in (root, torch, cuda, scratch)),
                f"-L{scratch}", "-Wl,--no-as-needed", "-lc10", "-lc10_cuda", "-Wl,-z,nodelete", "-s"], check=True)
            compiled[made.name] = made.read_bytes()
    return compiled


def metadata(version, glibc, runtime, classes):
    return f"""Metadata-Version: 2.1
Name: gpumem-torch
Version: {version}
Summary: gpumem as the memory of PyTorch
License: Apache-2.0
Classifier: Operating System :: POSIX :: Linux
Classifier: Programming Language :: Python :: 3
Requires-Python: >=3.8
Description-Content-Type: text/plain

    import gpumem_torch
    gpumem_torch.install("limit=60GiB")  # before PyTorch's first use of a GPU

The library in this wheel needs glibc 2.{glibc}, a libstdc++ with GLIBCXX_3.4.{runtime}, and an NVIDIA driver of
CUDA 13.0, or newer ones.
The module is imported without PyTorch; `install` and `mem_pool` import it. {with_classes(classes)}
"""


def with_classes(classes):
    """Returns the sentences about the class that takes the place of PyTorch's allocator."""
    needs = ("compiles a class for the PyTorch that is there, which takes a C++20 compiler and the headers of the CUDA "
             "runtime;\n`python -m gpumem_torch_build` does so in advance.")
    if not classes:
        return f"`install`\n{needs}"
    versions = ", ".join(name.removeprefix("torch-").removesuffix(".so") for name in sorted(classes, key=version_key))
    return f"The wheel has\nits class for the releases of PyTorch {versions}. For another one\n`install` {needs}"


def version_key(name):
    return [int(number) for number in re.findall(r"\d+", name)]


def sources():
    """The files of the class that takes the place of PyTorch's allocator, by their names in the wheel."""
    bridge = ROOT / "modules/bridge/gpumem"
    files = {path.name: path for path in sorted((ROOT / "src/torch").glob("*.[ch]pp"))}
    files.update({f"gpumem/{name}": bridge / name for name in ("gpumem.h", "gpumem_torch.h", "version.h")})
    return {f"{SOURCES}/{name}": path.read_bytes() for name, path in files.items()}


def write_wheel(path, files):
    """Writes the files, a dict of bytes by name, and the record of them."""
    record = next(name for name in files if name.endswith("/METADATA")).replace("METADATA", "RECORD")
    table = io.StringIO()
    rows = csv.writer(table, lineterminator="\n")
    for name, data in files.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
        rows.writerow((name, f"sha256={digest}", len(data)))
    rows.writerow((record, "", ""))
    moment = time.gmtime(max(int(os.environ.get("SOURCE_DATE_EPOCH", 0)), 315532800))[:6]  # a zip begins in 1980
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as wheel:
        for name, data in {**files, record: table.getvalue().encode()}.items():
            entry = zipfile.ZipInfo(name, moment)
            entry.compress_type = zipfile.ZIP_DEFLATED
            entry.external_attr = (0o100755 if name.endswith((LIBRARY, ".so")) else 0o100644) << 16
            wheel.writestr(entry, data)


def make(build, output, classes=None):
    """Writes the wheel. `classes` are the libraries of torch_classes()."""
    classes = classes or {}
    known = cache(build)
    library = build / "src/c" / LIBRARY
    if not library.exists():
        sys.exit(f"wheel.py: {library} is missing: cmake --build {build} --target gpumem_c")
    if known.get("GPUMEM_SANITIZE"):
        sys.exit(f"wheel.py: {build} is built with a sanitizer, which Python lacks")
    version = known["CMAKE_PROJECT_VERSION"]
    libraries, versions = needs(known["CMAKE_READELF"], library)
    with tempfile.TemporaryDirectory() as scratch:
        copy = Path(scratch) / LIBRARY
        shutil.copy(library.resolve(), copy)
        subprocess.run([known["CMAKE_STRIP"], "--strip-unneeded", str(copy)], check=True)
        stripped = copy.read_bytes()
        for name, data in classes.items():
            one = Path(scratch) / name
            one.write_bytes(data)
            more, symbols = needs(known["CMAKE_READELF"], one)
            libraries += [other for other in more if other not in PYTORCH]
            versions |= symbols
    tag = f"py3-none-{platform_tag(libraries, versions, machine_of(library))}"
    about = f"gpumem_torch-{version}.dist-info"
    description = f"Wheel-Version: 1.0\nGenerator: gpumem {version}\nRoot-Is-Purelib: false\nTag: {tag}\n"
    output.mkdir(parents=True, exist_ok=True)
    path = output / f"gpumem_torch-{version}-{tag}.whl"
    write_wheel(path, {
        **{name: (ROOT / "modules/bridge/python" / name).read_bytes()
           for name in ("gpumem_torch.py", "gpumem_torch_build.py", "gpumem_torch_growable.py")},
        **sources(),
        f"{FOLDER}/{LIBRARY}": stripped,
        **{f"{CLASSES}/{name}": classes[name] for name in sorted(classes, key=version_key)},
        f"{about}/METADATA": metadata(version, newest(versions, "GLIBC_2."), newest(versions, "GLIBCXX_3.4."),
                                      classes).encode(),
        f"{about}/WHEEL": description.encode(),
        f"{about}/LICENSE": (ROOT / "LICENSE").read_bytes(),
        f"{about}/NOTICES": (ROOT / NOTICES).read_bytes(),
    })
    return path


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Makes the wheel gpumem-torch of a build.")
    parser.add_argument("--build", type=Path, required=True, help="folder of a build that has gpumem_c")
    parser.add_argument("--output", type=Path, default=Path("dist"), help="folder of the wheel")
    parser.add_argument("--torch-headers", type=Path, help="folder of PyTorch's headers, as torch_parts.py gets them")
    asked = parser.parse_args()
    compiled = torch_classes(ROOT, asked.build, asked.torch_headers) if asked.torch_headers else {}
    print(make(asked.build, asked.output, compiled))
