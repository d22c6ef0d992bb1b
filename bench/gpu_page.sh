#!/usr/bin/env bash
# Runs what lies beside it, the bundle that bench/gpu.sh makes, on this machine's GPU: one page, and the whole output of
# each part in logs/. Arguments are the replay's (--resource all). GPUMEM_GPU_RUNS says how often the tests run (1),
# GPUMEM_GPU_LOGS where the logs go, and GPUMEM_GPU_PARTS which parts run: those whose log's name matches this regular
# expression (all). Fails where a part does; a part that cannot run here is skipped, by name.
# SPDX-License-Identifier: Apache-2.0
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
logs=${GPUMEM_GPU_LOGS:-$here/logs}
runs=${GPUMEM_GPU_RUNS:-1}
wanted=${GPUMEM_GPU_PARTS:-.}
export GPUMEM_LIBRARY=$here/libgpumem_c.so
failed=()

if ! ls /dev/nvidia[0-9]* >/dev/null 2>&1; then
  echo "gpu_page.sh: this machine has no NVIDIA device" >&2
  exit 1
fi
mkdir -p "$logs"

# part NAME LOG COMMAND...: 77 is the exit status of what cannot run here.
part() {
  local name=$1 log=$logs/$2 status=0
  [[ $2 =~ $wanted ]] || return 0
  "${@:3}" >"$log" 2>&1 || status=$?
  case $status in
    0) printf '%-28s ok\n' "$name" ;;
    77) printf '%-28s skipped: %s\n' "$name" "$(tail -1 "$log")" ;;
    *)
      printf '%-28s FAILED with %d; the end of %s:\n' "$name" "$status" "$log"
      tail -25 "$log"
      failed+=("$name")
      ;;
  esac
}

# Every run is a process of its own: what a test leaves behind must not hurt at the process's end either.
run_test() {
  local run
  for ((run = 1; run <= runs; ++run)); do
    timeout 300 "$here/$1" || return
  done
}

# Shown whole, since the page is for these.
table() {
  part "$@"
  [[ ! $2 =~ $wanted ]] || sed 's/^/  /' "$logs/$2"
}

# The peers that are here, for --resource: each with a comma before it.
peer_names() {
  [[ ! -f $here/libgpumem_peer_rmm.so ]] || printf ',rmm_pool,rmm_binning'
  [[ ! -f $here/libgpumem_peer_torch.so ]] || printf ',torch'
}

# As a peer; without PyTorch it is left out.
build_torch_peer() {
  if ! command -v python3 >/dev/null || ! python3 -c 'import torch' 2>/dev/null; then
    echo "no PyTorch here"
    return 77
  fi
  bash "$here/torch.sh" "$here"
}

nvidia-smi --query-gpu=name,driver_version,memory.total --format=csv,noheader || true
part "tests, $runs times" test_device.txt run_test test_device
part "Thrust and CUB, $runs times" test_thrust_device.txt run_test test_thrust_device
table "planted faults" mutants.txt bash "$here/run_gpu_mutants.sh" "$here/mutants"
if python=$(command -v python3); then
  table "PyTorch" torch.txt "$python" "$here/test/device/torch_compare.py"
  table "PyTorch, out of memory" torch_out_of_memory.txt "$python" "$here/test/device/torch_out_of_memory.py"
else
  printf '%-28s skipped: no Python here\n' PyTorch
fi
table demo demo.txt "$here/gpumem_demo"
table waits completion.txt "$here/gpumem-completion-bench" --device cuda
(($#)) || set -- --resource all
peers=()
part "PyTorch's allocator" torch_peer.txt build_torch_peer
for library in "$here"/libgpumem_peer_*.so; do
  [[ -f $library ]] && peers+=(--peer "$library")
done
# RMM's arena does not come to an end with 50,000 live blocks.
table allocators bench.txt "$here/gpumem-bench" --device cuda "${peers[@]}" --benchmark_filter=-live_50000/rmm_arena
table replay replay.txt "$here/gpumem-replay" --device cuda "${peers[@]}" "$@" "$here"/traces/*.csv.gz
# PyTorch reads its allocator's form once a process.
torch=$here/libgpumem_peer_torch.so
expandable=(env PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True
  "$here/gpumem-replay" --device cuda --peer "$torch" --resource torch)
if [[ -f $torch ]]; then
  # As the replay's defaults are: its arguments may name other resources.
  table "PyTorch, expandable segments" torch_expandable.txt "${expandable[@]}" "$here"/traces/*.csv.gz
fi

# Kernels in flight keep memory from other streams, so these rows are of all traces that have several.
several=("$here"/traces/{etl_skew,multi_stream_infer,prefetch_streams,two_models}.csv.gz)
kernels=(--work 20 --every 2)
pools=pool,pool_effort_0,pool_effort_1
table "work in flight" work.txt "$here/gpumem-replay" --device cuda "${peers[@]}" \
  --resource "$pools,driver_pool$(peer_names)" "${kernels[@]}" "${several[@]}"
if [[ -f $torch ]]; then
  table "work in flight, expandable" work_expandable.txt "${expandable[@]}" "${kernels[@]}" "${several[@]}"
fi
# A pass takes as long as the recorded program did: all traces together half a minute.
table "recorded pace" pace.txt "$here/gpumem-replay" --device cuda --resource "$pools,driver_pool" \
  --pace recorded --repeat 2 "$here"/traces/*.csv.gz
if ((${#failed[@]})); then
  printf 'FAILED: %s\n' "${failed[@]}"
  exit 1
fi
