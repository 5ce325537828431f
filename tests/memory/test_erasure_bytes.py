"""What was forgotten or overwritten is in no byte of the bank's files: the full-text index as well.

SQLite overwrites what it deletes (`secure_delete`), and so does FTS5. Neither reaches the copies
that a B-tree leaves in the gaps of its pages when it moves rows between them, nor the separators
that FTS5 keeps for its pages. That is why no word stands in the index, and why these tests scan
files after long random histories rather than after one deletion.
"""

from __future__ import annotations

import hashlib
import random
import re

import pytest

from memory import BankConfig, ByIds, CaseBank, NewCase
from memory.storage.database.sqlite import driver

#: A secret word of a case: the letter, and 15 digits of a digest.
SECRET = re.compile(rb"(?=(q[0-9a-f]{15}))")
#: A number of a case: all of them begin alike, so that many differ in their last digit alone.
NUMBER = re.compile(rb"(?=(41555[0-9]{5}))")


def words_of_files(folder):
    """Every secret word and number in the files of a folder."""
    held = b"".join(path.read_bytes() for path in folder.rglob("*") if path.is_file())
    return {match.decode() for kind in (SECRET, NUMBER) for match in kind.findall(held)}


class History:
    """A bank with a random past, and which secrets it may and may not hold."""

    def __init__(self, bank, seed):
        self.bank = bank
        self.rng = random.Random(seed)
        self.seed = seed
        self.count = 0
        self.live = {}
        self.gone = set()
        self.vocabulary = [f"word{i}" for i in range(300)]

    def case(self, external_id=None):
        self.count += 1
        digest = hashlib.sha256(f"{self.seed} {self.count}".encode()).hexdigest()
        word, number = f"q{digest[:15]}", f"41555{self.count:05d}"
        rng = self.rng
        said = [word, number, *rng.choices(self.vocabulary, k=rng.choice([2, 8, 30, 60, 400]))]
        rng.shuffle(said)
        some = lambda value: value if rng.random() < 0.3 else None  # noqa: E731
        case = NewCase(
            " ".join(said),
            plan=rng.choice([None, f"plan {word}", {"steps": [number, word]}]),
            tags=(f"tag-{word}",) if rng.random() < 0.3 else (),
            source=some(f"source {number}"),
            external_id=external_id or some(f"id-{word}"),
            derived_from=(f"of-{word}",) if rng.random() < 0.2 else (),
            metadata={word: number} if rng.random() < 0.3 else {},
        )
        return case, {word, number}

    def add(self, count, batch=25):
        for _ in range(0, count, batch):
            made = [self.case() for _ in range(batch)]
            for id_, (_, secrets) in zip(
                self.bank.add([case for case, _ in made]), made, strict=True
            ):
                self.live[id_] = secrets

    def change(self, count):
        """Update, upsert and merge."""
        for id_ in self.rng.sample(sorted(self.live), count):
            case, secrets = self.case()
            changes = {name: getattr(case, name) for name in ("query", "plan", "tags", "source")}
            changes |= {name: getattr(case, name) for name in ("derived_from", "metadata")}
            self.bank.update(id_, {**changes, "external_id": case.external_id})
            self.gone |= self.live[id_]
            self.live[id_] = secrets
        for number in range(count // 4):
            case, secrets = self.case(f"upserted-{number % 5}")
            (id_,) = self.bank.add([case], upsert=True)
            self.gone |= self.live.get(id_, set())
            self.live[id_] = secrets
            # The same words come once more: one case, which has the tags of both.
            again = NewCase(case.query, plan=case.plan, tags=(f"merged-{number}",))
            assert self.bank.add([again], on_duplicate="merge") == [id_]

    def forget(self, share, batch=20):
        ids = self.rng.sample(sorted(self.live), round(share * len(self.live)))
        for start in range(0, len(ids), batch):
            part = ids[start : start + batch]
            receipt = self.bank.forget(ByIds(tuple(part)))
            assert set(receipt.ids) == set(part)
            assert receipt.erased == "done"
            for id_ in part:
                self.gone |= self.live.pop(id_)

    def check(self, folder):
        there = words_of_files(folder)
        assert not there & self.gone, (
            f"{len(there & self.gone)} of {len(self.gone)} are still there"
        )
        assert there >= set().union(*self.live.values()), "the scan would have seen them"


@pytest.mark.parametrize("style", ["words", "trigrams"])
def test_no_forgotten_word_is_in_any_byte_of_the_files(tmp_path, style):
    config = BankConfig(lexical=style)
    with CaseBank.open(tmp_path / "bank.db", config=config) as bank:
        history = History(bank, seed=1)
        history.add(50)
        history.change(10)
        history.forget(0.4)
        history.check(tmp_path)
        history.add(25)
        history.forget(0.9)
        history.check(tmp_path)
    history.check(tmp_path)


SOAK = pytest.mark.soak


@pytest.mark.slow
@pytest.mark.parametrize(
    ("seed", "share"),
    [
        (1, 0.9),
        pytest.param(1, 0.5, marks=SOAK),
        pytest.param(2, 0.5, marks=SOAK),
        pytest.param(2, 0.9, marks=SOAK),
        pytest.param(3, 0.5, marks=SOAK),
        pytest.param(3, 0.9, marks=SOAK),
    ],
)
def test_no_forgotten_word_is_in_any_byte_after_a_long_history(tmp_path, seed, share):
    # Most of a table deleted makes SQLite join its pages, which leaves copies of rows in their
    # gaps, beyond the reach of a later deletion: so rows of words must neither grow nor go.
    with CaseBank.open(tmp_path / "bank.db") as bank:
        history = History(bank, seed)
        history.add(600)
        for _ in range(2):
            history.change(30)
            history.forget(share)
            history.check(tmp_path)
            history.add(200)
        history.forget(share)
    history.check(tmp_path)


@pytest.mark.slow
def test_no_separator_of_the_index_is_a_word(tmp_path):
    # FTS5 keeps, for every page of a segment, the shortest prefix that tells its first term from
    # the last one before; of two numbers that differ in the last digit that is the whole number,
    # and a deletion leaves it.
    with CaseBank.open(tmp_path / "bank.db") as bank:
        history = History(bank, seed=3)
        history.vocabulary = ["word"]
        history.add(600, batch=300)
        history.forget(0.4, batch=300)
        connection = driver().connect(tmp_path / "bank.db")
        try:
            terms = connection.execute("SELECT CAST(term AS TEXT) FROM lexical_1_idx").fetchall()
            assert len(terms) > 10
            assert not any("41555" in term or "word" in term for (term,) in terms)
        finally:
            connection.close()
        history.check(tmp_path)
