"""Memento's training loop, written anew from the facts of its trainer, as the peer of ours.

Facts (Memento-Teams/Memento, `memory/train_memory_retriever.py`, by its defaults): batches of 32
rows in random order; both texts of every row are encoded in that row, each side padded to the
longest of its batch; first-token states; `Linear(2H, 512), ReLU, Dropout(0.2), Linear(512, 2)` over
`[case ; query]`; cross-entropy with class weights; AdamW with weight decay .01 except on biases and
norms; linear warm-up and decay; gradient norm clipped at 1; float32; the loss read after each step.

One difference, in its favour: texts are tokenised before the clock starts, as on our side. There
two loader processes tokenise each batch.
"""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from benchmarks.pace import Pace
from retriever.learning.data.collate import TokenTable
from retriever.learning.model import CaseClassifier
from retriever.types import Ids

ROWS_PER_BATCH = 32
HIDDEN = 512
DROPOUT = 0.2
LEARNING_RATE = 2e-5
WEIGHT_DECAY = 0.01
WARMUP_FRACTION = 0.06
EPOCHS = 3
GRADIENT_CLIP = 1.0


class MementoClassifier(nn.Module):
    """Two texts a row through one encoder, side by side into two layers."""

    def __init__(self, encoder: nn.Module, hidden_size: int, hidden: int = HIDDEN) -> None:
        super().__init__()
        self.encoder = encoder
        self.classifier = nn.Sequential(
            nn.Linear(2 * hidden_size, hidden),
            nn.ReLU(),
            nn.Dropout(DROPOUT),
            nn.Linear(hidden, 2),
        )

    def forward(self, case: tuple[Tensor, Tensor], query: tuple[Tensor, Tensor]) -> Tensor:
        """(ids, mask) (B, Lc) and (B, Lq) -> (B, 2) logits."""
        pair = [
            self.encoder(input_ids=ids, attention_mask=mask).last_hidden_state[:, 0]
            for ids, mask in (case, query)
        ]
        logits: Tensor = self.classifier(torch.cat(pair, dim=1))
        return logits


def with_weights_of(model: CaseClassifier) -> MementoClassifier:
    """The same function in Memento's form, over the same encoder object."""
    head = model.head
    assert head is not None
    hidden, hidden_size = head.case.weight.shape
    twin = MementoClassifier(model.encoder, hidden_size, hidden)
    # Class 0 gets the logit 0, so that the softmax of class 1 is the sigmoid of ours.
    weight, bias = head.output.weight, head.output.bias
    twin.classifier.load_state_dict(
        {
            "0.weight": torch.cat([head.case.weight, head.query.weight], dim=1),
            "0.bias": head.case.bias,
            "3.weight": torch.cat([torch.zeros_like(weight), weight]),
            "3.bias": torch.cat([torch.zeros_like(bias), bias]),
        }
    )
    return twin


class MementoLoop:
    """Trains `model` on the rows of `table`; a loop that is run again goes on where it stopped."""

    def __init__(self, model: MementoClassifier, table: TokenTable, *, seed: int) -> None:
        self.model = model
        self._table = table
        self._rng = np.random.default_rng(seed)
        self._left: list[Ids] = []  # batches of the running epoch, the next one last
        self.positive_weight = class_weight(table)
        self._criterion = nn.CrossEntropyLoss(torch.tensor([1.0, self.positive_weight]))
        named = list(model.named_parameters())
        groups: list[dict[str, Any]] = [
            {"params": [p for n, p in named if not _undecayed(n)], "weight_decay": WEIGHT_DECAY},
            {"params": [p for n, p in named if _undecayed(n)], "weight_decay": 0.0},
        ]
        self._optimizer = torch.optim.AdamW(groups, lr=LEARNING_RATE)
        total = EPOCHS * -(-len(table.rows) // ROWS_PER_BATCH)
        warmup = int(WARMUP_FRACTION * total)
        self._scheduler = torch.optim.lr_scheduler.LambdaLR(
            self._optimizer,
            lambda step: (
                step / max(1, warmup)
                if step < warmup
                else max(0.0, (total - step) / max(1, total - warmup))
            ),
        )

    def run(self, limit_s: float) -> Pace:
        """Whole steps until `limit_s` is reached, after one that is not timed."""
        # Ours turns deterministic algorithms on; Memento does not use them.
        torch.use_deterministic_algorithms(False)
        self.model.train()
        self._step(Pace())
        pace = Pace()
        started = time.perf_counter()
        while pace.seconds < limit_s:
            self._step(pace)
            pace.seconds = time.perf_counter() - started
        return pace

    def loss(self, row: Ids) -> tuple[Tensor, Pace]:
        """The loss of the rows numbered `row` as one batch, and what it took to encode them."""
        rows = self._table.rows
        case = _padded([self._table.case_tokens[i] for i in rows.case[row]], self._table.pad_id)
        query = _padded([self._table.query_tokens[i] for i in rows.query[row]], self._table.pad_id)
        label = torch.from_numpy(rows.outcome[row] >= 1.0).long()
        loss: Tensor = self._criterion(self.model(case, query), label)
        work = Pace(
            steps=1,
            rows=len(row),
            positions=case[0].numel() + query[0].numel(),
            tokens=int(case[1].sum() + query[1].sum()),
        )
        return loss, work

    def _step(self, pace: Pace) -> None:
        self._optimizer.zero_grad(set_to_none=True)
        loss, work = self.loss(self._next_rows())
        torch.autograd.backward(loss)
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), GRADIENT_CLIP)
        self._optimizer.step()
        self._scheduler.step()
        loss.item()
        pace.steps += work.steps
        pace.rows += work.rows
        pace.positions += work.positions
        pace.tokens += work.tokens

    def _next_rows(self) -> Ids:
        if not self._left:
            order = self._rng.permutation(len(self._table.rows))
            self._left = np.split(order, np.arange(ROWS_PER_BATCH, len(order), ROWS_PER_BATCH))
            self._left.reverse()
        return self._left.pop()


def class_weight(table: TokenTable) -> float:
    """What a success counts: max(1, failures / successes)."""
    successes = int((table.rows.outcome >= 1.0).sum())
    return max(1.0, (len(table.rows) - successes) / max(1, successes))


def _undecayed(name: str) -> bool:
    return any(part in name for part in ("bias", "LayerNorm.weight", "layer_norm", "ln"))


def _padded(texts: list[Ids], pad_id: int) -> tuple[Tensor, Tensor]:
    """B texts -> ids (B, L) and mask (B, L), L the longest of them."""
    ids = [torch.from_numpy(text) for text in texts]
    ones = [torch.ones_like(text) for text in ids]
    return (
        pad_sequence(ids, batch_first=True, padding_value=pad_id),
        pad_sequence(ones, batch_first=True),
    )
