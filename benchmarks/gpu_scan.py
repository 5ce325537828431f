"""The steps of the GPU check that compare: whether the scan on a GPU is right."""

from __future__ import annotations

import itertools
import time
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from benchmarks.figures import Figure
from benchmarks.gpu_steps import (
    CHUNK,
    Bank,
    Place,
    Wrong,
    random_bank,
    random_head,
    random_queries,
    scanner_of,
    true_best,
    true_logits,
)
from retriever.errors import NonFiniteScore
from retriever.head import Head
from retriever.kernels.rescoring import bound
from retriever.kernels.torch_scan import TorchScanner
from retriever.types import Bools, Floats

K = 8
QUICK_ROWS = 300
#: (cases, queries, D, bias, rank, type of the bank, storage): every form once, and no more, for on
#: a GPU each is compiled.
FORMS = (
    (1, 1, 1, False, 0, "float32", "bank"),
    (255, 1, 37, True, 0, "float16", "bank"),
    (257, 17, 37, False, 1, "float32", "float16"),
    (300, 2, 40, True, 64, "float32", "bfloat16"),
    (70_000, 20, 64, False, 0, "float32", "bank"),
    (70_000, 20, 96, True, 64, "float16", "bank"),
    (70_000, 20, 384, False, 8, "float32", "float16"),
    (3_000_000, 1, 37, True, 1, "float16", "bank"),
)


def kernels(place: Place) -> Mapping[str, Figure]:
    """Triton compiles, on a GPU, and runs; what a first request would wait for."""
    head = random_head(place.rng(0), place.hidden)
    took = []
    for _ in range(2):
        scanner = scanner_of(place)
        started = time.perf_counter()
        scanner.warm_up(head)
        took.append(time.perf_counter() - started)
    print(f"{scanner.describe()}: warm in {took[0]:.1f} s, once compiled in {took[1]:.2f} s")
    if place.on_gpu and not scanner.describe().startswith("triton"):
        raise Wrong("Triton's kernels do not run here; the log says why")
    return {"warm_up": Figure(took[0], "s"), "warm_up_again": Figure(took[1], "s")}


def answers(place: Place) -> Mapping[str, Figure]:
    """Banks of every form against float64, by both ways to the candidates."""
    checked = 0
    for number, (rows, asked, hidden, bias, rank, dtype, storage) in enumerate(FORMS):
        if place.quick and rows > QUICK_ROWS:
            continue
        rng = place.rng(100 + number)
        head = random_head(rng, hidden, bias=bias, rank=rank)
        bank = random_bank(rng, head, rows, dtype)
        queries = random_queries(rng, head, asked)
        some = rng.random(rows) < 0.3
        some[rng.integers(rows)] = True
        scanner = scanner_of(place, storage)
        for eligible, rising in ((bank.live, True), (some, False)):
            same(place, scanner, bank, head, queries, eligible, rising)
            checked += 1
    broken_cases(place)
    print(f"{checked} searches gave the rows of float64, and broken cases were named")
    return {"searches_right": Figure(checked, "searches")}


def large(place: Place) -> Mapping[str, Figure]:
    """Large banks against float64, and how much of their proven bound the kernels use."""
    figures = {}
    for rows in place.sizes:
        rng = place.rng(rows)
        head = random_head(rng, place.hidden, bias=True, rank=8)
        whole = random_bank(rng, head, rows)
        queries = random_queries(rng, head, 17)
        for dtype, storage in (("float32", "bank"), ("float32", "bfloat16"), ("float16", "bank")):
            chunks = tuple(chunk.astype(dtype, copy=False) for chunk in whole.projections)
            bank = Bank(whole.ids, whole.stamps, whole.live, chunks)
            scanner = scanner_of(place, storage)
            some = rng.random(rows) < 0.01
            true = true_logits(head, chunks, queries, place.device)
            for eligible in (bank.live, some):
                same(place, scanner, bank, head, queries, eligible, True, true)
            found = scanner.logits(bank, head, queries)
            worst = float((torch.from_numpy(found).to(place.device) - true).abs().max())
            copy = scanner.resident("default")
            limits = bound(head, queries)
            allowed = limits.slope * (copy.longest + copy.furthest) + limits.fixed
            allowed += limits.reach * copy.furthest
            used = worst / float(allowed.max())
            name = f"{rows}_{dtype}_{storage}"
            print(f"{name:28} right; largest error {worst:.2e}, {used:.1%} of the bound")
            if used > 1:
                raise Wrong(f"{name}: a logit is off by more than its bound")
            figures[f"error_of_bound_{name}"] = Figure(used, "ratio", 1.0, at_most=True)
            scanner.drop("default")
    return figures


def same(
    place: Place,
    scanner: TorchScanner,
    bank: Bank,
    head: Head,
    queries: Floats,
    eligible: Bools,
    rising: bool,
    true: Tensor | None = None,
) -> None:
    """Raise Wrong where the scanner's rows are not those of float64."""
    if true is None:
        true = true_logits(head, bank.projections, queries, place.device)
    count = min(K, int(eligible.sum()))
    expected = true_best(true, eligible, count, rising)
    block: Any = bank
    found = scanner.top_k(block, head, queries, eligible, K, rising=rising)
    for number, (best, rows) in enumerate(zip(found, expected, strict=True)):
        exact = true[number, torch.from_numpy(rows).to(true.device)].cpu().numpy()
        if best.rows.tolist() != rows.tolist() or not np.allclose(best.logits, exact, rtol=1e-9):
            raise Wrong(
                f"query {number} of {len(queries)} over {len(bank.ids)} cases, "
                f"{scanner.describe()}, {head.hidden} + {head.rank}: {best} is not {rows}, {exact}"
            )


def broken_cases(place: Place) -> None:
    """A NaN that may be found is named; one that may not, or is dead, changes nothing."""
    rng = place.rng(4)
    sizes = (500,) if place.quick else (500, 70_000)
    # Eight divides 40; 37 and 13 leave five values to the kernels' second loop.
    for rows, hidden in itertools.product(sizes, (40, 37, 13)):
        head = random_head(rng, hidden, bias=True, rank=3)
        broken = ((np.nan, 0), (np.nan, hidden - 1), (np.inf, hidden - 1))
        for value, where in (*broken, (np.nan, hidden), (np.nan, hidden + 3)):
            bank: Any = random_bank(rng, head, rows)
            queries = random_queries(rng, head, 20)
            row = int(rng.integers(rows))
            bank.projections[row // CHUNK][row % CHUNK, where] = value
            scanner = scanner_of(place)
            try:
                found = scanner.top_k(bank, head, queries, bank.live, K)
            except NonFiniteScore as error:
                if f"case {row + 1} " not in str(error):
                    raise Wrong(f"case {row + 1} is broken, but: {error}") from error
            else:
                raise Wrong(f"case {row + 1} is {value} at {where}, and was ranked: {found[0]}")
            eligible = bank.live.copy()
            eligible[row] = False
            same(place, scanner, bank, head, queries, eligible, True)
