#!/usr/bin/env bash
# Runs the README's program with work that is not ordered. It has to fail, and to name the streams, the block and the
# missing order once.
# SPDX-License-Identifier: Apache-2.0
set -euo pipefail
if said=$("$1" 2>&1); then
  echo "the program exits with success and says: $said"
  exit 1
fi
echo "$said"
grep -q "the program fails, since findings were not taken: 1$" <<<"$said"
text="unordered access to block [0-9]+ \(1048576 bytes at 0x[0-9a-f]+\): "
text+="work 1 of stream [0-9]+ is not ordered after allocation 1 of stream [0-9]+"
grep -Eq "^  $text$" <<<"$said"
