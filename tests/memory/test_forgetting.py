"""Forgetting: what goes, what stays, what the receipt says.

Many of these are failures that users of other memories reported; each test says what they saw.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from memory import (
    BankConfig,
    ByDerivedFact,
    ByIds,
    BySource,
    BySpan,
    ByStrings,
    ByTag,
    ByText,
    CaseBank,
    CaseFilter,
    NewCase,
    Replacement,
    Shown,
)
from memory.errors import InvalidInput, NotFound
from memory.storage.rows import all_words
from memory.times import microseconds
from tests.memory.embedders import Digests

PHONE = "415-555-0186"


def bank_at(location: str, **options: object) -> CaseBank:
    return CaseBank.open(location, projections=Digests(), **options)


@pytest.fixture
def bank(bank_location):
    with bank_at(bank_location) as opened:
        yield opened


def fact(words: str, *sources: str, **more: object) -> NewCase:
    return NewCase(words, kind="fact", derived_from=sources, **more)


def words_left(bank: CaseBank, namespace: str = "default") -> str:
    everything = bank.list(namespace=namespace, limit=1000, where=CaseFilter(invalidated=True))
    return "\n".join(w for case in everything for w in all_words(case))


def found(bank: CaseBank, query: str, namespace: str = "default") -> list[int]:
    return [id_ for id_, _ in bank.search_text(query, 50, namespace=namespace)]


def test_a_forgotten_case_is_in_no_search_no_list_and_no_block_of_the_same_process(bank):
    """Others deleted the node and kept serving it from the vector index or a cache."""
    ids = bank.add([NewCase(f"My number is {PHONE}"), NewCase("I live by the harbour")])
    assert found(bank, PHONE) == [ids[0]]
    assert list(bank.block().ids[bank.block().live]) == ids
    receipt = bank.forget(ByIds((ids[0],)))
    assert receipt.count == 1
    assert receipt.ids == (ids[0],)
    assert found(bank, PHONE) == []
    assert list(bank.block().ids[bank.block().live]) == [ids[1]]
    assert [case.id for case in bank.list()] == [ids[1]]
    with pytest.raises(NotFound):
        bank.get([ids[0]])


def test_forgetting_what_is_not_there_says_none(bank):
    """Others answered `deleted: 1` for an id they never had."""
    bank.add([NewCase("something")])
    for selector in (
        ByIds((10**9,)),
        BySource("nowhere"),
        ByTag("never"),
        ByStrings(("not here",)),
        ByText("completely unrelated words"),
    ):
        receipt = bank.forget(selector)
        assert receipt.count == 0
        assert receipt.counts["cases"] == 0
    assert bank.forget(ByIds((1,)), namespace="unknown").count == 0
    assert bank.count() == 1


def test_every_copy_of_a_fact_goes_whatever_wrote_it(bank):
    """Others removed the vector and kept the extracted fact, the summary, the graph's relations."""
    bank.add(
        [
            NewCase(f"Call me at {PHONE}", kind="turn", external_id="t1"),
            fact(f"the user's number is {PHONE}", "t1", external_id="f1"),
            NewCase("Contact: reachable by telephone", kind="summary", derived_from=("f1", "t2")),
            NewCase("We talked about the weather", kind="turn", external_id="t2"),
            NewCase(f"CALL ME AT  {PHONE}", kind="turn"),
        ]
    )
    receipt = bank.forget(ByIds((1,)))
    assert receipt.ids == (1, 2, 3, 5)
    assert receipt.counts["derived"] == 2
    assert receipt.counts["copies"] == 1
    assert [(r.id, r.sources) for r in receipt.rebuild] == [(3, (4,))]
    assert PHONE not in words_left(bank)
    assert [case.id for case in bank.list()] == [4]


def test_the_closure_runs_downward_and_leaves_sources(bank):
    bank.add([NewCase("source", external_id="s"), fact("conclusion", "s", external_id="c")])
    assert bank.forget(ByIds((2,))).ids == (2,)
    assert bank.count() == 1


def test_another_namespace_is_neither_touched_nor_mentioned(bank):
    """Others dropped the whole collection when one user asked."""
    mine = bank.add([NewCase(f"My number is {PHONE}")], namespace="ann")
    bank.add([NewCase(f"My number is {PHONE}", tags=("x",))], namespace="bob")
    receipt = bank.forget(ByStrings((PHONE,)), namespace="ann")
    assert receipt.ids == tuple(mine)
    assert receipt.still_held == 0
    assert "bob" not in json.dumps(receipt.to_json())
    assert PHONE in words_left(bank, "bob")
    assert len(found(bank, PHONE, "bob")) == 1
    assert len(bank.block("bob")) == 1


