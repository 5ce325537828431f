"""Adding, getting, listing and exporting, within one process."""

from __future__ import annotations

import json
import threading

import numpy as np
import pytest

from memory import (
    AlreadyStored,
    BankClosed,
    BankUnavailable,
    ByIds,
    CaseBank,
    EmbedderMismatch,
    EmbeddingFailed,
    InvalidInput,
    NewCase,
    NotFound,
)
from tests.memory.embedders import Broken, Digests


@pytest.fixture
def bank(tmp_path):
    with CaseBank.open(tmp_path / "deep" / "folder" / "bank.db") as opened:
        yield opened


def queries(cases):
    return [case.query for case in cases]


def test_cases_come_back_in_the_order_asked(bank):
    ids = bank.add([NewCase("a"), NewCase("b"), NewCase("c")])
    assert ids == sorted(ids)
    assert queries(bank.get([ids[2], ids[0], ids[2]])) == ["c", "a", "c"]
    assert queries(bank.get(np.array(ids[:1]))) == ["a"]
    assert bank.get([]) == []


def test_more_cases_than_one_statement_takes_keep_their_order(bank):
    ids = bank.add(NewCase(f"q{i}", external_id=f"e{i}") for i in range(2500))
    assert queries(bank.get(reversed(ids))) == [f"q{i}" for i in reversed(range(2500))]


def test_unknown_ids_are_named(bank):
    (known,) = bank.add([NewCase("a")])
    with pytest.raises(NotFound, match="0, -1, 77, 18446744073709551616"):
        bank.get([known, 0, -1, 77, 2**64, 77])
    with pytest.raises(NotFound, match="nowhere"):
        bank.get([known], namespace="nowhere")


def test_of_cases_found_a_moment_ago_those_that_are_still_there_are_given(bank):
    ids = bank.add([NewCase(query) for query in "abcd"])
    bank.forget(ByIds((ids[1],)))
    bank.forget(ByIds((ids[2],)), mode="invalidate")
    asked = [ids[3], ids[2], ids[1], ids[0], ids[3], 77, -1, 2**70]
    assert queries(bank.known(asked).values()) == ["d", "a"]
    assert list(bank.known(asked, history=True)) == [ids[3], ids[2], ids[0]]
    assert bank.known(ids, namespace="nowhere") == {}


@pytest.mark.parametrize("id_", ["1", 1.0, None, True])
def test_ids_that_are_no_integers_are_refused(bank, id_):
    with pytest.raises(InvalidInput, match="must be an integer"):
        bank.get([id_])


def test_adding_nothing_changes_nothing(bank):
    assert bank.add([]) == []
    assert bank.namespaces() == []
    assert bank.block("default").version == 0


def test_duplicates_are_kept_as_cases_of_their_own(bank):
    first, second = bank.add([NewCase("same"), NewCase("same")])
    assert first != second
    assert bank.count() == 2


def test_an_external_id_belongs_to_one_case_of_a_namespace(bank):
    bank.add([NewCase("a", external_id="x")])
    with pytest.raises(AlreadyStored, match="'x'"):
        bank.add([NewCase("b", external_id="y"), NewCase("c", external_id="x")])
    with pytest.raises(InvalidInput, match="'z' is given twice"):
        bank.add([NewCase("b", external_id="z"), NewCase("c", external_id="z")])
    assert bank.count() == 1
    bank.add([NewCase("a", external_id="x")], namespace="other")
    assert bank.count("other") == 1


@pytest.mark.parametrize("cases", [NewCase("alone"), "text", None, [{"query": "q"}], [None]])
def test_what_is_not_a_list_of_cases_is_refused(bank, cases):
    with pytest.raises(InvalidInput, match="NewCase"):
        bank.add(cases)


@pytest.mark.parametrize("name", ["", " ", "a\n", " a", "x" * 129, "a\x00", "\ud800", None, 3])
def test_namespaces_have_plain_names(bank, name):
    for call in (bank.count, bank.block):
        with pytest.raises(InvalidInput, match="namespace"):
            call(name)
    with pytest.raises(InvalidInput, match="namespace"):
        bank.add([NewCase("q")], namespace=name)


def test_nothing_crosses_a_namespace(bank):
    (one,) = bank.add([NewCase("of one")], namespace="one")
    (two,) = bank.add([NewCase("of two")], namespace="zwei 🙂")
    assert one != two
    assert queries(bank.list(namespace="one")) == ["of one"]
    assert bank.namespaces() == ["one", "zwei 🙂"]
    with pytest.raises(NotFound):
        bank.get([two], namespace="one")


def test_pages_cover_every_case_once(bank):
    ids = bank.add([NewCase(f"q{i}") for i in range(7)])
    bank.add([NewCase("not mine")], namespace="other")
    seen, after = [], None
    while page := bank.list(after=after, limit=3):
        seen += [case.id for case in page]
        after = page[-1].id
    assert seen == ids
    assert bank.list(namespace="nowhere") == []
    assert bank.list(after=2**70) == []


@pytest.mark.parametrize("limit", [0, -1, 10_001, "5", True])
def test_a_page_has_a_sensible_size(bank, limit):
    with pytest.raises(InvalidInput, match="limit"):
        bank.list(limit=limit)


def test_cases_outlive_the_bank_object(tmp_path):
    with CaseBank.open(tmp_path / "bank.db") as bank:
        uid = bank.uid
        ids = bank.add([NewCase("kept")])
    with CaseBank.open(f"sqlite:///{tmp_path / 'bank.db'}") as bank:
        assert bank.uid == uid
        assert queries(bank.get(ids)) == ["kept"]


