"""Files and folders are replaced at once, or not at all."""

from __future__ import annotations

import hashlib
import os
import stat

import pytest

from retriever.files import folder_written_atomically, sha256_of_file, write_text_atomically


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def test_a_new_folder_appears_whole_with_its_parents(tmp_path):
    path = tmp_path / "deep" / "artifact"
    with folder_written_atomically(path) as folder:
        assert not path.exists()
        (folder / "sub").mkdir()
        (folder / "sub" / "a.txt").write_text("a", encoding="utf-8")
    assert (path / "sub" / "a.txt").read_text(encoding="utf-8") == "a"
    assert names(path.parent) == ["artifact"]


def test_an_older_folder_is_whole_until_the_new_one_replaces_it_wholly(tmp_path):
    path = tmp_path / "artifact"
    path.mkdir()
    (path / "old.txt").write_text("old", encoding="utf-8")
    with folder_written_atomically(path) as folder:
        (folder / "new.txt").write_text("new", encoding="utf-8")
        assert names(path) == ["old.txt"]
    assert names(path) == ["new.txt"]
    assert names(tmp_path) == ["artifact"]


@pytest.mark.parametrize("failure", [ValueError, KeyboardInterrupt])
@pytest.mark.parametrize("older", [True, False])
def test_a_failure_while_writing_leaves_what_was_there(tmp_path, failure, older):
    path = tmp_path / "artifact"
    if older:
        path.mkdir()
        (path / "old.txt").write_text("old", encoding="utf-8")

    def write():
        with folder_written_atomically(path) as folder:
            (folder / "half.txt").write_text("half", encoding="utf-8")
            raise failure

    with pytest.raises(failure):
        write()
    assert names(tmp_path) == (["artifact"] if older else [])
    if older:
        assert names(path) == ["old.txt"]


def test_a_rename_that_fails_puts_the_older_folder_back(tmp_path, monkeypatch):
    path = tmp_path / "artifact"
    path.mkdir()
    (path / "old.txt").write_text("old", encoding="utf-8")
    rename = type(path).rename

    def failing(self, target):
        if self.name.startswith(".artifact.") and str(target) == str(path):
            raise OSError("no space left")
        return rename(self, target)

    monkeypatch.setattr(type(path), "rename", failing)
    with pytest.raises(OSError, match="no space"), folder_written_atomically(path) as folder:
        (folder / "new.txt").write_text("new", encoding="utf-8")
    assert names(path) == ["old.txt"]
    assert [name for name in names(tmp_path) if not name.startswith(".artifact.old")] == [
        "artifact"
    ]


def test_a_relative_path_is_written_where_the_process_was_when_it_began(tmp_path, monkeypatch):
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path)
    from pathlib import Path

    with folder_written_atomically(Path("artifact")) as folder:
        (folder / "a").write_bytes(b"")
        monkeypatch.chdir(tmp_path / "elsewhere")
    assert names(tmp_path) == ["artifact", "elsewhere"]


def test_a_folder_written_is_readable_by_others(tmp_path):
    with folder_written_atomically(tmp_path / "artifact"):
        pass
    assert stat.S_IMODE((tmp_path / "artifact").stat().st_mode) == 0o755


def test_text_replaces_a_file_at_once_and_is_readable_by_others(tmp_path):
    path = tmp_path / "deep" / "report.json"
    write_text_atomically(path, "one\n")
    write_text_atomically(path, "zwei: ü\r\n")
    assert path.read_bytes() == "zwei: ü\r\n".encode()
    assert stat.S_IMODE(path.stat().st_mode) == 0o644
    assert names(path.parent) == ["report.json"]


def test_text_that_cannot_be_written_leaves_the_old_file(tmp_path):
    path = tmp_path / "report.json"
    write_text_atomically(path, "old")
    with pytest.raises(UnicodeEncodeError):
        write_text_atomically(path, "broken \ud800")
    assert path.read_text(encoding="utf-8") == "old"
    assert names(tmp_path) == ["report.json"]


def test_a_crash_before_the_rename_leaves_the_old_file(tmp_path, monkeypatch):
    path = tmp_path / "report.json"
    write_text_atomically(path, "old")

    def fail(descriptor):
        raise OSError("disk failed")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(OSError, match="disk failed"):
        write_text_atomically(path, "new")
    assert path.read_text(encoding="utf-8") == "old"
    assert names(tmp_path) == ["report.json"]


@pytest.mark.parametrize("size", [0, 1, (1 << 20) - 1, 1 << 20, (1 << 20) + 1])
def test_the_digest_of_a_file_is_that_of_its_bytes(tmp_path, size):
    content = bytes(range(256)) * (size // 256 + 1)
    (tmp_path / "file").write_bytes(content[:size])
    assert sha256_of_file(tmp_path / "file") == hashlib.sha256(content[:size]).hexdigest()
