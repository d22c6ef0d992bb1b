#!/usr/bin/env python3
# Builds the API reference with doxygen into OUT/html. Fails if a public name lacks a comment, or at another warning.
# SPDX-License-Identifier: Apache-2.0
# usage: build_reference.py ROOT OUT VERSION
# Exit status 77: doxygen is missing, and nothing was built.
import shutil
import subprocess
import sys
from pathlib import Path

sys.dont_write_bytecode = True
sys.path.insert(0, str(Path(__file__).parent))
from extract import extract  # noqa: E402


HERE = Path(__file__).parent


def build(root, out, version, main_page=HERE / "main.dox", more_options=()):
    """Returns the exit status and the messages of doxygen."""
    source = out / "source"
    for folder in (source, out / "html"):
        shutil.rmtree(folder, ignore_errors=True)
    extract(root, source)
    options = f"""
        @INCLUDE = "{HERE / 'Doxyfile'}"
        PROJECT_NUMBER = {version}
        INPUT = "{source}" "{main_page}"
        STRIP_FROM_PATH = "{source}/bridge" "{source}"
        OUTPUT_DIRECTORY = "{out}"
    """
    options += "\n".join(more_options)
    done = subprocess.run(["doxygen", "-"], input=options, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    return done.returncode, done.stdout.replace(f"{source}/", "modules/")


if __name__ == "__main__":
    if not shutil.which("doxygen"):
        print("doxygen is missing: the reference is not built")
        sys.exit(77)
    status, messages = build(Path(sys.argv[1]).resolve(), Path(sys.argv[2]).resolve(), sys.argv[3])
    print(messages or f"the reference is {sys.argv[2]}/html/index.html")
    sys.exit(status)
