"""Keeping what fits a budget, deleting a namespace, retention: removal by rule."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from memory import (
    Budget,
    ByStrings,
    CaseBank,
    CaseFilter,
    InvalidInput,
    NewCase,
    NotFound,
    Shown,
)
from memory.forgetting.compaction import (
    POLICIES,
    CaseUse,
    best_outcome,
    helpful_per_byte,
    keep,
    most_helpful,
    most_shown,
    named_policy,
    newest,
)
from tests.memory.embedders import Digests

PHONE = "415-555-0186"

uses = st.lists(
    st.builds(
        CaseUse,
        id=st.integers(1, 10**6),
        size=st.integers(0, 50),
        time=st.integers(0, 5),
        outcome=st.none() | st.floats(0, 1),
        shown=st.integers(0, 3),
    ),
    max_size=12,
    unique_by=lambda case: case.id,
)
budgets = st.builds(Budget, st.integers(0, 12), st.none() | st.integers(0, 300))


def kept_one_by_one(cases, budget, policy):
    """Pick the best that is left, again and again: the slow twin."""
    left, kept, size = list(cases), [], 0
    while left:
        best = left[0]
        for case in left[1:]:
            if (policy(case), case.time, -case.id) > (policy(best), best.time, -best.id):
                best = case
        left.remove(best)
        if budget.cases is not None and len(kept) == budget.cases:
            continue
        if budget.bytes is not None and size + best.size > budget.bytes:
            continue
        kept.append(best.id)
        size += best.size
    return sorted(kept)


@settings(max_examples=200, deadline=None, derandomize=True)
@given(uses, budgets, st.sampled_from(sorted(POLICIES)))
def test_what_stays_never_exceeds_the_budget_and_is_the_greedy_choice(cases, budget, name):
    policy = named_policy(name)
    kept = keep(cases, budget, policy)
    chosen = [case for case in cases if case.id in kept]
    assert len(chosen) == len(kept) <= budget.cases
    assert budget.bytes is None or sum(case.size for case in chosen) <= budget.bytes
    assert kept == kept_one_by_one(cases, budget, policy)
    assert kept == keep(list(reversed(cases)), budget, policy)


def test_ties_go_to_the_newer_case_then_to_the_lower_id():
    cases = [CaseUse(3, 1, 7), CaseUse(1, 1, 5), CaseUse(2, 1, 7)]
    assert keep(cases, Budget(cases=1), most_shown) == [2]
    assert keep(cases, Budget(cases=2), most_shown) == [2, 3]


def test_a_case_that_does_not_fit_gives_way_to_a_smaller_one():
    cases = [CaseUse(1, 10, 9), CaseUse(2, 95, 8), CaseUse(3, 20, 7)]
    assert keep(cases, Budget(bytes=100), newest) == [1, 3]


def test_each_policy_prefers_what_its_name_says():
    told = CaseUse(1, 100, 9, outcome=0.2, shown=1, scored=1, outcomes=0.0)
    good = CaseUse(2, 100, 5, outcome=1.0, shown=4, scored=4, outcomes=4.0)
    tiny = CaseUse(3, 1, 1, outcome=None, shown=9)
    best = {name: max((told, good, tiny), key=policy).id for name, policy in POLICIES.items()}
    assert best == {
        "newest": 1,
        "most_shown": 3,
        "best_outcome": 2,
        "most_helpful": 2,
        "helpful_per_byte": 3,
    }
    assert best_outcome(tiny) == most_helpful(tiny) == 0.5
    assert most_helpful(good) == (4 + 1) / (4 + 2)
    assert helpful_per_byte(CaseUse(4, 0, 0)) == 0.5


def test_impossible_budgets_and_policies_are_refused():
    for bad in ({}, {"cases": -1}, {"bytes": -1}, {"cases": 1.5}, {"bytes": True}):
        with pytest.raises(InvalidInput):
            Budget(**bad)
    with pytest.raises(InvalidInput, match="one of newest"):
        named_policy("oldest")
    with pytest.raises(InvalidInput, match="NaN"):
        keep([CaseUse(1, 1, 1)], Budget(cases=1), lambda case: math.nan)


@pytest.fixture
def bank(bank_location):
    with CaseBank.open(bank_location, projections=Digests()) as opened:
        yield opened


def told_at(year, words, **more):
    return NewCase(words, created_at=f"{year}-01-01T00:00:00Z", **more)


def test_a_compaction_keeps_what_fits_and_its_receipt_says_what_went(bank):
    ids = bank.add([told_at(2000 + i, f"remarkable words number {i}") for i in range(5)])
    bank.add([NewCase("not mine")], namespace="other")
    tried = bank.compact(Budget(cases=2), dry_run=True, actor="ann")
    assert (tried.dry_run, tried.ids, bank.count()) == (True, tuple(ids[:3]), 5)
    receipt = bank.compact(Budget(cases=2), actor="ann")
    assert (receipt.mode, receipt.ids, receipt.actor) == ("compact", tuple(ids[:3]), "ann")
    assert receipt.counts["cases"] == receipt.counts["texts"] == receipt.counts["lexical"] == 3
    assert receipt.counts["bytes"] == tried.counts["bytes"] > 3 * len("remarkable words number 0")
    assert bank.receipts() == [receipt]
    assert [case.id for case in bank.list()] == ids[3:]
    assert {id_ for id_, _ in bank.search_text("remarkable")} == set(ids[3:])
    block = bank.block()
    assert sorted(block.ids[block.live].tolist()) == ids[3:]
    assert bank.count("other") == 1
    assert bank.verify(receipt).findings == ()


def test_what_a_compaction_dropped_may_be_stored_again(bank, tmp_path):
    bank.add([NewCase("here and gone"), NewCase("derived", derived_from=("x",))])
    assert bank.compact(Budget(cases=0)).count == 2
    path = tmp_path / "again.jsonl"
    path.write_text('{"query": "here and gone"}\n')
    report = bank.import_jsonl(path)
    assert (report.added, report.forgotten) == (1, ())
    assert bank.list()[0].id == 3


def test_a_compaction_forgets_no_run_and_follows_no_lineage(bank):
    ids = bank.add(
        [
            told_at(2000, "which tea?", external_id="s"),
            told_at(2020, "green tea", kind="fact", derived_from=("s",)),
        ]
    )
    bank.runs.log("which tea?", [Shown(ids[0], 1), Shown(ids[1], 2)], policy="x", run_id="r")
    receipt = bank.compact(Budget(cases=1))
    assert receipt.ids == (ids[0],)
    assert receipt.counts["shown"] == 1
    assert [item.case_id for item in bank.runs.get("r").shown] == [ids[1]]
    assert bank.list()[0].derived_from == ("s",)


def test_use_in_runs_decides_which_cases_are_worth_their_place(bank):
    ids = bank.add([NewCase(words) for words in ("helps", "hurts", "unused", "newest")])
    for number, outcome in enumerate((1.0, 1.0, 0.0, None)):
        run = f"r{number}"
        bank.runs.log("q", [Shown(ids[0 if outcome else 1], 1)], policy="x", run_id=run)
        if outcome is not None:
            bank.runs.record_outcome(run, outcome)
    assert bank.compact(Budget(cases=1), "most_helpful", dry_run=True).ids == tuple(ids[1:])
    assert set(bank.compact(Budget(cases=2), "most_shown", dry_run=True).ids) == set(ids[2:])
    assert ids[1] in bank.compact(Budget(cases=3), "most_helpful", dry_run=True).ids


def test_a_budget_of_bytes_counts_utf8_and_stored_vectors(bank):
    wide = NewCase("ä" * 100)
    bank.add([wide])
    size = bank.compact(Budget(cases=0), dry_run=True).counts["bytes"]
    # 200 bytes of words, three empty JSON values of two bytes, three floats of four.
    assert size == 200 + 3 * 2 + 3 * 4
    assert bank.compact(Budget(bytes=size), dry_run=True).count == 0
    assert bank.compact(Budget(bytes=size - 1), dry_run=True).count == 1


def test_history_is_neither_counted_nor_dropped(bank):
    ids = bank.add([NewCase("live"), NewCase("history")])
    bank.forget(ByStrings(("history",)), mode="invalidate")
    assert bank.compact(Budget(cases=1)).count == 0
    assert bank.compact(Budget(cases=0)).ids == (ids[0],)
    assert bank.count(where=CaseFilter(invalidated=True)) == 1


def test_a_policy_may_be_any_function(bank):
    ids = bank.add([NewCase("first"), NewCase("second")])
    assert bank.compact(Budget(cases=1), lambda case: -case.id).ids == (ids[1],)


def test_compacting_nothing_says_so(bank):
    receipt = bank.compact(Budget(cases=5), namespace="unknown")
    assert (receipt.count, receipt.counts["cases"]) == (0, 0)
    assert "unknown" not in bank.namespaces()
    bank.add([NewCase("one")])
    assert bank.compact(Budget(cases=5)).count == 0
    assert len(bank.receipts()) == 1


def test_dropped_words_are_in_no_byte_of_the_bank(tmp_path):
    with CaseBank.open(tmp_path / "bank.db") as bank:
        bank.add([told_at(2000, f"call {PHONE}"), told_at(2020, "stays")])
        assert bank.compact(Budget(cases=1)).erased == "done"
        assert bank.verify([PHONE]).clean


class Counted:
    name = "cache"

    def __init__(self, error=None):
        self.error, self.seen = error, []

    def purge(self, gone):
        if self.error is not None:
            raise self.error
        self.seen += [case.query for case in gone.cases]
        return len(gone.cases)


def test_sinks_are_told_what_a_compaction_dropped(bank):
    bank.add([told_at(2000, "old"), told_at(2020, "new")])
    sink = Counted()
    bank.register(sink)
    assert bank.compact(Budget(cases=1)).counts["sink:cache"] == 1
    assert sink.seen == ["old"]
    bank.register(Counted(RuntimeError("down")))
    assert bank.compact(Budget(cases=0)).unreached == ("cache",)


def test_retention_purges_by_age_with_everything_derived_and_may_be_told_again(bank, tmp_path):
    bank.add(
        [
            told_at(1999, "ancient", external_id="a"),
            told_at(2020, "made from it", derived_from=("a",)),
            told_at(2020, "recent"),
            NewCase("valid long ago", valid_from="1990-01-01T00:00:00Z"),
        ]
    )
    moment = "2000-01-01T00:00:00Z"
    assert bank.retire(moment, dry_run=True).ids == (1, 2, 4)
    receipt = bank.retire(moment, actor="cron")
    assert (receipt.mode, receipt.ids, receipt.actor) == ("retention", (1, 2, 4), "cron")
    assert receipt.matched_by == {"span_told": 1, "span_valid": 1}
    assert [case.query for case in bank.list()] == ["recent"]
    path = tmp_path / "again.jsonl"
    path.write_text('{"query": "ancient"}\n')
    assert bank.import_jsonl(path).forgotten == ()


def tenant_with_everything(bank, folder):
    bank.add(
        [NewCase(f"my number is {PHONE}", external_id="n", tags=("t",), source="s")],
        namespace="tenant",
        idempotency_key="key",
    )
    bank.add([NewCase("fact", derived_from=("n",))], namespace="tenant")
    (folder / "in.jsonl").write_text('{"query": "imported words"}\n')
    bank.import_jsonl(folder / "in.jsonl", namespace="tenant")
    bank.runs.log(f"about {PHONE}", [Shown(1, 1)], policy="x", namespace="tenant")
    bank.schedule.add(ByStrings((PHONE,)), "2099-01-01T00:00:00Z", namespace="tenant")
    bank.forget(ByStrings(("imported words",)), namespace="tenant", actor="ann")
    bank.export_jsonl(folder / "out.jsonl", "tenant")


def test_a_deleted_namespace_leaves_nothing_not_even_its_name(bank, tmp_path):
    tenant_with_everything(bank, tmp_path)
    (mine,) = bank.add([NewCase("stays")])
    receipt = bank.delete_namespace("tenant", actor="root")
    assert (receipt.mode, receipt.namespace, receipt.ids) == ("namespace", "", (1, 2))
    assert receipt.counts["cases"] == receipt.counts["texts"] == 2
    assert receipt.counts["runs"] == receipt.counts["shown"] == receipt.counts["scheduled"] == 1
    assert receipt.counts["exports"] >= 1
    assert bank.namespaces() == ["default"]
    assert [case.id for case in bank.list()] == [mine]
    assert bank.schedule.waiting() == []
    assert [r.mode for r in bank.receipts()] == ["purge", "namespace"]
    assert {r.namespace for r in bank.receipts()} == {""}
    assert len(bank.block("tenant")) == 0
    assert PHONE not in (tmp_path / "out.jsonl").read_text()
    with pytest.raises(NotFound, match="no namespace"):
        bank.delete_namespace("tenant")
    if bank.path is not None:
        for path in Path(bank.path).parent.iterdir():
            assert b"tenant" not in path.read_bytes()
            assert PHONE.encode() not in path.read_bytes()


def test_a_namespace_made_again_starts_empty_and_remembers_nothing(bank, tmp_path):
    tenant_with_everything(bank, tmp_path)
    bank.delete_namespace("tenant")
    report = bank.import_jsonl(tmp_path / "in.jsonl", namespace="tenant")
    assert (report.added, report.forgotten) == (1, ())
    (case,) = bank.list(namespace="tenant")
    assert case.id == 4
    assert bank.receipts("tenant") == []
    block = bank.block("tenant")
    assert block.ids[block.live].tolist() == [4]
    assert bank.add([NewCase("x")], namespace="tenant", idempotency_key="key") == [5]


def test_a_namespace_without_cases_can_be_deleted(bank):
    bank.runs.log("only asked", [], policy="x", namespace="asked")
    receipt = bank.delete_namespace("asked")
    assert (receipt.count, receipt.counts["runs"]) == (0, 1)
    assert bank.namespaces() == []
