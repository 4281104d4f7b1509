#!/usr/bin/env bash
# Tests and measures this machine's GPU, in under 8 minutes; without a network.
#   tools/gpu_check.sh [FOLDER] [--only bandwidth,tests,capture,bench,jitter,memory,peer,group]
# FOLDER (default $OUT, else out/gpu) gets gpu_check.json, gpu_check.txt and a file per section.
# Ends at once with status 2 where the CUDA driver has no device. PYTHON names the interpreter that has torch with CUDA, triton, numpy and safetensors.
set -euo pipefail
cd "$(dirname "$0")/.."
if [[ $# -gt 0 && $1 != -* ]]; then
  OUT=$1
  shift
fi
export OUT=${OUT:-out/gpu} PYTHONPATH="$PWD${PYTHONPATH:+:$PYTHONPATH}"
exec "${PYTHON:-python3}" -m tools.gpu_check "$@"
