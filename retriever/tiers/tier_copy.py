"""The index as a copy of a namespace's vectors that follows the bank; see `retriever.following`."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from retriever.device import Device
from retriever.errors import NonFiniteScore
from retriever.saved_index import Saved
from retriever.tiers.gpu import GpuTier
from retriever.tiers.making import host_tier, trained
from retriever.tiers.plan import Plan, planned
from retriever.tiers.settings import IndexSettings
from retriever.tiers.space import Space
from retriever.tiers.tier import HostTier, Tier
from retriever.types import Block, Bools, Floats, Ids

#: Rows turned into vectors at once.
BATCH = 16_384

#: Before the names of the space's arrays in a file.
_SPACE = "space_"
_BROKEN = "broken"

log = logging.getLogger(__name__)


class Abandoned(Exception):
    """A build was given up: the index was dropped meanwhile, or the process ends."""


class TierCopy:
    """A tier, what is in it, and when it has to be made anew. For one thread at a time.

    Args:
        space: what is indexed.
        settings: how.
        device: cpu or a GPU, resolved.
    """

    def __init__(self, space: Space, settings: IndexSettings, device: Device) -> None:
        self.plan: Plan | None = None
        self.tier: Tier | None = None
        #: Rows that the quantisers and the space were trained at.
        self.trained_at = 0
        #: Live rows whose vectors are no numbers: they are not in the tier.
        self.broken: Ids = np.empty(0, np.int64)
        #: Set by another thread that cannot wait for a build to end.
        self.abandon = False
        self._space, self._settings, self._device = space, settings, device

    def build(self, block: Block) -> None:
        """See `following.Copy`."""
        live, rows = np.flatnonzero(block.live), len(block.ids)
        plan = self._planned(len(live))
        _log(plan, block, self._device)
        self.clear()
        self.trained_at = len(live)
        if plan.kind == "none":
            self.plan = plan
            return
        sample = self._sample(block, live)
        if len(live) and not len(sample):
            self.plan = plan._replace(kind="none", reason="no vector of it is a number")
            return
        if len(live):
            self.tier = self._trained(plan, block, sample)
            for start, batch, mask in self._batches(block, 0, rows):
                if self.abandon or not threading.main_thread().is_alive():
                    raise Abandoned(f"after {start} of {rows} rows")
                self.tier.add(start, batch, mask)
        self.plan = plan

    def patch(self, block: Block, stale: Ids, start: int) -> bool:
        """See `following.Copy`."""
        plan, rows = self.plan, len(block.ids)
        count = int(np.count_nonzero(block.live))
        if plan is None or self._planned(count, plan.kind).kind != plan.kind:
            return False
        if plan.kind == "none":
            return True
        if self.tier is None:
            return not count
        grown = count > self._settings.retrain_growth * max(1, self.trained_at)
        if grown and self._learns(plan):
            return False
        if len(stale):
            fresh, sound = self._vectors(block, stale)
            if not self.tier.put(stale, fresh, sound):
                return False
            self.broken = np.setdiff1d(self.broken, stale)
            self._note(block, stale, sound)
        for first, batch, mask in self._batches(block, start, rows):
            self.tier.add(first, batch, mask)
        return True

    def clear(self) -> None:
        """See `following.Copy`."""
        self.plan = self.tier = None
        self.trained_at, self.broken = 0, np.empty(0, np.int64)

    def refuse_broken(self, block: Block, eligible: Bools) -> None:
        """Raise `NonFiniteScore` where a row that may be found is not in the tier: (N,)."""
        found = self.broken[eligible[self.broken]]
        if len(found):
            raise NonFiniteScore(
                f"the vector of case {block.ids[found].min()} holds NaN or infinity; embed the "
                "bank again, or load another artifact"
            )

    def search(self, queries: Floats, count: int, eligible: Bools) -> tuple[Floats, Ids]:
        """See `Tier.search`; nothing where the bank is empty."""
        if self.tier is None:
            return np.empty((len(queries), 0), np.float32), np.empty((len(queries), 0), np.int64)
        return self.tier.search(queries, count, eligible)

    def state(self) -> tuple[Any, Mapping[str, NDArray[Any]]] | None:
        """FAISS's index and the arrays beside it; None where there is nothing to save."""
        if self.tier is None:
            return None
        index, arrays = self.tier.state()
        learnt = {f"{_SPACE}{name}": value for name, value in self._space.arrays().items()}
        return index, {**arrays, **learnt, _BROKEN: self.broken}

    def restore(self, block: Block, saved: Saved) -> None:
        """Take over a saved index of the block's first rows.

        Raises:
            ValueError: it is of another kind than this bank gets now, or holds other vectors;
                KeyError, TypeError and AttributeError mean damage, too.
        """
        plan = self._planned(int(np.count_nonzero(block.live)), saved.form.kind)
        if plan.kind != saved.form.kind:
            raise ValueError(f"it is {saved.form.kind}, this bank gets {plan.kind}: {plan.reason}")
        rows, index = len(saved.contents.ids), saved.index
        self._space.restore(
            {k[len(_SPACE) :]: v for k, v in saved.arrays.items() if k.startswith(_SPACE)}
        )
        broken = saved.arrays[_BROKEN].astype(np.int64)
        if len(broken) and not 0 <= broken.min() <= broken.max() < rows:
            raise ValueError("its broken rows are none of its rows")
        tier = host_tier(plan, self._settings, index, rows, saved.arrays)
        self._compare(block, tier, np.setdiff1d(saved.compared, broken))
        self.tier = tier if self._device.kind == "cpu" else self._tier(plan, index)
        self.plan, self.trained_at, self.broken = plan, saved.form.trained_at, broken

    def _learns(self, plan: Plan) -> bool:
        """Whether something in the index was learnt from the bank, and can be out of date."""
        return plan.kind == "ivf" or self._space.mode == "ann" or self._settings.storage == "int8"

    def _planned(self, count: int, present: str | None = None) -> Plan:
        gpu = self._device.kind == "cuda"
        return planned(self._settings, self._space.mode, count, gpu, present)

    def _trained(self, plan: Plan, block: Block, sample: Ids) -> Tier:
        """An empty tier, ready to take vectors."""
        self._space.fit(block, sample)
        settings = self._settings
        if plan.kind == "flat" and self._device.kind == "cuda":
            settings = replace(settings, storage="float32")  # halved on its way to the GPU
        if not (plan.kind == "ivf" or settings.storage == "int8"):
            sample = sample[:1]  # only the vectors' width matters
        vectors, sound = self._space.vectors(block, sample)
        index = trained(plan, settings, vectors[sound])
        return self._tier(plan, index)

    def _tier(self, plan: Plan, index: Any) -> Tier:
        if self._device.kind == "cpu":
            return host_tier(plan, self._settings, index)
        half = self._settings.storage != "float32"
        return GpuTier(plan.kind, index, self._device, half, plan.probes)

    def _sample(self, block: Block, live: Ids) -> Ids:
        """Sound rows to learn from, rising."""
        if len(live) > self._settings.sample:
            rng = np.random.default_rng(self._settings.seed)
            live = np.sort(rng.choice(live, self._settings.sample, replace=False))
        return live[self._space.sound(block, live)]

    def _batches(self, block: Block, start: int, end: int) -> Iterator[tuple[int, Floats, Bools]]:
        for first in range(start, end, BATCH):
            rows = np.arange(first, min(first + BATCH, end), dtype=np.int64)
            batch, sound = self._vectors(block, rows)
            self._note(block, rows, sound)
            yield first, batch, sound

    def _vectors(self, block: Block, rows: Ids) -> tuple[Floats, Bools]:
        """Of some rows (n,), zeros where none can be indexed, and where one can: (n, E), (n,)."""
        can = block.live[rows]
        out = np.zeros((len(rows), self._space.width(block)), np.float32)
        found, sound = self._space.vectors(block, rows[can])
        found[~sound] = 0
        out[can] = found
        can[can] = sound
        return out, can

    def _note(self, block: Block, rows: Ids, sound: Bools) -> None:
        """Remember which live rows of these are not in the tier."""
        broken = rows[block.live[rows] & ~sound]
        if len(broken):
            self.broken = np.union1d(self.broken, broken)
            log.warning(
                "%d cases are not in an index, for their vectors hold NaN or infinity: case %d",
                len(broken),
                block.ids[broken].min(),
            )

    def _compare(self, block: Block, tier: HostTier, rows: Ids) -> None:
        """That rows which should be those of the block are, as far as the storage tells."""
        storage = self._settings.storage
        for start in range(0, len(rows), BATCH):
            part = rows[start : start + BATCH]
            ours, theirs = self._space.vectors(block, part)[0], tier.stored(part)
            if ours.shape != theirs.shape:
                raise ValueError(f"its vectors {theirs.shape} should be {ours.shape}")
            off = np.linalg.norm(ours - theirs, axis=1)
            if storage == "int8":  # a step is as large as the rarest value makes it
                wrong = np.linalg.norm(off) > 0.3 * np.linalg.norm(ours)
            else:
                allowed = 1e-5 if storage == "float32" else 2e-3
                wrong = bool((off > allowed * (1e-3 + np.linalg.norm(ours, axis=1))).any())
            if wrong:
                raise ValueError("its vectors are not those of the bank")


def _log(plan: Plan, block: Block, device: Device) -> None:
    log.info(
        "index of %d rows: %s%s on %s (%s)",
        len(block.ids),
        plan.kind,
        f", {plan.lists} lists, {plan.probes} visited" if plan.kind == "ivf" else "",
        device,
        plan.reason,
    )
