"""From row numbers to tensors: each distinct text of a step once, in chunks of like length."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from retriever.batching import batches_by_length, cheapest_batches, pad
from retriever.learning.data.rows import Rows
from retriever.tokens import TextTokenizer
from retriever.types import Floats, Ids


@dataclass(frozen=True)
class TokenTable:
    """Rows and the token ids of every distinct text they point at, tokenised once."""

    rows: Rows
    query_tokens: list[Ids]
    case_tokens: list[Ids]
    weight: Floats  # (R,) what each row counts in the loss
    pad_id: int
    truncated: int  # distinct texts cut at the maximum length


def tokenise(rows: Rows, tokenizer: TextTokenizer, *, query_weighting: str = "rows") -> TokenTable:
    """Tokenise every distinct text of `rows` that a row uses.

    `query_weighting="queries"` makes every query count the same: 1 / (its rows), scaled to mean 1.
    """
    before = tokenizer.truncated
    queries = _tokenised_where_used(rows.query_texts, rows.query, tokenizer)
    cases = _tokenised_where_used(rows.case_texts, rows.case, tokenizer)
    weight = np.ones(len(rows), dtype=np.float32)
    if query_weighting == "queries" and len(rows):
        weight = (1.0 / np.bincount(rows.group)[rows.group]).astype(np.float32)
        weight /= weight.mean()
    return TokenTable(rows, queries, cases, weight, tokenizer.pad_id, tokenizer.truncated - before)


@dataclass
class Batch:
    """One step. Texts are numbered across chunks: chunk 0's rows first, then chunk 1's, ...

    `chunks`: (ids, mask) of shape (B_i, L_i) each, U = sum of B_i distinct texts. `queries` (Q,)
    and `cases` (C,) are numbers of texts, U = Q + C; `query_of`, `case_of` (R,) point into those;
    `outcome`, `weight` (R,); `row` (R,) the row numbers.
    """

    chunks: list[tuple[Tensor, Tensor]]
    queries: Tensor
    cases: Tensor
    query_of: Tensor
    case_of: Tensor
    outcome: Tensor
    weight: Tensor
    row: Tensor

    def __len__(self) -> int:
        return len(self.row)

    @property
    def padded_tokens(self) -> int:
        """Positions the encoder computes, padding included."""
        return sum(ids.numel() for ids, _ in self.chunks)

    def to(self, device: torch.device) -> Batch:
        """The same batch on `device` (Lightning calls this)."""
        return Batch(
            [(ids.to(device), mask.to(device)) for ids, mask in self.chunks],
            self.queries.to(device),
            self.cases.to(device),
            self.query_of.to(device),
            self.case_of.to(device),
            self.outcome.to(device),
            self.weight.to(device),
            self.row.to(device),
        )


def collate(
    table: TokenTable, row: Ids, *, tokens_per_chunk: int, chunk_overhead: int | None = None
) -> Batch:
    """The batch of the rows numbered `row` (R,).

    With `chunk_overhead`, what one more chunk costs in tokens, chunks are cut where the step costs
    least; without, they are as few as `tokens_per_chunk` lets them be.
    A query that is also a case of the batch is still two texts: the rendered forms differ.
    """
    rows = table.rows
    queries, query_of = np.unique(rows.query[row], return_inverse=True)
    cases, case_of = np.unique(rows.case[row], return_inverse=True)
    tokens = [table.query_tokens[i] for i in queries] + [table.case_tokens[i] for i in cases]
    lengths = [len(one) for one in tokens]
    if chunk_overhead is None:
        chunked = batches_by_length(lengths, tokens_per_chunk)
    else:
        chunked = cheapest_batches(lengths, tokens_per_chunk, chunk_overhead)
    place = np.empty(len(tokens), dtype=np.int64)  # text -> its number across chunks
    place[np.concatenate(chunked)] = np.arange(len(tokens))
    chunks = []
    for chunk in chunked:
        ids, mask = pad([tokens[int(i)] for i in chunk], table.pad_id)
        chunks.append((torch.from_numpy(ids), torch.from_numpy(mask)))
    return Batch(
        chunks=chunks,
        queries=torch.from_numpy(place[: len(queries)]),
        cases=torch.from_numpy(place[len(queries) :]),
        query_of=torch.from_numpy(query_of),
        case_of=torch.from_numpy(case_of),
        outcome=torch.from_numpy(rows.outcome[row]),
        weight=torch.from_numpy(table.weight[row]),
        row=torch.from_numpy(row),
    )


def _tokenised_where_used(texts: list[str], used: Ids, tokenizer: TextTokenizer) -> list[Ids]:
    """Token ids by text number; texts that no row uses stay empty and cost nothing."""
    numbers = np.unique(used)
    found: list[Ids] = [np.empty(0, dtype=np.int64)] * len(texts)
    for number, ids in zip(numbers, tokenizer.encode([texts[i] for i in numbers]), strict=True):
        found[int(number)] = ids
    return found
