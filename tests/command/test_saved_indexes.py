"""What the command removes leaves a service's saved indexes, too."""

from __future__ import annotations

import numpy as np
import pytest

from memory import ByIds, CaseBank
from retriever.embedders import QueryEmbedder
from retriever.searcher import Searcher
from retriever.tiers.settings import IndexSettings
from service.sinks import IndexSink

SINK = "sink:saved indexes"


class Encoder:
    """Counts letters."""

    fingerprint, dim = "letters", 8

    def embed(self, texts):
        counts = [[1.0 + text.count(letter) for letter in "aeiourst"] for text in texts]
        return np.array(counts, np.float32).reshape(-1, self.dim)


@pytest.fixture
def saved(run, cases, location, tmp_path):
    """A folder beside the bank in which a service has saved its index."""
    assert run("import", cases).status == 0
    folder = tmp_path / "index"
    serve(location, folder)
    assert len(list(folder.iterdir())) == 1
    return folder


def serve(location, folder, namespace="default"):
    encoder = Encoder()
    with CaseBank.open(location, embeddings=QueryEmbedder(encoder)) as bank:
        bank.embed_missing()
        settings = IndexSettings(device="cpu")
        searcher = Searcher(bank, None, encoder, index=settings, index_dir=folder)
        searcher.search(["a kettle"], 2, mode="cosine", namespace=namespace)
        searcher.close()


@pytest.mark.parametrize(
    "wish",
    [
        ("forget", "--ids", 3, "--yes"),
        ("forget", "--request", "Please forget: boil the kettle", "--yes"),
        ("retire", "--before", "2001-01-01T00:00:00Z", "--yes"),
        ("compact", "--max-cases", 2, "--yes"),
        ("delete-namespace", "default", "--yes"),
    ],
)
def test_what_is_removed_leaves_the_saved_index_beside_the_bank(run, saved, wish):
    receipt = run("--json", *wish).data
    assert receipt["ids"] or receipt["counts"]["cases"]
    assert receipt["counts"][SINK] == 1
    assert receipt["unreached"] == []
    assert list(saved.iterdir()) == []


def test_a_scheduled_request_reaches_it_when_it_is_run(run, saved):
    run("forget", "--ids", 3, "--at", "2001-01-01T00:00:00Z")
    assert list(saved.iterdir()) != []
    (receipt,) = run("--json", "schedule", "run").data
    assert receipt["counts"][SINK] == 1
    assert list(saved.iterdir()) == []


def test_another_namespace_and_a_dry_run_leave_it(run, saved, cases):
    body = cases.read_text()
    cases.write_text(body + "\n")
    assert run("--namespace", "other", "import", cases).status == 0
    there = list(saved.iterdir())
    run("forget", "--ids", 3, "--dry-run")
    receipt = run("--json", "--namespace", "other", "forget", "--source", "kitchen", "--yes").data
    assert receipt["counts"][SINK] == 0
    assert list(saved.iterdir()) == there


def test_a_folder_elsewhere_is_named_and_a_misspelt_one_refused_before_anything_goes(
    run, saved, tmp_path
):
    elsewhere = tmp_path / "elsewhere"
    saved.rename(elsewhere)
    refused = run("forget", "--ids", 3, "--yes", "--index-folder", tmp_path / "elswhere")
    assert refused.status == 2
    assert "there is no folder" in refused.err
    receipt = run("--json", "forget", "--ids", 3, "--yes", "--index-folder", elsewhere).data
    assert receipt["counts"][SINK] == 1
    assert list(elsewhere.iterdir()) == []


def test_without_a_folder_nothing_is_said_of_indexes(run, cases):
    assert run("import", cases).status == 0
    receipt = run("--json", "forget", "--ids", 3, "--yes").data
    assert SINK not in receipt["counts"]


def test_an_index_that_cannot_be_deleted_is_not_called_reached(run, saved, monkeypatch):
    def refuse(path, **_):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("shutil.rmtree", refuse)
    receipt = run("--json", "forget", "--ids", 3, "--yes").data
    assert receipt["unreached"] == ["saved indexes"]


def test_a_service_whose_index_cannot_be_deleted_says_so_in_the_receipt(
    run, saved, location, monkeypatch
):
    encoder = Encoder()
    with CaseBank.open(location, embeddings=QueryEmbedder(encoder)) as bank:
        searcher = Searcher(bank, None, encoder, index=IndexSettings(device="cpu"), index_dir=saved)
        bank.register(IndexSink(searcher))
        searcher.search(["a kettle"], 2, mode="cosine")

        def refuse(path, **_):
            raise PermissionError(13, "Permission denied")

        with monkeypatch.context() as patched:
            patched.setattr("shutil.rmtree", refuse)
            receipt = bank.forget(ByIds((3,)))
        assert receipt.unreached == ("search indexes and caches",)
        hits = searcher.search(["a kettle"], 4, mode="cosine")[0]
        assert 3 not in [hit.id for hit in hits]
        assert searcher._nearest._indexes["default"]._tier.copy.tier is not None
