#!/usr/bin/env python3
# The guide's page shows what gpumem-advise prints. --write: puts it there.
# SPDX-License-Identifier: Apache-2.0
import re
import subprocess
import sys
from pathlib import Path

program, root = Path(sys.argv[1]), Path(sys.argv[2])
page = root / "modules/guide/advise.md"
BLOCK = re.compile(r"^```text\n\$ gpumem-advise ([^\n]*)\n(.*?)^```$", re.S | re.M)


def shown(command):
    done = subprocess.run([program, *command.split()], cwd=root, capture_output=True, text=True, check=True)
    return f"```text\n$ gpumem-advise {command}\n{done.stdout}```"


text = page.read_text()
made = BLOCK.sub(lambda block: shown(block[1]), text)
if "--write" in sys.argv:
    page.write_text(made)
elif not BLOCK.search(text) or made != text:
    sys.exit(f"{page} differs from what the program prints: python3 {sys.argv[0]} PROGRAM ROOT --write")
