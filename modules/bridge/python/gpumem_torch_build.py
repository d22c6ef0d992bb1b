"""Builds and keeps the library that makes gpumem PyTorch's allocator: one for each version of PyTorch.

    python -m gpumem_torch_build     # prints the library's path for the PyTorch of this Python; builds it if need be

The wheel brings a library for each of the versions 2.9 to 2.15 as they were released, which needs no build. For another
PyTorch gpumem_torch.install builds the library at its first call. The build needs a C++20 compiler (CXX, g++ or
clang++) and the headers of the CUDA runtime: those of the wheels nvidia-cuda-runtime and nvidia-cuda-crt, or of a
toolkit (CUDA_HOME). The library is kept in GPUMEM_TORCH_CACHE, or in the folder gpumem_torch of the user's cache folder.
"""
# SPDX-License-Identifier: Apache-2.0
import contextlib
import fcntl
import hashlib
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

__all__ = ["BuildError", "build", "library_path", "shipped"]

OLDEST, NEWEST = (2, 9), (2, 15)  # versions of PyTorch; each is compiled by a test
HERE = Path(__file__).resolve().parent


class BuildError(RuntimeError):
    """Raised if the library cannot be built here; the text says why, and what to do instead."""

    def __init__(self, why):
        super().__init__(f"gpumem_torch: {why}. gpumem_torch.install(plug_in=True) needs no library: it installs gpumem "
                         "by PyTorch's CUDAPluggableAllocator, which serves no statistics, snapshots and memory pools")


def _folders():
    """Returns the folders of the sources and of gpumem's headers: as installed, or in the source tree."""
    installed = HERE / "gpumem_torch.sources"
    if installed.is_dir():
        return installed, installed
    return HERE.parents[2] / "src/torch", HERE.parent


def _sources():
    folder = _folders()[0]
    found = sorted(folder.glob("*.cpp"))
    if not found:
        raise BuildError(f"its sources are missing from {folder}")
    return found


def _compiler():
    named = os.environ.get("CXX")
    for name in [named] if named else ["g++", "c++", "clang++"]:
        path = shutil.which(name)
        if path:
            return path
    raise BuildError(f"no C++ compiler was found ({named or 'g++, c++ or clang++'}); set CXX to one")


def _cuda_folders(torch):
    """Yields the folders that may have the headers of the CUDA runtime, in the order in which they are tried."""
    major = torch.version.cuda.split(".")[0]
    packages = Path(torch.__file__).resolve().parent.parent / "nvidia"
    yield packages / f"cu{major}/include"
    yield packages / "cuda_runtime/include"
    for home in (os.environ.get("CUDA_HOME"), os.environ.get("CUDA_PATH")):
        if home:
            yield Path(home) / "include"
    nvcc = shutil.which("nvcc")
    if nvcc:
        yield Path(nvcc).resolve().parent.parent / "include"
    for name in (f"cuda-{torch.version.cuda}", "cuda"):  # the folders of NVIDIA's packages for Linux
        yield Path("/usr/local") / name / "include"


def _cuda_headers(torch):
    major = int(torch.version.cuda.split(".")[0])
    tried = []
    for folder in _cuda_folders(torch):
        header = folder / "cuda_runtime_api.h"
        if not header.exists():
            tried.append(f"{folder}: not there")
        elif not (folder / "crt/host_defines.h").exists():
            tried.append(f"{folder}: without crt/host_defines.h")
        else:
            version = re.search(r"#define\s+CUDART_VERSION\s+(\d+)", header.read_text(errors="replace"))
            if version and int(version[1]) // 1000 == major:
                return folder
            tried.append(f"{folder}: of another CUDA")
    raise BuildError(f"the headers of CUDA {major}'s runtime were not found ({'; '.join(tried)}); install the wheels "
                     f"nvidia-cuda-runtime and nvidia-cuda-crt of CUDA {torch.version.cuda}, or a toolkit, and set "
                     "CUDA_HOME")


