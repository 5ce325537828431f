"""Bytes on a PostgreSQL server: after `erase`, no file of it holds what was deleted."""

from __future__ import annotations

import json
import threading
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from sqlalchemy import delete, make_url, select, update

from memory import CaseBank, InvalidInput, NewCase
from memory.forgetting.receipts import Receipt, load_receipt, new_uid, store_receipt
from memory.schema import case_vectors, cases, meta, texts, vectors
from memory.storage.database import postgres_erase
from memory.storage.erasing import JOB, owe, owed
from memory.storage.namespaces import changed_namespace
from memory.storage.rows import remove_words
from memory.storage.vectors import detach
from tests.memory.embedders import Digests

psycopg = pytest.importorskip("psycopg")

TOKEN = "quaggazebra"


@pytest.fixture
def server_folder(postgres_server_url):
    """The server's data directory, where this machine can read it."""
    with psycopg.connect(postgres_server_url) as connection:
        (folder,) = connection.execute("SHOW data_directory").fetchone()
    if not (Path(folder) / "PG_VERSION").exists():
        pytest.skip("the server's files are on another machine")
    return Path(folder)


@pytest.fixture
def bank(postgres_url):
    with CaseBank.open(postgres_url, projections=Digests()) as opened:
        yield opened


def files_with(folder, token):
    """Which files hold a text, as UTF-8, anywhere."""
    found = []
    for path in folder.rglob("*"):
        try:
            if path.is_file() and token.encode() in path.read_bytes():
                found.append(str(path.relative_to(folder)))
        except FileNotFoundError:
            pass  # the server has just removed it
    return found


def run(url, *statements):
    with psycopg.connect(url, autocommit=True) as connection:
        for statement in statements:
            connection.execute(statement)


def long_case(number, rng, token=TOKEN):
    """Too long for a page and too random to be compressed: it goes to the TOAST table as it is."""
    noise = " ".join(f"{value:x}" for value in rng.integers(0, 2**60, 400))
    return NewCase(
        f"{token}{number} asked {noise}",
        plan=f"{token}{number} planned",
        tags=(f"{token}{number} tag",),
        source=f"{token}{number} source",
        external_id=f"{token}{number} id",
        metadata={"note": f"{token}{number} note"},
    )


def purge(bank, ids, namespace="default"):
    """What a purge does to rows; the uid of its receipt."""
    store = bank._store
    receipt = Receipt(new_uid(), namespace, "purge", 0, erased="pending")
    with store.write() as connection:
        state = changed_namespace(connection, store.keys, namespace, store.lexical)
        detach(connection, ids)
        remove_words(connection, state.id, ids)
        connection.execute(delete(cases).where(cases.c.id.in_(ids)))
        store_receipt(connection, receipt, state.id)
        owe(connection)
    return receipt.uid


def erased(bank, uid):
    with bank._store.read() as connection:
        return load_receipt(connection, uid).erased


def recycle_log(bank, ids, url):
    """Have the server keep old log files under the names of coming ones, with their content."""
    for id_ in ids:
        bank.update(id_, {"metadata": {"note": f"{TOKEN} {id_}"}})
        run(url, "SELECT pg_switch_wal()", "CHECKPOINT")


def test_after_the_job_no_file_of_the_server_holds_what_was_purged(
    bank, postgres_url, server_folder
):
    rng = np.random.default_rng(1)
    ids = bank.add([long_case(i, rng) for i in range(40)])
    kept = bank.add([long_case(i, rng, "okapi") for i in range(5)])
    with bank._store.read() as connection:
        numbers = select(case_vectors.c.vector_id).where(case_vectors.c.case_id.in_(ids))
        query = select(vectors.c.vector).where(vectors.c.id.in_(numbers))
        before = connection.execute(query).scalars().all()
    assert len(before) == 40
    # As a careless administrator might have set it: words end up in the server's statistics.
    run(
        postgres_url,
        "ALTER TABLE texts ALTER COLUMN query SET STATISTICS 100",
        "ALTER TABLE texts ALTER COLUMN source SET STATISTICS 100",
        "ANALYZE",
    )
    with psycopg.connect(postgres_url) as connection:
        query = f"SELECT count(*) FROM pg_stats WHERE histogram_bounds::text LIKE '%{TOKEN}%'"
        assert connection.execute(query).fetchone()[0] > 0
    bank.update(ids[0], {"query": "replaced", "plan": None})
    recycle_log(bank, ids[1:4], postgres_url)
    with psycopg.connect(postgres_url) as connection:
        (current,) = connection.execute("SELECT pg_walfile_name(pg_current_wal_lsn())").fetchone()
    before = files_with(server_folder, TOKEN)
    assert any(name > f"pg_wal/{current}" for name in before if name.startswith("pg_wal")), before
    assert any(name.startswith("base") for name in before)
    uid = purge(bank, ids)
    assert erased(bank, uid) == "pending"
    seen = []
    state = bank.erase(progress=lambda *step: seen.append(step))
    assert state.done
    assert state.reason is None
    assert files_with(server_folder, TOKEN) == []
    assert files_with(server_folder, "okapi3 planned") != [], "the search can find something"
    assert erased(bank, uid) == "done"
    assert [step for step, _, _ in seen] == [*postgres_erase.STEPS, "done"]
    assert [case.id for case in bank.list()] == kept
    assert [id_ for id_, _ in bank.search_text("okapi4")] == [kept[4]]
    run(postgres_url, "ANALYZE", "CHECKPOINT")
    assert files_with(server_folder, TOKEN) == [], "nothing comes back"


