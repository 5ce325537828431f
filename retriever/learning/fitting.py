"""One fit of one model on one split: Lightning wired up, resumable, the best epoch kept."""

from __future__ import annotations

import logging
import os
import sys
import time
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import lightning
import torch
from lightning.pytorch.callbacks import Callback, EarlyStopping, ModelCheckpoint, RichProgressBar
from lightning.pytorch.loggers import CSVLogger, Logger, TensorBoardLogger

from retriever.device import Device
from retriever.errors import ConfigError, InvalidInput
from retriever.learning.config import TrainConfig
from retriever.learning.data.collate import TokenTable, tokenise
from retriever.learning.data.datamodule import OutcomeData
from retriever.learning.data.rows import Rows
from retriever.learning.devices import torch_device
from retriever.learning.encoder import Encoder, load_encoder
from retriever.learning.model import CaseClassifier, SplitHead
from retriever.learning.module import VALIDATION_LOSS, RetrieverModule

LAST = "last.ckpt"
SECONDS_BETWEEN_LINES = 30.0

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Fitted:
    """A trained model with the best epoch's weights, and how it came about.

    `truncated` counts distinct texts that were cut at the encoder's maximum length.
    """

    model: CaseClassifier
    encoder: Encoder
    summary: dict[str, Any]
    is_main: bool


