"""Engines obey the device asked for; a runtime that falls back in silence is found out."""

from __future__ import annotations

import logging
import sys
from pathlib import Path

import pytest
import torch

from retriever.device import Device
from retriever.engines import onnx as onnx_engine
from retriever.engines.onnx import CPU, CUDA, open_session
from retriever.errors import DeviceUnavailable, RetrieverError
from retriever.learning.devices import torch_device


class Runtime:
    """An onnxruntime that has a CUDA provider, which starts or does not."""

    def __init__(self, available, starts):
        self.available = available
        self.starts = starts
        self.preloaded = False

    class SessionOptions:
        def add_session_config_entry(self, key, value):
            pass

    def get_available_providers(self):
        return self.available

    def preload_dlls(self):
        self.preloaded = True

    def InferenceSession(self, path, options, providers):
        return Session(providers if self.starts else [CPU])


class Session:
    def __init__(self, providers):
        self.asked = providers

    def get_providers(self):
        return [one if isinstance(one, str) else one[0] for one in self.asked]


@pytest.fixture
def install(monkeypatch):
    def installed(available, starts):
        runtime = Runtime(available, starts)
        monkeypatch.setitem(sys.modules, "onnxruntime", runtime)
        return runtime

    return installed


GRAPH = Path("encoder.onnx")


@pytest.mark.parametrize("device", ["cuda", "auto", "cuda:2"])
def test_cuda_that_starts_is_used_on_the_device_named_and_said(install, caplog, device):
    runtime = install([CUDA, CPU], starts=True)
    with caplog.at_level(logging.INFO, logger="retriever"):
        session = open_session(GRAPH, Device.parse(device))
    (cuda, options), cpu = session.asked
    assert (cuda, cpu) == (CUDA, CPU)
    assert options["device_id"] == ("2" if device == "cuda:2" else "0")
    assert options["arena_extend_strategy"] == "kSameAsRequested"
    assert "gpu_mem_limit" not in options
    assert options["use_tf32"] == "0"
    assert runtime.preloaded
    assert CUDA in caplog.text


def test_cuda_that_cannot_start_is_an_error_though_the_runtime_says_nothing(install):
    install([CUDA, CPU], starts=False)
    with pytest.raises(DeviceUnavailable, match=r"device=cuda:0: .*could not start.*device=cpu"):
        open_session(GRAPH, Device.parse("cuda"))


def test_cuda_that_is_not_built_in_names_the_package_to_install(install):
    install([CPU], starts=True)
    with pytest.raises(DeviceUnavailable, match=r"offers only .*precedent-memory\[gpu\]"):
        open_session(GRAPH, Device.parse("cuda"))


@pytest.mark.parametrize(("available", "starts"), [([CPU], True), ([CUDA, CPU], False)])
def test_auto_without_cuda_takes_the_cpu_and_says_why(install, caplog, available, starts):
    install(available, starts)
    with caplog.at_level(logging.INFO, logger="retriever"):
        session = open_session(GRAPH, Device.parse("auto"))
    assert session.get_providers() == [CPU]
    assert "device=auto: using the CPU" in caplog.text
    assert "install" not in caplog.text.replace("is installed", "")  # nothing is wrong
    assert ("no CUDA provider" if CUDA not in available else "could not start") in caplog.text


def test_the_cpu_by_name_never_touches_cuda(install):
    runtime = install([CUDA, CPU], starts=True)
    assert open_session(GRAPH, Device.parse("cpu")).asked == [CPU]
    assert not runtime.preloaded


def test_a_missing_onnxruntime_names_the_extra_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(RetrieverError, match=r"needs onnxruntime; install precedent-memory\[cpu\]"):
        onnx_engine.open_session(GRAPH, Device.parse("cpu"))


def gpus(monkeypatch, count):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: count > 0)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: count)


@pytest.mark.parametrize(
    ("asked", "count", "used"),
    [
        ("cpu", 2, "cpu"),
        ("auto", 0, "cpu"),
        ("auto", 2, "cuda:0"),
        ("cuda", 1, "cuda:0"),
        ("cuda:1", 2, "cuda:1"),
    ],
)
def test_torch_uses_the_device_asked_for(monkeypatch, asked, count, used):
    gpus(monkeypatch, count)
    assert str(torch_device(Device.parse(asked))) == used


@pytest.mark.parametrize(
    ("asked", "count", "message"),
    [
        ("cuda", 0, r"device=cuda:0: torch .* sees no CUDA device; use device=cpu"),
        ("cuda:2", 2, r"device=cuda:2: there are 2 CUDA devices, 0 to 1"),
    ],
)
def test_torch_refuses_a_gpu_that_is_not_there(monkeypatch, asked, count, message):
    gpus(monkeypatch, count)
    with pytest.raises(DeviceUnavailable, match=message):
        torch_device(Device.parse(asked))
