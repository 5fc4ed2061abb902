#!/usr/bin/env bash
# Build, check and time on this machine's NVIDIA GPU whatever it allows, in less than 8 minutes, and write
# docs/benchmarks/kernels-DEVICE.csv and .svg. Needs torch and triton; compares with FlashInfer, FlashAttention and vLLM where
# they are installed. Environment: PYTHON (default: .venv/bin/python after `make setup EXTRA=cuda`), OUT (default: docs/benchmarks).
#   --dry-run   run the same on small shapes under Triton's interpreter, without a GPU: it shows that the scripts work; the
#               times mean nothing, and OUT has to be named
set -euo pipefail
cd "$(dirname "$0")/.."

fail() { echo "gpu_check: $*; nothing was built, checked or timed" >&2; exit 1; }

export PYTHONPATH=kernels:config:engine:tests/support:scripts/gpu TRITON_INTERPRET=0
PYTHON=${PYTHON:-.venv/bin/python}
patience=1
if [ "${1:-}" = --dry-run ]; then
  [ -n "${OUT:-}" ] || fail "--dry-run writes times that mean nothing: set OUT to a folder for them"
  device="dry run" patience=5
  export TRITON_INTERPRET=1 CUDA_VISIBLE_DEVICES=
else
  device=$(nvidia-smi --query-gpu=name --format=csv,noheader 2>/dev/null | head -n 1) || true
  [ -n "$device" ] || fail "no NVIDIA GPU here (nvidia-smi names none)"
fi
command -v "$PYTHON" >/dev/null || fail "no Python at $PYTHON: run \`make setup EXTRA=cuda\`, or set PYTHON"
"$PYTHON" -c 'import os, sys, torch, triton; sys.exit(os.environ["TRITON_INTERPRET"] != "1" and not torch.cuda.is_available())' \
  || fail "$PYTHON has no torch and triton that reach the GPU"

out=${OUT:-docs/benchmarks}
name=${device// /_}
status=0
stage() { # stage SECONDS NAME COMMAND...: go on after a failure, and report it at the end
  local seconds=$(($1 * patience)) what=$2; shift 2
  echo "== $what"
  timeout "$seconds" "$@" || { echo "gpu_check: $what failed" >&2; status=1; }
}

echo "gpu_check: $device"
stage 120 "kernels match their references" "$PYTHON" scripts/gpu/check_kernels.py
stage 180 "times" "$PYTHON" scripts/gpu/time_kernels.py --csv "$out/kernels-$name.csv" --plot "$out/kernels-$name.svg"
if "$PYTHON" -c 'import importlib.util, sys; sys.exit(importlib.util.find_spec("vllm") is None)'; then
  model=$(mktemp -d)
  trap 'rm -rf "$model"' EXIT
  "$PYTHON" -c "import sys; from pathlib import Path; from tiny_model import write_tiny_model; write_tiny_model(Path(sys.argv[1]))" "$model"
  stage 150 "the backend, its CUDA graphs, preemption and swapping in vLLM" "$PYTHON" tests/support/attention_in_vllm.py "$model"
else
  echo "== vLLM is not installed: its part is left out"
fi
exit $status
