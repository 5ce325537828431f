from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "benchmarks" / "gpu_check.sh"

#: What a CUDA image need not hold; `sys.modules[name] = None` makes an import fail.
NOT_IN_A_CUDA_IMAGE = (
    *("antlr4", "datasets", "faiss", "fastapi", "hydra", "omegaconf", "onnx", "onnxruntime"),
    *("pyarrow", "pydantic", "sklearn", "sqlalchemy", "tensorboard"),
)


def run_check(
    tmp_path: Path, *arguments: str, without: tuple[str, ...] = NOT_IN_A_CUDA_IMAGE
) -> subprocess.CompletedProcess[str]:
    blocked = "".join(f"sys.modules[{name!r}] = None\n" for name in without)
    (tmp_path / "sitecustomize.py").write_text(f"import sys\n{blocked}", encoding="utf-8")
    return subprocess.run(
        [SCRIPT, *arguments],
        cwd=tmp_path,
        env={
            **os.environ,
            "PYTHON": sys.executable,
            "PYTHONPATH": str(tmp_path),
            "OMP_NUM_THREADS": "1",
        },
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


@pytest.mark.slow
def test_training_runs_on_a_cpu_with_no_more_than_a_cuda_image_holds(tmp_path: Path):
    done = run_check(tmp_path, "train", "--device", "cpu", "--quick")
    assert done.returncode == 0, done.stderr
    body = json.loads(done.stdout.splitlines()[-1])
    assert body["benchmark"] == "gpu_train"
    assert body["machine"]["gpu"] is None
    figures = body["figures"]
    assert figures["bf16_mixed_pairs_per_s"]["value"] > 0
    assert figures["log_loss_difference"]["met"] is True
    assert figures["bf16_mixed_log_loss"]["value"] != figures["fp32_log_loss"]["value"]
    assert "base rate" in done.stdout


@pytest.mark.slow
@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device here")
def test_without_a_cuda_device_the_check_says_so_and_exits_3(tmp_path: Path):
    done = run_check(tmp_path, "train", "--quick")
    assert done.returncode == 3
    assert "no CUDA device" in done.stderr
    assert "--device cpu --quick" in done.stderr


def test_a_missing_package_is_named(tmp_path: Path):
    done = run_check(tmp_path, "train", without=("lightning", "transformers"))
    assert done.returncode == 4
    assert "lacks lightning, transformers" in done.stderr
    assert "PYTHON=" in done.stderr


@pytest.mark.parametrize("arguments", [(), ("tarin",)])
def test_an_unknown_check_is_answered_with_the_usage(tmp_path: Path, arguments):
    done = run_check(tmp_path, *arguments)
    assert done.returncode == 2
    assert done.stderr.startswith("usage:")
