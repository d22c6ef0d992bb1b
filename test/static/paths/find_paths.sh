#!/usr/bin/env bash
# Fails if a library that is installed holds the path of the project on this machine, as in a message.
# Arguments: folder of the project, libraries.
# SPDX-License-Identifier: Apache-2.0
set -euo pipefail
project=$1
shift
for library in "$@"; do
  if found=$(grep -aoE -m3 "[[:print:]]*$project[[:print:]]*" "$library"); then
    echo "$library holds:" && echo "$found"
    exit 1
  fi
done
