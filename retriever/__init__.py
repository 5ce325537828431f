"""Learns which past case helps with which new task, and scores cases with what it learned.

    scorer = retriever.load("artifact")
    scorer.score([("a new question", "an old question", "1. an old plan")])

Importing this package brings neither torch nor onnxruntime nor faiss; they load when used.
"""

from retriever.errors import RetrieverError
from retriever.scorer import Scorer, TextEncoder, load, load_encoder
from retriever.types import Calibration, Hit, Pair

__all__ = [
    "Calibration",
    "Hit",
    "Pair",
    "RetrieverError",
    "Scorer",
    "TextEncoder",
    "load",
    "load_encoder",
]
