#!/usr/bin/env bash
# What has to be seen on a GPU. Runs where only a CUDA image's packages are, from a copy of the tree,
# with nothing of ours installed and no data.
#
#   benchmarks/gpu_check.sh engine [--quick] [--device cuda:1] [--steps kernels,answers]
#   benchmarks/gpu_check.sh train [--quick] [--device cuda:1]
#   benchmarks/gpu_check.sh all [--quick] [--device cuda:1]      both, in under eight minutes
#   benchmarks/gpu_check.sh all --device cpu --quick             the same path without a GPU
#
# `engine` needs torch, numpy, safetensors, tokenizers and, on a GPU, Triton; steps that need more are
# skipped with the reason. `train` needs lightning and transformers too. `all` runs both, whatever
# comes of the first. PYTHON names the interpreter (python3). Exit status: 2 wrong use, 3 no CUDA
# device, 4 a package is missing; else that of the check, of `all` the first that is not 0.
set -euo pipefail

PYTHON=${PYTHON:-python3}
cd "$(dirname "${BASH_SOURCE[0]}")/.."

usage() {
  echo "usage: benchmarks/gpu_check.sh engine|train|all [--quick] [--device cuda:<index>|cpu]" >&2
  exit 2
}

# The device that the arguments ask for; the last --device counts, as in the check itself.
device_of() {
  local device=cuda
  while (($#)); do
    case $1 in
      --device)
        (($# > 1)) || { echo "error: --device needs a value: cuda, cuda:<index> or cpu" >&2; exit 2; }
        device=$2
        shift
        ;;
      --device=*) device=${1#--device=} ;;
    esac
    shift
  done
  [[ $device =~ ^(cpu|cuda(:[0-9]+)?)$ ]] ||
    { echo "error: --device '$device': one of cuda, cuda:<index>, cpu" >&2; exit 2; }
  echo "$device"
}

require_python() {
  command -v "$PYTHON" >/dev/null ||
    { echo "error: no interpreter $PYTHON; name one with PYTHON=/path/to/python" >&2; exit 4; }
  "$PYTHON" - "$@" <<'PY' || exit 4
import importlib.util
import sys

if sys.version_info < (3, 11):
    sys.exit(f"error: {sys.executable} is Python {sys.version.split()[0]}; 3.11 or newer is needed")
missing = [name for name in sys.argv[1:] if importlib.util.find_spec(name) is None]
if missing:
    sys.exit(f"error: {sys.executable} lacks {', '.join(missing)}; install them, or name an "
             "interpreter that has them with PYTHON=/path/to/python")
PY
}

require_gpu() {
  "$PYTHON" - "$1" <<'PY' || exit 3
import sys

import torch

if not torch.cuda.is_available():
    sys.exit(f"no CUDA device: torch {torch.__version__} (CUDA {torch.version.cuda}) sees none; "
             "--device cpu --quick runs the same path without one")
index, count = int(sys.argv[1].partition(":")[2] or 0), torch.cuda.device_count()
if index >= count:
    sys.exit(f"no CUDA device {index}: torch {torch.__version__} sees {count}, from 0 to {count - 1}")
PY
}

# One half in a process of its own; what is missing is said before anything long begins.
run_check() {
  local check=$1 device
  shift
  device=$(device_of "$@") || exit 2
  case $check in
    engine) require_python numpy torch safetensors tokenizers ;;
    train) require_python numpy torch lightning torchmetrics transformers tokenizers safetensors ;;
  esac
  if [[ $device != cpu ]]; then require_gpu "$device"; fi
  "$PYTHON" -m "benchmarks.gpu_$check" "$@"
}

check=${1:-}
(($#)) && shift
device_of "$@" >/dev/null
case $check in
  engine | train) run_check "$check" "$@" ;;
  all)
    status=0
    for half in engine train; do
      started=$SECONDS
      code=0
      (run_check "$half" "$@") || code=$?
      echo "== $half: exit status $code after $((SECONDS - started)) s" >&2
      ((status)) || status=$code
    done
    exit "$status"
    ;;
  *) usage ;;
esac