def test_only_the_fact_that_was_named_goes(bank):
    """Another memory deleted a home address that nobody had asked it to delete."""
    bank.add(
        [
            fact("Ann's home address is 12 Harbour Lane"),
            fact("Ann's doctor is Dr. Nguyen"),
            fact(f"Ann's telephone number is {PHONE}"),
        ]
    )
    assert bank.forget(ByStrings((PHONE,))).ids == (3,)
    assert bank.count() == 2


def test_a_string_is_found_however_it_is_spelled(bank):
    ids = bank.add(
        [
            NewCase("call (415) 555-0186 now"),
            NewCase("plain", plan=["dial 415 555 0186", "hang up"]),
            NewCase("plain too", metadata={"contact": {"phone": "4155550186"}}),
            NewCase("a tag", tags=(PHONE,)),
            NewCase("another number: 415-555-0187"),
            NewCase("longer: 14155550186777"),
        ]
    )
    receipt = bank.forget(ByStrings((PHONE,)))
    assert receipt.ids == tuple(ids[:4])


def test_selectors_by_source_and_by_tag(bank):
    bank.add(
        [
            NewCase("a", source="import-1"),
            NewCase("b", source="import-2", tags=("health", "old")),
            NewCase("c", tags=("health",)),
        ]
    )
    assert bank.forget(BySource("import-1")).ids == (1,)
    assert bank.forget(ByTag("health"), dry_run=True).ids == (2, 3)
    assert bank.forget([ByTag("old"), ByTag("health")]).ids == (2, 3)


def test_a_time_span_means_valid_time_where_known_else_the_time_told(bank):
    def at(day: int) -> int:
        return microseconds(f"2026-03-{day:02d}T12:00:00Z")

    bank.add(
        [
            NewCase(
                "valid in the span, told later", valid_from=at(3), valid_to=at(6), created_at=at(20)
            ),
            NewCase(
                "valid before it, told in it", valid_from=at(1), valid_to=at(2), created_at=at(5)
            ),
            NewCase("told in it", created_at=at(5)),
            NewCase("told after it", created_at=at(9)),
            NewCase("stored now"),
        ]
    )
    receipt = bank.forget(BySpan(at(4), at(8)))
    assert receipt.ids == (1, 3)
    assert receipt.matched_by == {"span_told": 1, "span_valid": 1}
    assert bank.forget(BySpan(at(28), None)).matched_by == {"span_stored": 1}


def test_a_text_matches_by_the_words_it_shares_above_a_threshold(bank):
    bank.add(
        [
            fact("Ann's favourite violin was made in Cremona"),
            fact("The violin of Ann, her favourite, was made in Cremona long ago"),
            fact("Ann's favourite lantern was made in Bergen"),
        ]
    )
    receipt = bank.forget(ByText("Ann's favourite violin was made in Cremona"), dry_run=True)
    assert receipt.ids == (1, 2)
    assert receipt.thresholds == {"lexical": 0.8, "semantic": 0.8}
    assert receipt.dry_run
    assert bank.count() == 3


class Meaning(Digests):
    """Texts about one topic point the same way."""

    def __init__(self):
        super().__init__("meaning", 2)

    def vector(self, text):
        about = any(word in text for word in ("physician", "doctor"))
        return np.array([1.0, 0.0] if about else [0.0, 1.0], np.float32)


def test_a_text_matches_by_meaning_where_the_bank_has_embeddings(bank_location):
    with CaseBank.open(bank_location, embeddings=Meaning()) as bank:
        bank.add([fact("her physician is in Oslo"), fact("the ship is in Oslo")])
        receipt = bank.forget(ByText("which doctor does she see"))
        assert receipt.ids == (1,)
        assert receipt.matched_by == {"semantic": 1}


def test_a_derived_fact_goes_with_the_fewest_sources_that_break_it(bank):
    bank.add(
        [
            NewCase("born in 1990", external_id="a"),
            NewCase("it is 2026", external_id="b"),
            NewCase("finished school at 18 in 2008", external_id="c"),
            fact("the user is 36", "a", "b", external_id="d1"),
            fact("The user is 36", "b", "c", external_id="d2"),
            NewCase("unrelated", external_id="e"),
        ]
    )
    tried = bank.forget(ByDerivedFact(ids=(4,)), dry_run=True)
    assert tried.sources == (2,)
    receipt = bank.forget(ByDerivedFact(ids=(4,)))
    assert receipt.ids == (2, 4, 5)
    assert not receipt.kept_sources
    assert [case.id for case in bank.list()] == [1, 3, 6]


