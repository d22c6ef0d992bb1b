#!/usr/bin/env bash
# Runs a program with the simulated driver preloaded and several values of GPUMEM_SIMULATOR_SEED. Arguments: the program
# and the driver.
# SPDX-License-Identifier: Apache-2.0
set -euo pipefail
program=$1 driver=$2
unset GPUMEM_SIMULATOR_SEED
order() { LD_PRELOAD=$driver "$program"; }
seeded() { GPUMEM_SIMULATOR_SEED=$1 order; }
fail() {
  echo "$1"
  exit 1
}

[[ $(order) == "$(seeded 1)" ]] || fail "the seed is not 1 without the variable"
[[ $(seeded 7) == "$(seeded 7)" ]] || fail "equal seeds give two orders"
orders=$(for seed in {1..10} 18446744073709551615; do seeded $seed; done)
[[ $(wc -l <<<"$orders") == 11 ]] || fail "a seed is refused: $orders"
(($(sort -u <<<"$orders" | wc -l) > 1)) || fail "all seeds give one order"

for wrong in "" seven 7x " 7" -1 0x7 18446744073709551616; do
  if said=$(seeded "$wrong" 2>&1); then fail "'$wrong' is accepted: $said"; fi
  grep -q "GPUMEM_SIMULATOR_SEED is '$wrong', but must be a number" <<<"$said" || fail "'$wrong': $said"
  grep -qx "cuInit: 1" <<<"$said" || fail "'$wrong' is no CUDA_ERROR_INVALID_VALUE: $said"
done
