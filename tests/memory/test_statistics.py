"""What a bank holds, counted, on both engines."""

from __future__ import annotations

from memory import BankConfig, ByIds, ByTag, CaseBank, NewCase, Shown
from tests.memory.embedders import Digests


def test_an_empty_bank_holds_nothing(bank_location):
    with CaseBank.open(bank_location) as bank:
        stats = bank.stats()
        assert (stats.uid, stats.namespaces, stats.erasure) == (bank.uid, (), "done")
        assert stats.engine == ("sqlite" if bank.path else "postgresql")
        assert stats.database_bytes > 0
        assert "password" not in stats.location


def test_everything_is_counted_where_it_is(bank_location):
    with CaseBank.open(bank_location, projections=Digests(), embeddings=Digests("q")) as bank:
        bank.add([NewCase("a", kind="fact", outcome=0.5), NewCase("b"), NewCase("c", outcome=0.0)])
        bank.add([NewCase("d")], namespace="other")
        bank.runs.log("q", [Shown(1, 1)], policy="x", run_id="r")
        bank.runs.log("q", [], policy="x")
        bank.runs.record_outcome("r", 0.0)
        bank.forget(ByIds((2,)), mode="invalidate")
        bank.forget(ByIds((3,)))
        bank.schedule.add(ByTag("x"), "2099-01-01T00:00:00Z")
        mine, other = bank.stats().namespaces
        assert (mine.name, mine.cases, mine.history, mine.scored) == ("default", 1, 1, 1)
        assert mine.by_kind == {"fact": 1}
        assert mine.vectors == {"digest:whole": 2, "q": 2}
        assert (mine.runs, mine.scored_runs, mine.receipts, mine.scheduled) == (2, 1, 2, 1)
        assert (other.name, other.cases, other.runs, other.receipts) == ("other", 1, 0, 0)
        assert mine.version > other.version


def test_snapshot_files_and_owed_erasure_are_seen(tmp_path, postgres_url):
    config = BankConfig(snapshot_rows=1)
    with CaseBank.open(tmp_path / "bank.db", projections=Digests(), config=config) as bank:
        bank.add([NewCase("a"), NewCase("b")])
        bank.block()
    with CaseBank.open(tmp_path / "bank.db", projections=Digests(), config=config) as bank:
        stats = bank.stats()
        assert (stats.snapshots, stats.snapshot_bytes > 0) == (1, True)
    with CaseBank.open(postgres_url) as bank:
        bank.add([NewCase("a")])
        bank.forget(ByIds((1,)))
        stats = bank.stats()
        assert (stats.erasure, stats.receipts_pending) == ("pending", 1)
        assert stats.to_json()["namespaces"][0]["cases"] == 0