def test_kept_sources_are_said_to_leave_the_inference_open(bank):
    bank.add([NewCase("born in 1990", external_id="a"), fact("the user is 36", "a")])
    receipt = bank.forget(ByDerivedFact(text="the user is 36", keep_sources=True))
    assert receipt.ids == (2,)
    assert receipt.kept_sources
    assert bank.count() == 1


def test_a_replacement_purges_the_old_value_and_stores_the_new_one_afresh(bank):
    """Elsewhere the old fact was deleted and the new one never added."""
    bank.add([fact("Ann loves Chinese food"), fact("Ann lives in Oslo")])
    receipt = bank.forget(
        Replacement(old="loves Chinese food", new=fact("Ann loves Thai food")),
        request="Forget that I love Chinese food, it is Thai now",
    )
    assert receipt.ids == (1,)
    (new,) = bank.get(receipt.replaced_by)
    assert (new.query, new.version) == ("Ann loves Thai food", 1)
    assert "Chinese" not in words_left(bank)
    assert found(bank, "Thai food") == [new.id]
    assert len(bank.block()) >= 2


def test_the_request_itself_is_forgotten(bank):
    request = f"Please forget my number {PHONE}."
    bank.add([NewCase(f"My number is {PHONE}"), NewCase(request, kind="turn"), NewCase("other")])
    receipt = bank.forget(ByIds((1,)), request=request)
    assert receipt.ids == (1, 2)
    assert bank.count() == 1


def test_what_is_invalidated_is_history_and_never_retrieved(bank):
    """A purge and an invalidation are two words for two things."""
    ids = bank.add([fact("Ann lives in Oslo", external_id="old"), fact("so she is cold", "old")])
    before = bank.block()
    receipt = bank.forget(ByIds((ids[0],)), mode="invalidate")
    assert (receipt.mode, receipt.ids, receipt.erased) == ("invalidate", tuple(ids), "done")
    assert found(bank, "Oslo") == []
    assert bank.count() == 0
    assert not bank.block().live.any()
    assert before.live.all(), "a picture that somebody holds does not change"
    history = bank.list(where=CaseFilter(invalidated=True))
    assert [case.id for case in history] == ids
    assert all(case.invalidated_at is not None for case in history)
    assert bank.forget(ByStrings(("Oslo",))).ids == tuple(ids), "a purge reaches history too"


def test_something_of_the_same_kind_can_be_learnt_afterwards(bank):
    bank.add([fact(f"Ann's number is {PHONE}")])
    bank.forget(ByStrings((PHONE,)))
    (new,) = bank.add([fact("Ann's number is 415-555-0199")])
    assert found(bank, "number") == [new]
    (again,) = bank.add([fact(f"Ann's number is {PHONE}")])
    assert again > new, "a fresh choice of the user is no block-list's business"


def test_a_string_that_another_case_still_holds_is_counted(bank):
    bank.add(
        [NewCase("the lantern is copper"), NewCase("She said: the lantern is copper, I think")]
    )
    receipt = bank.forget(ByIds((1,)))
    assert receipt.ids == (1,)
    assert receipt.still_held == 1


def test_runs_that_asked_it_or_showed_it_go_with_it(bank):
    bank.add([NewCase(f"My number is {PHONE}"), NewCase("other")])
    one = bank.runs.log(
        "what is new?", [Shown(1, 1, 0.5, 1.0), Shown(2, 2, 0.4, 1.0)], policy="greedy"
    )
    bank.runs.log(f"is it {PHONE}?", [Shown(2, 1, 0.5, 1.0)], policy="greedy")
    receipt = bank.forget(ByStrings((PHONE,)))
    assert receipt.counts["runs"] == 1
    assert receipt.counts["shown"] >= 1
    assert bank.runs.count() == 1
    assert [s.case_id for s in bank.runs.get(one).shown] == [2]


def test_exports_that_the_bank_knows_of_are_purged(bank, tmp_path):
    bank.add([NewCase(f"My number is {PHONE}"), NewCase("other")])
    path = tmp_path / "out" / "cases.jsonl"
    bank.export_jsonl(path)
    assert PHONE in path.read_text()
    receipt = bank.forget(ByStrings((PHONE,)))
    assert receipt.counts["exports"] == 1
    assert PHONE not in path.read_text()
    assert "other" in path.read_text()
    path.unlink()
    assert bank.forget(ByIds((2,))).unreached == ()


