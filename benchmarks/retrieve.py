"""Text in, ranked cases out: one query against Memento's bank, and against Memento's way.

    python -m benchmarks.retrieve              # about three minutes
    python -m benchmarks.retrieve --full       # Memento's way over the whole bank, once a round
    python -m benchmarks.retrieve --quick      # a tiny encoder, under a minute

Ours is `Searcher.search` over a SQLite bank whose projections are cached: tokenise the query,
encode it, scan all cases, read the hits' ids. Memento's way (Memento-Teams/Memento,
`memory/parametric_memory.py`) encodes every case anew for every query. Three figures stand for it:

* a pair at a time in torch, as its classifier's forward pass does: both texts of every pair
* the same with the query encoded once a search
* as well as it can be done: all cases anew, but in batches by ONNX Runtime

In its favour, texts are tokenised by a fast tokenizer, and only encoding and head are timed; of
both ways in torch half of a round's cases go through it with one thread, half with all, and the
faster half counts. Both sides use the same weights, and their scores are compared before anything
is timed. Every figure is a median over the rounds, of which there are at least three.

Without `--full`, Memento's way is timed on a random sample of cases a round and scaled to the bank.
Every query is asked once, none is a question of the bank, and the query cache is off, but for the
figure that is about it.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

if not __package__:  # run as a file: Python put this folder on the path, not the project's
    sys.path[0] = str(Path(__file__).resolve().parents[1])

import retriever
from benchmarks.figures import Figure, refusing, result_line
from benchmarks.planted import planted_rows, random_encoder
from memory import BankConfig, CaseBank, NewCase
from retriever.artifact import read_manifest
from retriever.cores import granted_cores
from retriever.embedders import CaseProjector
from retriever.errors import RetrieverError
from retriever.learning.config import EncoderConfig, ModelConfig, PlantedConfig
from retriever.learning.encoder import load_encoder
from retriever.learning.export import ExportFacts, export_artifact
from retriever.learning.model import CaseClassifier, SplitHead, load_model
from retriever.scorer import Scorer, as_case_text
from retriever.searcher import Searcher
from retriever.types import Floats

ROOT = Path(__file__).resolve().parents[1]
TARGET_RATIO = 4000.0
SHOWN = 8
LARGEST_DIFFERENCE = 1e-4
LEAST_ROUNDS = 3
WARM = 5  # queries asked before the clock runs, and not again


@dataclass
class Times:
    """Milliseconds of every query (ours), and of a whole search the other ways, by round.

    `pair` is of one pair in Memento's way.
    """

    ours: list[float] = field(default_factory=list)
    tokens: list[float] = field(default_factory=list)
    encoder: list[float] = field(default_factory=list)
    scan: list[float] = field(default_factory=list)
    cached: list[float] = field(default_factory=list)
    memento: list[float] = field(default_factory=list)
    pair: list[float] = field(default_factory=list)
    once: list[float] = field(default_factory=list)  # with the query encoded once
    batched: list[float] = field(default_factory=list)
    ratios: list[float] = field(default_factory=list)
    once_ratios: list[float] = field(default_factory=list)
    batched_ratios: list[float] = field(default_factory=list)


class Clock:
    """Adds up, in `ms`, the time that one method of one object takes."""

    def __init__(self, thing: Any, method: str) -> None:
        self.ms = 0.0
        work = getattr(thing, method)

        def timed(*arguments: Any, **named: Any) -> Any:
            started = time.perf_counter()
            try:
                return work(*arguments, **named)
            finally:
                self.ms += 1000 * (time.perf_counter() - started)

        setattr(thing, method, timed)


class MementoWay:
    """Every case through the encoder for every query, one text at a time, in torch."""

    def __init__(self, artifact: Path, scorer: Scorer, cases: Sequence[str]) -> None:
        self._model = load_model(artifact, read_manifest(artifact)).eval()
        self._tokenizer = scorer._texts.tokenizer
        self._cases = cases

    @torch.inference_mode()
    def logits(self, query: str, numbers: Sequence[int]) -> Floats:
        """The scores of the cases with these numbers, the query encoded once: (n,)."""
        asked = self._encode(query)
        found = [self._score(asked, self._encode(self._cases[number])) for number in numbers]
        return np.array(found, dtype=np.float32)

    @torch.inference_mode()
    def pairs(self, query: str, numbers: Sequence[int]) -> Floats:
        """The same scores as the classifier's forward pass gives them: both texts of every pair."""
        found = [
            self._score(self._encode(query), self._encode(self._cases[number]))
            for number in numbers
        ]
        return np.array(found, dtype=np.float32)

    def _score(self, asked: torch.Tensor, case: torch.Tensor) -> float:
        head = self._model.head
        assert head is not None
        return float(head(head.case(case), head.query(asked)))

    def _encode(self, text: str) -> torch.Tensor:
        (ids,) = self._tokenizer.encode([text])
        read = torch.from_numpy(ids).unsqueeze(0)
        return self._model.encode(read, torch.ones_like(read))


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, print the tables, and end with the line of JSON."""
    options = parse(arguments)
    torch.set_num_threads(options.threads)
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        with refusing():
            cases, queries = texts_of(options)
        artifact = options.artifact or made_artifact(folder, options, [c.query for c in cases])
        with refusing(RetrieverError):
            scorer = retriever.load(
                artifact, device="cpu", precision=options.precision, threads=options.threads
            )
        started = time.perf_counter()
        with CaseBank.open(
            folder / "bank.sqlite",
            projections=CaseProjector(scorer),
            config=BankConfig(vectors="float32"),
        ) as bank:
            bank.add(cases)
            seconds = time.perf_counter() - started
            print(f"bank     {bank.count()} cases, added and projected in {seconds:.1f} s")
            times = measured(options, artifact, scorer, bank, queries)
    load = os.getloadavg()[0]
    if load > options.threads + 1:
        print(f"\nload {load:.1f}: others are at work here, and these are no figures of record")
    print()
    print(as_table(times, options, len(cases)))
    figures = figures_of(times, None if options.quick else TARGET_RATIO)
    print(result_line("retrieve", figures, torch=torch.__version__, threads=options.threads))


def measured(
    options: argparse.Namespace,
    artifact: Path,
    scorer: Scorer,
    bank: CaseBank,
    queries: list[str],
) -> Times:
    """All ways by turns: a share of the queries, then Memento's way, then the batched one."""
    stored = bank.list(limit=bank.count())
    texts = [as_case_text(case) for case in stored]
    memento = MementoWay(artifact, scorer, texts)
    cached = Searcher(bank, scorer, threads=options.threads, cached_queries=10_000)
    searcher = Searcher(bank, scorer, threads=options.threads)
    rng = np.random.default_rng(options.seed)
    check_scores(searcher, memento, queries[0], stored)
    for query in queries[:WARM]:
        searcher.search([query], SHOWN)
        cached.search([query], SHOWN)
        memento.pairs(query, [0])
    # Inside the search, where they happen: the parts then add up to the whole.
    parts = {
        "tokens": Clock(scorer._texts.tokenizer, "encode"),
        "encoder": Clock(scorer._texts.engine, "run"),
        "scan": Clock(searcher._scanner, "top_k"),
    }
    times = Times()
    for number, share in enumerate(np.array_split(np.array(queries[WARM:]), options.rounds)):
        before = len(times.ours)
        for query in share.tolist():
            one_query(query, times, searcher, parts)
        for query in share.tolist():
            cached.search([query], SHOWN)
            times.cached.append(_ms(lambda q=query: cached.search([q], SHOWN)))
        sample = (
            np.arange(len(texts))
            if options.full
            else rng.choice(len(texts), size=min(options.sample, len(texts)), replace=False)
        )
        whole = len(texts) / len(sample)
        given = share.tolist()[0], sample.tolist(), options.threads
        times.memento.append(whole * memento_ms(memento.pairs, *given))
        times.pair.append(times.memento[-1] / len(texts))
        times.once.append(whole * memento_ms(memento.logits, *given))
        again = [texts[i] for i in sample]
        times.batched.append(whole * _ms(lambda t=again: scorer.project_texts(t)))
        median = statistics.median(times.ours[before:])
        times.ratios.append(times.memento[-1] / median)
        times.once_ratios.append(times.once[-1] / median)
        times.batched_ratios.append((times.batched[-1] + median) / median)
        print(
            f"round {number + 1} of {options.rounds}: a query {median:.2f} ms, Memento's way "
            f"{times.memento[-1] / 1000:.1f} s, {times.ratios[-1]:,.0f}x",
            flush=True,
        )
    return times


