"""Banks of older formats, brought forward: nothing is lost, and nothing is left behind."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from sqlalchemy import delete, insert, inspect, select, text

from memory import BankConfig, CaseBank, ForeignBank, NewCase
from memory.schema import TABLES, case_tags, cases, lineage, meta, texts, vectors
from memory.storage.database.postgres import PostgresDatabase
from memory.storage.database.sqlite import SqliteDatabase
from memory.storage.erasing import owed
from memory.storage.migrations import format_1, upgrade
from memory.storage.namespaces import namespace_state
from memory.storage.rows import all_words, spoken
from memory.storage.store import Store
from memory.text import lexical
from tests.memory.embedders import Digests

ROOT = Path(__file__).resolve().parents[2]

OPENER = """
import sys
from memory import CaseBank
with CaseBank.open(sys.argv[1]) as bank:
    print(bank.uid, bank.count(), bank.count("other"))
"""

KILLED = """
import os, signal, sys
from memory import CaseBank
from memory.text import lexical
add, calls = lexical.add, []
def dying(*arguments):
    calls.append(1)
    if len(calls) > int(sys.argv[2]):
        os.kill(os.getpid(), signal.SIGKILL)
    add(*arguments)
lexical.add = dying
CaseBank.open(sys.argv[1])
"""


def told(namespace):
    """Cases with every field, and with as few as there may be."""
    return [
        NewCase("What is the capital of France?", plan="look it up", outcome=1.0, kind="case"),
        NewCase(
            f"a question of {namespace}",
            plan={"steps": ["Älteste zuerst", {"n": 1.5}]},
            outcome=0.25,
            kind="turn",
            tags=("blue", "green", "blue"),
            source="letters/7",
            created_at=1_700_000_000_000_000,
            valid_from=-5,
            valid_to=10**15,
            derived_from=("e-1", "never stored"),
            metadata={"speaker": "Ann", "phone": "415-555-0186", "deep": [{"a": None}]},
            external_id="e-2",
        ),
        NewCase("twin", external_id="e-1"),
        NewCase("twin", plan=[]),
        NewCase("x" * 20_000, plan={}),
    ]


def engine_of(location):
    kind = PostgresDatabase if location.startswith("postgresql") else SqliteDatabase
    database = kind.at(location, 5.0)
    if isinstance(database, SqliteDatabase):
        database.settle()
    return database.engine


def make_format_1(location, content, embedder=None):
    """Write a bank as the first release did: namespace -> cases; external ids are unique."""
    engine = engine_of(location)
    numbers = {}
    with engine.execution_options(precedent_writes=True).connect() as connection:
        format_1.TABLES.create_all(connection)
        facts = {"format": "precedent-bank", "version": "1", "uid": "the-same-uid"}
        connection.execute(
            insert(format_1.meta), [{"key": k, "value": v} for k, v in facts.items()]
        )
        if embedder is not None:
            row = {"key": embedder.key, "dim": embedder.dim}
            connection.execute(insert(format_1.embedders), [row])
        for number, (name, new) in enumerate(content.items(), start=1):
            connection.execute(insert(format_1.namespaces), [{"name": name, "version": 7}])
            numbers[name] = number
            for case in new:
                store_case(connection, number, case, embedder)
            for finished in (0, 1):
                row = {
                    "namespace_id": number,
                    "sha256": hashlib.sha256(bytes([finished])).digest(),
                    "lines": 5,
                    "finished": finished,
                }
                connection.execute(insert(format_1.imports), [row])
        connection.commit()
    engine.dispose()


def store_case(connection, namespace_id, case, embedder):
    as_json = case.plan is not None and not isinstance(case.plan, str)
    plain = ("external_id", "query", "outcome", "kind", "source")
    times = ("created_at", "valid_from", "valid_to")
    row = {name: getattr(case, name) for name in (*plain, *times)} | {
        "namespace_id": namespace_id,
        "plan": compact(case.plan) if as_json else case.plan,
        "plan_is_json": int(as_json),
    }
    row |= {name: compact(getattr(case, name)) for name in ("tags", "derived_from", "metadata")}
    made = insert(format_1.cases).returning(format_1.cases.c.id)
    case_id = connection.execute(made, [row]).scalar_one()
    if embedder is None:
        return
    words = embedder.text(case)
    key = {
        "namespace_id": namespace_id,
        "embedder_id": 1,
        "text_sha256": hashlib.sha256(words.encode()).digest(),
    }
    shelf = format_1.vectors
    same = [shelf.c[name] == value for name, value in key.items()]
    vector_id = connection.execute(select(shelf.c.id).where(*same)).scalar()
    if vector_id is None:
        row = key | {"vector": embedder.vector(words).astype("<f4").tobytes()}
        vector_id = connection.execute(insert(shelf).returning(shelf.c.id), [row]).scalar_one()
    link = {"embedder_id": 1, "case_id": case_id, "vector_id": vector_id}
    connection.execute(insert(format_1.case_vectors), [link])


def compact(value):
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def everything(location, tables):
    engine = engine_of(location)
    with engine.connect() as connection:
        rows = {t.name: sorted(map(tuple, connection.execute(select(t))), key=str) for t in tables}
    engine.dispose()
    return rows


def rows_of(bank, table, *columns):
    with bank._store.read() as connection:
        return [tuple(row) for row in connection.execute(select(*(table.c[n] for n in columns)))]


def bytes_beside(path, token):
    return sum(
        file.read_bytes().count(token)
        for file in path.parent.iterdir()
        if file.name.startswith(path.name)
    )


CONTENT = {"default": told("one"), "other": told("two"), "empty": []}


def test_a_bank_of_format_1_is_brought_forward_and_loses_nothing(bank_location, tmp_path):
    embedder = Digests()
    make_format_1(bank_location, CONTENT, embedder)
    with (
        CaseBank.open(bank_location, projections=embedder) as bank,
        CaseBank.open(tmp_path / "twin.db", projections=Digests()) as twin,
    ):
        assert bank.uid == "the-same-uid"
        assert bank.namespaces() == ["default", "empty", "other"]
        first = 1
        for name in ("default", "other"):
            new = CONTENT[name]
            twin.add(new, namespace=name)
            mine, theirs = bank.list(namespace=name), twin.list(namespace=name)
            assert [case.id for case in mine] == list(range(first, first + len(new)))
            assert [case.as_new() for case in mine] == new == [case.as_new() for case in theirs]
            assert {case.version for case in mine} == {1}
            assert len({case.stored_at for case in mine}) == 1
            first += len(new)
            for word in ("capital", "twin", "question", "zuerst"):
                found = [id_ for id_, _ in bank.search_text(word, namespace=name)]
                assert found
                if bank.path is not None:
                    assert found == [i for i, _ in twin.search_text(word, namespace=name)]
        assert bank.count("empty") == 0
        assert bank.embed_missing() == 0
        assert embedder.seen == [], "the vectors are still known by their texts"
        for opened in (bank, twin):
            check_digests(opened)
            check_full_text(opened)
        stored = {np.frombuffer(v, "<f4").tobytes() for (v,) in rows_of(bank, vectors, "vector")}
        assert stored == {
            embedder.vector(embedder.text(c)).astype("<f4").tobytes()
            for new in CONTENT.values()
            for c in new
        }


def check_digests(bank):
    """Every keyed digest says what the words beside it say, and nothing is missing."""
    keys = bank._store.keys
    tags, links = set(), set()
    for name in bank.namespaces():
        with bank._store.read() as connection:
            number = dict(connection.execute(text("SELECT name, id FROM namespaces")).all())[name]
            assert connection.execute(
                text("SELECT name_key FROM namespaces WHERE id = :id"), {"id": number}
            ).scalar_one() == keys.of("namespace", 0, name)
            rows = connection.execute(
                select(texts, cases.c.external_key, cases.c.content_key, cases.c.source_key)
                .join(cases, cases.c.id == texts.c.case_id)
                .where(cases.c.namespace_id == number)
            ).all()
        for row in rows:
            for words, digest, kind in (
                (row.external_id, row.external_key, "external"),
                (row.source, row.source_key, "source"),
            ):
                assert digest == (None if words is None else keys.of(kind, number, words))
            assert row.content_key == keys.content(number, row.query, row.plan)
            for tag in json.loads(row.tags):
                tags.add((number, keys.of("tag", number, tag), row.case_id))
            for parent in json.loads(row.derived_from):
                links.add((number, keys.of("external", number, parent), row.case_id))
    assert set(rows_of(bank, case_tags, "namespace_id", "tag_key", "case_id")) == tags
    assert set(rows_of(bank, lineage, "namespace_id", "parent_key", "child_id")) == links


def check_full_text(bank):
    """The index holds of every case what it should, and nothing else."""
    for name in bank.namespaces():
        with bank._store.write() as connection:
            number = namespace_state(connection, bank._store.keys, name).id
            owners = select(texts.c.case_id, texts.c.id)
            text_ids = dict(map(tuple, connection.execute(owners)))
            entries = [
                lexical.Entry(
                    text_ids[case.id],
                    spoken(case),
                    "\n".join(list(all_words(replace(case, plan=None)))[1:]),
                )
                for case in bank.list(namespace=name)
            ]
            assert lexical.check(connection, number, entries, bank._store.lexical) == []


def test_imports_of_format_1_are_still_known(tmp_path):
    file, path = tmp_path / "cases.jsonl", tmp_path / "bank.db"
    file.write_text("".join(json.dumps({"query": f"q{i}"}) + "\n" for i in range(7)))
    digest = hashlib.sha256(file.read_bytes()).digest()
    for finished, lines in ((1, 7), (0, 5)):
        path.unlink(missing_ok=True)
        make_format_1(str(path), {"default": [NewCase(f"q{i}") for i in range(lines)]})
        engine = engine_of(str(path))
        with engine.begin() as connection:
            row = {"namespace_id": 1, "sha256": digest, "lines": lines, "finished": finished}
            connection.execute(insert(format_1.imports), [row])
        engine.dispose()
        with CaseBank.open(path) as bank:
            report = bank.import_jsonl(file)
            assert (report.already_imported, report.added) == (bool(finished), 7 - lines)
            assert bank.count() == 7


def test_a_new_case_gets_a_new_id_and_a_later_change(bank_location):
    make_format_1(bank_location, CONTENT)
    engine = engine_of(bank_location)
    with engine.execution_options(precedent_writes=True).begin() as connection:
        connection.execute(delete(format_1.cases).where(format_1.cases.c.id == 10))
    engine.dispose()
    with CaseBank.open(bank_location) as bank:
        before = max(row[0] for row in rows_of(bank, cases, "seq"))
        assert before > 7, "no version before was as large"
        assert bank.add([NewCase("new")]) == [11]
        assert max(row[0] for row in rows_of(bank, cases, "seq")) > before
        assert bank.update(1, {"query": "changed"}).version == 2
        assert [c.query for c in bank.get([1, 11])] == ["changed", "new"]


def test_the_words_of_the_old_tables_are_gone_from_the_file(tmp_path):
    path = tmp_path / "bank.db"
    rng = np.random.default_rng(5)
    names = [f"{number:08x}-name" for number in rng.permutation(400)]
    make_format_1(
        str(path),
        {"default": [NewCase("w" * 300 + f"{name} word", external_id=name) for name in names]},
    )
    assert bytes_beside(path, b"-name word") >= 400
    with CaseBank.open(path) as bank:
        with bank._store.read() as connection:
            assert owed(connection) is None
        # Once as a query and once as a name, both in the one row of words; nothing else is left.
        for name in names[::40]:
            assert bytes_beside(path, name.encode()) == 2
        (case,) = bank.list(limit=1)
        bank.update(case.id, {"query": "other", "external_id": None})
        assert bytes_beside(path, str(case.external_id).encode()) == 0


def test_a_reader_delays_the_erasing_and_the_next_opening_makes_up_for_it(tmp_path):
    path = tmp_path / "bank.db"
    make_format_1(str(path), CONTENT)
    engine = engine_of(str(path))
    with engine.connect() as reader:
        assert reader.execute(select(format_1.cases)).all()
        with CaseBank.open(path) as bank, bank._store.read() as connection:
            assert owed(connection) is not None
    engine.dispose()
    with CaseBank.open(path) as bank, bank._store.read() as connection:
        assert owed(connection) is None


@pytest.mark.parametrize("style", ["words", "trigrams"])
def test_the_index_cuts_words_as_the_configuration_says(tmp_path, style):
    make_format_1(str(tmp_path / "bank.db"), {"default": [NewCase("an atmosphere of haste")]})
    with CaseBank.open(tmp_path / "bank.db", config=BankConfig(lexical=style)) as bank:
        assert bool(bank.search_text("tmosph")) == (style == "trigrams")
    with CaseBank.open(tmp_path / "bank.db") as bank:
        assert bank._store.lexical == style


def schema_of(connection):
    """Everything that a schema consists of, as plain values."""
    if connection.dialect.name == "sqlite":
        rows = connection.execute(text("SELECT type, name, tbl_name, sql FROM sqlite_master"))
        return sorted(tuple(map(str, row)) for row in rows)
    known = inspect(connection)
    schema = connection.execute(text("SELECT current_schema()")).scalar_one()
    facts = [
        (table, column["name"], column["type"], column["nullable"], column["default"])
        for table in sorted(known.get_table_names())
        for column in known.get_columns(table)
    ]
    facts += connection.execute(
        text(
            "SELECT conrelid::regclass::text, conname, pg_get_constraintdef(oid) "
            "FROM pg_constraint WHERE connamespace = current_schema()::regnamespace ORDER BY 1, 2"
        )
    ).all()
    facts += connection.execute(
        text(
            "SELECT indexname, indexdef FROM pg_indexes WHERE schemaname = current_schema() "
            "ORDER BY 1"
        )
    ).all()
    more = connection.execute(
        text(
            "SELECT relname, relkind::text, a.attname, a.attnum, a.attstattarget FROM pg_class c "
            "LEFT JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0 WHERE relnamespace = "
            "current_schema()::regnamespace ORDER BY 1, 4"
        )
    )
    return [tuple(str(v).replace(schema, "S") for v in row) for row in [*facts, *more]]


@pytest.mark.parametrize("start", ["nothing", "format 1"])
def test_migrations_make_the_same_tables_as_the_schema(bank_location, tmp_path, start, request):
    if start == "format 1":
        make_format_1(bank_location, {})
    store_of = Store.open if start == "format 1" else _migrated_from_nothing
    with_migrations = store_of(bank_location, BankConfig())
    if bank_location.startswith("postgresql"):
        from tests.postgres import fresh_schema

        with fresh_schema(request.getfixturevalue("postgres_server_url")) as other:
            compare(with_migrations, Store.open(other, BankConfig()))
    else:
        compare(with_migrations, Store.open(tmp_path / "direct.db", BankConfig()))


def _migrated_from_nothing(location, config):
    engine = engine_of(location)
    with engine.execution_options(precedent_writes=True).begin() as connection:
        upgrade(connection, "words")
        upgrade(connection, "words")
    engine.dispose()
    store = Store.open(location, config)
    with store.write() as connection:
        store.database.guard(connection)
    return store


def compare(left, right):
    try:
        with left.read() as one, right.read() as two:
            assert schema_of(one) == schema_of(two)
            assert set(inspect(one).get_table_names()) == set(TABLES.tables)
            for connection in (one, two):
                facts = dict(connection.execute(select(meta.c.key, meta.c.value)).all())
                assert set(facts) == {"format", "version", "uid", "secret", "lexical"}
                assert (facts["version"], facts["lexical"]) == ("2", "words")
                query = text("SELECT version_num FROM alembic_version")
                assert connection.execute(query).scalars().all() == ["0002"]
                query = text("SELECT count(*) FROM change_sequence")
                assert connection.execute(query).scalar_one() == 1
    finally:
        left.close()
        right.close()


def test_a_failure_in_the_middle_leaves_format_1_as_it_was(bank_location, monkeypatch):
    make_format_1(bank_location, CONTENT, Digests())
    tables = format_1.TABLES.sorted_tables
    before = everything(bank_location, tables)
    real, calls = lexical.add, []

    def failing(*arguments):
        calls.append(1)
        if len(calls) == 2:
            raise RuntimeError("in the middle")
        real(*arguments)

    monkeypatch.setattr(lexical, "add", failing)
    with pytest.raises(RuntimeError, match="in the middle"):
        CaseBank.open(bank_location)
    assert everything(bank_location, tables) == before
    with CaseBank.open(bank_location) as bank:
        assert bank.count() == bank.count("other") == 5


@pytest.mark.slow
def test_a_process_killed_in_the_middle_leaves_format_1_as_it_was(bank_location):
    make_format_1(bank_location, CONTENT)
    tables = format_1.TABLES.sorted_tables
    before = everything(bank_location, tables)
    command = [sys.executable, "-c", KILLED, bank_location, "1"]
    assert subprocess.run(command, cwd=ROOT, timeout=60).returncode == -signal.SIGKILL
    assert everything(bank_location, tables) == before
    with CaseBank.open(bank_location) as bank:
        assert bank.count() == bank.count("other") == 5


@pytest.mark.slow
def test_processes_that_open_an_old_bank_at_once_bring_it_forward_once(bank_location):
    make_format_1(bank_location, CONTENT)
    command = [sys.executable, "-c", OPENER, bank_location]
    both = [
        subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) for _ in range(2)
    ]
    for process in both:
        out, _ = process.communicate(timeout=60)
        assert (process.returncode, out.split()) == (0, ["the-same-uid", "5", "5"])
    with CaseBank.open(bank_location) as bank:
        assert bank.count() == 5


def test_a_format_that_no_release_wrote_is_refused(tmp_path):
    path = str(tmp_path / "bank.db")
    make_format_1(path, CONTENT)
    engine = engine_of(path)
    with engine.begin() as connection:
        connection.execute(text("UPDATE meta SET value = '0' WHERE key = 'version'"))
    engine.dispose()
    with pytest.raises(ForeignBank, match="format 0"):
        CaseBank.open(path)
    assert len(everything(path, [format_1.cases])["cases"]) == 10


@pytest.mark.slow
def test_opening_a_bank_of_today_does_not_import_alembic(tmp_path):
    CaseBank.open(tmp_path / "bank.db").close()
    code = (
        "import sys, memory\n"
        "memory.CaseBank.open(sys.argv[1]).close()\n"
        "print('alembic' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, os.fspath(tmp_path / "bank.db")],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert done.stdout.strip() == "False"