def test_a_closed_bank_says_so(tmp_path):
    bank = CaseBank.open(tmp_path / "bank.db")
    bank.close()
    bank.close()
    with pytest.raises(BankClosed, match="open it again"):
        bank.count()


def test_vectors_are_computed_once_a_text(tmp_path):
    embeddings, projections = Digests("q", 2, only_query=True), Digests("w", 3)
    with CaseBank.open(
        tmp_path / "bank.db", embeddings=embeddings, projections=projections
    ) as bank:
        bank.add([NewCase("a", plan="1"), NewCase("a", plan="2"), NewCase("b", plan="1")])
        assert sorted(embeddings.seen) == ["a", "b"]
        bank.add([NewCase("a", plan="2"), NewCase("c")])
        assert sorted(embeddings.seen) == ["a", "b", "c"]
        assert len(projections.seen) == 4
        assert bank.embed_missing() == 0
        bank.add([NewCase("a", plan="1")], namespace="other")
        bank.add([NewCase("b", plan="1")], namespace="other")
        assert sorted(embeddings.seen) == ["a", "a", "b", "b", "c"], "no sharing between tenants"


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (lambda n, dim: np.zeros((n, dim + 1)), "shape"),
        (lambda n, dim: np.zeros(n), "shape"),
        (lambda n, dim: np.full((n, dim), np.nan), "NaN"),
        (lambda n, dim: np.full((n, dim), np.inf), "NaN or infinity"),
    ],
)
def test_nothing_is_stored_when_an_embedder_fails(tmp_path, answer, message):
    with CaseBank.open(tmp_path / "bank.db", projections=Broken(answer)) as bank:
        with pytest.raises(EmbeddingFailed, match=message):
            bank.add([NewCase("q")])
        assert bank.count() == 0


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (lambda case: 1 / 0, "ZeroDivisionError"),
        (lambda case: None, "NoneType"),
        (lambda case: "\ud800", "surrogate"),
    ],
)
def test_a_case_that_an_embedder_makes_no_text_of_is_named(tmp_path, text, reason):
    embedder = Digests()
    embedder.text = text
    with CaseBank.open(tmp_path / "bank.db", projections=embedder) as bank:
        with pytest.raises(EmbeddingFailed, match=reason) as caught:
            bank.add([NewCase("why?")])
        assert "query 'why?'" in str(caught.value)
        with pytest.raises(EmbeddingFailed, match="external id 'e1'"):
            bank.add([NewCase("why?", external_id="e1")])
        assert bank.count() == 0
        bank.add([NewCase("why?")], wait=False)
        with pytest.raises(EmbeddingFailed, match="case 1 of namespace 'default'"):
            bank.block()


def test_an_embedder_whose_dimension_changed_under_its_key_is_refused(tmp_path):
    CaseBank.open(tmp_path / "bank.db", projections=Digests("k", 3)).close()
    with pytest.raises(EmbedderMismatch, match="3"):
        CaseBank.open(tmp_path / "bank.db", projections=Digests("k", 4))
    with pytest.raises(InvalidInput, match="two embedders"):
        CaseBank.open(tmp_path / "bank.db", embeddings=Digests("k", 3), projections=Digests("k", 3))
    with pytest.raises(InvalidInput, match="dim"):
        CaseBank.open(tmp_path / "bank.db", projections=Digests("z", 0))


def test_threads_share_a_bank_without_losing_a_case(tmp_path):
    failures = []
    with CaseBank.open(tmp_path / "bank.db", projections=Digests()) as bank:

        def work(number):
            try:
                for i in range(10):
                    (id_,) = bank.add([NewCase(f"t{number} q{i}")])
                    assert bank.get([id_])[0].query == f"t{number} q{i}"
                    assert id_ in bank.block("default").ids
            except BaseException as error:
                failures.append(error)

        threads = [threading.Thread(target=work, args=(n,)) for n in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert failures == []
        assert bank.count() == len(bank.block("default").ids) == 80
        assert len({case.query for case in bank.list()}) == 80


def test_an_export_replaces_a_file_whole(bank, tmp_path):
    target = tmp_path / "out" / "cases.jsonl"
    bank.add([NewCase("line\nbreak\u2028 and ü", plan={"a": [1]}), NewCase("b")])
    assert bank.export_jsonl(target).written == 2
    assert target.read_text(encoding="utf-8").count("\n") == 2
    bank.add([NewCase("c")])
    assert bank.export_jsonl(target, "default").written == 3
    assert [p.name for p in target.parent.iterdir()] == ["cases.jsonl"]
    with pytest.raises(NotFound, match="nowhere"):
        bank.export_jsonl(target, "nowhere")
    assert target.read_text(encoding="utf-8").count("\n") == 3


def test_an_export_of_many_pages_is_one_snapshot(bank, tmp_path, monkeypatch):
    monkeypatch.setattr("memory.exchange.exporting._PAGE", 2)
    bank.add([NewCase(f"q{i}") for i in range(5)])
    bank.add([NewCase("not mine")], namespace="other")
    assert bank.export_jsonl(tmp_path / "five.jsonl").written == 5
    bank.add([NewCase("q5")])
    assert bank.export_jsonl(tmp_path / "six.jsonl").written == 6
    lines = (tmp_path / "six.jsonl").read_text(encoding="utf-8").splitlines()
    assert [json.loads(line)["query"] for line in lines] == [f"q{i}" for i in range(6)]


def test_an_export_that_cannot_be_written_leaves_nothing_behind(bank, tmp_path):
    bank.add([NewCase("a")])
    (tmp_path / "folder.jsonl").mkdir()
    with pytest.raises(BankUnavailable, match=r"folder\.jsonl"):
        bank.export_jsonl(tmp_path / "folder.jsonl")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["deep", "folder.jsonl"]
