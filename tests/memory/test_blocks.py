"""The arrays that searches read follow the database."""

from __future__ import annotations

import numpy as np
import pytest

from memory import BankBusy, BankConfig, CaseBank, NewCase
from tests.memory.embedders import Broken, Digests


@pytest.fixture
def embedders():
    return {"embeddings": Digests("q", 2, only_query=True), "projections": Digests("w", 3)}


def assert_rows_are(block, bank, embeddings, projections):
    """Every row against the slow way: one case, one text, one vector at a time."""
    cases = bank.list(namespace=block.namespace, limit=10_000)
    assert block.ids.tolist() == [case.id for case in cases]
    assert block.live.tolist() == [True] * len(cases)
    for embedder, rows in ((embeddings, block.embeddings), (projections, block.projections)):
        expected = [embedder.vector(embedder.text(case)) for case in cases]
        assert rows.dtype == np.float32
        np.testing.assert_array_equal(rows, np.reshape(expected, (len(cases), embedder.dim)))


def test_a_block_holds_the_vectors_of_every_case(tmp_path, embedders):
    with CaseBank.open(tmp_path / "b.db", **embedders) as bank:
        bank.add([NewCase("a"), NewCase("b"), NewCase("a")])
        bank.add([NewCase("elsewhere")], namespace="other")
        bank.add([NewCase("c", plan="p")])
        block = bank.block("default")
        assert_rows_are(block, bank, **embedders)
        assert (block.bank, block.namespace) == (bank.uid, "default")
        assert (block.embeddings_key, block.projections_key) == ("q", "w")


def test_an_unknown_namespace_is_an_empty_block_of_version_zero(tmp_path, embedders):
    with CaseBank.open(tmp_path / "b.db", **embedders) as bank:
        block = bank.block("nowhere")
        assert (len(block), block.version) == (0, 0)
        assert block.embeddings.shape == (0, 2)
        assert block.projections.shape == (0, 3)
        assert bank.namespaces() == []


def test_without_an_embedder_there_are_no_vectors(tmp_path):
    with CaseBank.open(tmp_path / "b.db") as bank:
        bank.add([NewCase("a")])
        block = bank.block("default")
        assert (block.embeddings, block.projections, block.projections_key) == (None, None, None)
        assert len(block) == 1


def test_a_block_never_changes(tmp_path, embedders):
    with CaseBank.open(tmp_path / "b.db", **embedders) as bank:
        bank.add([NewCase("a")])
        block = bank.block("default")
        before = [np.copy(block.ids), np.copy(block.embeddings), np.copy(block.projections)]
        for array in (block.ids, block.live, block.embeddings, block.projections):
            with pytest.raises(ValueError, match="read-only"):
                array[0] = 0
        for i in range(100):
            bank.add([NewCase(f"more {i}")])
            bank.block("default")
        assert_rows_are(bank.block("default"), bank, **embedders)
        for old, now in zip(before, (block.ids, block.embeddings, block.projections), strict=True):
            np.testing.assert_array_equal(old, now)


def test_the_same_block_is_given_while_nothing_changes(tmp_path, embedders):
    with CaseBank.open(tmp_path / "b.db", **embedders) as bank:
        bank.add([NewCase("a")])
        block = bank.block("default")
        bank.add([NewCase("elsewhere")], namespace="other")
        assert bank.block("default") is block
        bank.add([NewCase("b")])
        newer = bank.block("default")
        assert newer.version > block.version
        assert len(newer) == 2
        assert np.shares_memory(newer.ids, block.ids), "only the new rows were loaded"


def test_a_write_of_another_bank_object_is_seen(tmp_path, embedders):
    with (
        CaseBank.open(tmp_path / "b.db", **embedders) as reader,
        CaseBank.open(tmp_path / "b.db", **embedders) as writer,
    ):
        writer.add([NewCase("a")])
        assert len(reader.block("default")) == 1
        writer.add([NewCase("b")])
        assert_rows_are(reader.block("default"), writer, **embedders)


def test_cases_added_without_waiting_get_their_vectors_with_the_next_block(tmp_path, embedders):
    with CaseBank.open(tmp_path / "b.db", **embedders) as bank:
        bank.add([NewCase("a")])
        bank.block("default")
        bank.add([NewCase("late")], wait=False)
        assert embedders["embeddings"].seen == ["a"]
        assert_rows_are(bank.block("default"), bank, **embedders)


def test_a_new_encoder_fills_the_bank_again(tmp_path, embedders):
    with CaseBank.open(tmp_path / "b.db", **embedders) as bank:
        bank.add([NewCase(f"q{i % 7}") for i in range(20)])
    newer = {**embedders, "projections": Digests("v2", 4)}
    config = BankConfig(embed_batch=6)
    with CaseBank.open(tmp_path / "b.db", config=config, **newer) as bank:
        assert_rows_are(bank.block("default"), bank, **newer)
        assert len(newer["projections"].seen) == 7
        assert len(embedders["embeddings"].seen) == 7, "the other vectors were there"
    with CaseBank.open(tmp_path / "b.db", **embedders) as bank:
        assert_rows_are(bank.block("default"), bank, **embedders)


def test_embedding_goes_on_where_it_was_interrupted(tmp_path):
    with CaseBank.open(tmp_path / "b.db") as bank:
        bank.add([NewCase(f"q{i}") for i in range(10)])
        bank.add([NewCase("elsewhere")], namespace="other")

    class Interrupted(Exception):
        pass

    def stop(done, total):
        assert total == 10
        if done == 6:
            raise Interrupted

    config = BankConfig(embed_batch=3)
    with (
        CaseBank.open(tmp_path / "b.db", projections=Digests(), config=config) as bank,
        pytest.raises(Interrupted),
    ):
        bank.embed_missing("default", progress=stop)
    rest, steps = Digests(), []
    with CaseBank.open(tmp_path / "b.db", projections=rest, config=config) as bank:
        assert bank.embed_missing(progress=lambda *at: steps.append(at)) == 5
        assert rest.seen == ["q6\nNone", "q7\nNone", "q8\nNone", "q9\nNone", "elsewhere\nNone"]
        assert steps == [(3, 4), (4, 4), (1, 1)]
        assert bank.embed_missing() == 0


def test_a_flood_of_cases_without_vectors_ends_in_an_error(tmp_path):
    class Flooded(Digests):
        def embed(self, texts):
            flood.add([NewCase(f"one more than {len(self.seen)}")], wait=False)
            return super().embed(texts)

    with (
        CaseBank.open(tmp_path / "b.db") as flood,
        CaseBank.open(tmp_path / "b.db", projections=Flooded()) as bank,
    ):
        flood.add([NewCase("first")])
        with pytest.raises(BankBusy, match="wait=True"):
            bank.block("default")


def test_a_failing_embedder_leaves_the_last_good_state_to_others(tmp_path):
    with CaseBank.open(tmp_path / "b.db", projections=Digests()) as bank:
        bank.add([NewCase("a")])
        with CaseBank.open(
            tmp_path / "b.db", projections=Broken(lambda n, dim: np.zeros((n, dim - 1)))
        ) as broken:
            assert len(broken.block("default")) == 1, "its vectors are there"
            bank.add([NewCase("b")], wait=False)
            with pytest.raises(Exception, match="shape"):
                broken.block("default")
        assert len(bank.block("default")) == 2
