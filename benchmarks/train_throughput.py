"""Training throughput: pairs/s of our trainer against Memento's own loop, on CPUs.

    python -m benchmarks.train_throughput            # about five minutes
    python -m benchmarks.train_throughput --quick    # a tiny encoder, under a minute

Both sides train in one process, by turns, on the same rows, the same encoder from the same weights,
first-token pooling, plans used, at most 256 tokens, all texts tokenised beforehand. A step counts
whole: batch, forward, backward, clipping, optimizer. Ours is the trainer that `train.py` runs, with
its default settings and whatever Lightning costs; Memento's is `memento_loop`. Before anything is
timed, both compute the loss of the same rows with the same weights and have to agree.
"""

from __future__ import annotations

import argparse
import copy
import os
import statistics
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import torch

if not __package__:  # run as a file: Python put this folder on the path, not the project's
    sys.path[0] = str(Path(__file__).resolve().parents[1])

from benchmarks.figures import Figure, result_line
from benchmarks.memento_loop import MementoLoop, with_weights_of
from benchmarks.pace import Pace, StepClock
from benchmarks.planted import planted_rows, random_encoder
from retriever.learning.config import (
    EncoderConfig,
    LoggerConfig,
    ModelConfig,
    PlantedConfig,
    TrainConfig,
    TrainerConfig,
)
from retriever.learning.data.collate import TokenTable, collate, tokenise
from retriever.learning.data.datamodule import (
    CPU_CHUNK_OVERHEAD,
    CPU_TOKENS_PER_CHUNK,
    OutcomeData,
)
from retriever.learning.data.rows import Rows
from retriever.learning.data.sampler import grouped_batches
from retriever.learning.encoder import load_encoder
from retriever.learning.fitting import build_trainer, quiet_lightning
from retriever.learning.model import CaseClassifier, SplitHead
from retriever.learning.module import RetrieverModule, batch_logits
from retriever.learning.objectives import cross_entropy

ROOT = Path(__file__).resolve().parents[1]
TARGET_RATIO = 3.0
LARGEST_LOSS_DIFFERENCE = 1e-4
MEMENTO = "memento"