def one_query(query: str, times: Times, searcher: Searcher, parts: dict[str, Clock]) -> None:
    """One search, whole and by its parts."""
    for clock in parts.values():
        clock.ms = 0.0
    times.ours.append(_ms(lambda: searcher.search([query], SHOWN)))
    for name, clock in parts.items():
        getattr(times, name).append(clock.ms)


def memento_ms(
    way: Callable[[str, Sequence[int]], Any], query: str, sample: list[int], threads: int
) -> float:
    """With one thread or with all, whichever is faster: on a busy machine torch's wait on others.

    Half of the sample each way, the same number of cases; the faster half stands for both.
    """
    halves = sample[::2], sample[1::2] or sample
    paces = []
    for count, half in zip((1, threads), halves, strict=True):
        torch.set_num_threads(count)
        paces.append(_ms(lambda h=half: way(query, h)) / len(half))
    return min(paces) * len(sample)


def check_scores(
    searcher: Searcher, memento: MementoWay, query: str, stored: Sequence[Any]
) -> None:
    """Stop unless both ways give the best cases of a query the same scores."""
    numbers = {case.id: number for number, case in enumerate(stored)}
    (hits,) = searcher.search([query], SHOWN)
    best = [numbers[hit.id] for hit in hits]
    ours = np.array([hit.logit for hit in hits])
    difference = max(
        float(np.abs(ours - way(query, best)).max()) for way in (memento.pairs, memento.logits)
    )
    print(f"the scores of {len(hits)} hits differ by {difference:.1e}\n")
    if not difference <= LARGEST_DIFFERENCE:
        print("(more than rounding: an int8 encoder, or two models)", file=sys.stderr)


