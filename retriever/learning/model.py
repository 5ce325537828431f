"""The query-case classifier: one shared encoder and Memento's head in its split form.

Memento's head is `Linear(2H, D) -> ReLU -> Dropout -> Linear(D, 2)` over `[h_case ; h_query]`,
and its score the softmax of class 1 (Memento-Teams/Memento, `memory/parametric_memory.py`).
Splitting the first matrix in two and keeping only the difference of the two output rows is the
same function:

    logit(q, c) = dw . relu(W_case h_case + b1 + W_query h_query) + db,    score = sigmoid(logit)

so everything a case contributes is one vector that can be cached.
"""

from __future__ import annotations

import math
from pathlib import Path

import safetensors.torch
import torch
from safetensors import SafetensorError
from torch import Tensor, nn

from retriever.artifact import ENCODER, HEAD, RETRIEVER, Manifest
from retriever.errors import ArtifactCorrupt, InvalidInput

EMBEDDING = "text_embedding"
CASE_PROJECTION = "case_projection"
QUERY_PROJECTION = "query_projection"


def pool(hidden: Tensor, mask: Tensor, pooling: str) -> Tensor:
    """(B, L, H), (B, L) -> (B, H): the first token's state, or the mean over real tokens."""
    if pooling == "first":
        return hidden[:, 0]
    if pooling == "mean":
        weight = mask.unsqueeze(-1).to(hidden.dtype)  # (B, L, 1)
        return (hidden * weight).sum(dim=1) / weight.sum(dim=1).clamp(min=1.0)
    raise InvalidInput(f"pooling = {pooling!r}: one of first, mean")


class SplitHead(nn.Module):
    """The head; `hidden_size` H of the encoder, `hidden` D of its own."""

    def __init__(self, hidden_size: int, hidden: int, dropout: float = 0.0) -> None:
        super().__init__()
        self.case = nn.Linear(hidden_size, hidden)
        self.query = nn.Linear(hidden_size, hidden, bias=False)
        self.dropout = nn.Dropout(dropout)
        self.output = nn.Linear(hidden, 1)
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Draw from the distribution that Memento's two Linear layers start from."""
        hidden, hidden_size = self.case.weight.shape
        bound = 1.0 / math.sqrt(2 * hidden_size)  # Linear(2H, D) has 2H inputs
        for tensor in (self.case.weight, self.case.bias, self.query.weight):
            tensor.uniform_(-bound, bound)
        bound = 1.0 / math.sqrt(hidden)
        for tensor in (self.output.weight, self.output.bias):  # difference of two uniform rows
            tensor.copy_(
                torch.empty_like(tensor).uniform_(-bound, bound)
                - torch.empty_like(tensor).uniform_(-bound, bound)
            )

    def forward(self, case_projection: Tensor, query_projection: Tensor) -> Tensor:
        """Matching rows (R, D), (R, D) -> (R,) logits."""
        hidden = self.dropout(torch.relu(case_projection + query_projection))
        logits: Tensor = self.output(hidden).squeeze(-1)
        return logits


class CaseClassifier(nn.Module):
    """Shared encoder, pooling and split head. Without a head it is a plain text encoder."""

    def __init__(self, encoder: nn.Module, pooling: str, head: SplitHead | None) -> None:
        super().__init__()
        self.encoder = encoder
        self.pooling = pooling
        self.head = head

    def encode(self, ids: Tensor, mask: Tensor) -> Tensor:
        """Token ids and mask (B, L) -> embeddings (B, H)."""
        hidden = self.encoder(input_ids=ids, attention_mask=mask).last_hidden_state
        return pool(hidden, mask, self.pooling)

    def views(self, ids: Tensor, mask: Tensor) -> dict[str, Tensor]:
        """Ids and mask (B, L) -> embedding (B, H), and with a head both projections (B, D)."""
        embedding = self.encode(ids, mask)
        found = {EMBEDDING: embedding}
        if self.head is not None:
            found[CASE_PROJECTION] = self.head.case(embedding)
            found[QUERY_PROJECTION] = self.head.query(embedding)
        return found

    def forward(
        self, case_ids: Tensor, case_mask: Tensor, query_ids: Tensor, query_mask: Tensor
    ) -> Tensor:
        """Two texts a row, ids and masks (R, Lc) and (R, Lq) -> (R,) logits; plain and slow."""
        assert self.head is not None
        case = self.head.case(self.encode(case_ids, case_mask))
        query = self.head.query(self.encode(query_ids, query_mask))
        logits: Tensor = self.head(case, query)
        return logits


def head_tensors(head: SplitHead) -> dict[str, Tensor]:
    """The head as `head.safetensors` stores it, float32 on the CPU."""
    tensors = {
        "case_weight": head.case.weight,
        "case_bias": head.case.bias,
        "query_weight": head.query.weight,
        "output_weight": head.output.weight[0],
        "output_bias": head.output.bias,
    }
    return {name: t.detach().float().cpu().contiguous() for name, t in tensors.items()}


def head_from_tensors(tensors: dict[str, Tensor], dropout: float = 0.0) -> SplitHead:
    """The inverse of `head_tensors`."""
    hidden, hidden_size = tensors["case_weight"].shape
    head = SplitHead(hidden_size, hidden, dropout)
    head.load_state_dict(
        {
            "case.weight": tensors["case_weight"],
            "case.bias": tensors["case_bias"],
            "query.weight": tensors["query_weight"],
            "output.weight": tensors["output_weight"].reshape(1, -1),
            "output.bias": tensors["output_bias"].reshape(1),
        }
    )
    return head


def load_model(folder: Path, manifest: Manifest) -> CaseClassifier:
    """The torch model of a verified artifact, in float32 on the CPU."""
    from retriever.learning.encoder import load_transformer

    encoder = load_transformer(str(folder / ENCODER), revision=None)
    head = None
    if manifest.kind == RETRIEVER:
        try:
            head = head_from_tensors(safetensors.torch.load_file(folder / HEAD))
        except (OSError, KeyError, RuntimeError, SafetensorError) as error:
            raise ArtifactCorrupt(f"{folder / HEAD} does not hold a head: {error}") from error
    return CaseClassifier(encoder, manifest.encoder.pooling, head)
