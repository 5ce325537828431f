"""Adding the same thing again, and changing what is there, on both engines."""

from __future__ import annotations

import numpy as np
import pytest

from memory import (
    AlreadyStored,
    BankConfig,
    CaseBank,
    DuplicateCase,
    IdempotencyConflict,
    InvalidInput,
    NewCase,
    NotFound,
    VersionConflict,
)
from memory.times import now
from tests.memory.embedders import Digests

ASKED = NewCase("Who built the ship?", plan=["search the register"], outcome=1.0)


@pytest.fixture
def bank(bank_location):
    with CaseBank.open(bank_location, projections=Digests()) as opened:
        yield opened


def test_a_repeated_request_stores_nothing_and_gives_the_same_ids(bank):
    first = bank.add([ASKED, NewCase("another")], idempotency_key="request-1")
    assert bank.add([ASKED, NewCase("another")], idempotency_key="request-1") == first
    assert bank.count() == 2
    with pytest.raises(IdempotencyConflict, match="request-1"):
        bank.add([ASKED], idempotency_key="request-1")
    assert bank.add([ASKED], idempotency_key="request-1", namespace="other") != first
    assert bank.add([ASKED], idempotency_key="request-2") not in ([first[0]], [first[1]])
    with pytest.raises(InvalidInput, match="1 to 256"):
        bank.add([ASKED], idempotency_key="")


def test_a_request_is_known_for_the_time_configured(bank_location, monkeypatch):
    with CaseBank.open(bank_location, config=BankConfig(idempotency_hours=1)) as bank:
        first = bank.add([ASKED], idempotency_key="key")
        late = now() + 2 * 3_600_000_000
        monkeypatch.setattr("memory.storage.writing.now", lambda: late)
        assert bank.add([ASKED], idempotency_key="key") != first


def test_an_upsert_overwrites_the_case_of_its_external_id_and_keeps_the_id(bank):
    (id_,) = bank.add([NewCase("old", external_id="e", tags=("a",))])
    ids = bank.add([NewCase("fresh"), NewCase("new", external_id="e")], upsert=True)
    assert ids[1] == id_
    (case,) = bank.get([id_])
    assert (case.query, case.tags, case.version) == ("new", (), 2)
    assert bank.add([NewCase("new", external_id="e")], upsert=True) == [id_]
    assert bank.get([id_])[0].version == 2, "nothing new is no change"
    with pytest.raises(AlreadyStored):
        bank.add([NewCase("again", external_id="e")])


def test_a_duplicate_is_kept_merged_or_rejected_as_asked(bank):
    (first,) = bank.add([NewCase("q", plan="p", tags=("a",), metadata={"x": 1})])
    (kept,) = bank.add([NewCase("q", plan="p")])
    assert kept != first
    more = NewCase("q", plan="p", outcome=0.5, tags=("b",), metadata={"x": 2, "y": 3})
    assert bank.add([more], on_duplicate="merge") == [first]
    (merged,) = bank.get([first])
    assert (merged.outcome, merged.tags, merged.metadata) == (0.5, ("a", "b"), {"x": 1, "y": 3})
    with pytest.raises(DuplicateCase, match=str(first)):
        bank.add([NewCase("unrelated"), NewCase("q", plan="p")], on_duplicate="reject")
    assert bank.count() == 2, "all or nothing"
    with pytest.raises(InvalidInput, match="keep, merge, reject"):
        bank.add([ASKED], on_duplicate="drop")


@pytest.mark.parametrize(
    "other",
    [
        NewCase("q", plan="another", outcome=1.0),
        NewCase("Q", plan="p", outcome=1.0),
        NewCase("q", plan="p", outcome=0.0),
        NewCase("q", plan="p", kind="fact", outcome=1.0),
        NewCase("q", plan="p", outcome=1.0, external_id="b"),
    ],
)
def test_what_contradicts_a_case_is_no_duplicate_of_it(bank, other):
    bank.add([NewCase("q", plan="p", outcome=1.0, external_id="a")])
    assert len(bank.add([other], on_duplicate="reject")) == 1


def test_a_change_for_an_older_version_is_refused(bank):
    (id_,) = bank.add([ASKED])
    assert bank.update(id_, {"outcome": 0.0}, if_version=1).version == 2
    with pytest.raises(VersionConflict, match="at version 2"):
        bank.update(id_, {"outcome": 0.5}, if_version=1)
    assert bank.get([id_])[0].outcome == 0.0
    assert bank.update(id_, {}).version == 2, "no change, no version"


def test_a_change_is_seen_by_every_reader_and_names_what_is_wrong(bank):
    ids = bank.add([NewCase("the amber lamp"), NewCase("other", external_id="e")])
    before = bank.block()
    bank.update(ids[0], {"query": "the copper lamp", "tags": ("new",)})
    assert bank.search_text("amber") == []
    assert [id_ for id_, _ in bank.search_text("copper")] == [ids[0]]
    block = bank.block()
    row = int(np.flatnonzero(block.live & (block.ids == ids[0]))[0])
    expected = Digests().vector(Digests().text(bank.get(ids)[0]))
    assert np.array_equal(np.concatenate(block.projections)[row], expected)
    assert before.version < block.version
    for changes, error in (
        ({"colour": "red"}, InvalidInput),
        ({"outcome": 7}, InvalidInput),
        ({"external_id": "e"}, AlreadyStored),
    ):
        with pytest.raises(error):
            bank.update(ids[0], changes)
    with pytest.raises(NotFound):
        bank.update(10**9, {"query": "x"})


@pytest.mark.parametrize(("stored", "size"), [("float32", 4), ("float16", 2)])
def test_vectors_are_stored_and_held_as_configured(bank_location, stored, size):
    config = BankConfig(vectors=stored)
    with CaseBank.open(bank_location, projections=Digests(), config=config) as bank:
        bank.add([ASKED])
        held = bank.block().projections[0]
        assert held.dtype == np.dtype(stored)
        expected = Digests().vector(Digests().text(ASKED))
        assert np.array_equal(held[0], expected.astype(stored))
        with bank._store.read() as connection:
            sizes = connection.exec_driver_sql("SELECT length(vector) FROM vectors").scalars()
            assert list(sizes) == [3 * size]
    # A bank that was opened otherwise before holds both, and gives what is asked for now.
    other = "float16" if stored == "float32" else "float32"
    with CaseBank.open(
        bank_location, projections=Digests(), config=BankConfig(vectors=other)
    ) as bank:
        bank.add([NewCase("another")])
        assert bank.block().projections[0].dtype == np.dtype(other)
        assert len(bank.block()) == 2
