"""The steps of the GPU check that measure: the kernels alone, whole searches, other shapes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from benchmarks.figures import Figure
from benchmarks.gpu_steps import (
    Place,
    Skipped,
    Wrong,
    random_bank,
    random_head,
    random_queries,
    scanner_of,
)
from retriever.head import Head
from retriever.kernels import torch_kernels
from retriever.kernels.torch_kernels import GROUP, TILE, Prepared
from retriever.kernels.torch_scan import TorchScanner, triton_kernels

K = 8
#: Of the bandwidth of a plain read, for one query.
LEAST_OF_READ = 0.85
BATCHES = (64, 256)
#: Columns of the product that a batch is held against; more of them do not change its pace.
COLUMNS = 100_000


class Resident:
    """Random vectors that never leave the device, and what scans them."""

    def __init__(self, place: Place, rows: int, dtype: torch.dtype, head: Head) -> None:
        self.place, self.rows, self.head = place, rows, head
        self.kernels: Any = triton_kernels(place.device) or torch_kernels
        self.name = f"{rows}_{str(dtype).removeprefix('torch.')}"
        count = -(-rows // TILE)
        shape = (count, head.case_width, TILE)
        self.tiles = torch.empty(shape, dtype=dtype, device=place.device)
        for part in self.tiles.split(max(1, (1 << 27) // (shape[1] * TILE))):
            part.copy_(torch.randn(part.shape, device=place.device))
        self.live = torch.ones(count * TILE, dtype=torch.uint8, device=place.device)

    def scan(self, query: Prepared, kernels: Any = None) -> Tensor:
        """The best of each group: (Q, N / 32)."""
        found: Tensor = (kernels or self.kernels).scores(
            self.tiles, query, self.live, self.rows, GROUP
        )
        return found

    def asked(self, count: int) -> Prepared:
        """Random queries, on the device."""
        queries = random_queries(self.place.rng(count), self.head, count)
        return Prepared.of(self.head, queries, True, self.place.device)


def speed(place: Place) -> Mapping[str, Figure]:
    """The kernels alone, against a read and a copy of the same bytes, and a product."""
    not_interpreted(place)
    small, big = place.sizes
    halves = (torch.float32, torch.float16)
    cases = [*((small, dtype) for dtype in halves), *((big, dtype) for dtype in halves)]
    cases.append((big, torch.bfloat16))
    room = torch.cuda.mem_get_info(place.device)[0] if place.on_gpu else 0
    if room > 3 * (10 * big) * place.hidden * 2:
        cases.append((10 * big, torch.float16))
    head = random_head(place.rng(3), place.hidden)
    figures: dict[str, Figure] = {}
    for rows, dtype in cases:
        there = Resident(place, rows, dtype, head)
        figures |= one_query(there)
        if rows <= big:
            for asked in BATCHES:
                figures |= batch(there, asked)
        if (rows, dtype) == cases[0]:
            figures |= against_plain_torch(there)
        del there
        place.tidy()
    return figures


def one_query(there: Resident) -> Mapping[str, Figure]:
    """One query is bound by memory: its share of a plain read's bandwidth."""
    place, tiles, query = there.place, there.tiles, there.asked(1)
    flat, other = tiles.view(-1), torch.empty_like(tiles)
    took = place.medians(
        {
            "scan": lambda: there.scan(query),
            "read": flat.sum,
            "copy": lambda: other.copy_(tiles),
        },
        3 if place.quick else 15,
    )
    of_read = took["read"] / took["scan"]
    of_copy = took["copy"] / 2 / took["scan"]  # which reads and writes
    check_the_end(there, query)
    rate = tiles.nbytes / took["scan"] / 1e9
    print(
        f"{there.name:>16}, one query: {took['scan'] * 1e3:8.3f} ms, {rate:6.0f} GB/s, "
        f"{of_read:.2f} of a read's, {of_copy:.2f} of a copy's",
        flush=True,
    )
    large = there.rows >= place.sizes[1] and place.on_gpu
    return {
        f"one_query_{there.name}": Figure(took["scan"] * 1e3, "ms"),
        f"one_query_{there.name}_bandwidth": Figure(rate, "GB/s"),
        f"one_query_{there.name}_of_read": Figure(
            of_read, "ratio", LEAST_OF_READ if large else None
        ),
    }


def check_the_end(there: Resident, query: Prepared) -> None:
    """Raise Wrong where the last tile, past 2^31 values in a large bank, is scored otherwise."""
    rest = (there.rows - 1) % TILE + 1
    live = there.live[-TILE:]
    expected = torch_kernels.scores(there.tiles[-1:], query, live, rest, GROUP)
    found = there.scan(query)[:, -expected.shape[1] :]
    if not torch.allclose(found, expected, rtol=1e-4, atol=1e-4):
        raise Wrong(f"{there.name}: the last tile scores {found}, not {expected}")


