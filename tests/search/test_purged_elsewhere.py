"""What another process purges leaves the indexes of this one, in memory and on disk."""

from dataclasses import replace

import faiss
import numpy as np
import pytest

from retriever.errors import IndexUnavailable
from retriever.head import Head
from retriever.saved_copies import SavedCopies, delete_all
from retriever.searcher import Searcher
from retriever.tiers import plan, tier_index
from retriever.tiers.settings import IndexSettings
from tests.search.search_blocks import TinyEncoder, TinyScorer, TinySource, block_of
from tests.search.test_tiers import joined

COUNT, WIDTH, PURGED = 300, 6, 77
KINDS = ("flat", "ivf", "hnsw")
QUERY = "1 -1 2 0.5 0 1"


@pytest.fixture(autouse=True)
def small_is_enough(monkeypatch):
    monkeypatch.setattr(plan, "LEAST_ROWS", 50)


@pytest.fixture
def source():
    block = block_of(np.random.default_rng(1).standard_normal((COUNT, WIDTH)))
    return TinySource({"default": replace(block, projections=block.embeddings)})


def searcher_of(source, folder, kind="flat", **settings):
    scorer = TinyScorer(head=Head(np.linspace(-1, 2, WIDTH).astype(np.float32), 0.0))
    index = IndexSettings(kind=kind, device="cpu", **settings)
    return Searcher(source, scorer, TinyEncoder(), index=index, index_dir=folder, device="cpu")


def purge(source):
    """As another process does: the next block lacks a case."""
    block = source.blocks["default"]
    live = block.live & (np.arange(len(block.ids)) != PURGED)
    source.blocks["default"] = replace(block, live=live, version=block.version + 1)


def append(source):
    block = source.blocks["default"]
    vectors = np.vstack([*block.embeddings, np.ones((1, WIDTH))])
    grown = block_of(vectors, version=block.version + 1)
    source.blocks["default"] = replace(grown, projections=grown.embeddings)


def purged_bytes(source):
    vector = np.concatenate(source.blocks["default"].embeddings)[PURGED].astype(np.float64)
    return (vector / np.linalg.norm(vector)).astype(np.float32).tobytes()


def in_memory(searcher):
    """What FAISS holds of the cosine index, as bytes."""
    tier = searcher._nearest._indexes["default"]._tier.copy.tier
    return b"" if tier is None else faiss.serialize_index(tier.state()[0]).tobytes()


def on_disk(folder):
    return b"".join(path.read_bytes() for path in folder.rglob("*") if path.is_file())


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("mode", ["exact", "ann", "cosine"])
def test_the_next_search_of_whatever_mode_lets_go_of_a_case_purged_elsewhere(
    source, tmp_path, kind, mode
):
    searcher = searcher_of(source, tmp_path, kind)
    for used in ("cosine", "ann"):
        searcher.search([QUERY], 3, mode=used)
    searcher.close()
    gone = purged_bytes(source)
    assert gone in in_memory(searcher)
    assert gone in on_disk(tmp_path)
    assert len(list(tmp_path.iterdir())) == 2
    purge(source)
    searcher.search([QUERY], 3, mode=mode)
    assert gone not in in_memory(searcher)
    assert list(tmp_path.iterdir()) == []
    for used in ("cosine", "ann"):
        searcher.search([QUERY], 3, mode=used)
    searcher.close()
    assert len(list(tmp_path.iterdir())) == 2, "what is left is kept again"
    assert gone not in on_disk(tmp_path)


@pytest.mark.parametrize("mode", ["exact", "cosine"])
def test_what_an_earlier_run_saved_is_noticed_though_no_index_is_in_memory(source, tmp_path, mode):
    first = searcher_of(source, tmp_path)
    for used in ("cosine", "ann"):
        first.search([QUERY], 3, mode=used)
    first.close()
    gone = purged_bytes(source)
    assert gone in on_disk(tmp_path)
    purge(source)
    second = searcher_of(source, tmp_path)
    second.search([QUERY], 3, mode=mode)
    assert list(tmp_path.iterdir()) == []
    second.close()
    assert gone not in on_disk(tmp_path)


def test_what_is_only_behind_stays_and_nothing_is_read_twice(source, tmp_path, monkeypatch):
    searcher = searcher_of(source, tmp_path)
    searcher.search([QUERY], 3, mode="cosine")
    (folder,) = tmp_path.iterdir()
    held = searcher._nearest._indexes["default"]._tier.follower.contents
    append(source)
    searcher.search([QUERY], 3, mode="exact")
    assert searcher._nearest._indexes["default"]._tier.follower.contents is held
    assert list(tmp_path.iterdir()) == [folder]

    def unasked(*_):
        raise AssertionError("asked again")

    monkeypatch.setattr("retriever.following.Contents.outlived", unasked)
    searcher.search([QUERY], 3, mode="exact")  # no new version
    monkeypatch.undo()
    monkeypatch.setattr("retriever.saved_copies.contents_of", unasked)
    append(source)
    searcher.search([QUERY], 3, mode="exact")  # a new version, but what is saved is known
    assert list(tmp_path.iterdir()) == [folder]


