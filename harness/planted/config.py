"""What the planted benchmark can be told; values live in `conf/evaluate.yaml` and its groups."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from retriever.device import Device
from retriever.learning.config import (
    EncoderConfig,
    ModelConfig,
    ObjectiveConfig,
    PlantedConfig,
    TrainerConfig,
)
from retriever.settings import require


@dataclass
class PlantedBenchmark:
    """How much is measured, and how finely."""

    name: str = "planted"
    held_out_queries: int = 60  # queries that are in no log
    top_k: list[int] = field(default_factory=lambda: [1, 5])
    resamples: int = 1000  # bootstrap resamples of queries

    def __post_init__(self) -> None:
        require(
            self.held_out_queries >= 2,
            "benchmark.held_out_queries",
            self.held_out_queries,
            "at least 2",
        )
        require(
            bool(self.top_k) and min(self.top_k) >= 1,
            "benchmark.top_k",
            self.top_k,
            "numbers from 1 up",
        )
        require(
            100 <= self.resamples <= 100_000,
            "benchmark.resamples",
            self.resamples,
            "from 100 to 100000",
        )


@dataclass
class World(PlantedConfig):
    """The planted world, under the name that it has here."""

    PLACE: ClassVar[str] = "dataset.world"


@dataclass
class PlantedDataset:
    """The world that the log and the held-out queries come from."""

    name: str = "planted"
    world: World = field(default_factory=World)


@dataclass
class RetrieverSystem:
    """The retriever under test; `name: baselines` trains none and measures the baselines."""

    name: str = "retriever"
    encoder: EncoderConfig = field(default_factory=EncoderConfig)
    model: ModelConfig = field(default_factory=ModelConfig)
    objective: ObjectiveConfig = field(default_factory=ObjectiveConfig)
    trainer: TrainerConfig = field(default_factory=TrainerConfig)

    def __post_init__(self) -> None:
        names = ("retriever", "baselines")
        require(
            self.name in names, "system.name", self.name, f"one of {names} with benchmark=planted"
        )


@dataclass
class Unused:
    """A group that this benchmark has no use for: it asks no language model anything."""

    name: str = "none"

    def __post_init__(self) -> None:
        require(
            self.name == "none",
            "name",
            self.name,
            "only `none` goes with benchmark=planted: it is not used",
        )


@dataclass
class PlantedEvaluation:
    """One run of the planted benchmark."""

    output_dir: str
    seed: int = 0
    device: str = "auto"
    benchmark: PlantedBenchmark = field(default_factory=PlantedBenchmark)
    system: RetrieverSystem = field(default_factory=RetrieverSystem)
    reader: Unused = field(default_factory=Unused)
    judge: Unused = field(default_factory=Unused)
    llm: Unused = field(default_factory=Unused)
    dataset: PlantedDataset = field(default_factory=PlantedDataset)

    def __post_init__(self) -> None:
        require(bool(self.output_dir.strip()), "output_dir", self.output_dir, "name a folder")
        require(0 <= self.seed < 2**32, "seed", self.seed, "from 0 to 2**32 - 1")
        Device.parse(self.device)
        cases = self.dataset.world.cases
        require(
            max(self.benchmark.top_k) <= cases,
            "benchmark.top_k",
            self.benchmark.top_k,
            f"at most dataset.world.cases ({cases})",
        )
