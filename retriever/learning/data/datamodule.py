"""The Lightning side of the data: loaders that can be resumed in the middle of an epoch."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import lightning
import torch

from retriever.learning.config import TrainerConfig
from retriever.learning.data.collate import Batch, TokenTable, collate
from retriever.learning.data.sampler import grouped_batches, shard
from retriever.types import Ids

CPU_TOKENS_PER_CHUNK = 2048
GPU_TOKENS_PER_CHUNK = 16_384
#: What one more encoder call costs on a CPU, in tokens: mostly the gradient of the word embeddings,
#: which is written whole in every call. Measured with MiniLM (130 to 160). A GPU pays per launch,
#: so that few chunks are best there.
CPU_CHUNK_OVERHEAD = 128


class EpochLoader:
    """Batches of one epoch; knows how far it got, so that Lightning can store and restore it.

    The epoch is read from the trainer when the first batch is asked for. Nothing is fetched ahead:
    the position in a checkpoint is exactly the number of steps taken.
    """

    def __init__(
        self,
        table: TokenTable,
        config: TrainerConfig,
        *,
        seed: int,
        shuffle: bool,
        trainer: lightning.Trainer | None,
    ) -> None:
        self._table = table
        self._config = config
        self._seed = seed
        self._shuffle = shuffle
        self._trainer = trainer
        self._position = 0
        self._resume_at = 0
        self._steps = len(self._batches(epoch=0))

    def __len__(self) -> int:
        return self._steps

    def __iter__(self) -> Iterator[Batch]:
        epoch = 0 if self._trainer is None else self._trainer.current_epoch
        self._position, self._resume_at = self._resume_at, 0
        on_gpu = self._trainer is not None and self._trainer.strategy.root_device.type == "cuda"
        default = GPU_TOKENS_PER_CHUNK if on_gpu else CPU_TOKENS_PER_CHUNK
        for row in self._batches(epoch)[self._position :]:
            self._position += 1
            yield collate(
                self._table,
                row,
                tokens_per_chunk=self._config.tokens_per_chunk or default,
                chunk_overhead=None if on_gpu else CPU_CHUNK_OVERHEAD,
            )

    def state_dict(self) -> dict[str, Any]:
        """How many batches of the running epoch were handed out."""
        return {"position": self._position}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Start the next epoch that is iterated at the stored position."""
        self._resume_at = int(state["position"])

    def _batches(self, epoch: int) -> list[Ids]:
        batches = grouped_batches(
            self._table.rows,
            queries_per_batch=self._config.queries_per_batch,
            max_rows_per_query=self._config.max_rows_per_query,
            seed=self._seed,
            epoch=epoch,
            shuffle=self._shuffle,
        )
        # Validation rows are all scored by every rank: a share would repeat some to come out even,
        # and a row that counts twice changes the log-loss.
        if self._trainer is None or not self._shuffle:
            return batches
        return shard(batches, self._trainer.global_rank, self._trainer.world_size)


class OutcomeData(lightning.LightningDataModule):
    """Training and validation rows of one split."""

    def __init__(
        self, train: TokenTable, validation: TokenTable, config: TrainerConfig, *, seed: int
    ) -> None:
        super().__init__()
        self._train = train
        self._validation = validation
        self._config = config
        self._seed = seed

    def train_dataloader(self) -> EpochLoader:
        """Shuffled anew each epoch, whole queries together."""
        return EpochLoader(
            self._train, self._config, seed=self._seed, shuffle=True, trainer=self.trainer
        )

    def val_dataloader(self) -> EpochLoader:
        """The validation rows in a fixed order."""
        return EpochLoader(
            self._validation, self._config, seed=self._seed, shuffle=False, trainer=self.trainer
        )

    def transfer_batch_to_device(
        self, batch: Batch, device: torch.device, dataloader_idx: int
    ) -> Batch:
        """Move every tensor of the batch."""
        return batch.to(device)