class OurLoop:
    """`RetrieverModule`, `OutcomeData` and the trainer of `build_trainer`, stopped by the clock."""

    def __init__(self, model: CaseClassifier, table: TokenTable, precision: str, seed: int) -> None:
        self.model = model
        self._table = table
        self._seed = seed
        self._config = TrainConfig(
            output_dir="unused",
            device="cpu",
            logger=LoggerConfig(csv=False, tensorboard=False),
            trainer=TrainerConfig(epochs=1000, precision=precision, patience=0, progress=False),
        )

    def run(self, limit_s: float) -> Pace:
        """Whole steps until `limit_s` is reached, after one that is not timed."""
        settings = self._config.trainer
        module = RetrieverModule(
            self.model,
            self._config.objective,
            settings,
            total_steps=1_000_000,  # of the schedule; the clock ends the run long before
            positive_weight=1.0,
            seed=self._seed,
        )
        self.model.train()
        clock = StepClock(limit_s=limit_s)
        with tempfile.TemporaryDirectory() as folder, quiet_lightning():
            trainer, _ = build_trainer(self._config, Path(folder))
            # Neither side validates or writes checkpoints here.
            trainer.callbacks = [clock]  # type: ignore[attr-defined]  # set by a mixin of Lightning
            trainer.limit_val_batches = 0
            trainer.fit(
                module,
                datamodule=OutcomeData(self._table, self._table, settings, seed=self._seed),
            )
        return clock.pace


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, print the table, and end with the line of JSON."""
    options = parse(arguments)
    rows, source = load_rows(options)
    print(f"log      {source}: {len(rows)} rows, {len(set(rows.group.tolist()))} queries")
    model, table = load_model(options, rows)
    difference = loss_difference(model, table, seed=options.seed)
    print(f"the two losses of the same rows differ by {difference:.1e}\n")
    if not difference <= LARGEST_LOSS_DIFFERENCE:
        raise SystemExit(
            f"error: the two sides do not compute the same loss (they differ by {difference:.3g}, "
            f"more than {LARGEST_LOSS_DIFFERENCE:g}), so their speeds cannot be compared"
        )
    loops: dict[str, OurLoop | MementoLoop] = {
        precision: OurLoop(copy.deepcopy(model), table, precision, options.seed)
        for precision in options.precisions
    }
    memento = with_weights_of(copy.deepcopy(model))
    loops[MEMENTO] = MementoLoop(memento, table, seed=options.seed)
    paces = by_turns(loops, rounds=options.rounds, seconds=options.seconds)
    print()
    print(as_table(paces))
    figures = figures_of(paces) | {
        "loss_difference": Figure(difference, "nats", LARGEST_LOSS_DIFFERENCE, at_most=True)
    }
    for precision in options.precisions:
        ratios = ratios_of(paces, precision)
        print(
            f"{precision} against Memento: {statistics.median(ratios):.2f}x "
            f"(rounds {min(ratios):.2f} to {max(ratios):.2f})"
        )
    versions = {"torch": torch.__version__, "threads": torch.get_num_threads()}
    print(result_line("train_throughput", figures, **versions))


def loss_difference(model: CaseClassifier, table: TokenTable, *, seed: int) -> float:
    """|our loss - Memento's| over one of our batches, dropout off, Memento's class weight on."""
    peer = MementoLoop(with_weights_of(model), table, seed=seed)
    model.eval()
    peer.model.eval()
    settings = TrainerConfig()
    row = grouped_batches(
        table.rows,
        queries_per_batch=settings.queries_per_batch,
        max_rows_per_query=settings.max_rows_per_query,
        seed=seed,
        epoch=0,
    )[0]
    batch = collate(
        table, row, tokens_per_chunk=CPU_TOKENS_PER_CHUNK, chunk_overhead=CPU_CHUNK_OVERHEAD
    )
    with torch.inference_mode():
        ours = cross_entropy(
            batch_logits(model, batch),
            batch.outcome,
            batch.weight,
            positive_weight=peer.positive_weight,
        )
        theirs, _ = peer.loss(row)
    return abs(float(ours) - float(theirs))


def by_turns(
    loops: dict[str, OurLoop | MementoLoop], *, rounds: int, seconds: float
) -> dict[str, list[Pace]]:
    """Every loop once a round, the order turned round each time."""
    paces: dict[str, list[Pace]] = {name: [] for name in loops}
    for number in range(rounds):
        order = list(loops) if number % 2 == 0 else list(reversed(loops))
        for name in order:
            paces[name].append(loops[name].run(seconds))
        shown = ", ".join(f"{name} {paces[name][-1].rows_per_s:.1f}" for name in loops)
        print(f"round {number + 1} of {rounds}, pairs/s: {shown}", flush=True)
    return paces


def ratios_of(paces: dict[str, list[Pace]], precision: str) -> list[float]:
    """Our pairs/s over Memento's, round by round: what slows the machine slows both."""
    return [
        ours.rows_per_s / theirs.rows_per_s
        for ours, theirs in zip(paces[precision], paces[MEMENTO], strict=True)
    ]


def figures_of(paces: dict[str, list[Pace]]) -> dict[str, Figure]:
    """Medians over the rounds; only float32 against float32 has a target."""
    figures = {}
    for name, rounds in paces.items():
        key = "memento" if name == MEMENTO else f"precedent_{_plain(name)}"
        median = statistics.median(pace.rows_per_s for pace in rounds)
        figures[f"{key}_pairs_per_s"] = Figure(median, "pairs/s")
        if name != MEMENTO:
            figures[f"ratio_{_plain(name)}"] = Figure(
                statistics.median(ratios_of(paces, name)),
                "x",
                TARGET_RATIO if name == "fp32" else None,
            )
    return figures


