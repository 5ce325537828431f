"""What an index can be told, checked where it is read."""

from __future__ import annotations

from dataclasses import dataclass

from retriever.device import Device
from retriever.settings import require

KINDS = ("auto", "flat", "ivf", "hnsw")
STORAGES = ("float32", "float16", "int8")

#: Past this many results a scan is the better way: the classic GPU index returns at most 2,048, and
#: FAISS's result heaps get slow there on the CPU too.
MOST_RESULTS = 2048


@dataclass
class IndexSettings:
    """One namespace's index; None leaves a value to the size of the bank.

    Attributes:
        kind: `flat` compares with every row; `ivf` with the rows of the nearest of many lists;
            `hnsw` walks a graph (CPU only); `auto` chooses by mode, size and device, and says why
            in the log.
        device: auto | cpu | cuda | cuda:<index>; `auto` takes a GPU if FAISS sees one.
        candidates: how many rows an approximate search rescores exactly, at least.
        storage: how the index holds its vectors: float32 | float16 | int8 (8-bit steps between
            each value's extremes in the training sample). Answers are rescored from the bank's own
            vectors in any case. Flat cosine search on float32 alone is exact.
        width: values of a candidate vector in ann mode, where the head's hidden units are reduced.
        lists: of ivf.
        probes: lists that one search visits.
        links: of hnsw, a row and layer.
        breadth: of hnsw's search, ef; at least `candidates`.
        sample: rows that quantisers and reductions are trained on.
        rebuild_share: past this share of rows that died in a graph, it is built anew.
        retrain_growth: built anew once the bank has this many times the rows it was trained at.
        seed: of every random choice.
    """

    kind: str = "auto"
    device: str = "auto"
    candidates: int = 1024
    storage: str = "float32"
    width: int = 64
    lists: int | None = None
    probes: int | None = None
    links: int = 32
    breadth: int | None = None
    sample: int = 65_536
    rebuild_share: float = 0.2
    retrain_growth: float = 2.0
    seed: int = 0

    def __post_init__(self) -> None:
        require(self.kind in KINDS, "index.kind", self.kind, f"one of {', '.join(KINDS)}")
        device = Device.parse(self.device)
        require(
            self.kind != "hnsw" or device.kind != "cuda",
            "index.device",
            self.device,
            "hnsw runs on the CPU alone; choose cpu, or kind flat or ivf",
        )
        known = ", ".join(STORAGES)
        require(self.storage in STORAGES, "index.storage", self.storage, f"one of {known}")
        for name, least in (("candidates", 1), ("width", 2), ("links", 2), ("sample", 256)):
            value = getattr(self, name)
            require(value >= least, f"index.{name}", value, f"at least {least}")
        require(
            self.candidates <= MOST_RESULTS,
            "index.candidates",
            self.candidates,
            f"at most {MOST_RESULTS}, which is all that FAISS gives on a GPU; more is a scan",
        )
        for name in ("lists", "probes", "breadth"):
            value = getattr(self, name)
            require(value is None or value >= 1, f"index.{name}", value, "null, or at least 1")
        require(0 <= self.seed < 2**31, "index.seed", self.seed, "from 0 to 2147483647")
        share = self.rebuild_share
        require(0 < share <= 1, "index.rebuild_share", share, "above 0, at most 1")
        growth = self.retrain_growth
        require(growth > 1, "index.retrain_growth", growth, "above 1")
