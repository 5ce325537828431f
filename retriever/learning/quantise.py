"""The encoder in 8 bits, and the gate that decides whether an artifact may hold it.

    python -m retriever.learning.quantise ARTIFACT --data LOG.jsonl

`encoder.int8.onnx` has 8-bit weights in the encoder's matrix products and quantises what flows into
them as it runs; embedding tables, pooling and head stay float32. Whether a ranking survives that
depends on the model, so it is measured, on queries the model has not met: the file is added only if
the gate of `retriever.learning.agreement` passes. Otherwise the command ends with status 2
and the artifact stays as it was.
"""

from __future__ import annotations

import argparse
import dataclasses
import logging
import os
import shutil
import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

import retriever
from retriever import artifact
from retriever.artifact import Manifest
from retriever.cli import reported
from retriever.errors import (
    ArtifactForeign,
    ArtifactNotFound,
    InvalidInput,
    ParityError,
    RetrieverError,
)
from retriever.files import folder_written_atomically
from retriever.learning.agreement import (
    INT8_CASES,
    INT8_QUERIES,
    Agreement,
    Labelled,
    agreement,
    scorers_agree,
)
from retriever.learning.data.rows import Rows
from retriever.learning.data.split import grouped_split
from retriever.learning.int8_graph import WEIGHTS, Recipe, quantise_graph, require_onnx
from retriever.types import Floats, Ids

if TYPE_CHECKING:
    from retriever.learning.data.outcome_log import OutcomeLog

_TIMED = 20
LISTED = "none is among the queries that the artifact lists as met (an encoder as it is met none)"
BY_LOG = (
    "the artifact does not list the queries it has met; only its training log as a whole is "
    "recognised, so a log that shares rows with it would count as unseen"
)

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Measured:
    """What the gate saw: the agreement, and a single query's median time in ms both ways."""

    agreement: Agreement
    fp32_ms: float
    int8_ms: float

    def to_json(self) -> dict[str, Any]:
        """For the manifest: numbers, None where one is not defined."""
        figures = {**dataclasses.asdict(self.agreement), "fp32_ms": self.fp32_ms}
        figures["int8_ms"] = self.int8_ms
        return {name: None if value != value else value for name, value in figures.items()}


@dataclass(frozen=True, slots=True)
class Sample:
    """The texts that both forms are compared on: Q queries, N rendered cases, logged pairs.

    `unseen` says how it is known that the model has not met the queries; it goes into the manifest.
    """

    queries: list[str]
    cases: list[str]
    labelled: Labelled
    unseen: str = "the caller's word"


def add_int8(path: Path, sample: Sample, recipe: Recipe | None = None) -> Measured:
    """Quantise, measure, and put `encoder.int8.onnx` into the artifact at `path` if it may be used.

    An earlier one is replaced. A process that serves the artifact goes on with the files it opened.

    Raises:
        ParityError: the gate refused; the message holds reasons and figures, nothing was written.
            Also for fewer distinct texts than the gate can decide by.
        ArtifactNotFound: the artifact was exported without ONNX.
        RetrieverError: what quantises is not installed.
    """
    recipe = recipe or Recipe()
    path = path.resolve()
    manifest = _manifest(path)
    artifact.verify(path, manifest)
    if artifact.ENCODER_ONNX not in manifest.files:
        raise ArtifactNotFound(
            f"{path / artifact.ENCODER_ONNX} does not exist: only an artifact exported with ONNX "
            "can be quantised; train with export.onnx=true"
        )
    _refuse_few(path, manifest.kind, sample)
    with folder_written_atomically(path) as folder:
        _copy(path, folder)
        quantise_graph(folder / artifact.ENCODER_ONNX, folder / artifact.ENCODER_INT8, recipe)
        artifact.write_manifest(folder, manifest)
        measured = _measured(folder, manifest.kind, sample)
        refusals = measured.agreement.int8_refusals()
        if refusals:
            raise ParityError(
                f"the int8 encoder is refused: {'; '.join(refusals)} ({described(measured)}); "
                f"{path} was left as it was; use fp32, or try another recipe (--help)"
            )
        made = {
            "recipe": dataclasses.asdict(recipe),
            "gate": measured.to_json(),
            "unseen": sample.unseen,
        }
        artifact.write_manifest(folder, dataclasses.replace(manifest, int8=made))
    log.info("int8 encoder added to %s: %s", path, described(measured))
    return measured


def _refuse_few(path: Path, kind: str, sample: Sample) -> None:
    """Before any work: repeated texts show nothing, so it is the distinct ones that count."""
    queries = len(set(sample.queries))
    # A query of an untrained encoder is compared with the other queries.
    cases = queries - 1 if kind == artifact.UNTRAINED else len(set(sample.cases))
    if queries < INT8_QUERIES or cases < INT8_CASES:
        raise ParityError(
            f"the int8 encoder is refused: {queries} queries and {cases} cases are too few to tell "
            f"whether it ranks as float32 does, at least {INT8_QUERIES} and {INT8_CASES} are "
            f"needed; {path} was left as it was; use fp32, or give a larger log of queries that "
            "the model has not met"
        )


