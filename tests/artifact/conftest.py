"""Scorers over the shared tiny artifact, and copies of it to tamper with."""

from __future__ import annotations

import shutil

import pytest
import torch

import retriever
from retriever.tokens import TextTokenizer


@pytest.fixture(scope="session", autouse=True)
def one_torch_thread():
    """Tiny models gain nothing from more, and lose much on a busy machine."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def scorer(tiny_artifact):
    return retriever.load(tiny_artifact, device="cpu")


@pytest.fixture(scope="session")
def torch_scorer(tiny_artifact):
    return retriever.load(tiny_artifact, engine="torch", device="cpu")


@pytest.fixture
def artifact_copy(tiny_artifact, tmp_path):
    return shutil.copytree(tiny_artifact, tmp_path / "retriever")


@pytest.fixture
def tokenizer(tiny_artifact):
    return TextTokenizer.from_file(tiny_artifact / "tokenizer.json", max_length=12, pad_id=0)