class Cache:
    """A sink as a query cache would be one."""

    name = "cache"

    def __init__(self, *entries: str) -> None:
        self.entries = list(entries)

    def purge(self, gone):
        kept = [entry for entry in self.entries if not gone.holds(entry)]
        count, self.entries = len(self.entries) - len(kept), kept
        return count


class Broken:
    name = "broken"

    def purge(self, gone):
        raise OSError("unreachable: " + gone.strings[0])


class Trained:
    name = "artifact-1"

    def __init__(self, *texts: str) -> None:
        self.texts = texts

    def holds(self, gone):
        return any(gone.holds(text) for text in self.texts)


def test_sinks_are_purged_and_counted_and_those_out_of_reach_are_named(bank):
    cache = Cache(f"Is it {PHONE}?", "what is the weather?")
    bank.register(cache)
    bank.register(Broken())
    bank.register_artifact(Trained(f"My number is {PHONE}"))
    bank.add([NewCase(f"My number is {PHONE}"), NewCase("other")])
    receipt = bank.forget(ByStrings((PHONE,)))
    assert cache.entries == ["what is the weather?"]
    assert receipt.counts["sink:cache"] == 1
    assert receipt.unreached == ("broken",)
    assert receipt.artifacts == ("artifact-1",)
    assert bank.forget(ByIds((2,)), dry_run=True).artifacts == ()


def test_a_receipt_holds_no_word_of_what_is_gone(bank):
    bank.add([NewCase(f"My number is {PHONE}", tags=("secret-tag",), external_id="ext-ann")])
    receipt = bank.forget([ByStrings((PHONE,)), ByTag("secret-tag")], actor="ann")
    stored = json.dumps([r.to_json() for r in bank.receipts()])
    for word in (PHONE, "0186", "secret-tag", "ext-ann", "number"):
        assert word not in stored
        assert word not in json.dumps(receipt.to_json())
    assert len(receipt.digests) == 1
    assert [r.actor for r in bank.receipts()] == ["ann"]
    assert bank.receipts() == [receipt]


def test_two_banks_have_different_digests_for_one_text(tmp_path):
    digests = []
    for name in ("a.db", "b.db"):
        with CaseBank.open(tmp_path / name) as bank:
            bank.add([NewCase(PHONE)])
            digests.append(bank.forget(ByIds((1,))).digests)
    assert digests[0] != digests[1]


def bytes_of(folder: Path) -> bytes:
    return b"".join(path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file())


def test_no_byte_of_a_purged_text_is_left_in_any_file(tmp_path):
    folder = tmp_path / "bank"
    config = BankConfig(snapshot_rows=1)
    secret = "xylophone-7731-quagmire"
    with bank_at(str(folder / "bank.db"), config=config) as bank:
        bank.add([NewCase(f"case {i} of many") for i in range(50)])
        bank.add(
            [
                NewCase(
                    f"the code is {secret}",
                    plan=[f"say {secret}"],
                    tags=(secret,),
                    source=secret,
                    external_id=secret,
                    metadata={secret: secret},
                )
            ]
        )
        bank.block()
        bank.runs.log(
            f"what is {secret}?", [Shown(51, 1, 1.0, 1.0)], policy="greedy", run_id=secret
        )
        bank.export_jsonl(folder / "export.jsonl")
    assert secret.encode() in bytes_of(folder)
    with bank_at(str(folder / "bank.db"), config=config) as bank:
        bank.block()
        receipt = bank.forget(ByStrings((secret,)))
        assert receipt.erased == "done"
        assert receipt.count == 1
        left = bytes_of(folder)
        for part in (secret, "xylophone", "7731", "quagmire"):
            assert part.encode() not in left
        assert bank.verify([secret], request=f"forget {secret}").clean
        assert bank.verify(receipt).clean
    assert b"xylophone" not in bytes_of(folder), "closing writes a snapshot; it holds none of it"
    with bank_at(str(folder / "bank.db"), config=config) as bank:
        assert bank.count() == 50
        assert len(bank.block()) == 50


def test_an_update_overwrites_the_words_it_replaces(tmp_path):
    folder = tmp_path / "bank"
    with bank_at(str(folder / "bank.db")) as bank:
        bank.add([NewCase("before: xylophone", external_id="a")])
        bank.update(1, {"query": "after: lantern"})
        bank.add([NewCase("and then: quagmire", external_id="a")], upsert=True)
        left = bytes_of(folder)
    assert b"quagmire" in left
    assert b"xylophone" not in left
    assert b"lantern" not in left