def test_words_are_kept_out_of_the_statistics_of_the_server(bank, postgres_url):
    bank.add([NewCase(f"{TOKEN}{i}", source=f"{TOKEN}{i}") for i in range(50)])
    run(postgres_url, "ANALYZE")
    with psycopg.connect(postgres_url) as connection:
        rows = connection.execute(
            "SELECT tablename, attname FROM pg_stats WHERE schemaname = current_schema() AND "
            "concat_ws(' ', histogram_bounds, most_common_vals, most_common_elems) "
            f"LIKE '%{TOKEN}%'"
        ).fetchall()
    assert rows == []


def test_an_interrupted_job_goes_on_where_it_stopped(bank, postgres_url):
    uid = purge(bank, bank.add([NewCase(TOKEN)]))

    class Interrupted(Exception):
        pass

    def interrupt(step, done, total):
        if step == "vectors":
            raise Interrupted

    with pytest.raises(Interrupted):
        bank.erase(progress=interrupt)
    assert erased(bank, uid) == "pending"
    with CaseBank.open(postgres_url) as other:
        seen = []
        assert other.erase(progress=lambda step, *_: seen.append(step)).done
    assert seen[0] == "vectors"
    assert erased(bank, uid) == "done"
    assert bank.erase().done, "and there is nothing to do any more"


@pytest.mark.slow
def test_what_is_purged_while_the_job_runs_waits_for_the_next(bank, server_folder):
    early, late = bank.add([NewCase("early gnu"), NewCase("late gnu")])
    first = purge(bank, [early])
    later = []

    def meanwhile(step, done, total):
        if step == "cases":
            later.append(purge(bank, [late]))

    state = bank.erase(progress=meanwhile)
    assert (state.state, state.receipts) == ("pending", 1)
    assert "call erase again" in state.reason
    assert (erased(bank, first), erased(bank, later[0])) == ("done", "pending")
    assert bank.erase().done
    assert erased(bank, later[0]) == "done"
    assert files_with(server_folder, "late gnu") == []


@pytest.mark.slow
def test_a_reader_of_an_older_state_is_waited_for_and_then_named(bank, postgres_url):
    ids = bank.add([NewCase(TOKEN)])
    with psycopg.connect(postgres_url) as reader:
        reader.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        assert reader.execute("SELECT count(*) FROM cases").fetchone() == (1,)
        uid = purge(bank, ids)
        state = bank.erase(timeout_s=0.1)
        assert state.state == "pending"
        assert f"process {reader.info.backend_pid}" in state.reason
        assert reader.execute("SELECT count(*) FROM cases").fetchone() == (1,)
    assert bank.erase().done
    assert erased(bank, uid) == "done"


@pytest.mark.slow
def test_a_table_in_use_is_waited_for_and_then_named(bank, postgres_url):
    uid = purge(bank, bank.add([NewCase(TOKEN)]))
    with psycopg.connect(postgres_url) as other:
        other.execute("LOCK TABLE shown IN ACCESS SHARE MODE")
        state = bank.erase(timeout_s=0.1)
        assert "shown is in use" in state.reason
        assert state.steps == postgres_erase.STEPS.index("shown")
    assert bank.erase().done
    assert erased(bank, uid) == "done"


@pytest.mark.slow
def test_log_files_that_a_replica_still_needs_are_named(bank, postgres_url):
    run(postgres_url, "SELECT pg_create_physical_replication_slot('precedent_slow', true)")
    try:
        uid = purge(bank, bank.add([NewCase(TOKEN)]))
        state = bank.erase(timeout_s=0)
        assert "precedent_slow" in state.reason
        assert erased(bank, uid) == "pending"
    finally:
        run(postgres_url, "SELECT pg_drop_replication_slot('precedent_slow')")
    assert bank.erase().done
    assert erased(bank, uid) == "done"


