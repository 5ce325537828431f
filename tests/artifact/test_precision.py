"""Precisions: what may be asked of which engine, and that their vectors never meet."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import safetensors.numpy
import torch

import retriever
from retriever import artifact
from retriever.device import Device
from retriever.embedders import projection_key
from retriever.engines.onnx import OnnxEngine
from retriever.engines.torch import TorchEngine
from retriever.errors import ArtifactForeign, ArtifactNotFound, InvalidInput
from retriever.learning.agreement import HALF_ERROR, scorers_agree

QUERIES = [f"what is the {word}" for word in ("city", "film", "team", "name", "river", "song")]
CASES = [f"who is the {word} of {n}" for n in range(6) for word in ("director", "king", "writer")]


@pytest.fixture(scope="module")
def halves(tiny_artifact):
    return {
        precision: retriever.load(tiny_artifact, "torch", "cpu", precision=precision)
        for precision in ("fp32", "fp16", "bf16")
    }


@pytest.mark.parametrize("precision", ["fp16", "bf16"])
def test_half_precision_stays_near_the_model_and_is_not_the_model(halves, precision):
    plain, half = halves["fp32"], halves[precision]
    assert half.precision == precision
    found = half.query_projections(QUERIES)
    assert found.dtype == np.float32
    assert not np.array_equal(found, plain.query_projections(QUERIES))
    assert np.allclose(half.embed(CASES), plain.embed(CASES), atol=5e-2)
    assert 0 < scorers_agree(plain, half, QUERIES, CASES).largest < HALF_ERROR


@pytest.mark.parametrize("precision", ["fp16", "bf16"])
def test_only_the_encoder_is_narrowed(tiny_artifact, precision):
    manifest = artifact.read_manifest(tiny_artifact)
    engine = TorchEngine(tiny_artifact, manifest, Device("cpu"), precision=precision)
    assert {p.dtype for p in engine._encoder.parameters()} == {
        torch.float16 if precision == "fp16" else torch.bfloat16
    }
    assert {p.dtype for p in engine._model.head.parameters()} == {torch.float32}


def test_every_precision_has_a_fingerprint_and_a_key_of_its_own(halves, scorer):
    prints = {name: one.fingerprint for name, one in halves.items()}
    assert prints["fp32"] == scorer.fingerprint  # both runtimes compute the same
    assert len(set(prints.values())) == 3
    assert len({projection_key(one) for one in prints.values()}) == 3


def test_auto_is_the_model_as_it_is_on_a_cpu(tiny_artifact, scorer):
    for engine in ("onnx", "torch"):
        chosen = retriever.load(tiny_artifact, engine, "cpu", precision="auto")
        assert (chosen.precision, chosen.fingerprint) == ("fp32", scorer.fingerprint)


@pytest.mark.parametrize(
    ("capability", "chosen"), [((7, 0), "fp16"), ((9, 0), "fp16"), ((6, 1), "fp32")]
)
def test_auto_on_a_gpu_is_fp16_where_the_gpu_is_built_for_it(monkeypatch, capability, chosen):
    from retriever.engines import torch as engine

    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    assert engine._chosen(torch.device("cuda", 0)) == chosen


@pytest.mark.parametrize(
    ("engine", "precision", "said"),
    [
        ("onnx", "fp16", "engine='torch'"),
        ("onnx", "bf16", "engine='torch'"),
        ("torch", "int8", "engine='onnx'"),
        ("onnx", "int4", "one of auto, fp32, fp16, bf16, int8"),
        ("tensorrt", "fp32", "one of onnx, torch"),
    ],
)
def test_a_precision_that_an_engine_does_not_have_is_refused(
    tiny_artifact, engine, precision, said
):
    with pytest.raises(InvalidInput, match=said):
        retriever.load(tiny_artifact, engine, "cpu", precision=precision)


def test_int8_without_such_an_encoder_names_the_command_that_makes_one(tiny_artifact):
    with pytest.raises(ArtifactNotFound, match=r"retriever\.learning\.quantise .*--data"):
        retriever.load(tiny_artifact, device="cpu", precision="int8")


def test_int8_on_a_gpu_is_refused_and_auto_takes_the_cpu(tiny_artifact, tmp_path):
    (tmp_path / artifact.ENCODER_INT8).write_bytes(
        (tiny_artifact / artifact.ENCODER_ONNX).read_bytes()
    )
    with pytest.raises(InvalidInput, match="runs on CPUs only"):
        OnnxEngine(tmp_path, Device.parse("cuda"), precision="int8")
    assert OnnxEngine(tmp_path, Device.parse("auto"), precision="int8").device == "cpu"


@pytest.mark.parametrize("threads", [0, -1])
def test_an_engine_without_threads_is_refused(tiny_artifact, threads):
    with pytest.raises(InvalidInput, match="threads"):
        retriever.load(tiny_artifact, device="cpu", threads=threads)


def test_the_number_of_threads_does_not_change_a_vector_beyond_rounding(tiny_artifact, scorer):
    two = retriever.load(tiny_artifact, device="cpu", threads=2)
    assert np.allclose(two.embed(QUERIES), scorer.embed(QUERIES), atol=1e-6)


def test_an_unlisted_int8_encoder_is_not_read(artifact_copy):
    (artifact_copy / artifact.ENCODER_INT8).write_bytes(b"anyone's")
    with pytest.raises(artifact.ArtifactCorrupt, match="not listed"):
        retriever.load(artifact_copy, device="cpu")


def test_a_manifest_from_before_int8_is_read(artifact_copy):
    manifest = artifact.read_manifest(artifact_copy)
    assert manifest.int8 == {}
    written = artifact.write_manifest(artifact_copy, dataclasses.replace(manifest, int8={"a": 1}))
    assert artifact.read_manifest(artifact_copy) == written


def test_a_head_with_tensors_of_a_later_version_is_refused_by_name(artifact_copy):
    path = artifact_copy / artifact.HEAD
    tensors = safetensors.numpy.load_file(path)
    tensors["case_rank"] = np.zeros((4, 2), np.float32)
    path.unlink()
    safetensors.numpy.save_file(tensors, path)
    artifact.write_manifest(artifact_copy, artifact.read_manifest(artifact_copy))
    with pytest.raises(ArtifactForeign, match=r"holds case_rank, which this version does not know"):
        retriever.load(artifact_copy, device="cpu")
