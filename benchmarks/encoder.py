"""The encoder on CPUs: one query's latency, many cases' throughput, and int8 before its gate.

    python -m benchmarks.encoder               # about two minutes
    python -m benchmarks.encoder --quick       # a tiny encoder, under a minute

What `retriever.engines.onnx` and `retriever.batching` chose, beside what they did not: threads,
spinning, memory arena and pattern; one text at a time, full batches, small batches. All by turns in
one process, medians over the rounds. The int8 encoder is measured whether or not its gate would let
it pass, and the gate's figures are printed: queries x cases of Memento's log, with an untrained
head unless `--artifact` names a trained one.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

if not __package__:  # run as a file: Python put this folder on the path, not the project's
    sys.path[0] = str(Path(__file__).resolve().parents[1])

from benchmarks import retrieve
from benchmarks.figures import Figure, refusing, result_line
from retriever.artifact import ENCODER_INT8, ENCODER_ONNX, read_manifest
from retriever.batching import batches_by_length, pad, small_batches
from retriever.cores import granted_cores
from retriever.engines.runtime import import_runtime
from retriever.errors import RetrieverError
from retriever.head import Head
from retriever.learning.agreement import INT8_OVERLAP, scorers_agree
from retriever.learning.int8_graph import Recipe, quantise_graph
from retriever.scorer import as_case_text, load
from retriever.tokens import TextTokenizer
from retriever.types import Floats, Ids

Tokens = list[Ids]


class Session:
    """An ONNX session with settings of its own; a call a batch."""

    def __init__(
        self,
        path: Path,
        threads: int,
        *,
        spinning: bool = False,
        arena: bool = True,
        pattern: bool = True,
    ) -> None:
        onnxruntime = import_runtime()
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        options.inter_op_num_threads = 1
        options.log_severity_level = 3
        options.enable_cpu_mem_arena = arena
        options.enable_mem_pattern = pattern
        options.add_session_config_entry("session.intra_op.allow_spinning", str(int(spinning)))
        self._session = onnxruntime.InferenceSession(
            str(path), options, providers=["CPUExecutionProvider"]
        )

    def run(self, tokens: Tokens, output: str = "query_projection") -> Floats:
        """One batch, padded: B texts -> (B, D)."""
        ids, mask = pad(tokens, 0)
        (found,) = self._session.run([output], {"input_ids": ids, "attention_mask": mask})
        return np.asarray(found)


class Forms:
    """The scores of an artifact by one of its graphs, one text at a time."""

    def __init__(self, head: Any, session: Session, tokenizer: TextTokenizer) -> None:
        self.head, self._session, self._tokenizer = head, session, tokenizer

    def query_projections(self, queries: Sequence[str]) -> Floats:
        """Q queries -> (Q, D)."""
        return self._all(queries, "query_projection")

    def project_texts(self, texts: Sequence[str]) -> Floats:
        """N case texts -> (N, D)."""
        return self._all(texts, "case_projection")

    def _all(self, texts: Sequence[str], output: str) -> Floats:
        rows = [self._session.run([one], output) for one in self._tokenizer.encode(texts)]
        return np.concatenate(rows)


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, print the tables, and end with the line of JSON."""
    options = parse(arguments)
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        with refusing():
            cases, queries = retrieve.texts_of(options)
        every = [as_case_text(case) for case in cases]
        texts = every[: options.cases]
        artifact = options.artifact or retrieve.made_artifact(folder, options, texts)
        with refusing(RetrieverError):
            facts = read_manifest(artifact).encoder
            head = load(artifact, device="cpu").head
        tokenizer = TextTokenizer.from_file(
            artifact / "tokenizer.json", max_length=facts.max_length, pad_id=facts.pad_id
        )
        int8 = folder / ENCODER_INT8
        quantise_graph(artifact / ENCODER_ONNX, int8, Recipe())
        figures = latencies(artifact / ENCODER_ONNX, int8, tokenizer.encode(queries), options)
        figures |= throughputs(artifact / ENCODER_ONNX, int8, tokenizer.encode(texts), options)
        figures |= gate(head, (artifact / ENCODER_ONNX, int8), tokenizer, queries, every, options)
    width = max(map(len, figures))
    for name, figure in figures.items():
        print(f"{name:<{width}}  {figure.value:>10.4g} {figure.unit}")
    print(result_line("encoder", figures, threads=options.threads))