def sample_of(
    manifest: Manifest,
    data: OutcomeLog,
    *,
    queries: int,
    cases: int,
    met: frozenset[str] | None = None,
    validation_fraction: float = 0.1,
    test_fraction: float = 0.1,
    seed: int = 0,
) -> Sample:
    """What to compare on: queries the model has not met, their logged pairs, and more cases.

    Each query is looked up among those the artifact lists. An artifact that lists none is the older
    kind, or of an unknown log: then only the log as a whole is recognised, byte by byte. If it is
    the training log, its split is made again and the test side taken (validation, where there is no
    test); any other log, also one that shares rows with it, is taken whole, with a warning.

    Args:
        manifest: the artifact's.
        data: the log.
        queries: at most so many, drawn at random.
        cases: so many cases, or those of the pairs, whichever is more.
        met: `retriever.artifact.training_queries` of the artifact.
        validation_fraction: as training had it.
        test_fraction: as training had it.
        seed: of the draw.

    Raises:
        InvalidInput: the split cannot be made again with these fractions, or the model has met
            every query of the log.
    """
    facts = manifest.training
    rows = data.rows(use_plan=bool(facts.get("use_plan", True)))
    rng = np.random.default_rng(seed)
    if met is not None or manifest.kind == artifact.UNTRAINED:
        held_out = _not_met(rows, str(facts.get("case_key")), met or frozenset())
        return dataclasses.replace(drawn(rows, held_out, queries, cases, rng), unseen=LISTED)
    log.warning("%s", BY_LOG)
    held_out = rows
    if facts.get("log_digest") == data.digest:
        split = grouped_split(
            rows,
            validation_fraction=validation_fraction,
            test_fraction=test_fraction,
            seed=int(facts.get("seed", 0)),
        )
        if split.digest != facts.get("split_digest"):
            raise InvalidInput(
                "the artifact was trained on this log, and the split of that run cannot be made "
                f"again with validation_fraction={validation_fraction:g} and "
                f"test_fraction={test_fraction:g}; give the fractions of that run, or a log of "
                "other queries"
            )
        held_out = rows.take(split.test if len(split.test) else split.validation)
    return dataclasses.replace(drawn(rows, held_out, queries, cases, rng), unseen=BY_LOG)


def _not_met(rows: Rows, key: str, met: frozenset[str]) -> Rows:
    unknown = [not met or artifact.query_digest(key, text) not in met for text in rows.query_texts]
    kept = rows.take(np.flatnonzero(np.asarray(unknown, dtype=np.bool_)[rows.query]))
    if not len(kept):
        raise InvalidInput(
            "the model has met every query of this log in its training; give a log with other "
            "queries to compare on"
        )
    return kept


def drawn(rows: Rows, held_out: Rows, queries: int, cases: int, rng: np.random.Generator) -> Sample:
    """At most so many queries of the rows `held_out`, their pairs, and at least so many cases.

    Cases are those of the pairs, and, up to `cases`, others of `rows`, whose numbering both share.
    """
    asked = np.unique(held_out.query)
    asked = np.sort(rng.permutation(asked)[:queries])
    pairs = held_out.take(np.isin(held_out.query, asked))
    shown = np.unique(pairs.case)
    others = np.setdiff1d(np.unique(rows.case), shown)
    shown = np.sort(np.concatenate([shown, rng.permutation(others)[: max(0, cases - len(shown))]]))
    return Sample(
        [rows.query_texts[i] for i in asked],
        [rows.case_texts[i] for i in shown],
        Labelled(_places(asked, pairs.query), _places(shown, pairs.case), pairs.outcome),
    )


def described(measured: Measured) -> str:
    """The figures in one line."""
    found = measured.agreement
    change = "no labels"
    if found.auc_change == found.auc_change:
        change = f"{found.auc_change:+.4f} [{found.auc_low:+.4f}, {found.auc_high:+.4f}]"
    return (
        f"top-8 overlap {found.overlap:.3f} [{found.overlap_low:.3f}, {found.overlap_high:.3f}], "
        f"Kendall's tau {found.kendall:.3f}, largest score error {found.largest:.3g} (scores "
        f"spread {found.spread:.3g}), mean shift {found.shift:+.2g}, change of AUC {change}; "
        f"{found.queries} queries x {found.cases} cases, {found.pairs} logged pairs; "
        f"a query {measured.fp32_ms:.2f} -> {measured.int8_ms:.2f} ms"
    )


