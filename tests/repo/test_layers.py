"""conf → scripts → {service | harness} → {retriever | memory} → third parties, never back."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.repo.imports import ROOT, imports_below, imports_of, within

PACKAGES = ("retriever", "memory", "service", "harness")
ABOVE_ALL = ("train", "serve", "evaluate", "conf", "tests", "benchmarks")
TORCH_SIDE = ("torch", "triton", "lightning", "pytorch_lightning", "torchmetrics", "transformers")
EXPERIMENTS = ("cbr", "memorytax", "memaudit", "bemula", "planted", "demo")


@pytest.mark.parametrize(
    ("package", "forbidden"),
    [
        ("retriever", ("memory", "service", "harness")),
        ("memory", ("retriever", "service", "harness")),
        ("service", ("harness",)),
    ],
)
def test_a_package_imports_only_what_lies_below_it(package, forbidden):
    found = imports_below(package)
    assert found, f"no source below {package}"
    assert [str(i) for i in found if any(within(i.module, name) for name in forbidden)] == []


def test_the_harness_knows_nothing_of_the_service_but_its_client():
    of_service = [i for i in imports_below("harness") if within(i.module, "service")]
    assert [str(i) for i in of_service if not within(i.module, "service.client")] == []


def test_no_package_imports_scripts_configuration_tests_or_benchmarks():
    found = imports_below(*PACKAGES)
    assert [str(i) for i in found if any(within(i.module, name) for name in ABOVE_ALL)] == []


def test_no_experiment_imports_another():
    crossings = [
        str(i)
        for name in EXPERIMENTS
        for i in imports_below(f"harness/{name}")
        for other in EXPERIMENTS
        if other != name and within(i.module, f"harness.{other}")
    ]
    assert crossings == []


def test_only_the_learning_side_the_torch_engine_and_the_gpu_kernels_import_torch():
    kernels = ("retriever/kernels/torch_", "retriever/kernels/triton_")
    allowed = ("retriever/learning/", "retriever/engines/torch.py", *kernels)
    found = [i for i in imports_below(*PACKAGES) if any(within(i.module, t) for t in TORCH_SIDE)]
    assert found, "the learning side imports torch, so something must be found"
    assert [str(i) for i in found if not i.path.startswith(allowed)] == []


def test_the_light_side_of_the_retriever_does_not_import_the_learning_side():
    light = [
        i
        for i in imports_below("retriever")
        if not i.path.startswith(("retriever/learning/", "retriever/engines/torch.py"))
    ]
    assert [str(i) for i in light if within(i.module, "retriever.learning")] == []


def test_the_client_imports_only_the_standard_library():
    outside = [
        str(i)
        for i in imports_of(ROOT / "service" / "client.py")
        if i.module.split(".")[0] not in sys.stdlib_module_names
    ]
    assert outside == []


def run_python(code: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code, *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


@pytest.mark.parametrize(
    ("module", "absent"),
    [
        ("memory", (*TORCH_SIDE, "retriever", "service", "faiss", "onnxruntime")),
        ("service.client", (*TORCH_SIDE, "retriever", "memory", "fastapi", "numpy")),
        ("retriever", (*TORCH_SIDE, "memory", "service", "faiss", "numba", "onnxruntime")),
        ("service.app", (*TORCH_SIDE, "harness")),
        ("serve", (*TORCH_SIDE, "harness")),
        ("evaluate", TORCH_SIDE),
    ],
)
def test_importing_a_light_module_does_not_bring_heavy_ones(module, absent):
    code = (
        "import importlib, sys; importlib.import_module(sys.argv[1]); "
        "print([name for name in sys.argv[2:] if name in sys.modules])"
    )
    done = run_python(code, module, *absent)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "[]"


def test_an_artifact_is_scored_where_torch_cannot_be_imported(tiny_artifact: Path):
    code = (
        "import sys\n"
        "for name in ('torch', 'transformers', 'lightning'): sys.modules[name] = None\n"
        "import retriever\n"
        "from retriever.types import Pair\n"
        "scorer = retriever.load(sys.argv[1], engine='onnx', device='cpu')\n"
        "print(scorer.score([Pair('What is it?', 'Who is it?', None)]).shape)\n"
    )
    done = run_python(code, str(tiny_artifact))
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip().splitlines()[-1] == "(1,)"


#: The rooms of the bank, from the roof down; what lies in none of them is its ground floor.
ROOMS = ("backups", "forgetting", "runs", "exchange", "arrays", "storage", "text")


def test_inside_the_bank_arrows_point_down_too():
    upward = [
        str(found)
        for place, room in enumerate(ROOMS)
        for found in imports_below(f"memory/{room}")
        for above in (*ROOMS[:place], "bank", "conversation", "requests")
        if within(found.module, f"memory.{above}")
    ]
    assert upward == []
