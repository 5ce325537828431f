from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from benchmarks import gpu_engine, gpu_train

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "benchmarks" / "gpu_check.sh"

#: What a CUDA image need not hold; `sys.modules[name] = None` makes an import fail.
NOT_IN_A_CUDA_IMAGE = (
    *("antlr4", "datasets", "faiss", "fastapi", "hydra", "omegaconf", "onnx", "onnxruntime"),
    *("llvmlite", "numba", "pyarrow", "pydantic", "sklearn", "sqlalchemy", "tensorboard"),
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


#: The engine half runs with less than the training half.
NOT_IN_A_TORCH_IMAGE = (*NOT_IN_A_CUDA_IMAGE, "lightning", "torchmetrics", "transformers")


def test_the_engine_is_checked_on_a_cpu_with_no_more_than_torch(tmp_path: Path):
    done = run_check(tmp_path, "engine", "--device", "cpu", "--quick", without=NOT_IN_A_TORCH_IMAGE)
    assert done.returncode == 0, done.stdout + done.stderr
    body = json.loads(done.stdout.splitlines()[-1])
    assert body["benchmark"] == "gpu_engine"
    assert body["machine"]["gpu"] is None
    figures = body["figures"]
    assert figures["failed_steps"]["value"] == 0
    assert figures["searches_right"]["value"] >= 8
    assert figures["error_of_bound_1500_float32_bank"]["met"] is True
    assert figures["batch_256_1500_float16"]["value"] > 0
    assert "encoder: skipped: transformers, lightning, torchmetrics not installed" in done.stdout
    assert "faiss: skipped: faiss not installed" in done.stdout


@pytest.mark.slow
def test_the_encoder_is_checked_where_transformers_is(tmp_path: Path):
    done = run_check(tmp_path, "engine", "--device", "cpu", "--quick", "--steps", "encoder")
    assert done.returncode == 0, done.stdout + done.stderr
    figures = json.loads(done.stdout.splitlines()[-1])["figures"]
    assert figures["encoder_fp32"]["value"] > 0
    assert figures["encoder_bf16_error"]["met"] is True


def test_a_step_that_fails_is_reported_and_the_others_run():
    code = (
        "from benchmarks import gpu_engine\n"
        "steps = dict(gpu_engine.STEPS, kernels=lambda place: 1 / 0)\n"
        "gpu_engine.STEPS = steps\n"
        "arguments = '--device cpu --quick --steps kernels,following'.split()\n"
        "raise SystemExit(gpu_engine.main(arguments))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 1
    assert "ZeroDivisionError" in done.stdout
    assert "kernels: FAILED" in done.stdout
    assert "following: done" in done.stdout
    assert json.loads(done.stdout.splitlines()[-1])["figures"]["failed_steps"]["met"] is False


def test_the_step_for_faiss_sees_the_limits_where_they_are(monkeypatch, capsys):
    from benchmarks.gpu_encoders import faiss_indexes
    from benchmarks.gpu_steps import Place
    from tests.search import faiss_gpu_fake

    faiss_gpu_fake.installed(monkeypatch)
    figures = faiss_indexes(Place(torch.device("cuda", 0), True, 0))
    assert figures["faiss_limits_as_assumed"].value == 6
    assert figures["faiss_flat_recall"].value == 1
    assert figures["faiss_ivf_recall"].value > 0.2
    assert "flat ignores a selector: yes" in capsys.readouterr().out


@pytest.mark.slow
def test_both_halves_run_in_turn_and_the_first_failure_is_the_exit_status(tmp_path: Path):
    without = (*NOT_IN_A_CUDA_IMAGE, "transformers")
    done = run_check(tmp_path, "all", "--device", "cpu", "--quick", without=without)
    assert done.returncode == 4
    assert "== engine: exit status 0 after" in done.stderr
    assert "lacks transformers" in done.stderr
    assert "== train: exit status 4 after" in done.stderr


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


@pytest.mark.parametrize("arguments", [(), ("tarin",), ("engines", "--quick")])
def test_an_unknown_check_is_answered_with_the_usage(tmp_path: Path, arguments):
    done = run_check(tmp_path, *arguments)
    assert done.returncode == 2
    assert done.stderr.startswith("usage:")


@pytest.mark.parametrize("check", ["engine", "all"])
@pytest.mark.parametrize(
    "arguments",
    [
        ("--device", "bogus"),
        ("--device", "cpu:0"),
        ("--device=auto",),
        ("--device", ""),
        ("--quick", "--device"),
        ("--device", "cpu", "--device=cuda:x"),
    ],
)
def test_a_device_that_is_none_is_wrong_use_said_before_anything_runs(tmp_path, check, arguments):
    done = run_check(tmp_path, check, *arguments)
    assert done.returncode == 2
    assert done.stdout == ""
    (line,) = done.stderr.splitlines()
    assert line.startswith("error: --device")
    assert "cuda, cuda:<index>" in line


@pytest.mark.parametrize(("sees", "says"), [(0, "no CUDA device: torch"), (2, "CUDA device 9: ")])
def test_a_device_that_torch_does_not_see_is_named_and_exits_3(tmp_path, sees, says):
    fake = tmp_path / "torch"
    fake.mkdir()
    (fake / "__init__.py").write_text(
        "__version__ = 'fake'\n"
        "class version: cuda = '0'\n"
        "class cuda:\n"
        f"    is_available = staticmethod(lambda: {sees} > 0)\n"
        f"    device_count = staticmethod(lambda: {sees})\n",
        encoding="utf-8",
    )
    done = run_check(tmp_path, "engine", "--quick", "--device", "cuda:9", without=())
    assert done.returncode == 3, done.stderr
    (line,) = done.stderr.splitlines()
    assert says in line


@pytest.mark.parametrize("module", [gpu_engine, gpu_train])
def test_the_checks_themselves_refuse_such_a_device(module, capsys):
    with pytest.raises(SystemExit) as status:
        module.main(["--quick", "--device", "auto"])
    assert status.value.code == 2
    assert "'auto': one of cuda, cuda:<index>, cpu" in capsys.readouterr().err
