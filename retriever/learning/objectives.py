"""What training minimises, as pure functions of logits and outcomes."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F


def cross_entropy(
    logit: Tensor,
    outcome: Tensor,
    weight: Tensor,
    *,
    label_smoothing: float = 0.0,
    positive_weight: float = 1.0,
) -> Tensor:
    """(R,) logits, outcomes in [0, 1], weights -> the weighted mean binary cross-entropy, a scalar.

    With whole outcomes this is Memento's two-class cross-entropy, softmax over (0, logit). Label
    smoothing moves each target towards 1/2. Like torch's class-weighted mean, the sum is divided by
    the weights that were used, positive weight included.
    """
    positive = outcome * positive_weight
    used = weight * (positive + (1.0 - outcome))
    target = outcome * (1.0 - label_smoothing) + 0.5 * label_smoothing
    # The positive weight belongs to the row: a smoothed positive is still a positive.
    loss = F.binary_cross_entropy_with_logits(logit.float(), target, weight=used, reduction="sum")
    return loss / used.sum().clamp(min=torch.finfo(torch.float32).tiny)