def figures_of(times: Times, target: float | None = None) -> dict[str, Figure]:
    """Medians; only the ratio may have a target, and only with the encoder it is about."""
    total = statistics.median(times.ours)
    parts = {
        name: statistics.median(getattr(times, name)) for name in ("tokens", "encoder", "scan")
    }
    return {
        "ratio": Figure(statistics.median(times.ratios), "x", target),
        "ratio_query_once": Figure(statistics.median(times.once_ratios), "x"),
        "query_ms": Figure(total, "ms"),
        "query_p95_ms": Figure(float(np.percentile(times.ours, 95)), "ms"),
        **{f"{name}_ms": Figure(value, "ms") for name, value in parts.items()},
        "rest_ms": Figure(total - sum(parts.values()), "ms"),
        "cached_query_ms": Figure(statistics.median(times.cached), "ms"),
        "memento_s": Figure(statistics.median(times.memento) / 1000, "s"),
        "memento_pair_ms": Figure(statistics.median(times.pair), "ms"),
        "memento_query_once_s": Figure(statistics.median(times.once) / 1000, "s"),
        "batched_onnx_s": Figure(statistics.median(times.batched) / 1000, "s"),
        "ratio_to_batched_onnx": Figure(statistics.median(times.batched_ratios), "x"),
    }


def as_table(times: Times, options: argparse.Namespace, cases: int) -> str:
    """The split of a query's time, and the ways beside each other."""
    found = {name: figure.value for name, figure in figures_of(times).items()}
    whole = "in full" if options.full else f"on {options.sample} cases a round, scaled"
    lines = [f"one query, {cases} cases, k = {SHOWN}, medians of {len(times.ours)} queries"]
    for name in ("tokens", "encoder", "scan", "rest"):
        share = found[f"{name}_ms"] / found["query_ms"]
        lines.append(f"  {name:<28}{found[f'{name}_ms']:>10.3f} ms {share:>8.1%}")
    lines += [
        f"  {'together':<28}{found['query_ms']:>10.3f} ms   (95 %: {found['query_p95_ms']:.2f})",
        f"  {'with the query cache':<28}{found['cached_query_ms']:>10.3f} ms",
        f"Memento's way ({whole}), medians of {len(times.ratios)} rounds",
        f"  a pair at a time, both texts {found['memento_s']:>10.2f} s {found['ratio']:>8,.0f}x   "
        f"({found['memento_pair_ms']:.1f} ms a pair; rounds {min(times.ratios):,.0f}x to "
        f"{max(times.ratios):,.0f}x)",
        f"  the query encoded once       {found['memento_query_once_s']:>10.2f} s "
        f"{found['ratio_query_once']:>8,.0f}x",
        f"  in batches by ONNX           {found['batched_onnx_s']:>10.2f} s "
        f"{found['ratio_to_batched_onnx']:>8,.0f}x",
    ]
    if not options.quick:
        lines.append(f"target, a pair at a time: {TARGET_RATIO:,.0f}x")
    return "\n".join(lines)


def texts_of(options: argparse.Namespace) -> tuple[list[NewCase], list[str]]:
    """The bank's cases, and queries that are none of its questions."""
    if options.data is None:
        rows = planted_rows(PlantedConfig(rows=1600, cases=200, seed=options.seed))
        cases = [NewCase(text, plan=None) for text in rows.case_texts]
        queries = rows.query_texts
    else:
        cases = [
            NewCase(case, plan=plan)
            for case, plan in _lines(options.data / "memory.jsonl", "case", "plan")
        ]
        queries = [query for (query,) in _lines(options.data / "training_data.jsonl", "query")]
    known = {case.query for case in cases}
    held_out = [query for query in dict.fromkeys(queries) if query not in known]
    if len(held_out) < WARM + 1 or not cases:
        raise ValueError(
            f"{options.data or 'the planted log'}: {len(cases)} cases and {len(held_out)} queries "
            f"that are no case's; at least 1 and {WARM + 1} are needed"
        )
    drawn = np.random.default_rng(options.seed).permutation(held_out)[: options.queries + WARM]
    return cases, drawn.tolist()


