"""What an engine needs to be installed, and that it says so; and that it tells nobody."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

import retriever
from retriever.engines import runtime
from retriever.errors import InvalidInput
from tests.repo.imports import imports_below, within

LOADS = """
import sys
engine, path, *hidden = sys.argv[1:]
for name in hidden:
    sys.modules[name] = None
import retriever
try:
    scorer = retriever.load(path, engine=engine, device="cpu")
    print(scorer.query_projections(["who is it"]).shape)
except retriever.RetrieverError as error:
    print(error)
"""
#: What training needs and a serving install with torch does not bring.
OF_TRAINING = ("lightning", "pytorch_lightning", "torchmetrics", "datasets", "sklearn", "pyarrow")


def loaded(engine, path, *hidden, **environment):
    done = subprocess.run(
        [sys.executable, "-c", LOADS, engine, path, *hidden],
        env=os.environ | environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_the_torch_engine_runs_where_nothing_of_training_is_installed(tiny_artifact):
    hidden = (*OF_TRAINING, "onnx", "onnxscript", "onnxruntime", "tensorboard")
    assert loaded("torch", tiny_artifact, *hidden) == "(1, 16)"


@pytest.mark.parametrize("absent", ["torch", "transformers"])
def test_the_torch_engine_names_what_is_missing_and_where_to_get_it(tiny_artifact, absent):
    said = loaded("torch", tiny_artifact, absent)
    assert said.startswith(f"engine = 'torch' needs {absent}")
    assert "install precedent-memory[gpu]" in said


def test_a_scorer_leaves_no_trace_of_telemetry(tiny_artifact, tmp_path, monkeypatch):
    monkeypatch.delenv(runtime.TELEMETRY_OFF, raising=False)
    home = {"HOME": str(tmp_path), "XDG_CACHE_HOME": str(tmp_path / ".cache")}
    assert loaded("onnx", tiny_artifact, **home) == "(1, 16)"
    assert list(tmp_path.rglob("*")) == []


def test_onnxruntime_is_imported_where_telemetry_is_turned_off_and_nowhere_else():
    packages = ("retriever", "memory", "service", "harness", "benchmarks", "tests")
    found = {i.path for i in imports_below(*packages) if within(i.module, "onnxruntime")}
    # The second imports a submodule, after the first.
    assert found == {"retriever/engines/runtime.py", "retriever/learning/int8_graph.py"}


@pytest.mark.parametrize(("given", "left"), [(None, "1"), ("0", "0"), ("", ""), ("1", "1")])
def test_who_set_the_variable_is_obeyed(monkeypatch, given, left):
    monkeypatch.delenv(runtime.TELEMETRY_OFF, raising=False)
    if given is not None:
        monkeypatch.setenv(runtime.TELEMETRY_OFF, given)
    runtime.refuse_telemetry()
    assert os.environ[runtime.TELEMETRY_OFF] == left
    monkeypatch.setenv(runtime.TELEMETRY_OFF, "1")  # for the tests that follow


@pytest.mark.parametrize("name", ["threads", "gpu_memory_bytes", "batch_tokens"])
@pytest.mark.parametrize("wrong", [0, -5, 2.5, "2", True])
def test_a_number_that_is_none_is_refused_by_name(tiny_artifact, name, wrong):
    with pytest.raises(InvalidInput, match=f"{name} = "):
        retriever.load(tiny_artifact, device="cpu", **{name: wrong})


@pytest.mark.parametrize("option", [{"threads": 2}, {"gpu_memory_bytes": 1 << 30}])
def test_the_torch_engine_refuses_options_that_it_would_ignore(tiny_artifact, option):
    with pytest.raises(InvalidInput, match="only the ONNX engine takes it"):
        retriever.load(tiny_artifact, engine="torch", device="cpu", **option)
