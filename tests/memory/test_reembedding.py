"""Changing embedders under a bank that serves."""

from __future__ import annotations

import threading

import numpy as np
import pytest

from memory import CaseBank, EmbeddingFailed, InvalidInput, NewCase
from tests.memory.embedders import Broken, Digests


class Gated(Digests):
    """Waits before every batch until it is let go."""

    def __init__(self, key="gated", dim=5):
        super().__init__(key, dim)
        self.gate = threading.Semaphore(0)

    def embed(self, texts):
        assert self.gate.acquire(timeout=20)
        return super().embed(texts)


def cases(count: int, start: int = 0) -> list[NewCase]:
    return [NewCase(f"case {i}", plan="a step") for i in range(start, start + count)]


def test_the_old_vectors_serve_until_all_new_ones_are_there_and_then_none(bank_location):
    old, new = Digests("old"), Gated("new")
    with CaseBank.open(bank_location, projections=old) as bank:
        bank.add(cases(3), namespace="a")
        bank.add(cases(2), namespace="b")
        before = bank.block("a")
        swapped = []
        job = bank.reembed(projections=new, on_swap=lambda: swapped.append(bank.block("a")))
        new.gate.release()  # namespace a
        assert bank.block("a").projections_key == "old"
        bank.add(cases(1, start=10), namespace="a")
        assert len(bank.block("a")) == 4
        for _ in range(10):
            new.gate.release()
        assert job.wait(20)
        assert job.state == "swapped"
        block = bank.block("a")
        assert (block.projections_key, block.projections[0].shape[1]) == ("new", 5)
        assert np.count_nonzero(block.live) == 4
        assert [b.projections_key for b in swapped] == ["new"]
        assert before.projections_key == "old", "a picture that is held does not change"
        bank.add(cases(1, start=20), namespace="a")
        assert np.count_nonzero(bank.block("a").live) == 5
        assert bank.drop_vectors("old") == 6
        with pytest.raises(InvalidInput, match="serves"):
            bank.drop_vectors("new")


def test_a_cancelled_job_goes_on_where_it_stopped(tmp_path):
    from memory import BankConfig

    old, new = Digests("old"), Gated("new")
    config = BankConfig(embed_batch=2)
    with CaseBank.open(tmp_path / "bank.db", projections=old, config=config) as bank:
        bank.add(cases(6))
        job = bank.reembed(projections=new)
        new.gate.release()
        while job.progress[0] < 2:
            pass
        stopper = threading.Thread(target=job.cancel)
        stopper.start()
        new.gate.release()
        stopper.join(20)
        assert job.state == "cancelled"
        assert not job.wait()
        assert bank.block().projections_key == "old"
        known = len(new.seen)
        assert known in (2, 4)
        for _ in range(10):
            new.gate.release()
        assert bank.reembed(projections=new).wait(20)
        assert len(new.seen) == 6, "what was computed is not computed again"


def test_a_job_that_fails_says_why_and_leaves_the_old_embedder(tmp_path):
    with CaseBank.open(tmp_path / "bank.db", projections=Digests("old")) as bank:
        bank.add(cases(2))
        job = bank.reembed(projections=Broken(lambda n, dim: np.full((n, dim), np.nan)))
        with pytest.raises(EmbeddingFailed, match="NaN"):
            job.wait(20)
        assert job.state == "failed"
        assert bank.block().projections_key == "old"


def test_a_purge_reaches_the_vectors_of_both_embedders(tmp_path):
    with CaseBank.open(tmp_path / "bank.db", projections=Digests("old")) as bank:
        ids = bank.add(cases(2))
        assert bank.reembed(projections=Digests("new")).wait(20)
        from memory import ByIds

        receipt = bank.forget(ByIds((ids[0],)))
        assert receipt.counts["vectors"] == 2
