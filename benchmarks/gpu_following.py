"""The step of the GPU check that forgets: what changes in a bank changes on the device."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from benchmarks.figures import Figure
from benchmarks.gpu_steps import CHUNK, Bank, Place, Wrong, random_bank, random_head
from retriever.following import Follower
from retriever.kernels.torch_resident import Resident
from retriever.types import Ids


def following(place: Place) -> Mapping[str, Figure]:
    """Append, update, forget, use again: the tiles hold what the bank holds, and nothing else."""
    rng = place.rng(2)
    rows = place.sizes[0]
    head = random_head(rng, place.hidden)
    bank = random_bank(rng, head, rows + rows // 4)
    first = shortened(bank, rows)
    copy = Resident(place.device, "bank", lambda need: None)
    follower = Follower(copy, "projections")
    block: Any = first
    with follower.held(block) as state:
        expect(state, "rebuilt")
        check_tiles(copy, first)
        before = copy.tiles
    changed, forgotten = changed_rows(rng, rows)
    second = after_changes(rng, bank, changed, forgotten)
    block = second
    started = time.perf_counter()
    with follower.held(block) as state:
        if place.on_gpu:
            torch.cuda.synchronize(place.device)
        took = time.perf_counter() - started
        expect(state, "updated")
        check_tiles(copy, second)
        tiles = copy.tiles
    if tiles is None or before is None:
        raise Wrong("there are no tiles")
    if tiles is not before and bool(before.any()):
        raise Wrong("the tiles that became too few still hold vectors")
    follower.drop()
    if bool(tiles.any()):
        raise Wrong("vectors are left in memory that was given back")
    print(
        f"{len(changed)} changed, {len(forgotten)} forgotten, {rows // 4} appended of {rows}:",
        end="",
    )
    print(f" {took * 1e3:.1f} ms; forgotten rows are zero, dropped tiles are zero")
    return {"following": Figure(took * 1e3, "ms")}


def shortened(bank: Bank, rows: int) -> Bank:
    """Its first rows."""
    chunks, left = [], rows
    for chunk in bank.projections:
        chunks.append(chunk[:left].copy())
        left -= len(chunks[-1])
    return Bank(
        bank.ids[:rows].copy(),
        bank.stamps[:rows].copy(),
        bank.live[:rows].copy(),
        tuple(chunk for chunk in chunks if len(chunk)),
    )


def changed_rows(rng: np.random.Generator, rows: int) -> tuple[Ids, Ids]:
    """Rows to update, and others to forget."""
    chosen = rng.choice(rows, rows // 10, replace=False).astype(np.int64)
    return chosen[: len(chosen) // 2], chosen[len(chosen) // 2 :]


def after_changes(rng: np.random.Generator, bank: Bank, changed: Ids, forgotten: Ids) -> Bank:
    """The bank one version later; what stands in forgotten rows is NaN, which must not travel."""
    chunks = tuple(chunk.copy() for chunk in bank.projections)
    stamps, live = bank.stamps.copy(), bank.live.copy()
    stamps[changed], live[forgotten] = 2, False
    for row in changed:
        chunks[row // CHUNK][row % CHUNK] = rng.standard_normal(chunks[0].shape[1])
    for row in forgotten:
        chunks[row // CHUNK][row % CHUNK] = np.nan
    return dataclasses.replace(bank, stamps=stamps, live=live, projections=chunks, version=2)


def check_tiles(copy: Resident, bank: Bank) -> None:
    """Every live row is in the tiles as it is in the bank; every other place is zero."""
    if copy.tiles is None:
        raise Wrong("there are no tiles")
    start = 0
    for chunk in bank.projections:
        live = bank.live[start : start + len(chunk)]
        expected = torch.from_numpy(np.where(live[:, None], chunk, 0)).to(copy.tiles.device)
        if not torch.equal(rows_of(copy.tiles, start, len(chunk)), expected.to(copy.tiles.dtype)):
            raise Wrong(f"rows {start} to {start + len(chunk)} differ from the bank's")
        start += len(chunk)
    rest = copy.tiles.shape[0] * copy.tiles.shape[2] - start
    if bool(rows_of(copy.tiles, start, rest).any()):
        raise Wrong("there is something behind the last row")


def rows_of(tiles: Tensor, start: int, count: int) -> Tensor:
    """Some rows, one after the other: (count, W)."""
    size = tiles.shape[2]
    rows = torch.arange(start, start + count, device=tiles.device)
    return tiles[rows // size, :, rows % size]


def expect(state: str, expected: str) -> None:
    """Raise Wrong where the copy followed in another way."""
    if state != expected:
        raise Wrong(f"the copy was {state}, not {expected}")