def made_artifact(folder: Path, options: argparse.Namespace, texts: list[str]) -> Path:
    """An artifact with an untrained head: what it costs does not depend on the weights."""
    source = options.encoder
    if source is None:
        source = str(random_encoder(folder / "encoder", texts, layers=2, hidden_size=64))
    encoder = load_encoder(EncoderConfig(source=source))
    torch.manual_seed(options.seed)
    model = CaseClassifier(
        encoder.model, encoder.pooling, SplitHead(encoder.hidden_size, ModelConfig().hidden)
    )
    path = folder / "artifact"
    export_artifact(path, model, encoder.tokenizer, ExportFacts(source=source))
    print(f"artifact made here: {options.encoder or 'a tiny encoder'}, head not trained")
    return path


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """The options, with what depends on `--quick` filled in."""
    parser = argparse.ArgumentParser(description="One query against a bank, and Memento's way.")
    parser.add_argument("--artifact", type=Path, help="a trained retriever (one is made here)")
    parser.add_argument("--precision", choices=("fp32", "int8"), default="fp32")
    parser.add_argument("--data", type=Path, help="Memento's folder with memory.jsonl")
    parser.add_argument("--queries", type=int, help="100; 20 with --quick")
    parser.add_argument("--rounds", type=int, help="5; 3, the least, with --quick")
    parser.add_argument("--sample", type=int, help="Memento's cases a round: 100; 20 with --quick")
    parser.add_argument("--full", action="store_true", help="Memento's way over the whole bank")
    parser.add_argument("--threads", type=int, default=granted_cores())
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--quick", action="store_true", help="a tiny encoder, few queries")
    options = parser.parse_args(arguments)
    quick = {"queries": 20, "rounds": LEAST_ROUNDS, "sample": 20}
    for name, usual in (("queries", 120), ("rounds", 5), ("sample", 100)):
        if getattr(options, name) is None:
            setattr(options, name, quick[name] if options.quick else usual)
    if min(options.queries, options.sample, options.threads) < 1:
        parser.error("--queries, --sample and --threads must be at least 1")
    if options.rounds < LEAST_ROUNDS:
        parser.error(f"--rounds {options.rounds}: a median takes at least {LEAST_ROUNDS}")
    if options.rounds > options.queries:
        parser.error(f"--rounds {options.rounds}: at most one a query ({options.queries})")
    if options.precision == "int8" and options.artifact is None:
        parser.error("--precision int8 needs --artifact: the one made here is not quantised")
    find_data(parser, options)
    return options


def find_data(parser: argparse.ArgumentParser, options: argparse.Namespace) -> None:
    """Fill in `encoder` and `data`: MiniLM and Memento's files, or a tiny one and planted texts."""
    options.encoder = None if options.quick else EncoderConfig().source
    if options.data is None and not options.quick:
        shared = Path(os.environ.get("PRECEDENT_SHARED_DATA", ROOT.parent / "shared" / "data"))
        options.data = shared / "memento"
    for name in ("memory.jsonl", "training_data.jsonl") if options.data is not None else ():
        if not (options.data / name).is_file():
            parser.error(f"no file {name} in {options.data}; give --data FOLDER, or --quick alone")
    if options.artifact is not None and not options.artifact.is_dir():
        parser.error(f"--artifact {options.artifact}: no folder; name a trained retriever's")
    if options.quick:
        print("quick: small sizes show that it works; measure without --quick")


def _lines(path: Path, *fields: str) -> list[tuple[str, ...]]:
    """These fields of every line.

    Raises:
        ValueError: a line is no JSON object that has them as texts; names file and line.
    """
    found = []
    with path.open(encoding="utf-8") as file:
        for number, line in enumerate(file, start=1):
            if not line.strip():
                continue
            try:
                row = json.loads(line)
                found.append(tuple(str(row[name]) for name in fields))
            except (ValueError, TypeError, LookupError) as error:
                raise ValueError(
                    f"{path}, line {number}: a JSON object with {', '.join(fields)} must stand "
                    f"there ({type(error).__name__}: {error})"
                ) from error
    return found


def _ms(work: Callable[[], Any]) -> float:
    started = time.perf_counter()
    work()
    return 1000 * (time.perf_counter() - started)


if __name__ == "__main__":
    main()
