"""Builds gpumem's library for the parts of PyTorch in a folder, which has no Python module, and copies it.

usage: build_library.py FOLDER [LIBRARY]      # without LIBRARY: checks that an earlier one was kept
"""
# SPDX-License-Identifier: Apache-2.0
import os
import re
import shutil
import sys
import types
from pathlib import Path

import gpumem_torch_build


def stand_in(folder):
    """Returns what gpumem_torch_build asks the module torch, for the PyTorch whose headers the folder has."""
    text = (folder / "include/torch/headeronly/version.h").read_text()
    numbers = [re.search(rf"#define TORCH_VERSION_{part} (\d+)", text)[1] for part in ("MAJOR", "MINOR", "PATCH")]
    return types.SimpleNamespace(__file__=str(folder / "__init__.py"), __version__=".".join(numbers),
                                 version=types.SimpleNamespace(cuda="13.0", git_version="of the test"))


if __name__ == "__main__":
    torch = stand_in(Path(sys.argv[1]))
    if len(sys.argv) == 2:
        sys.exit(0 if gpumem_torch_build.library_path(torch) == gpumem_torch_build.build(torch) else 1)
    shutil.rmtree(os.environ["GPUMEM_TORCH_CACHE"], ignore_errors=True)
    shutil.copyfile(gpumem_torch_build.build(torch), sys.argv[2])
