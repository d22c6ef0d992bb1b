#!/usr/bin/env bash
# Runs the bundle that bench/gpu.sh made, from the bundle's folder, on this machine's GPU. Prints one page and writes
# the whole output of each part to logs/. Arguments are passed to the replay tool (--resource all). Variables:
# GPUMEM_GPU_RUNS, how many times each test runs (1); GPUMEM_GPU_LOGS, the folder of the logs; GPUMEM_GPU_PARTS, a
# regular expression of the log names whose parts run (all). Fails if a part fails. A part that cannot run here is
# reported as skipped.
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

# part NAME LOG COMMAND...: runs a part. Exit status 77 means that it cannot run here.
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

# Each run is a process of its own, so that errors at process exit are found too.
run_test() {
  local run
  for ((run = 1; run <= runs; ++run)); do
    timeout 300 "$here/$1" || return
  done
}

# Runs a part and prints its whole log: its table belongs on the page.
table() {
  part "$@"
  [[ ! $2 =~ $wanted ]] || sed 's/^/  /' "$logs/$2"
}

# Prints the names of the peers that are here, for --resource, each with a comma before it.
peer_names() {
  [[ ! -f $here/libgpumem_peer_rmm.so ]] || printf ',rmm_pool,rmm_binning'
  [[ ! -f $here/libgpumem_peer_torch.so ]] || printf ',torch'
}

# Builds PyTorch's allocator as a peer; skipped without PyTorch.
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
table demo demo.txt "$here/gpumem_demo" "$here"/traces/gnn_sample.csv.gz
table waits completion.txt "$here/gpumem-completion-bench" --device cuda
table growth growth.txt "$here/gpumem-growth-bench" --device cuda
table "heaps for kernels" heaps.txt "$here/gpumem-heap-bench" --quick
(($#)) || set -- --resource all
peers=()
part "PyTorch's allocator" torch_peer.txt build_torch_peer
for library in "$here"/libgpumem_peer_*.so; do
  [[ -f $library ]] && peers+=(--peer "$library")
done
# RMM's arena does not finish with 50,000 live blocks.
table allocators bench.txt "$here/gpumem-bench" --device cuda "${peers[@]}" --benchmark_filter=-live_50000/rmm_arena
table replay replay.txt "$here/gpumem-replay" --device cuda "${peers[@]}" "$@" "$here"/traces/*.csv.gz
# PyTorch reads PYTORCH_CUDA_ALLOC_CONF once per process, so expandable segments need a run of their own.
torch=$here/libgpumem_peer_torch.so
expandable=(env PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True
  "$here/gpumem-replay" --device cuda --peer "$torch" --resource torch)
if [[ -f $torch ]]; then
  # With the replay's default options only: the arguments of this script may name other resources.
  table "PyTorch, expandable segments" torch_expandable.txt "${expandable[@]}" "$here"/traces/*.csv.gz
fi

# Kernels in flight keep freed memory from other streams, so these rows use all traces that have several streams.
several=("$here"/traces/{etl_skew,multi_stream_infer,prefetch_streams,two_models}.csv.gz)
kernels=(--work 20 --every 2)
pools=pool,pool_effort_0,pool_effort_1
table "work in flight" work.txt "$here/gpumem-replay" --device cuda "${peers[@]}" \
  --resource "$pools,driver_pool$(peer_names)" "${kernels[@]}" "${several[@]}"
if [[ -f $torch ]]; then
  table "work in flight, expandable" work_expandable.txt "${expandable[@]}" "${kernels[@]}" "${several[@]}"
fi
# Memory and times of threads that replay side by side; the figures are also written as JSON.
side_by_side=(--threads 1,2,8 --repeat 2 "$here"/traces/{moe_train,prefetch_streams,vit_train_eval,etl_skew}.csv.gz)
table threads threads.txt "$here/gpumem-replay" --device cuda "${peers[@]}" --json "$logs/threads.json" \
  --resource "$pools,driver_pool$(peer_names)" "${side_by_side[@]}"
if [[ -f $torch ]]; then
  table "threads, expandable" threads_expandable.txt "${expandable[@]}" --json "$logs/threads_expandable.json" \
    "${side_by_side[@]}"
fi
# A pass takes as long as the recorded program ran: half a minute for all traces together.
table "recorded pace" pace.txt "$here/gpumem-replay" --device cuda --resource "$pools,driver_pool" \
  --pace recorded --repeat 2 "$here"/traces/*.csv.gz
if ((${#failed[@]})); then
  printf 'FAILED: %s\n' "${failed[@]}"
  exit 1
fi