def as_table(paces: dict[str, list[Pace]]) -> str:
    """Medians over the rounds, a line a side."""
    lines = [
        f"{'':<22}{'pairs/s':>9}{'pairs/step':>12}{'tokens/pair':>13}{'tokens/s':>10}{'padding':>9}"
    ]
    for name, rounds in paces.items():
        title = "Memento's loop" if name == MEMENTO else f"Precedent {name}"
        lines.append(
            f"{title:<22}"
            f"{_median(p.rows_per_s for p in rounds):>9.1f}"
            f"{_median(p.rows / max(1, p.steps) for p in rounds):>12.1f}"
            f"{_median(p.positions_per_row for p in rounds):>13.1f}"
            f"{_median(p.positions_per_s for p in rounds):>10.0f}"
            f"{_median(p.padding for p in rounds):>9.1%}"
        )
    lines.append("(medians over the rounds; tokens are padded tokens)")
    return "\n".join(lines)


def load_model(options: argparse.Namespace, rows: Rows) -> tuple[CaseClassifier, TokenTable]:
    """The classifier that both sides start from, and the tokens of the rows."""
    with tempfile.TemporaryDirectory() as folder:
        source = options.encoder
        if source is None:
            texts = rows.query_texts + rows.case_texts
            source = str(random_encoder(Path(folder), texts, layers=2, hidden_size=64))
        encoder = load_encoder(
            EncoderConfig(source=source, max_length=options.max_length, pooling="first")
        )
    print(f"encoder  {options.encoder or 'tiny, random'}, {torch.get_num_threads()} threads")
    if options.quick:
        print("quick: small sizes show that it works; measure without --quick")
    torch.manual_seed(options.seed)
    head = SplitHead(encoder.hidden_size, ModelConfig().hidden, ModelConfig().dropout)
    model = CaseClassifier(encoder.model, encoder.pooling, head)
    return model, tokenise(rows, encoder.tokenizer)


def load_rows(options: argparse.Namespace) -> tuple[Rows, str]:
    """The rows to train on, plans used, and where they come from."""
    if options.log is None:
        planted = PlantedConfig(rows=options.planted_rows, seed=options.seed)
        return planted_rows(planted), "planted"
    # Reading files needs `datasets`; a planted log does not.
    from retriever.learning.data.outcome_log import read_outcome_log

    rows = read_outcome_log(str(options.log)).rows(use_plan=True)
    return rows.take(~rows.self_case), options.log.name


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """The options, with what depends on `--quick` filled in."""
    parser = argparse.ArgumentParser(
        description="Training throughput against Memento's own loop, on CPUs."
    )
    parser.add_argument(
        "--log", type=Path, help="an outcome log (Memento's training data if there, else planted)"
    )
    parser.add_argument(
        "--encoder",
        help=f"hub id, folder or pkg: ({EncoderConfig().source}; with --quick a tiny random one)",
    )
    parser.add_argument("--max-length", type=int, default=256, help="tokens")
    parser.add_argument("--rounds", type=int, help="5; 2 with --quick")
    parser.add_argument("--seconds", type=float, help="a side and round: 20; 2 with --quick")
    parser.add_argument("--precision", choices=("fp32", "bf16-mixed", "both"), default="fp32")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--quick", action="store_true", help="a small planted log, a tiny encoder, short rounds"
    )
    options = parser.parse_args(arguments)
    if options.rounds is None:
        options.rounds = 2 if options.quick else 5
    if options.seconds is None:
        options.seconds = 2.0 if options.quick else 20.0
    if options.encoder is None and not options.quick:
        options.encoder = EncoderConfig().source
    options.planted_rows = 800 if options.quick else 6000
    options.precisions = (
        ("fp32", "bf16-mixed") if options.precision == "both" else (options.precision,)
    )
    if options.rounds < 1 or not options.seconds > 0:
        parser.error(
            f"--rounds {options.rounds} --seconds {options.seconds:g}: at least one round, and "
            "more than 0 seconds"
        )
    if options.log is None and not options.quick:
        shared = os.environ.get("PRECEDENT_SHARED_DATA", str(ROOT.parent / "shared" / "data"))
        real = Path(shared) / "memento" / "training_data.jsonl"
        options.log = real if real.is_file() else None
    return options


def _median(values: object) -> float:
    return statistics.median(values)  # type: ignore[arg-type]


def _plain(precision: str) -> str:
    return precision.replace("-", "_")


if __name__ == "__main__":
    main()
