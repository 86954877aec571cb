#!/usr/bin/env bash
# Exactness, throughput and peak memory on one GPU card, under eight minutes. Options go to gpu.py:
#   tests/benchmarks/gpu.sh --output FOLDER
#   tests/benchmarks/gpu.sh --device cpu --tiny      the same code where there is no GPU
# PYTHON names an interpreter with torch for CUDA; default: .venv, else python3.
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
python=${PYTHON:-$root/.venv/bin/python}
[ -x "$(command -v "$python")" ] || python=python3

export PYTHONPATH="$root/tests:$root:$root/platform${PYTHONPATH:+:$PYTHONPATH}"
export HF_HUB_OFFLINE=1 TOKENIZERS_PARALLELISM=false
exec timeout 480 "$python" -m benchmarks.gpu "$@"
