#!/usr/bin/env bash
# What has to be seen on a GPU. Runs where only a CUDA image's packages are (torch, lightning,
# transformers), from a copy of the tree, with nothing of ours installed and no data.
#
#   benchmarks/gpu_check.sh train [--quick] [--device cuda:1]
#   benchmarks/gpu_check.sh train --device cpu --quick     the same path on a machine without a GPU
#
# PYTHON names the interpreter (python3). Exit status: 2 wrong use, 3 no CUDA device, 4 a package is
# missing; else that of the check.
set -euo pipefail

PYTHON=${PYTHON:-python3}
cd "$(dirname "${BASH_SOURCE[0]}")/.."

usage() {
  echo "usage: benchmarks/gpu_check.sh train [--quick] [--device cuda:<index>|cpu]" >&2
  exit 2
}

# Is the device that the arguments ask for a GPU? The last --device counts, as in the check itself.
wants_gpu() {
  local device=cuda
  while (($#)); do
    case $1 in
      --device) device=${2:-} && shift ;;
      --device=*) device=${1#--device=} ;;
    esac
    (($#)) && shift
  done
  [[ $device != cpu ]]
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
  "$PYTHON" - <<'PY' || exit 3
import sys

import torch

if not torch.cuda.is_available():
    sys.exit(f"no CUDA device: torch {torch.__version__} (CUDA {torch.version.cuda}) sees none; "
             "--device cpu --quick runs the same path without one")
PY
}

check=${1:-}
(($#)) && shift
case $check in
  train)
    require_python numpy torch lightning torchmetrics transformers tokenizers safetensors
    if wants_gpu "$@"; then require_gpu; fi
    exec "$PYTHON" -m benchmarks.gpu_train "$@"
    ;;
  *) usage ;;
esac
