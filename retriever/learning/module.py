"""The LightningModule: thin. One step encodes each distinct text once and gathers."""

from __future__ import annotations

from typing import Any

import lightning
import torch
import torchmetrics
from lightning.pytorch.utilities.types import OptimizerLRScheduler
from torch import Tensor, nn

from retriever.learning.config import ObjectiveConfig, TrainerConfig
from retriever.learning.data.collate import Batch
from retriever.learning.model import CaseClassifier
from retriever.learning.objectives import cross_entropy

VALIDATION_LOSS = "val/log_loss"


def batch_logits(model: CaseClassifier, batch: Batch) -> Tensor:
    """The (R,) logits of a batch: U texts through the encoder, R pairs through the head."""
    assert model.head is not None
    embeddings = torch.cat([model.encode(ids, mask) for ids, mask in batch.chunks])  # (U, H)
    asked = model.head.query(embeddings[batch.queries])  # (Q, D)
    shown = model.head.case(embeddings[batch.cases])  # (C, D)
    logits: Tensor = model.head(shown[batch.case_of], asked[batch.query_of])
    return logits


class RetrieverModule(lightning.LightningModule):
    """Fine-tunes encoder and head on one objective; monitored by the validation log-loss."""

    def __init__(
        self,
        model: CaseClassifier,
        objective: ObjectiveConfig,
        config: TrainerConfig,
        *,
        total_steps: int,
        positive_weight: float,
        seed: int,
    ) -> None:
        super().__init__()
        self.model = model
        self._objective = objective
        self._config = config
        self._total_steps = total_steps
        self._positive_weight = positive_weight
        self._seed = seed
        self._validation_loss = torchmetrics.MeanMetric()

    def on_train_batch_start(self, batch: Batch, batch_idx: int) -> None:
        """Make the dropout of a step a function of (seed, step, rank).

        A resumed run then draws what the straight run would have drawn, with no generator state to
        store, and every rank of a distributed run draws its own.
        """
        step = self.global_step * self.trainer.world_size + self.global_rank
        torch.manual_seed((self._seed * 0x9E3779B97F4A7C15 + step) % 2**63)

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        """One objective over the rows of the batch."""
        loss = cross_entropy(
            batch_logits(self.model, batch),
            batch.outcome,
            batch.weight,
            label_smoothing=self._objective.label_smoothing,
            positive_weight=self._positive_weight,
        )
        self.log("train/loss", loss.detach(), prog_bar=True, batch_size=len(batch))
        return loss

    def validation_step(self, batch: Batch, batch_idx: int) -> None:
        """The plain log-loss, whatever the objective: that is what the report is about."""
        logit = batch_logits(self.model, batch)
        loss = cross_entropy(logit, batch.outcome, torch.ones_like(batch.outcome))
        self._validation_loss.update(loss, weight=len(batch))
        self.log(VALIDATION_LOSS, self._validation_loss, prog_bar=True, batch_size=len(batch))

    def configure_gradient_clipping(
        self,
        optimizer: torch.optim.Optimizer,
        gradient_clip_val: float | None = None,
        gradient_clip_algorithm: str | None = None,
    ) -> None:
        """Clip by the global norm.

        Lightning's own refuses fused optimizers under mixed precision, for the sake of fp16's
        gradient scaler; bf16 has none.
        """
        if gradient_clip_val:
            torch.nn.utils.clip_grad_norm_(self.parameters(), gradient_clip_val)

    def configure_optimizers(self) -> OptimizerLRScheduler:
        """AdamW; weight decay on matrices only; linear warm-up, then linear to zero."""
        optimizer = torch.optim.AdamW(
            parameter_groups(self.model, self._config),
            fused=True,
        )
        # Not trainer.estimated_stepping_batches: asking for it sets the loaders up before a
        # checkpoint is read, and their stored position is then never restored.
        total = self._total_steps
        warmup = round(total * self._config.warmup_fraction)
        scheduler = torch.optim.lr_scheduler.LambdaLR(
            optimizer, lambda step: linear_schedule(step, warmup, total)
        )
        return {
            "optimizer": optimizer,
            "lr_scheduler": {"scheduler": scheduler, "interval": "step"},
        }


def linear_schedule(step: int, warmup: int, total: int) -> float:
    """The share of the learning rate at `step`: from 0 up for `warmup`, to 0 at `total`."""
    if step < warmup:
        return step / max(1, warmup)
    return max(0.0, (total - step) / max(1, total - warmup))


def parameter_groups(model: CaseClassifier, config: TrainerConfig) -> list[dict[str, Any]]:
    """Encoder and head, each with and without weight decay (none on biases and norms)."""
    head_rate = config.head_learning_rate or config.learning_rate
    groups: list[dict[str, Any]] = []
    parts: tuple[tuple[nn.Module | None, float], ...] = (
        (model.encoder, config.learning_rate),
        (model.head, head_rate),
    )
    for part, rate in parts:
        if part is None:
            continue
        trained = [p for p in part.parameters() if p.requires_grad]
        # Biases and the gains of norms are the one-dimensional parameters.
        for decay, chosen in (
            (config.weight_decay, [p for p in trained if p.ndim > 1]),
            (0.0, [p for p in trained if p.ndim <= 1]),
        ):
            if chosen:
                groups.append({"params": chosen, "lr": rate, "weight_decay": decay})
    return groups
