"""Text in, ranked cases out: one query against Memento's bank, and against Memento's way.

    python -m benchmarks.retrieve              # about three minutes
    python -m benchmarks.retrieve --full       # Memento's way over the whole bank, once a round
    python -m benchmarks.retrieve --quick      # a tiny encoder, under a minute

Ours is `Searcher.search` over a SQLite bank whose projections are cached: tokenise the query,
encode it, scan all cases, read the hits' ids. Memento's way (Memento-Teams/Memento,
`memory/parametric_memory.py`) encodes every case anew for every query with torch, a pair at a time
through its classifier, whose forward pass encodes both texts; the figure with the query encoded
only once a search is printed beside it. In its favour, texts are tokenised by a fast tokenizer,
and only encoding and head are timed; half of a round's cases go through torch with one thread, half
with all, and the faster half counts. Both sides use the same weights, and their scores are compared
before anything is timed. For fairness the same work is also done as well as it can be: all cases
anew, but in batches by ONNX Runtime.

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
from benchmarks.figures import Figure, result_line
from benchmarks.planted import planted_rows, random_encoder
from memory import BankConfig, CaseBank, NewCase
from retriever.artifact import read_manifest
from retriever.cores import granted_cores
from retriever.embedders import CaseProjector
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
WARM = 5  # queries asked before the clock runs, and not again


@dataclass
class Times:
    """Milliseconds of every query (ours), and of a whole search the other ways, by round."""

    ours: list[float] = field(default_factory=list)
    tokens: list[float] = field(default_factory=list)
    encoder: list[float] = field(default_factory=list)
    scan: list[float] = field(default_factory=list)
    cached: list[float] = field(default_factory=list)
    memento: list[float] = field(default_factory=list)
    asked_again: list[float] = field(default_factory=list)  # the query, once a case
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
    """Every case through the encoder for every query, one text a forward pass, in torch."""

    def __init__(self, artifact: Path, scorer: Scorer, cases: Sequence[str]) -> None:
        self._model = load_model(artifact, read_manifest(artifact)).eval()
        self._tokenizer = scorer._texts.tokenizer
        self._cases = cases

    @torch.inference_mode()
    def logits(self, query: str, numbers: Sequence[int]) -> Floats:
        """The scores of the cases with these numbers: (n,)."""
        head = self._model.head
        assert head is not None
        asked = head.query(self._encode(query))
        found = [
            float(head(head.case(self._encode(self._cases[number])), asked)) for number in numbers
        ]
        return np.array(found, dtype=np.float32)

    @torch.inference_mode()
    def ask(self, query: str) -> None:
        """The query alone through the encoder."""
        self._encode(query)

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
        cases, queries = texts_of(options)
        artifact = options.artifact or made_artifact(folder, options, [c.query for c in cases])
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
        memento.logits(query, [0])
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
        query = share.tolist()[0]
        times.memento.append(whole * memento_ms(memento, query, sample.tolist(), options.threads))
        ask = min(_ms(lambda q=query: memento.ask(q)) for _ in range(3))
        times.asked_again.append(len(texts) * ask)
        again = [texts[i] for i in sample]
        times.batched.append(whole * _ms(lambda t=again: scorer.project_texts(t)))
        median = statistics.median(times.ours[before:])
        both = times.memento[-1] + times.asked_again[-1]
        times.ratios.append(both / median)
        times.once_ratios.append(times.memento[-1] / median)
        times.batched_ratios.append((times.batched[-1] + median) / median)
        print(
            f"round {number + 1} of {options.rounds}: a query {median:.2f} ms, Memento's way "
            f"{both / 1000:.1f} s, {times.ratios[-1]:,.0f}x",
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


def memento_ms(memento: MementoWay, query: str, sample: list[int], threads: int) -> float:
    """With one thread or with all, whichever is faster: on a busy machine torch's wait on others.

    Half of the sample each way, the same number of cases; the faster half stands for both.
    """
    halves = sample[::2], sample[1::2] or sample
    paces = []
    for count, half in zip((1, threads), halves, strict=True):
        torch.set_num_threads(count)
        paces.append(_ms(lambda h=half: memento.logits(query, h)) / len(half))
    return min(paces) * len(sample)


def check_scores(
    searcher: Searcher, memento: MementoWay, query: str, stored: Sequence[Any]
) -> None:
    """Stop unless both ways give the best cases of a query the same scores."""
    numbers = {case.id: number for number, case in enumerate(stored)}
    (hits,) = searcher.search([query], SHOWN)
    theirs = memento.logits(query, [numbers[hit.id] for hit in hits])
    ours = np.array([hit.logit for hit in hits])
    difference = float(np.abs(ours - theirs).max())
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
        "memento_s": Figure(
            (statistics.median(times.memento) + statistics.median(times.asked_again)) / 1000, "s"
        ),
        "memento_query_once_s": Figure(statistics.median(times.memento) / 1000, "s"),
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
        f"Memento's way, torch ({whole}): {found['memento_s']:.1f} s, "
        f"{1000 * found['memento_s'] / cases:.1f} ms a case",
        f"the same with the query encoded once: {found['memento_query_once_s']:.1f} s, ratio "
        f"{found['ratio_query_once']:,.0f}x",
        f"the same in batches by ONNX: {found['batched_onnx_s']:.2f} s",
        f"ratio to Memento's way {found['ratio']:,.0f}x (rounds {min(times.ratios):,.0f} to "
        f"{max(times.ratios):,.0f}; target {TARGET_RATIO:,.0f}), to the batched one "
        f"{found['ratio_to_batched_onnx']:,.0f}x",
    ]
    return "\n".join(lines)


def texts_of(options: argparse.Namespace) -> tuple[list[NewCase], list[str]]:
    """The bank's cases, and queries that are none of its questions."""
    if options.data is None:
        rows = planted_rows(PlantedConfig(rows=1600, cases=200, seed=options.seed))
        cases = [NewCase(text, plan=None) for text in rows.case_texts]
        queries = rows.query_texts
    else:
        cases = [
            NewCase(row["case"], plan=row["plan"]) for row in _lines(options.data / "memory.jsonl")
        ]
        queries = [row["query"] for row in _lines(options.data / "training_data.jsonl")]
    known = {case.query for case in cases}
    held_out = [query for query in dict.fromkeys(queries) if query not in known]
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
    parser.add_argument("--rounds", type=int, help="5; 2 with --quick")
    parser.add_argument("--sample", type=int, help="Memento's cases a round: 100; 20 with --quick")
    parser.add_argument("--full", action="store_true", help="Memento's way over the whole bank")
    parser.add_argument("--threads", type=int, default=granted_cores())
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--quick", action="store_true", help="a tiny encoder, few queries")
    options = parser.parse_args(arguments)
    quick = {"queries": 20, "rounds": 2, "sample": 20}
    for name, usual in (("queries", 120), ("rounds", 5), ("sample", 100)):
        if getattr(options, name) is None:
            setattr(options, name, quick[name] if options.quick else usual)
    if min(options.queries, options.rounds, options.sample, options.threads) < 1:
        parser.error("--queries, --rounds, --sample and --threads must be at least 1")
    if options.rounds > options.queries:
        parser.error(f"--rounds {options.rounds}: at most one a query ({options.queries})")
    find_data(parser, options)
    return options


def find_data(parser: argparse.ArgumentParser, options: argparse.Namespace) -> None:
    """Fill in `encoder` and `data`: MiniLM and Memento's files, or a tiny one and planted texts."""
    options.encoder = None if options.quick else EncoderConfig().source
    if options.data is None and not options.quick:
        shared = Path(os.environ.get("PRECEDENT_SHARED_DATA", ROOT.parent / "shared" / "data"))
        options.data = shared / "memento"
        if not (options.data / "memory.jsonl").is_file():
            parser.error(f"no memory.jsonl in {options.data}; give --data FOLDER, or --quick")
    if options.quick:
        print("quick: small sizes show that it works; measure without --quick")


def _lines(path: Path) -> list[dict[str, Any]]:
    with path.open(encoding="utf-8") as file:
        return [json.loads(line) for line in file if line.strip()]


def _ms(work: Callable[[], Any]) -> float:
    started = time.perf_counter()
    work()
    return 1000 * (time.perf_counter() - started)


if __name__ == "__main__":
    main()