def test_a_reader_of_an_older_state_leaves_the_bytes_pending_until_the_next_write(tmp_path):
    config = BankConfig(erase_timeout_s=0.1)
    path = tmp_path / "bank" / "bank.db"
    with CaseBank.open(path, config=config) as bank, CaseBank.open(path, config=config) as other:
        bank.add([NewCase("the code is xylophone")])
        with other._store.read() as connection:
            connection.exec_driver_sql("SELECT count(*) FROM cases").fetchall()
            receipt = bank.forget(ByIds((1,)))
            assert receipt.erased == "pending"
            assert found(bank, "xylophone") == []
            assert not bank.verify(["xylophone"]).clean
            assert bank.verify(["xylophone"]).pending
        bank.add([NewCase("something else")])
        assert [r.erased for r in bank.receipts()] == ["done"]
        assert b"xylophone" not in bytes_of(path.parent)
        assert bank.verify(["xylophone"]).clean


def test_verify_finds_what_is_still_there(bank, tmp_path):
    bank.add([NewCase("the code is xylophone"), NewCase("another")])
    told = bank.verify(["xylophone"])
    assert told.still_held == (1,)
    receipt = bank.forget(ByIds((1,)))
    (again,) = bank.add([NewCase("The CODE is xylophone")])
    assert bank.verify(receipt).still_held == (again,)
    path = tmp_path / "elsewhere.jsonl"
    bank.export_jsonl(path)
    bank.forget(ByIds((again,)))
    path.write_text('{"query": "the code is xylophone"}\n')
    findings = bank.verify(["xylophone"]).findings
    assert [(f.layer, f.where) for f in findings] == [("export", "elsewhere.jsonl")]


def test_verify_asks_in_every_mode_of_a_searcher(bank):
    class Everything:
        modes = ("exact", "cosine")

        def search(self, queries, k, *, namespace, mode):
            self.asked = [*getattr(self, "asked", []), *queries]
            return [[type("Hit", (), {"id": 1})] for _ in queries]

    prober = Everything()
    bank.add([NewCase("the code is xylophone"), NewCase("another")])
    bank.forget(ByIds((1,)))
    result = bank.verify(["xylophone"], request="forget the code", prober=prober)
    assert {f.layer for f in result.findings} == {"search:exact", "search:cosine"}
    assert "forget the code" in prober.asked
    assert any(query.startswith("Yes or no") for query in prober.asked)
    assert result.modes == ("lexical", "exact", "cosine")


def test_a_forget_is_seen_by_another_process_that_has_the_bank_open(bank_location):
    with bank_at(bank_location) as one, bank_at(bank_location) as two:
        one.add([NewCase("a"), NewCase("b")])
        assert len(two.block()) == 2
        one.forget(ByIds((1,)))
        block = two.block()
        assert list(block.ids[block.live]) == [2]
        assert found(two, "a") == []


def test_requests_that_make_no_sense_are_refused(bank):
    with pytest.raises(InvalidInput, match="mode"):
        bank.forget(ByIds((1,)), mode="erase")
    with pytest.raises(InvalidInput, match="selector"):
        bank.forget("my number")
    with pytest.raises(InvalidInput, match="empty"):
        BySpan(5, 5)
    with pytest.raises(InvalidInput, match="strings"):
        ByStrings(())


def test_a_namespace_is_deleted_with_its_name_and_nothing_else(bank, tmp_path):
    bank.add([NewCase(f"My number is {PHONE}", tags=("t",))], namespace="ann@example")
    bank.add([NewCase("hello", external_id="x")], namespace="bob")
    bank.runs.log("q", [Shown(1, 1, 1.0, 1.0)], policy="p", namespace="ann@example")
    bank.forget(ByStrings(("nothing",)), namespace="ann@example")
    receipt = bank.delete_namespace("ann@example", actor="admin")
    assert (receipt.mode, receipt.count) == ("namespace", 1)
    assert bank.namespaces() == ["bob"]
    assert "ann@example" not in json.dumps([r.to_json() for r in bank.receipts()])
    assert len(bank.block("ann@example")) == 0
    with pytest.raises(NotFound):
        bank.delete_namespace("ann@example")
    (new,) = bank.add([NewCase("fresh start")], namespace="ann@example")
    assert list(bank.block("ann@example").ids) == [new]
    if bank.path is not None:
        assert PHONE.encode() not in bytes_of(bank.path.parent)


def test_old_cases_are_retired_by_age(bank):
    bank.add(
        [NewCase("old", created_at=1_000_000), NewCase("new", created_at=2_000_000_000_000_000)]
    )
    receipt = bank.retire(before=2_000_000)
    assert (receipt.mode, receipt.ids) == ("retention", (1,))
    assert [case.query for case in bank.list()] == ["new"]
