"""Logits of many rows after training: every distinct text through the encoder once."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from retriever.batching import batches_by_length, chunks, pad
from retriever.device import Device
from retriever.learning.data.collate import TokenTable
from retriever.learning.devices import torch_device
from retriever.learning.model import EMBEDDING, CaseClassifier
from retriever.tokens import TextTokenizer
from retriever.types import Floats, Ids

_ROWS_AT_ONCE = 8192
_TOKENS_AT_ONCE = 16_384


@torch.inference_mode()
def predict_logits(model: CaseClassifier, table: TokenTable) -> Floats:
    """The (R,) logits of every row of `table`, on the model's own device, without dropout."""
    assert model.head is not None
    model.eval()
    rows = table.rows
    queries, query_of = np.unique(rows.query, return_inverse=True)
    cases, case_of = np.unique(rows.case, return_inverse=True)
    asked = model.head.query(
        embed_tokens(model, [table.query_tokens[i] for i in queries], table.pad_id)
    )
    shown = model.head.case(
        embed_tokens(model, [table.case_tokens[i] for i in cases], table.pad_id)
    )
    logits = np.empty(len(rows), dtype=np.float32)
    for part in chunks(len(rows), _ROWS_AT_ONCE):
        found = model.head(
            shown[torch.from_numpy(case_of[part]).to(shown.device)],
            asked[torch.from_numpy(query_of[part]).to(asked.device)],
        )
        logits[part] = found.float().cpu().numpy()
    return logits


@torch.inference_mode()
def embed_tokens(model: CaseClassifier, tokens: list[Ids], pad_id: int) -> Tensor:
    """N token arrays -> (N, H) embeddings in the order given, on the model's device."""
    device = next(model.parameters()).device
    hidden_size = int(model.encoder.config.hidden_size)  # type: ignore[union-attr, arg-type]
    found = torch.empty((len(tokens), hidden_size), device=device)
    for batch in batches_by_length([len(one) for one in tokens], _TOKENS_AT_ONCE):
        ids, mask = pad([tokens[int(i)] for i in batch], pad_id)
        views = model.views(torch.from_numpy(ids).to(device), torch.from_numpy(mask).to(device))
        found[torch.from_numpy(batch).to(device)] = views[EMBEDDING].float()
    return found


def embed_texts(
    model: CaseClassifier, tokenizer: TextTokenizer, texts: list[str], device: str
) -> Floats:
    """N texts -> (N, H) embeddings, pooled and not normalised."""
    model = model.to(torch_device(Device.parse(device))).eval()
    embedded = embed_tokens(model, tokenizer.encode(texts), tokenizer.pad_id)
    return np.asarray(embedded.cpu().numpy(), dtype=np.float32)
