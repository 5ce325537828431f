"""Fine-tuning on a GPU through the product's own `fit`: bf16-mixed beside fp32 from one seed.

    benchmarks/gpu_check.sh train                          # one CUDA device
    benchmarks/gpu_check.sh train --device cpu --quick     # the same path without one

Everything is made on the spot, a planted log and a random encoder of MiniLM's shape, so that it
needs torch, lightning and transformers, but no files and no network. A random encoder learns little
in a few epochs; what counts is that both precisions learn the same.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from benchmarks.figures import DEVICES, Figure, device_name, result_line
from benchmarks.pace import Pace, StepClock
from benchmarks.planted import planted_rows, random_encoder
from retriever.device import Device
from retriever.learning.config import (
    EncoderConfig,
    LoggerConfig,
    PlantedConfig,
    TrainConfig,
    TrainerConfig,
)
from retriever.learning.data.rows import Rows
from retriever.learning.data.split import grouped_split
from retriever.learning.devices import torch_device
from retriever.learning.fitting import fit

PRECISIONS = ("bf16-mixed", "fp32")
# bf16 keeps 8 bits of a number, which moves a log-loss in the third decimal.
LARGEST_LOG_LOSS_DIFFERENCE = 0.02
MIB = 2**20


@dataclass(frozen=True)
class Sizes:
    """How much is trained."""

    rows: int
    layers: int
    hidden_size: int
    epochs: int


FULL = Sizes(rows=48_000, layers=6, hidden_size=384, epochs=2)
QUICK = Sizes(rows=400, layers=2, hidden_size=64, epochs=2)


@dataclass(frozen=True)
class Trained:
    """One fit. `peak_mib` is what torch had allocated on the GPU at most, None on a CPU."""

    pace: Pace
    log_loss: float
    peak_mib: float | None


def main(arguments: Sequence[str] | None = None) -> None:
    """Train in both precisions, print the table, and end with the line of JSON."""
    options = parse(arguments)
    sizes = QUICK if options.quick else FULL
    device = torch_device(Device.parse(options.device))
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu"
    rows = planted_rows(PlantedConfig(rows=sizes.rows, seed=options.seed))
    split = grouped_split(rows, validation_fraction=0.1, test_fraction=0.0, seed=options.seed)
    train, validation = rows.take(split.train), rows.take(split.validation)
    base_rate = base_rate_log_loss(train, validation)
    print(f"device   {name}, torch {torch.__version__}")
    print(f"encoder  random, {sizes.layers} layers of {sizes.hidden_size}")
    print(f"log      planted, {len(train)} rows to train on, {len(validation)} to validate")
    with tempfile.TemporaryDirectory() as folder:
        texts = rows.query_texts + rows.case_texts
        encoder = random_encoder(
            Path(folder) / "encoder", texts, layers=sizes.layers, hidden_size=sizes.hidden_size
        )
        runs = {}
        for precision in PRECISIONS:
            config = TrainConfig(
                output_dir=str(Path(folder) / precision),
                seed=options.seed,
                device=str(device),
                encoder=EncoderConfig(source=str(encoder), pooling="mean"),
                trainer=TrainerConfig(
                    epochs=sizes.epochs, learning_rate=1e-4, precision=precision, progress=False
                ),
                logger=LoggerConfig(csv=False, tensorboard=False),
            )
            runs[precision] = train_once(config, train, validation, device)
    print()
    print(as_table(runs, base_rate))
    gpu = name if device.type == "cuda" else None
    print(result_line("gpu_train", figures_of(runs), torch=torch.__version__, gpu=gpu))


def train_once(config: TrainConfig, train: Rows, validation: Rows, device: torch.device) -> Trained:
    """One fit through the product's own path."""
    on_gpu = device.type == "cuda"
    if on_gpu:
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(device)
    clock = StepClock(warmup_steps=3)
    fitted = fit(config, train, validation, Path(config.output_dir), callbacks=[clock])
    return Trained(
        pace=clock.pace,
        log_loss=float(fitted.summary["best_validation_log_loss"]),
        peak_mib=torch.cuda.max_memory_allocated(device) / MIB if on_gpu else None,
    )


def base_rate_log_loss(train: Rows, validation: Rows) -> float:
    """The validation log-loss of always predicting the training rows' success rate."""
    rate = float(train.outcome.mean())
    positive = float(validation.outcome.mean())
    return float(-positive * np.log(rate) - (1 - positive) * np.log(1 - rate))


def figures_of(runs: dict[str, Trained]) -> dict[str, Figure]:
    """Speed, memory and log-loss of both precisions, and how far the two log-losses differ."""
    figures = {}
    for precision, run in runs.items():
        key = precision.replace("-", "_")
        figures[f"{key}_pairs_per_s"] = Figure(run.pace.rows_per_s, "pairs/s")
        figures[f"{key}_log_loss"] = Figure(run.log_loss, "nats")
        if run.peak_mib is not None:
            figures[f"{key}_peak_memory"] = Figure(run.peak_mib, "MiB")
    difference = abs(runs["bf16-mixed"].log_loss - runs["fp32"].log_loss)
    figures["log_loss_difference"] = Figure(
        difference, "nats", LARGEST_LOG_LOSS_DIFFERENCE, at_most=True
    )
    return figures


def as_table(runs: dict[str, Trained], base_rate: float) -> str:
    """A line a precision."""
    lines = [
        f"{'':<12}{'pairs/s':>9}{'tokens/s':>11}{'padding':>9}{'peak MiB':>10}{'log-loss':>10}"
    ]
    for precision, run in runs.items():
        peak = "-" if run.peak_mib is None else f"{run.peak_mib:.0f}"
        lines.append(
            f"{precision:<12}{run.pace.rows_per_s:>9.0f}{run.pace.positions_per_s:>11.0f}"
            f"{run.pace.padding:>9.1%}{peak:>10}{run.log_loss:>10.4f}"
        )
    lines.append(f"(log-loss on the validation rows; the base rate's is {base_rate:.4f})")
    return "\n".join(lines)


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """The options."""
    parser = argparse.ArgumentParser(description="Fine-tuning on a GPU: speed, memory, log-loss.")
    parser.add_argument("--device", type=device_name, default="cuda", help=DEVICES)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--quick", action="store_true", help="tiny sizes: does the path work?")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    main()
