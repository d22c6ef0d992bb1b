#!/usr/bin/env python3
# Makes the wheel gpumem-torch: the C library of a build, the Python modules that find the library beside themselves, and
# the sources of the class that they compile for the PyTorch at hand.
# SPDX-License-Identifier: Apache-2.0
# usage: wheel.py --build build/release --output dist
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
# PEP 600 lets a wheel rely on these libraries of the system.
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


def metadata(version, glibc, runtime):
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
The module is imported without PyTorch; `install` and `mem_pool` import it. `install` compiles a class for the PyTorch
that is there, which takes a C++20 compiler and the headers of the CUDA runtime; `python -m gpumem_torch_build` does so in
advance.
"""


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
            entry.external_attr = (0o100755 if name.endswith(LIBRARY) else 0o100644) << 16
            wheel.writestr(entry, data)


def make(build, output):
    known = cache(build)
    library = build / "src/c" / LIBRARY
    if not library.exists():
        sys.exit(f"wheel.py: {library} is missing: cmake --build {build} --target gpumem_c")
    if known.get("GPUMEM_SANITIZE"):
        sys.exit(f"wheel.py: {build} is built with a sanitizer, which Python lacks")
    version = known["CMAKE_PROJECT_VERSION"]
    libraries, versions = needs(known["CMAKE_READELF"], library)
    tag = f"py3-none-{platform_tag(libraries, versions, machine_of(library))}"
    with tempfile.TemporaryDirectory() as scratch:
        copy = Path(scratch) / LIBRARY
        shutil.copy(library.resolve(), copy)
        subprocess.run([known["CMAKE_STRIP"], "--strip-unneeded", str(copy)], check=True)
        stripped = copy.read_bytes()
    about = f"gpumem_torch-{version}.dist-info"
    description = f"Wheel-Version: 1.0\nGenerator: gpumem {version}\nRoot-Is-Purelib: false\nTag: {tag}\n"
    output.mkdir(parents=True, exist_ok=True)
    path = output / f"gpumem_torch-{version}-{tag}.whl"
    write_wheel(path, {
        **{name: (ROOT / "modules/bridge/python" / name).read_bytes()
           for name in ("gpumem_torch.py", "gpumem_torch_build.py", "gpumem_torch_growable.py")},
        **sources(),
        f"{FOLDER}/{LIBRARY}": stripped,
        f"{about}/METADATA": metadata(version, newest(versions, "GLIBC_2."), newest(versions, "GLIBCXX_3.4.")).encode(),
        f"{about}/WHEEL": description.encode(),
        f"{about}/LICENSE": (ROOT / "LICENSE").read_bytes(),
    })
    return path


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Makes the wheel gpumem-torch of a build.")
    parser.add_argument("--build", type=Path, required=True, help="folder of a build that has gpumem_c")
    parser.add_argument("--output", type=Path, default=Path("dist"), help="folder of the wheel")
    asked = parser.parse_args()
    print(make(asked.build, asked.output))