def latencies(
    plain: Path, int8: Path, queries: Tokens, options: argparse.Namespace
) -> dict[str, Figure]:
    """Median ms of a single query under each setting; the first is the one shipped."""
    count = options.threads
    ways = {
        "shipped": Session(plain, count),
        "one_thread": Session(plain, 1),
        "spinning": Session(plain, count, spinning=True),
        "no_arena": Session(plain, count, arena=False),
        "no_pattern": Session(plain, count, pattern=False),
        "int8": Session(int8, count),
        "int8_one_thread": Session(int8, 1),
    }
    taken: dict[str, list[float]] = {name: [] for name in ways}
    for number, query in enumerate([queries[0], *queries]):
        for name, session in ways.items():
            ms = _ms(lambda s=session, q=query: s.run([q]))
            if number:
                taken[name].append(ms)
    figures = {f"query_{name}": Figure(statistics.median(ms), "ms") for name, ms in taken.items()}
    ratios = [a / b for a, b in zip(taken["shipped"], taken["int8"], strict=True)]
    figures["query_int8_speedup"] = Figure(statistics.median(ratios), "x")
    return figures


def throughputs(
    plain: Path, int8: Path, cases: Tokens, options: argparse.Namespace
) -> dict[str, Figure]:
    """Cases a second by batching; padded tokens over tokens; all on the threads granted."""
    lengths = [len(case) for case in cases]
    one_by_one = [np.array([i]) for i in range(len(cases))]
    ways: dict[str, tuple[Path, list[Ids]]] = {
        "small_batches": (plain, small_batches(lengths, 16_384)),
        "full_batches": (plain, batches_by_length(lengths, 16_384)),
        "one_by_one": (plain, one_by_one),
        "int8_one_by_one": (int8, one_by_one),
        "int8_small_batches": (int8, small_batches(lengths, 16_384)),
    }
    sessions = {path: Session(path, options.threads) for path in (plain, int8)}
    rates: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(options.rounds):
        for name, (path, batches) in ways.items():
            ms = _ms(lambda p=path, b=batches: _through(sessions[p], cases, b))
            rates[name].append(1000 * len(cases) / ms)
    figures = {
        f"cases_{name}": Figure(statistics.median(rate), "cases/s") for name, rate in rates.items()
    }
    for name in ("small_batches", "full_batches"):
        padded = sum(len(batch) * max(lengths[i] for i in batch) for batch in ways[name][1])
        figures[f"padding_{name}"] = Figure(padded / sum(lengths) - 1, "share")
    return figures


def gate(
    head: Head,
    graphs: tuple[Path, Path],
    tokenizer: TextTokenizer,
    queries: list[str],
    texts: list[str],
    options: argparse.Namespace,
) -> dict[str, Figure]:
    """How far it ranks as the model over all cases; labels and held-out queries: `quantise`."""
    plain, small = (Forms(head, Session(path, options.threads), tokenizer) for path in graphs)
    found = scorers_agree(plain, small, queries, texts)
    reasons = found.int8_refusals()
    print(f"int8 gate: {'passes' if not reasons else 'refuses: ' + '; '.join(reasons)}")
    return {
        "int8_top8_overlap": Figure(
            found.overlap, "share", None if options.quick else INT8_OVERLAP
        ),
        "int8_kendall": Figure(found.kendall, "tau"),
        "int8_largest_error": Figure(found.largest, "logit"),
        "score_spread": Figure(found.spread, "logit"),
    }


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """The options, with what depends on `--quick` filled in."""
    parser = argparse.ArgumentParser(description="The encoder on CPUs, beside other settings.")
    parser.add_argument("--artifact", type=Path, help="a trained retriever (one is made here)")
    parser.add_argument("--data", type=Path, help="Memento's folder with memory.jsonl")
    parser.add_argument("--queries", type=int, help="60; 10 with --quick")
    parser.add_argument("--cases", type=int, help="256; 40 with --quick")
    parser.add_argument("--rounds", type=int, help="5; 2 with --quick")
    parser.add_argument("--threads", type=int, default=granted_cores(physical=True))
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--quick", action="store_true", help="a tiny encoder, few texts")
    options = parser.parse_args(arguments)
    quick = {"queries": 10, "cases": 40, "rounds": 2}
    for name, usual in (("queries", 60), ("cases", 256), ("rounds", 5)):
        if getattr(options, name) is None:
            setattr(options, name, quick[name] if options.quick else usual)
    if min(options.queries, options.rounds, options.threads) < 1 or options.cases < 2:
        parser.error("--queries, --rounds, --threads: at least 1; --cases: at least 2")
    retrieve.find_data(parser, options)
    return options


def _through(session: Session, texts: Tokens, batches: list[Ids]) -> None:
    for batch in batches:
        session.run([texts[int(i)] for i in batch], "case_projection")


def _ms(work: Callable[[], Any]) -> float:
    started = time.perf_counter()
    work()
    return 1000 * (time.perf_counter() - started)


if __name__ == "__main__":
    main()
