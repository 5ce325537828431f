"""Fixtures that more than one folder of tests needs."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

# Tiny models are slower on two threads than on one, and far slower on a busy machine.
os.environ.setdefault("OMP_NUM_THREADS", "1")

ROOT = Path(__file__).resolve().parents[1]


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what takes minutes unless it was asked for."""
    if "soak" in config.option.markexpr:
        return
    skip = pytest.mark.skip(reason="takes minutes: run it with -m soak")
    for item in items:
        if "soak" in item.keywords:
            item.add_marker(skip)


@pytest.fixture(scope="session")
def tiny_encoder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small random BERT and its tokenizer, as a folder that transformers reads."""
    from tests.tiny import make_tiny_encoder

    return make_tiny_encoder(tmp_path_factory.mktemp("encoder") / "tiny")


@pytest.fixture(scope="session")
def tiny_artifact(tmp_path_factory: pytest.TempPathFactory, tiny_encoder: Path) -> Path:
    """An exported retriever with random weights over the tiny encoder. Copy it to change it."""
    import torch

    from retriever.learning.config import EncoderConfig
    from retriever.learning.encoder import load_encoder
    from retriever.learning.export import ExportFacts, export_artifact
    from retriever.learning.model import CaseClassifier, SplitHead
    from retriever.types import Calibration

    encoder = load_encoder(EncoderConfig(source=str(tiny_encoder), max_length=64))
    with torch.random.fork_rng():
        torch.manual_seed(1)
        model = CaseClassifier(encoder.model, encoder.pooling, SplitHead(encoder.hidden_size, 16))
    path = tmp_path_factory.mktemp("artifact") / "retriever"
    facts = ExportFacts(
        source="tiny", calibration=Calibration(1.5, -0.25), case_texts=["[CASE]\nan old question"]
    )
    export_artifact(path, model, encoder.tokenizer, facts)
    return path


@pytest.fixture(scope="session")
def tiny_cosine_encoder(tmp_path_factory: pytest.TempPathFactory, tiny_encoder: Path) -> Path:
    """The tiny encoder exported untrained, as cosine mode uses it. Read only."""
    from retriever.learning.config import EncoderConfig
    from retriever.learning.encoder import load_encoder
    from retriever.learning.export import ExportFacts, export_artifact
    from retriever.learning.model import CaseClassifier

    encoder = load_encoder(EncoderConfig(source=str(tiny_encoder), max_length=64))
    model = CaseClassifier(encoder.model, encoder.pooling, None)
    path = tmp_path_factory.mktemp("artifact") / "cosine"
    export_artifact(path, model, encoder.tokenizer, ExportFacts(source="tiny"))
    return path


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The folder of real public files; skips the test where it is absent."""
    path = Path(os.environ.get("PRECEDENT_SHARED_DATA", ROOT.parent / "shared" / "data"))
    if not path.is_dir():
        pytest.skip(f"no real data at {path}; set PRECEDENT_SHARED_DATA to their folder")
    return path