def _manifest(path: Path) -> Manifest:
    try:
        return artifact.read_manifest(path, kind=artifact.RETRIEVER)
    except ArtifactForeign:
        return artifact.read_manifest(path, kind=artifact.UNTRAINED)


def _measured(folder: Path, kind: str, sample: Sample) -> Measured:
    if kind == artifact.UNTRAINED:
        plain = retriever.load_encoder(folder, device="cpu")
        small = retriever.load_encoder(folder, device="cpu", precision="int8")
        found = _encoders_agree(plain.embed(sample.queries), small.embed(sample.queries))
        times = _times(sample.queries, plain.embed, small.embed)
    else:
        scorer = retriever.load(folder, device="cpu")
        narrow = retriever.load(folder, device="cpu", precision="int8")
        found = scorers_agree(scorer, narrow, sample.queries, sample.cases, sample.labelled)
        times = _times(sample.queries, scorer.query_projections, narrow.query_projections)
    return Measured(found, *times)


def _encoders_agree(plain: Floats, small: Floats) -> Agreement:
    """As cosine mode compares: every query with all the others. (Q, E), (Q, E)."""
    return agreement(plain @ plain.T, small @ small.T, excluded=np.eye(len(plain), dtype=np.bool_))


def _times(queries: Sequence[str], *ways: Any) -> list[float]:
    """Median ms of one query by each way, in turn, after one that is not timed."""
    taken: list[list[float]] = [[] for _ in ways]
    for number, query in enumerate([queries[0], *queries[:_TIMED]]):
        for way, times in zip(ways, taken, strict=True):
            started = time.perf_counter()
            way([query])
            if number:
                times.append(1000 * (time.perf_counter() - started))
    return [statistics.median(times) for times in taken]


def _places(sorted_numbers: Ids, wanted: Ids) -> Ids:
    return np.searchsorted(sorted_numbers, wanted).astype(np.int64)


def _copy(source: Path, target: Path) -> None:
    """All files but the manifest, by hard link where the file system has them."""
    for path in sorted(source.rglob("*")):
        name = path.relative_to(source)
        if path.is_dir():
            (target / name).mkdir(exist_ok=True)
        elif name.as_posix() not in (artifact.MANIFEST, artifact.ENCODER_INT8):
            try:
                os.link(path, target / name)
            except OSError:
                shutil.copy2(path, target / name)


def _read_log(path: str) -> OutcomeLog:
    """The log at `path`; what reads logs is no part of a serving install."""
    try:
        from retriever.learning.data.outcome_log import read_outcome_log
    except ModuleNotFoundError as error:
        raise RetrieverError(
            f"reading an outcome log needs {error.name}, which is not installed; install "
            "precedent-memory[train]"
        ) from error
    return read_outcome_log(path)


def main(argv: Sequence[str] | None = None) -> None:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="python -m retriever.learning.quantise",
        description="Add an int8 encoder to an artifact, if its ranking agrees with fp32.",
    )
    parser.add_argument("artifact", type=Path, help="a trained retriever, or an exported encoder")
    parser.add_argument("--data", required=True, help="an outcome log to compare on")
    parser.add_argument("--queries", type=int, default=200, help="at most so many (200)")
    parser.add_argument(
        "--cases",
        type=int,
        default=1500,
        help="so many, or all that are logged with the queries (1500)",
    )
    parser.add_argument(
        "--validation-fraction",
        type=float,
        default=0.1,
        help="of the training run (0.1); asked for only where an artifact lists no queries",
    )
    parser.add_argument("--test-fraction", type=float, default=0.1, help="of the same (0.1)")
    parser.add_argument("--weights", choices=WEIGHTS, default="int8")
    parser.add_argument("--per-tensor", action="store_true", help="one scale for a whole matrix")
    parser.add_argument(
        "--full-range", action="store_true", help="8 bits instead of 7: wants VNNI everywhere"
    )
    given = parser.parse_args(argv)
    logging.basicConfig(format="%(message)s")
    with reported(RetrieverError, OSError):
        if given.queries < 1 or given.cases < 2:
            raise InvalidInput(f"--queries {given.queries} --cases {given.cases}: at least 1 and 2")
        manifest = _manifest(given.artifact)
        require_onnx()
        sample = sample_of(
            manifest,
            _read_log(given.data),
            met=artifact.training_queries(given.artifact, manifest),
            queries=given.queries,
            cases=given.cases,
            validation_fraction=given.validation_fraction,
            test_fraction=given.test_fraction,
        )
        recipe = Recipe(given.weights, not given.per_tensor, not given.full_range)
        measured = add_int8(given.artifact, sample, recipe)
        sys.stdout.write(f"{given.artifact}: int8 encoder added; {described(measured)}\n")


if __name__ == "__main__":
    main()
