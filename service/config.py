"""What a serving process can be told, in checked dataclasses; `conf/serve.yaml` holds values."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from memory import BankConfig
from memory.bank import MAX_PAGE
from retriever.device import Device
from retriever.encoding import ENGINES, PRECISIONS
from retriever.scan import STORAGES
from retriever.settings import require
from retriever.tiers.settings import IndexSettings

ON_BAD_LINE = ("error", "skip")


@dataclass
class IndexConfig(IndexSettings):
    """The FAISS indexes of cosine and ann mode, and where they are kept."""

    folder: str | None = "data/index"  # kept here between runs; null keeps none

    def __post_init__(self) -> None:
        super().__post_init__()
        _named("index.folder", self.folder)


@dataclass
class ScanConfig:
    """How the exact scan reads the bank, and what is kept of queries."""

    storage: str = "bank"  # bank, or a copy in fewer bits: bfloat16 | int8 | float16 (GPU)
    threads: int | None = None  # of one search, on a CPU; null: the cores granted
    cached_queries: int = 1024  # vectors of so many queries are kept, without their words

    def __post_init__(self) -> None:
        require(self.storage in STORAGES, "scan.storage", self.storage, f"one of {STORAGES}")
        threads = self.threads
        require(threads is None or threads >= 1, "scan.threads", threads, "null, or at least 1")
        count = self.cached_queries
        require(count >= 0, "scan.cached_queries", count, "at least 0, which keeps none")


@dataclass
class BankSection:
    """Where the cases are."""

    url: str = "data/bank.sqlite"  # a SQLite file, or a postgresql:// URL
    vectors: str = "float32"  # how vectors are stored and held: float32 | float16
    cases: str | None = None  # a JSONL file, imported at start; the same file only once
    namespace: str = "default"  # of the imported cases
    on_bad_line: str = "error"

    def __post_init__(self) -> None:
        _named("bank.url", self.url)
        BankConfig(vectors=self.vectors)
        _named("bank.cases", self.cases)
        _named("bank.namespace", self.namespace)
        require(
            self.on_bad_line in ON_BAD_LINE,
            "bank.on_bad_line",
            self.on_bad_line,
            f"one of {ON_BAD_LINE}",
        )


@dataclass
class LimitsConfig:
    """What one request may ask for; more is refused before any work."""

    max_body_bytes: int = 8 * 1024 * 1024
    max_texts: int = 2048  # texts to embed, as at OpenAI; also pairs to score
    max_queries: int = 256
    max_k: int = 1000
    max_cases: int = 1000  # cases added, or listed, at once

    def __post_init__(self) -> None:
        for name in ("max_body_bytes", "max_texts", "max_queries", "max_k", "max_cases"):
            require(
                getattr(self, name) >= 1,
                f"service.limits.{name}",
                getattr(self, name),
                "at least 1",
            )
        require(
            self.max_cases < MAX_PAGE,
            "service.limits.max_cases",
            self.max_cases,
            f"below {MAX_PAGE}, the most a bank lists at once",
        )


@dataclass
class ServiceConfig:
    """The HTTP side."""

    host: str = "127.0.0.1"
    port: int = 8080  # 0: a free one, printed and written to `port_file`
    port_file: str | None = None
    threads: int = 8  # requests computed at once; the others wait their turn
    shutdown_timeout_s: float = 10.0  # for requests under way; then they are cut off
    access_log: bool = False
    limits: LimitsConfig = field(default_factory=LimitsConfig)

    def __post_init__(self) -> None:
        _named("service.host", self.host)
        _named("service.port_file", self.port_file)
        require(0 <= self.port <= 65535, "service.port", self.port, "from 0 (a free port) to 65535")
        require(self.threads >= 1, "service.threads", self.threads, "at least 1")
        seconds = self.shutdown_timeout_s
        require(
            math.isfinite(seconds) and seconds > 0,
            "service.shutdown_timeout_s",
            seconds,
            "seconds, above 0",
        )


@dataclass
class ServeConfig:
    """One serving process."""

    artifact: str  # the folder of a trained retriever
    cosine_encoder: str | None = None  # the folder of an exported, untrained encoder
    engine: str = "onnx"
    engine_threads: int | None = None  # of the ONNX engine on one call; null: the cores granted
    precision: str = "fp32"  # onnx: fp32 | int8; torch: fp32 | fp16 | bf16; either: auto
    cosine_precision: str = "fp32"  # the same, of the untrained encoder
    device: str = "auto"  # auto | cpu | cuda | cuda:<index>
    scan: ScanConfig = field(default_factory=ScanConfig)
    index: IndexConfig = field(default_factory=IndexConfig)
    bank: BankSection = field(default_factory=BankSection)
    service: ServiceConfig = field(default_factory=ServiceConfig)

    def __post_init__(self) -> None:
        _named("artifact", self.artifact)
        _named("cosine_encoder", self.cosine_encoder)
        require(self.engine in ENGINES, "engine", self.engine, f"one of {ENGINES}")
        threads = self.engine_threads
        require(threads is None or threads >= 1, "engine_threads", threads, "null, or at least 1")
        for name in ("precision", "cosine_precision"):
            require(
                getattr(self, name) in PRECISIONS, name, getattr(self, name), f"one of {PRECISIONS}"
            )
        Device.parse(self.device)


def _named(key: str, value: str | None) -> None:
    require(
        value is None or bool(value.strip()), key, value, "is blank; give a name or leave it out"
    )
