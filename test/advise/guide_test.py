#!/usr/bin/env python3
# A page of the guide shows what a tool prints. Arguments: the tool, the source folder, the page; --write puts it there.
# SPDX-License-Identifier: Apache-2.0
import re
import subprocess
import sys
from pathlib import Path

program, root = Path(sys.argv[1]), Path(sys.argv[2])
page = root / "modules/guide" / sys.argv[3]
BLOCK = re.compile(r"^```text\n\$ " + program.name + r" ([^\n]*)\n(.*?)^```$", re.S | re.M)


def shown(command):
    done = subprocess.run([program, *command.split()], cwd=root, capture_output=True, text=True, check=True)
    return f"```text\n$ {program.name} {command}\n{done.stdout}```"


text = page.read_text()
made = BLOCK.sub(lambda block: shown(block[1]), text)
if "--write" in sys.argv:
    page.write_text(made)
elif not BLOCK.search(text) or made != text:
    sys.exit(f"{page} differs from what the program prints: python3 {sys.argv[0]} PROGRAM ROOT PAGE --write")