@contextmanager
def role(url, name):
    """A role that owns the schema of a URL and nothing else; the URL with it."""
    with psycopg.connect(url) as connection:
        (schema,) = connection.execute("SELECT current_schema()").fetchone()
    run(url, f"CREATE ROLE {name} LOGIN", f"ALTER SCHEMA {schema} OWNER TO {name}")
    try:
        yield make_url(url).set(username=name).render_as_string(hide_password=False)
    finally:
        run(url, f"DROP OWNED BY {name} CASCADE", f"DROP ROLE {name}")
        run(url, f"CREATE SCHEMA IF NOT EXISTS {schema}")


@pytest.mark.slow
def test_rights_that_lack_are_named_one_by_one_and_suffice(postgres_url):
    grants = [
        ("pg_read_all_stats", "GRANT pg_read_all_stats TO precedent_poor"),
        ("pg_switch_wal", "GRANT EXECUTE ON FUNCTION pg_switch_wal() TO precedent_poor"),
        ("pg_monitor", "GRANT pg_monitor TO precedent_poor"),
        ("pg_checkpoint", "GRANT pg_checkpoint TO precedent_poor"),
    ]
    with (
        role(postgres_url, "precedent_poor") as poor,
        CaseBank.open(poor) as bank,
        psycopg.connect(postgres_url),  # somebody else's session, which that role cannot look into
    ):
        uid = purge(bank, bank.add([NewCase(TOKEN)]))
        for name, grant in grants:
            state = bank.erase(timeout_s=0.1)
            assert (state.state, erased(bank, uid)) == ("pending", "pending")
            assert name in state.reason
            run(postgres_url, grant)
        assert bank.erase().done
        assert erased(bank, uid) == "done"


def test_only_one_job_at_a_time_works_on_a_bank(bank):
    purge(bank, bank.add([NewCase(TOKEN)]))
    with postgres_erase.session(bank._store.database) as other:
        assert postgres_erase.claimed(other)
        assert "another process" in bank.erase().reason
    assert bank.erase().done


@pytest.mark.slow
def test_the_bank_is_read_and_written_while_its_bytes_are_erased(bank):
    purge(bank, bank.add([NewCase(f"{TOKEN} {i}") for i in range(20)]))
    stop, errors, written = threading.Event(), [], []

    def work():
        try:
            while not stop.is_set():
                written.extend(bank.add([NewCase(f"fresh {len(written)}")]))
                assert len(bank.search_text("fresh", 1000)) == len(written)
        except Exception as error:
            errors.append(error)

    worker = threading.Thread(target=work)
    worker.start()
    try:
        assert bank.erase(timeout_s=20).done
    finally:
        stop.set()
        worker.join()
    assert errors == []
    assert [case.id for case in bank.list(limit=10_000)] == written


@pytest.mark.slow
def test_a_bank_that_owes_nothing_is_done_at_once(bank):
    assert bank.erase(progress=lambda *_: pytest.fail("there is nothing to do")).done
    seen = []
    assert bank.erase(deep=True, progress=lambda *step: seen.append(step)).done, "unless asked to"
    assert len(seen) == len(postgres_erase.STEPS) + 1


@pytest.mark.parametrize("timeout_s", [-1, float("nan")])
def test_an_impossible_time_is_refused(bank, timeout_s):
    with pytest.raises(InvalidInput, match="timeout_s"):
        bank.erase(timeout_s=timeout_s)


def test_the_debt_survives_the_process(bank, postgres_url):
    purge(bank, bank.add([NewCase(TOKEN)]))
    with CaseBank.open(postgres_url) as other, other._store.read() as connection:
        assert owed(connection) is not None
        assert connection.execute(select(texts.c.id)).all() == []


def test_a_job_of_another_server_is_not_resumed(bank):
    uid = purge(bank, bank.add([NewCase(TOKEN)]))

    def interrupt(step, done, total):
        if step == "log":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        bank.erase(progress=interrupt)
    with bank._store.write() as connection:
        # As if a backup, taken in the middle of the job, had been restored here.
        kept = connection.execute(select(meta.c.value).where(meta.c.key == JOB)).scalar_one()
        there = json.dumps({**json.loads(kept), "home": "another"})
        connection.execute(update(meta).where(meta.c.key == JOB).values(value=there))
    seen = []
    assert bank.erase(progress=lambda step, *_: seen.append(step)).done
    assert seen[0] == "statistics"
    assert erased(bank, uid) == "done"