def fit(
    config: TrainConfig,
    train: Rows,
    validation: Rows,
    folder: Path,
    *,
    callbacks: Sequence[Callback] = (),
) -> Fitted:
    """Train on `train`, choose the epoch on `validation`; checkpoints and curves go below `folder`.

    With `config.resume` the run goes on from `checkpoints/last.ckpt`, if there is one, exactly as
    if it had never stopped.
    """
    check_launch(config)
    lightning.seed_everything(config.seed, workers=True, verbose=False)
    encoder = load_encoder(config.encoder)
    head = SplitHead(encoder.hidden_size, config.model.hidden, config.model.dropout)
    model = CaseClassifier(encoder.model, encoder.pooling, head)
    weighting = config.objective.query_weighting
    resume_from = _resume_from(config, folder)
    tables = [
        tokenise(rows, encoder.tokenizer, query_weighting=weighting) for rows in (train, validation)
    ]
    data = OutcomeData(tables[0], tables[1], config.trainer, seed=config.seed)
    steps = -(-len(data.train_dataloader()) // config.trainer.devices)
    module = RetrieverModule(
        model,
        config.objective,
        config.trainer,
        total_steps=total_steps(config, steps),
        positive_weight=positive_weight(config, train),
        seed=config.seed,
    )
    # transformers hands models out in evaluation mode, and Lightning keeps the mode it finds.
    model.train()
    _describe(tables, encoder, config)
    started = time.monotonic()
    with quiet_lightning():
        trainer, checkpoint = build_trainer(
            config, folder, log_every_n_steps=min(10, steps), callbacks=callbacks
        )
        trainer.fit(
            module,
            datamodule=data,
            ckpt_path=resume_from,
            weights_only=True,
        )
    if trainer.interrupted:
        raise KeyboardInterrupt
    seconds = time.monotonic() - started
    best = checkpoint.best_model_path
    if best:
        _load_weights(module, Path(best))
    else:
        log.warning(
            "no epoch reached its validation (trainer.max_steps): these are the last weights"
        )
    summary = {
        "epochs": trainer.current_epoch,
        "steps": trainer.global_step,
        "seconds": round(seconds, 3),
        "best_validation_log_loss": _number(checkpoint.best_model_score),
        "best_checkpoint": Path(best).name if best else None,
        "device": str(trainer.strategy.root_device),
        "precision": str(trainer.precision),
        "truncated_texts": sum(table.truncated for table in tables),
    }
    return Fitted(model.eval(), encoder, summary, is_main=trainer.is_global_zero)


def build_trainer(
    config: TrainConfig,
    folder: Path,
    *,
    log_every_n_steps: int = 10,
    callbacks: Sequence[Callback] = (),
) -> tuple[lightning.Trainer, ModelCheckpoint]:
    """The Lightning trainer of a run, and its checkpoint callback (best by validation log-loss)."""
    settings = config.trainer
    device = torch_device(Device.parse(config.device))
    precision = _precision(settings.precision, device)
    # Deterministic algorithms also fill every fresh tensor, a debugging aid that costs a tenth.
    debugging: Any = torch.utils.deterministic
    debugging.fill_uninitialized_memory = False
    if settings.deterministic and device.type == "cuda":
        # cuBLAS needs this before its first call to be deterministic.
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    checkpoint = ModelCheckpoint(
        dirpath=folder / "checkpoints",
        filename="best",
        monitor=VALIDATION_LOSS,
        mode="min",
        save_top_k=1,
        save_last=False,
        enable_version_counter=False,
    )
    last = ModelCheckpoint(
        dirpath=folder / "checkpoints",
        filename="last",
        save_top_k=1,
        enable_version_counter=False,
        every_n_train_steps=settings.checkpoint_every_steps or None,
        every_n_epochs=None if settings.checkpoint_every_steps else 1,
        save_on_train_epoch_end=None if settings.checkpoint_every_steps else True,
    )
    used: list[Callback] = [*callbacks, checkpoint, last]
    if settings.patience:
        # Not strict: max_steps may end an epoch before its validation.
        used.append(
            EarlyStopping(VALIDATION_LOSS, mode="min", patience=settings.patience, strict=False)
        )
    # A bar redraws itself; where nobody can see that, one line an epoch says the same.
    if settings.progress and sys.stderr.isatty():
        used.append(RichProgressBar(leave=True))
    else:
        used.append(EpochLines())
    several = settings.devices > 1
    trainer = lightning.Trainer(
        accelerator="gpu" if device.type == "cuda" else "cpu",
        devices=settings.devices if several or device.type == "cpu" else [device.index or 0],
        strategy="ddp" if several else "auto",
        precision=precision,  # type: ignore[arg-type]  # Lightning's Literal of spellings
        max_epochs=settings.epochs,
        max_steps=settings.max_steps,
        gradient_clip_val=settings.gradient_clip,
        deterministic=settings.deterministic,
        use_distributed_sampler=False,
        num_sanity_val_steps=0,
        log_every_n_steps=log_every_n_steps,
        enable_progress_bar=any(isinstance(c, RichProgressBar) for c in used),
        enable_model_summary=False,
        callbacks=used,
        logger=_loggers(config, folder),
        default_root_dir=folder,
    )
    return trainer, checkpoint


class EpochLines(Callback):
    """A log line at each end of an epoch and twice a minute in between, for logs and pipes."""

    def __init__(self) -> None:
        self._said = time.monotonic()

    def on_train_batch_end(
        self,
        trainer: lightning.Trainer,
        pl_module: lightning.LightningModule,
        outputs: Any,
        batch: Any,
        batch_idx: int,
    ) -> None:
        """Say how far a long epoch is."""
        if time.monotonic() - self._said >= SECONDS_BETWEEN_LINES:
            self._said = time.monotonic()
            loss = float(outputs["loss"])
            steps = trainer.num_training_batches
            log.info("step %d/%s of the epoch: loss %.4f", batch_idx + 1, steps, loss)

    def on_train_epoch_start(
        self, trainer: lightning.Trainer, pl_module: lightning.LightningModule
    ) -> None:
        """Say which epoch begins and how long it is."""
        self._said = time.monotonic()
        steps = trainer.num_training_batches
        log.info("epoch %d/%s: %s steps", trainer.current_epoch + 1, trainer.max_epochs, steps)

    def on_validation_epoch_end(
        self, trainer: lightning.Trainer, pl_module: lightning.LightningModule
    ) -> None:
        """Say what the epoch came to."""
        value = trainer.callback_metrics.get(VALIDATION_LOSS)
        if value is not None:
            log.info("epoch %d: validation log-loss %.4f", trainer.current_epoch + 1, float(value))


def total_steps(config: TrainConfig, steps_per_epoch: int) -> int:
    """How many optimizer steps a whole run takes, which is what the schedule is laid out over."""
    total = steps_per_epoch * config.trainer.epochs
    return total if config.trainer.max_steps == -1 else min(total, config.trainer.max_steps)


def positive_weight(config: TrainConfig, train: Rows) -> float:
    """What a success counts in the loss; balanced: Memento's `max(1, negatives / positives)`."""
    if config.objective.positive_weight is not None:
        return config.objective.positive_weight
    if not config.objective.balance_classes:
        return 1.0
    positive = float(train.outcome.sum())
    if positive == 0:
        raise InvalidInput("objective.balance_classes: the training rows hold no success to weigh")
    return max(1.0, (len(train) - positive) / positive)


def check_launch(config: TrainConfig) -> None:
    """Several devices need several processes, and a launcher that owns them.

    Raises:
        ConfigError: the process was not started by torchrun or SLURM.
    """
    devices = config.trainer.devices
    if devices > 1 and not {"LOCAL_RANK", "SLURM_PROCID"} & set(os.environ):
        raise ConfigError(
            f"trainer.devices = {devices}: start one process a device, with "
            f"torchrun --nproc-per-node {devices} train.py ... hydra.run.dir=FOLDER"
        )


def _resume_from(config: TrainConfig, folder: Path) -> Path | None:
    path = folder / "checkpoints" / LAST
    if not config.resume:
        if path.exists():
            raise ConfigError(
                f"{path} exists: a run was made in this folder before; "
                "go on with it by resume=true, or choose another folder with hydra.run.dir=FOLDER"
            )
        return None
    if not path.is_file():
        log.info("resume=true, but there is no %s yet: starting from the beginning", path)
        return None
    log.info("going on from %s", path)
    return path


def _load_weights(module: RetrieverModule, path: Path) -> None:
    state = torch.load(path, map_location="cpu", weights_only=True)
    module.load_state_dict(state["state_dict"])


def _precision(asked: str, device: torch.device) -> str:
    if asked == "fp32":
        return "32-true"
    supported = device.type == "cuda" and torch.cuda.is_bf16_supported()
    if asked == "auto":
        return "bf16-mixed" if supported else "32-true"
    return asked


def _loggers(config: TrainConfig, folder: Path) -> list[Logger]:
    loggers: list[Logger] = []
    if config.logger.csv:
        loggers.append(CSVLogger(folder, name="logs", version=_unused(folder / "logs", "csv")))
    if config.logger.tensorboard:
        loggers.append(TensorBoardLogger(folder, name="logs", version="tensorboard"))
    return loggers


def _unused(folder: Path, name: str) -> str:
    """`name`, or `name-1`, ...: the CSV logger deletes what it finds, a resumed run's past too."""
    names = [name, *(f"{name}-{number}" for number in range(1, 10_000))]
    return next(one for one in names if not (folder / one).exists())


def _describe(tables: list[TokenTable], encoder: Encoder, config: TrainConfig) -> None:
    train, validation = (len(table.rows) for table in tables)
    log.info("training on %d rows, choosing the epoch on %d", train, validation)
    cut = sum(table.truncated for table in tables)
    if cut:
        log.warning(
            "%d distinct texts are longer than %d tokens and were cut; "
            "raise encoder.max_length to keep them whole",
            cut,
            encoder.tokenizer.max_length,
        )


def _number(value: torch.Tensor | None) -> float | None:
    return None if value is None else float(value)


@contextmanager
def quiet_lightning() -> Iterator[None]:
    """Lightning's banners say nothing the report does not; its deprecations are not ours."""
    names = ("lightning.pytorch.utilities.rank_zero", "lightning.pytorch.accelerators.cuda")
    loggers = [logging.getLogger(name) for name in names]
    levels = [logger.level for logger in loggers]
    try:
        for logger in loggers:
            logger.setLevel(logging.WARNING)
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message=".*LeafSpec.*is deprecated")
            # Said by us where it matters: a run that goes on, and one that max_steps cut short.
            warnings.filterwarnings("ignore", message="Checkpoint directory .* not empty")
            warnings.filterwarnings("ignore", message=".*could not find the monitored key")
            yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)
