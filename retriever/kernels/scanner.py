"""What a search holds of the scan, whatever machine fulfils it; opened by `scan.open_scanner`."""

from __future__ import annotations

from typing import Protocol

from retriever.head import Head
from retriever.kernels.rescoring import Best
from retriever.types import Block, Bools, Floats


class Scanner(Protocol):
    """Scores every case of a block. Safe for threads."""

    def top_k(
        self,
        block: Block,
        head: Head,
        queries: Floats,
        eligible: Bools,
        k: int,
        *,
        rising: bool = True,
    ) -> list[Best]:
        """The k best eligible rows for each query: (Q, D + R) -> Q pairs of (<=k,) arrays.

        Args:
            block: whose projections are scored; row i of everything is row i of the block.
            head: the head.
            queries: their vectors, as the head reads them.
            eligible: (N,) the rows that may be found, a part of the live ones.
            k: how many, at most; fewer eligible rows give fewer.
            rising: False takes the lowest logits first (a calibration that falls with the logit).

        Raises:
            InvalidInput: k below 1, or widths that do not fit the head.
            NonFiniteScore: an eligible row's logit is NaN or infinite; query and case are named.
        """
        ...

    def logits(self, block: Block, head: Head, queries: Floats) -> Floats:
        """Every row's logit: (Q, D + R) -> (Q, N) float32; what stands in dead rows is undefined.

        Rounded as the kernel rounds: for statistics over a whole bank, not for the last digit.
        """
        ...

    def drop(self, namespace: str) -> None:
        """Forget every copy of a namespace's vectors; scans read the bank until `accept`."""
        ...

    def accept(self, namespace: str, version: int) -> None:
        """Copies may be made again, of this version and later ones."""
        ...

    def warm_up(self, head: Head) -> None:
        """Compile or load what a first request with this head would wait for."""
        ...

    def describe(self) -> str:
        """Kernel, storage, device and threads, in words."""
        ...
