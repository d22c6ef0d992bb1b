#!/usr/bin/env bash
# The demo and the replay tool build from nothing in at most 200 steps, the library included.
# SPDX-License-Identifier: Apache-2.0
# usage: demo_steps_test.sh NINJA BUILD_FOLDER
set -euo pipefail
steps=$("$1" -C "$2" -t commands gpumem_demo gpumem-replay | grep -c .)
echo "$steps steps"
((steps > 1 && steps <= 200))
