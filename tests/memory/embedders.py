"""Embedders small enough to check by eye, shared by the tests of the bank."""

from __future__ import annotations

import hashlib
import time

import numpy as np


class Digests:
    """Vectors from the digest of a text: equal texts, equal vectors; notes what it was given."""

    def __init__(self, key="digest:whole", dim=3, *, only_query=False, pause_s=0.0):
        self.key, self.dim = key, dim
        self.only_query, self.pause_s = only_query, pause_s
        self.seen = []

    def text(self, case):
        return case.query if self.only_query else f"{case.query}\n{case.plan}"

    def vector(self, text):
        digest = hashlib.sha256(f"{self.key} {text}".encode()).digest()
        return np.frombuffer(digest, np.uint8)[: self.dim].astype(np.float32) / 255

    def embed(self, texts):
        time.sleep(self.pause_s)
        self.seen += texts
        return np.array([self.vector(text) for text in texts])


class Broken(Digests):
    """Returns what it was told to, whatever it is asked."""

    def __init__(self, answer):
        super().__init__()
        self.answer = answer

    def embed(self, texts):
        return self.answer(len(texts), self.dim)
