"""ONNX on CUDA through IO binding, against a fake that enforces what the runtime enforces."""

from __future__ import annotations

import sys
import threading

import numpy as np
import pytest

from retriever.artifact import ENCODER_ONNX
from retriever.device import Device
from retriever.engines import binding
from retriever.engines.binding import LENGTH_STEP, cuda_options, run_bound
from retriever.engines.onnx import CPU, CUDA, OnnxEngine

INPUTS = ("input_ids", "attention_mask")
WIDTHS = {"text_embedding": 5, "case_projection": 3, "query_projection": 4}


class Value:
    """An array that lies on a device."""

    def __init__(self, array, device, index):
        self.array, self.device, self.index = array, device, index

    @staticmethod
    def ortvalue_from_numpy(array, device="cpu", index=0):
        if not array.flags.c_contiguous:
            raise RuntimeError("only contiguous arrays can be copied")
        return Value(array.copy(), device, index)


class Binding:
    """Inputs and outputs of one run: complete before it, read once after it."""

    def __init__(self, session):
        self.session = session
        self.inputs, self.outputs, self.steps, self.results = {}, [], [], None

    def bind_ortvalue_input(self, name, value):
        if name not in INPUTS:
            raise RuntimeError(f"no input {name}")
        if (value.device, value.index) != ("cuda", self.session.index):
            raise RuntimeError(f"{name} lies on {value.device}:{value.index}")
        if value.array.dtype != np.int64 or value.array.ndim != 2:
            raise RuntimeError(f"{name} must be int64 (B, L)")
        self.inputs[name] = value.array

    def bind_output(self, name, device="cpu", index=0):
        if name not in WIDTHS:
            raise RuntimeError(f"no output {name}")
        if (device, index) != ("cuda", self.session.index):
            raise RuntimeError(f"output {name} is bound to {device}:{index}")
        self.outputs.append(name)

    def synchronize_inputs(self):
        self.steps.append("inputs")

    def synchronize_outputs(self):
        self.steps.append("outputs")

    def copy_outputs_to_cpu(self):
        assert self.steps == ["inputs", "run", "outputs"], self.steps
        assert self.results is not None, "read twice"
        results, self.results = self.results, None
        return results


class Session:
    """Gives every row the sum of its attended ids, as wide as the output named."""

    def __init__(self, index=0):
        self.index = index
        self.shapes = []
        self.running = threading.local()

    def get_providers(self):
        return [CUDA, CPU]

    def io_binding(self):
        return Binding(self)

    def run(self, *arguments):
        raise AssertionError("on CUDA everything goes through a binding")

    def run_with_iobinding(self, bound):
        assert bound.steps == ["inputs"], "run once, after the inputs have arrived"
        assert set(bound.inputs) == set(INPUTS)
        assert bound.outputs
        ids, mask = (bound.inputs[name] for name in INPUTS)
        assert ids.shape == mask.shape
        self.shapes.append(ids.shape)
        sums = (ids * mask).sum(axis=1, dtype=np.int64).astype(np.float16)
        bound.results = [np.repeat(sums[:, None], WIDTHS[n], axis=1) for n in bound.outputs]
        bound.steps.append("run")


@pytest.fixture
def runtime(monkeypatch):
    class Runtime:
        OrtValue = Value
        session = Session()

        class SessionOptions:
            def add_session_config_entry(self, key, value):
                pass

        @staticmethod
        def get_available_providers():
            return [CUDA, CPU]

        @classmethod
        def InferenceSession(cls, path, options, providers):
            cls.asked = providers
            cls.session.index = int(providers[0][1]["device_id"])
            return cls.session

    monkeypatch.setitem(sys.modules, "onnxruntime", Runtime)
    return Runtime


def texts(rows, length, seed=0):
    rng = np.random.default_rng(seed)
    ids = rng.integers(1, 9, size=(rows, length))
    mask = (np.arange(length)[None, :] < rng.integers(1, length + 1, size=rows)[:, None]).astype(
        np.int64
    )
    return ids.astype(np.int64), mask


@pytest.mark.parametrize(("rows", "length"), [(1, 1), (3, 16), (2, 17), (5, 40)])
def test_every_output_asked_for_comes_back_in_its_order_as_float32(runtime, rows, length):
    ids, mask = texts(rows, length)
    session = Session(index=1)
    outputs = ("query_projection", "text_embedding")
    found = run_bound(session, 1, ids, mask, outputs)
    expected = (ids * mask).sum(axis=1)
    for name, array in zip(outputs, found, strict=True):
        assert array.dtype == np.float32
        assert array.shape == (rows, WIDTHS[name])
        assert np.array_equal(array[:, 0], expected.astype(np.float32))


def test_lengths_are_padded_to_few_shapes_and_the_padding_is_masked(runtime):
    session = Session()
    for length in range(1, 2 * LENGTH_STEP + 1):
        run_bound(session, 0, *texts(2, length), ("text_embedding",))
    assert set(session.shapes) == {(2, LENGTH_STEP), (2, 2 * LENGTH_STEP)}


def test_a_slice_of_a_larger_array_is_made_contiguous(runtime):
    ids, mask = texts(6, 32)
    (found,) = run_bound(Session(), 0, ids[::2, :16], mask[::2, :16], ("text_embedding",))
    assert np.array_equal(found[:, 0], (ids * mask)[::2, :16].sum(axis=1))


def test_the_engine_on_cuda_binds_and_never_runs_from_host_memory(runtime, tmp_path):
    (tmp_path / ENCODER_ONNX).write_bytes(b"")
    engine = OnnxEngine(tmp_path, Device.parse("cuda:1"), gpu_memory_bytes=1 << 30)
    assert engine.device == "cuda:1"
    assert dict([runtime.asked[0]])[CUDA]["gpu_mem_limit"] == str(1 << 30)
    ids, mask = texts(2, 5)
    (found,) = engine.run(ids, mask, ("case_projection",))
    assert np.array_equal(found[:, 2], (ids * mask).sum(axis=1))


def test_threads_have_bindings_of_their_own(runtime):
    session = Session()
    wrong = []

    def ask(seed):
        for step in range(50):
            ids, mask = texts(3, 7, seed=100 * seed + step)
            (found,) = run_bound(session, 0, ids, mask, ("text_embedding",))
            if not np.array_equal(found[:, 0], (ids * mask).sum(axis=1)):
                wrong.append(seed)

    threads = [threading.Thread(target=ask, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_the_arena_takes_what_is_asked_for_a_limit_only_if_one_is_given_and_fp32_is_fp32():
    assert cuda_options(2, None) == {
        "device_id": "2",
        "arena_extend_strategy": "kSameAsRequested",
        "use_tf32": "0",
    }
    assert cuda_options(0, 123)["gpu_mem_limit"] == "123"


def test_importing_the_adapter_does_not_import_the_runtime():
    assert not hasattr(binding, "OrtValue")
