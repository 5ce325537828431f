"""The head of a trained retriever, and how the vectors it scores are laid out.

    logit(q, c) = weight · relu(P_c + a_q)  +  b_c  +  ⟨r_c, s_q⟩  +  offset

The first term is Memento's classifier, split (softmax class 1 minus class 0); the other two, a bias
of the case and a product of low rank, keep what is cached per case a vector and the scan one pass.
A case's vector is [P_c | b_c | r_c], a query's [a_q | s_q]: a bank that keeps one vector a case
needs to know no more.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from retriever.errors import InvalidInput
from retriever.types import Floats

#: The most the product may have: past it, the scan would cost as much as a second head.
MAX_RANK = 64


@dataclass(frozen=True, slots=True, eq=False)
class Head:
    """What turns a case's vector and a query's into a logit.

    Attributes:
        weight: (D,) of the hidden units.
        offset: added to every logit.
        bias: whether a case's vector holds its own bias.
        rank: R, of the product; 0 for none.
    """

    weight: Floats
    offset: float
    bias: bool = False
    rank: int = 0

    def __post_init__(self) -> None:
        if self.weight.ndim != 1 or not len(self.weight):
            raise InvalidInput(f"weight {self.weight.shape} must be (D,) with D at least 1")
        if not 0 <= self.rank <= MAX_RANK:
            raise InvalidInput(f"rank = {self.rank}: from 0 to {MAX_RANK}")
        object.__setattr__(self, "weight", np.ascontiguousarray(self.weight, dtype=np.float32))

    @property
    def hidden(self) -> int:
        """D, the hidden units."""
        return len(self.weight)

    @property
    def case_width(self) -> int:
        """Values of a case's vector: D, one for the bias if there is one, R."""
        return self.hidden + int(self.bias) + self.rank

    @property
    def query_width(self) -> int:
        """Values of a query's vector: D + R."""
        return self.hidden + self.rank