def test_a_case_purged_while_its_index_is_built_in_a_thread_is_let_go_after_it(
    source, tmp_path, monkeypatch
):
    monkeypatch.setattr(tier_index, "BUILT_LATER_ROWS", 100)
    searcher = searcher_of(source, tmp_path)
    searcher.search([QUERY], 3, mode="cosine")
    gone = purged_bytes(source)
    before = source.blocks["default"]
    purge(source)
    # Whether the thread is at it, or done: in the end the case is gone.
    searcher.search([QUERY], 3, mode="exact")
    joined()
    assert searcher._nearest._indexes["default"].follow(before) in ("same", "older")
    searcher.search([QUERY], 3, mode="exact")
    assert gone not in in_memory(searcher)


def test_an_index_that_must_be_built_anew_in_a_thread_is_empty_until_then(
    source, tmp_path, monkeypatch
):
    monkeypatch.setattr(tier_index, "BUILT_LATER_ROWS", 100)
    searcher = searcher_of(source, tmp_path, "hnsw", rebuild_share=0.001)
    searcher.search([QUERY], 3, mode="cosine")
    joined()
    gone = purged_bytes(source)
    index = searcher._nearest._indexes["default"]._tier
    assert gone in in_memory(searcher)
    purge(source)
    monkeypatch.setattr(index, "_build_later", lambda block: None)  # a thread that is slow
    searcher.search([QUERY], 3, mode="exact")
    assert in_memory(searcher) == b""


def test_a_copy_that_cannot_be_read_is_deleted_and_one_of_another_bank_left_alone(
    source, tmp_path, caplog
):
    searcher = searcher_of(source, tmp_path)
    searcher.search([QUERY], 3, mode="cosine")
    (folder,) = tmp_path.iterdir()
    (folder / "rows.bin").write_bytes(b"damaged")
    other = replace(source.blocks["default"], bank="another")
    copies = SavedCopies(tmp_path)
    copies.notice(replace(other, namespace="another"))
    assert folder.exists()
    copies.notice(source.blocks["default"])
    assert "cannot be read" in caplog.text
    assert not folder.exists()
    searcher_of(source, tmp_path).search([QUERY], 3, mode="cosine")
    assert folder.exists()
    purge(source)
    lacking = replace(source.blocks["default"], bank="another")
    SavedCopies(tmp_path).notice(lacking)
    assert folder.exists()
    SavedCopies(tmp_path).notice(source.blocks["default"])
    assert not folder.exists()


def test_what_a_crash_left_of_saving_is_swept_at_the_start_and_nothing_else(source, tmp_path):
    left = [tmp_path / f".{prefix}{'0' * 16}.{end}" for prefix in ("", "ann-") for end in "ab"]
    others = [tmp_path / name for name in (".git", ".of-somebody.else", "0" * 16)]
    for folder in (*left, *others):
        folder.mkdir()
    searcher_of(source, tmp_path)
    assert sorted(tmp_path.iterdir()) == sorted(others)


@pytest.mark.parametrize("how", ["file", "link"])
def test_a_plain_file_in_the_place_of_an_index_goes_and_a_link_is_named(
    source, tmp_path, how, caplog
):
    home, elsewhere = tmp_path / "index", tmp_path / "elsewhere"
    searcher = searcher_of(source, home)
    searcher.search([QUERY], 3, mode="cosine")
    (folder,) = home.iterdir()
    folder.rename(elsewhere)
    if how == "file":
        folder.write_text("no index")
        searcher.drop("default")
        assert list(home.iterdir()) == []
        return
    folder.symlink_to(elsewhere)
    with pytest.raises(IndexUnavailable, match=rf"symbolic link.*{elsewhere}"):
        searcher.drop("default")
    assert elsewhere.exists()
    assert len(searcher.search([QUERY], 3, mode="cosine")[0]) == 3
    assert searcher._nearest._indexes["default"]._tier.copy.tier is not None
    assert "symbolic link" in caplog.text


def test_one_index_that_cannot_be_deleted_keeps_no_other_from_being_dropped(
    source, tmp_path, monkeypatch
):
    searcher = searcher_of(source, tmp_path)
    for used in ("cosine", "ann"):
        searcher.search([QUERY], 3, mode=used)
    (ann,) = tmp_path.glob("ann-*")
    (cosine,) = (path for path in tmp_path.iterdir() if path != ann)
    rmtree = __import__("shutil").rmtree

    def refuse(path, **more):
        if path == cosine:
            raise PermissionError(13, "Permission denied")
        rmtree(path, **more)

    monkeypatch.setattr("shutil.rmtree", refuse)
    purge(source)
    with pytest.raises(IndexUnavailable, match="Permission denied"):
        searcher.drop("default")
    assert not ann.exists()
    for kept in (searcher._nearest, searcher._likely):
        assert kept._indexes["default"]._tier.copy.tier is None
    for used in ("cosine", "ann"):  # it is not stuck: the next search builds anew
        searcher.search([QUERY], 3, mode=used)
    for kept in (searcher._nearest, searcher._likely):
        assert kept._indexes["default"]._tier.copy.tier is not None
    with pytest.raises(IndexUnavailable):
        delete_all(tmp_path, "default")
    assert not ann.exists()