def _version(torch):
    numbers = re.match(r"(\d+)\.(\d+)", torch.__version__)
    version = tuple(map(int, numbers.groups()))
    if not OLDEST <= version <= NEWEST:
        raise BuildError(f"PyTorch {torch.__version__} is not one of {OLDEST[0]}.{OLDEST[1]} to "
                         f"{NEWEST[0]}.{NEWEST[1]}")
    if not torch.version.cuda:
        raise BuildError(f"PyTorch {torch.__version__} is built without CUDA")


def _cache():
    named = os.environ.get("GPUMEM_TORCH_CACHE")
    if named:
        return Path(named)
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "gpumem_torch"


def library_path(torch):
    """Returns the path of the library for this PyTorch, whether or not it was built yet. Raises BuildError."""
    _version(torch)
    sources, headers = _folders()
    digest = hashlib.sha256()
    for path in [*_sources(), *sorted(sources.glob("*.hpp")), *sorted((headers / "gpumem").glob("*.h"))]:
        digest.update(path.name.encode() + b"\0" + path.read_bytes())
    digest.update(f"{torch.__version__} {torch.version.git_version} {torch.version.cuda} {platform.machine()}".encode())
    return _cache() / f"torch-{torch.__version__}-{digest.hexdigest()[:16]}.so"


def shipped(torch):
    """Returns the path of the library that the wheel has for this PyTorch; None if it has none. Raises BuildError."""
    _version(torch)
    release = re.fullmatch(r"(\d+\.\d+)\.\d+(\+cu\d+)?", torch.__version__)  # no nightly build, no other vendor's
    path = HERE / "gpumem_torch.classes" / f"torch-{release[1]}.so" if release else None
    return path if path and path.exists() else None


def _run(commands):
    """Runs the commands at the same time. Raises BuildError with the messages of the first one that fails."""
    running = [(command, subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True))
               for command in commands]
    outputs = [process.communicate()[0] for _, process in running]
    for (command, process), output in zip(running, outputs):
        if process.returncode != 0:
            raise BuildError(f"the compiler failed: {' '.join(map(str, command))}\n{output[-4000:]}\n")


def _compile(torch, path):
    compiler, headers = _compiler(), _folders()[1]
    torch_folder = Path(torch.__file__).resolve().parent
    flags = ["-std=c++20", "-O2", "-fPIC", "-fvisibility=hidden", f"-I{headers}",
             "-isystem", str(torch_folder / "include"), "-isystem", str(_cuda_headers(torch))]
    with tempfile.TemporaryDirectory(dir=path.parent) as scratch:
        objects = [Path(scratch) / f"{source.stem}.o" for source in _sources()]
        _run([[compiler, *flags, "-c", str(source), "-o", str(made)] for source, made in zip(_sources(), objects)])
        made = Path(scratch) / "made.so"
        _run([[compiler, "-shared", *map(str, objects), "-o", str(made), f"-L{torch_folder / 'lib'}", "-lc10",
               "-lc10_cuda", "-Wl,-z,nodelete"]])
        os.replace(made, path)  # another process sees the whole file or none


@contextlib.contextmanager
def _alone(folder):
    """Holds a lock of the folder, so that only one process at a time builds there."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = open(folder / "lock", "w")
    except OSError as error:
        raise BuildError(f"the folder {folder} cannot be written to ({error.strerror}); set GPUMEM_TORCH_CACHE to "
                         "another") from None
    with lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def build(torch):
    """Returns the path of the built library for this PyTorch; builds it if it does not exist yet. Raises BuildError."""
    path = library_path(torch)
    if path.exists():
        return path
    with _alone(path.parent):
        if not path.exists():
            _compile(torch, path)
    return path


if __name__ == "__main__":
    try:
        import torch
        print(shipped(torch) or build(torch))
    except ImportError:
        sys.exit("gpumem_torch: this Python has no PyTorch")
    except BuildError as error:
        sys.exit(str(error))