def batch(there: Resident, asked: int) -> Mapping[str, Figure]:
    """Many queries are bound by arithmetic: pairs/s, beside a float32 product as wide and deep."""
    place, query = there.place, there.asked(asked)
    left = torch.randn(asked, there.head.hidden, device=place.device)
    right = torch.randn(there.head.hidden, min(there.rows, COLUMNS), device=place.device)
    took = place.medians(
        {"scan": lambda: there.scan(query), "product": lambda: left @ right},
        3 if place.quick else 7,
    )
    pace = asked * there.rows / took["scan"]
    ratio = pace / (asked * right.shape[1] / took["product"])
    print(
        f"{there.name:>16}, {asked:>3} queries: {took['scan'] * 1e3:7.3f} ms, "
        f"{pace / 1e9:6.2f} Gpairs/s, {ratio:.2f} of a product's",
        flush=True,
    )
    return {
        f"batch_{asked}_{there.name}": Figure(pace, "pairs/s"),
        f"batch_{asked}_{there.name}_of_product": Figure(ratio, "ratio"),
    }


def against_plain_torch(there: Resident) -> Mapping[str, Figure]:
    """What Triton is worth: its pace beside the twin's in plain torch."""
    if there.kernels is torch_kernels:
        return {}
    query = there.asked(16)
    took = there.place.medians(
        {
            "triton": lambda: there.scan(query),
            "torch": lambda: there.scan(query, torch_kernels),
        },
        1 if there.place.quick else 5,
    )
    ratio = took["torch"] / took["triton"]
    print(f"{there.name:>16}, 16 queries: {ratio:.1f} times the pace of plain torch")
    return {"triton_over_plain_torch": Figure(ratio, "ratio")}


def searches(place: Place) -> Mapping[str, Figure]:
    """Whole searches: queries from the host, exact answers back to it."""
    not_interpreted(place)
    figures: dict[str, Figure] = {}
    for rows in place.sizes:
        rng = place.rng(rows + 1)
        head = random_head(rng, place.hidden)
        bank: Any = random_bank(rng, head, rows)
        bank.live.flags.writeable = False  # as a bank's are: such a mask travels once
        figures |= searched(place, scanner_of(place), bank, head)
        place.tidy()
    return figures


def searched(place: Place, scanner: TorchScanner, bank: Any, head: Head) -> Mapping[str, Figure]:
    """One bank, filled and asked."""
    rows = len(bank.ids)

    def fill() -> None:
        scanner.drop(bank.namespace)
        scanner.accept(bank.namespace, bank.version)
        scanner.top_k(bank, head, np.zeros((1, head.query_width), np.float32), bank.live, 1)

    size = sum(chunk.nbytes for chunk in bank.projections)
    rate = size / place.medians({"fill": fill}, 1)["fill"] / 1e9
    print(f"{rows:>8} cases, filled from the host: {rate:6.2f} GB/s")
    figures = {f"fill_{rows}": Figure(rate, "GB/s")}
    for asked in (1, *BATCHES):
        queries = random_queries(place.rng(rows + asked), head, asked)

        def search(queries: Any = queries) -> None:
            scanner.top_k(bank, head, queries, bank.live, K)

        took = place.medians({"search": search}, 3 if place.quick else 9)["search"]
        print(f"{rows:>8} cases, {asked:>3} queries: {took * 1e3:8.2f} ms", flush=True)
        figures[f"search_{rows}_{asked}"] = Figure(took * 1e3, "ms")
    return figures


def not_interpreted(place: Place) -> None:
    """Skip under Triton's interpreter."""
    if not place.on_gpu and triton_kernels(place.device) is not None:
        raise Skipped("an interpreter has no speed")


def tuning(place: Place) -> Mapping[str, Figure]:
    """Other shapes of the batch kernel than the one that ships; says if one is better here."""
    head = random_head(place.rng(5), place.hidden)
    if not place.on_gpu:
        raise Skipped("the shapes are of Triton's kernels on a GPU")
    there = Resident(place, place.sizes[0], torch.float16, head)
    if there.kernels is torch_kernels:
        raise Skipped("only Triton's kernels have shapes to choose")
    shipped = (torch_kernels.QUERIES, there.kernels.UNROLL, there.kernels.WARPS)
    paces = {}
    try:
        for shape in (shipped, (16, 4, 1), (8, 8, 1), (16, 8, 2), (32, 4, 2)):
            torch_kernels.QUERIES, there.kernels.UNROLL, there.kernels.WARPS = shape
            query = there.asked(64)

            def scan(query: Prepared = query) -> Tensor:
                return there.scan(query)

            paces[shape] = 64 * there.rows / place.medians({"scan": scan}, 7)["scan"]
            print("queries {}, unrolled {}, warps {}: ".format(*shape), end="")
            print(f"{paces[shape] / 1e9:.2f} Gpairs/s", flush=True)
    finally:
        torch_kernels.QUERIES, there.kernels.UNROLL, there.kernels.WARPS = shipped
    best = max(paces, key=lambda shape: paces[shape])
    print(f"best: {best}; shipped: {shipped}")
    return {"shipped_of_best_shape": Figure(paces[shipped] / paces[best], "ratio", 0.95)}
