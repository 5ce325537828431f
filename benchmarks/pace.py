"""Clocks for training loops: rows and tokens through whole steps, and how long those took."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

import lightning
import torch
from lightning.pytorch.callbacks import Callback
from torch import Tensor

from retriever.learning.data.collate import Batch


@dataclass
class Pace:
    """Work done while a clock ran. `positions` are what the encoder computes, padding included."""

    steps: int = 0
    rows: int = 0
    positions: int = 0
    tokens: int = 0
    seconds: float = 0.0

    @property
    def rows_per_s(self) -> float:
        """A row is one (query, case) pair."""
        return self.rows / self.seconds if self.seconds else 0.0

    @property
    def positions_per_s(self) -> float:
        """Speed of the encoder itself, whatever the batches hold."""
        return self.positions / self.seconds if self.seconds else 0.0

    @property
    def positions_per_row(self) -> float:
        """What one row costs."""
        return self.positions / self.rows if self.rows else 0.0

    @property
    def padding(self) -> float:
        """The share of the positions that holds no token."""
        return 1.0 - self.tokens / self.positions if self.positions else 0.0


class StepClock(Callback):
    """Times whole steps of a trainer, the making of their batches included, and nothing else.

    Set-up, validation, checkpoints and the first `warmup_steps` steps are left out. With `limit_s`
    training ends after the step in which the clock reaches it. On a GPU the clock waits for the
    device where it starts and stops, and lets steps overlap in between.
    """

    def __init__(self, *, warmup_steps: int = 1, limit_s: float | None = None) -> None:
        self.pace = Pace()
        self._warmup_left = warmup_steps
        self._limit_s = limit_s
        self._started = 0.0
        self._tokens = torch.zeros(())

    def on_train_epoch_start(self, trainer: lightning.Trainer, pl_module: Any) -> None:
        """The clock starts."""
        self._start(trainer)

    def on_train_batch_end(
        self,
        trainer: lightning.Trainer,
        pl_module: Any,
        outputs: Any,
        batch: Batch,
        batch_idx: int,
    ) -> None:
        """Count the step, and stop the clock before anything that is no step."""
        if self._warmup_left:
            self._warmup_left -= 1
            if not self._warmup_left:
                self._start(trainer)
            return
        self.pace.steps += 1
        self.pace.rows += len(batch)
        self.pace.positions += batch.padded_tokens
        self._tokens = self._tokens + _tokens_of(batch)
        running_s = time.perf_counter() - self._started
        if self._limit_s is not None and self.pace.seconds + running_s >= self._limit_s:
            trainer.should_stop = True
        if trainer.should_stop or batch_idx + 1 == trainer.num_training_batches:
            self._stop(trainer)

    def _start(self, trainer: lightning.Trainer) -> None:
        self._tokens = torch.zeros((), dtype=torch.int64, device=trainer.strategy.root_device)
        _wait_for(trainer.strategy.root_device)
        self._started = time.perf_counter()

    def _stop(self, trainer: lightning.Trainer) -> None:
        _wait_for(trainer.strategy.root_device)
        self.pace.seconds += time.perf_counter() - self._started
        self.pace.tokens += int(self._tokens)


def _tokens_of(batch: Batch) -> Tensor:
    """The real tokens of a batch, left on its device: reading the number would wait for it."""
    return torch.stack([mask.sum() for _, mask in batch.chunks]).sum()


def _wait_for(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
