"""The projections of one namespace in device memory, following the bank.

What a row held is overwritten when the row changes, and everything before the memory is given back:
the allocator keeps what it is given, and a case that was forgotten must not lie there.
"""

from __future__ import annotations

import logging
import weakref
from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor

from retriever.errors import IndexUnavailable
from retriever.kernels.torch_kernels import ROWS, TILE
from retriever.types import Array, Block, Bools, Floats, Ids
from retriever.vectors import taken

#: Told how many bytes are wanted; raises IndexUnavailable where there is no room.
Room = Callable[[int], None]

_DTYPES = {"float16": torch.float16, "bfloat16": torch.bfloat16}

log = logging.getLogger(__name__)


class Resident:
    """A `following.Copy` in tiles of 256 rows. Every method is called with the follower's lock.

    Args:
        device: where.
        storage: bank (the bank's own bits), float16 or bfloat16.
        room: asked before memory is taken.

    Attributes:
        tiles: (capacity, W, TILE); zeros where no live row is.
        longest: at least the length of every vector that was in it.
        furthest: at least the length of what any lost to the storage.
    """

    def __init__(self, device: torch.device, storage: str, room: Room) -> None:
        self.tiles: Tensor | None = None
        self.longest = self.furthest = 0.0
        self._device, self._storage, self._room = device, storage, room
        self._mask: tuple[weakref.ref[Bools], Tensor] | None = None

    def build(self, block: Block) -> None:
        """See `following.Copy`.

        Raises:
            IndexUnavailable: it does not fit on the device.
        """
        self.clear()
        chunks, count = _chunks(block), len(block.ids)
        width, used = chunks[0].shape[1], -(-count // TILE)
        self.tiles = self._zeros(used + used // 8 + 1, used, width, self._dtype(chunks))
        for start in range(0, count, ROWS):
            values = _span(chunks, start, min(start + ROWS, count))
            found = self._stored(values, block.live[start : start + ROWS], self.tiles.dtype)
            first, whole, rest = start // TILE, len(found) // TILE, len(found) % TILE
            body = found[: whole * TILE].view(whole, TILE, width)
            self.tiles[first : first + whole] = body.transpose(1, 2)
            if rest:
                self.tiles[first + whole, :, :rest] = found[whole * TILE :].T
            found.zero_()

    def patch(self, block: Block, stale: Ids, start: int) -> bool:
        """See `following.Copy`."""
        chunks, count, tiles = _chunks(block), len(block.ids), self.tiles
        if tiles is None or tiles.dtype != self._dtype(chunks):
            return False
        used = -(-count // TILE)
        if used > len(tiles):
            try:
                grown = self._zeros(used + used // 4, used, tiles.shape[1], tiles.dtype)
            except IndexUnavailable:
                return False  # once the old tiles are gone there may be room
            grown[: len(tiles)] = tiles
            tiles.zero_()
            self.tiles = tiles = grown
        changed = np.concatenate([stale, np.arange(start, count, dtype=np.int64)])
        for first in range(0, len(changed), ROWS):
            rows = changed[first : first + ROWS]
            found = self._stored(taken(chunks, rows), block.live[rows], tiles.dtype)
            where = torch.from_numpy(rows).to(self._device)
            tiles[where // TILE, :, where % TILE] = found
            found.zero_()
        return True

    def clear(self) -> None:
        """See `following.Copy`."""
        if self.tiles is not None:
            self.tiles.zero_()
        self.tiles = self._mask = None
        self.longest = self.furthest = 0.0

    def mask(self, block: Block, eligible: Bools) -> Tensor:
        """(N,) uint8 on the device; the live rows of a block travel there once."""
        if self._mask is not None and self._mask[0]() is eligible:
            return self._mask[1]
        mask = torch.from_numpy(eligible.astype(np.uint8)).to(self._device)
        if eligible is block.live and not eligible.flags.writeable:
            self._mask = weakref.ref(eligible), mask
        return mask

    def _dtype(self, chunks: Sequence[Array]) -> torch.dtype:
        half = all(chunk.dtype == np.float16 for chunk in chunks)
        return _DTYPES.get(self._storage, torch.float16 if half else torch.float32)

    def _zeros(self, wanted: int, least: int, width: int, dtype: torch.dtype) -> Tensor:
        """Tiles: as many as wanted, or the least where there is only room for that."""
        size = width * TILE * dtype.itemsize
        for count in sorted({wanted, least}, reverse=True):
            try:
                self._room(count * size)
                return torch.zeros((count, width, TILE), dtype=dtype, device=self._device)
            except (IndexUnavailable, torch.OutOfMemoryError) as error:
                failure = error
        if isinstance(failure, IndexUnavailable):
            raise failure
        raise IndexUnavailable(too_large(least * size)) from failure

    def _stored(self, values: Floats, live: Bools, dtype: torch.dtype) -> Tensor:
        """Rows as the tiles hold them, on the device: (C, W); the values given are overwritten."""
        values[~live] = 0.0
        held = torch.from_numpy(values).to(dtype, copy=True)
        self.longest = max(self.longest, _longest(values))
        if dtype != torch.float32:
            self.furthest = max(self.furthest, _furthest(values, held))
        moved = held.to(self._device, copy=True)
        values.fill(0.0)
        held.zero_()
        return moved


def too_large(need: int, free: int | None = None) -> str:
    """What to say where the device has no room."""
    left = "" if free is None else f", where {max(0, free) / 2**20:.1f} MiB are free for them"
    return (
        f"the projections need {need / 2**20:.1f} MiB on the device{left}; keep them as float16 "
        "or bfloat16, drop another namespace, use a larger device, or scan with device=cpu"
    )


def _chunks(block: Block) -> Sequence[Array]:
    assert block.projections is not None, "the scanner has checked that"
    return block.projections


def _span(chunks: Sequence[Array], start: int, stop: int) -> Floats:
    """Consecutive rows, widened, as an array of their own: (stop - start, W)."""
    out = np.empty((stop - start, chunks[0].shape[1]), np.float32)
    place = 0
    for chunk in chunks:
        first, last = max(start, place), min(stop, place + len(chunk))
        if first < last:
            out[first - start : last - start] = chunk[first - place : last - place]
        place += len(chunk)
    return out


def _furthest(values: Floats, held: Tensor) -> float:
    """At least the greatest length of what was lost; immense where a value overflowed."""
    with np.errstate(over="ignore", invalid="ignore"):
        # A broken vector, no number on either side, is found by its score; here it counts as zero.
        lost = np.nan_to_num(values - held.float().numpy())
    if np.abs(lost).max(initial=0.0) > np.finfo(np.float16).max:
        log.warning("there are values beyond %s: every search reads them all again", held.dtype)
    return _longest(lost)


def _longest(vectors: Floats) -> float:
    """At least the greatest length of vectors (C, W); values that are no numbers count as zero."""
    with np.errstate(over="ignore", invalid="ignore"):
        squares = np.einsum("cw,cw->c", vectors, vectors).astype(np.float64)
    if not np.isfinite(squares).all():
        exact = np.where(np.isfinite(vectors), vectors, 0.0).astype(np.float64)
        squares = np.einsum("cw,cw->c", exact, exact)
    # The squares were summed in float32.
    return 1.001 * float(np.sqrt(squares.max(initial=0.0)))
