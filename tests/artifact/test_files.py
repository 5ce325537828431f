"""Files and folders are replaced at once, or not at all."""

from __future__ import annotations

import hashlib
import os
import signal
import stat
import subprocess
import sys

import pytest

from retriever.files import (
    folder_written_atomically,
    restore_interrupted,
    sha256_of_file,
    write_text_atomically,
)


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


@pytest.mark.parametrize(("umask", "mode"), [(0o022, 0o644), (0o077, 0o600), (0o027, 0o640)])
def test_every_file_gets_the_mode_of_ordinary_files_whoever_wrote_it(tmp_path, umask, mode):
    before = os.umask(umask)
    try:
        with folder_written_atomically(tmp_path / "artifact") as folder:
            (folder / "encoder").mkdir(mode=0o700)
            for name in ("head", "encoder/weights"):
                (folder / name).write_bytes(b"")
                (folder / name).chmod(0o600)  # as safetensors does
        write_text_atomically(tmp_path / "report.json", "x")
    finally:
        os.umask(before)
    found = [tmp_path / "report.json", *(tmp_path / "artifact").rglob("*")]
    assert {stat.S_IMODE(path.stat().st_mode) for path in found if path.is_file()} == {mode}
    folders = [tmp_path / "artifact", tmp_path / "artifact" / "encoder"]
    assert {stat.S_IMODE(path.stat().st_mode) for path in folders} == {0o777 & ~umask}


KILLED = """
import os, signal, sys
from pathlib import Path
from retriever import files
path, how = Path(sys.argv[1]), sys.argv[2]
if how == "text":
    os.fsync = lambda descriptor: os.kill(os.getpid(), signal.SIGKILL)
    files.write_text_atomically(path, "half")
with files.folder_written_atomically(path) as folder:
    (folder / "half.txt").write_text("half")
    if how == "between":
        rename = Path.rename
        def once(self, target):
            rename(self, target)
            os.kill(os.getpid(), signal.SIGKILL)
        Path.rename = once
    elif how == "waits":
        print("ready", flush=True)
        sys.stdin.read()
    else:
        os.kill(os.getpid(), signal.SIGKILL)
"""


def killed(path, how):
    done = subprocess.run([sys.executable, "-c", KILLED, path, how], timeout=60, check=False)
    assert done.returncode == -signal.SIGKILL


def test_what_a_killed_writer_leaves_the_next_one_deletes(tmp_path):
    path = tmp_path / "artifact"
    killed(path, "inside")
    killed(tmp_path / "artifact.v2", "inside")  # another's name begins with ours
    assert len(names(tmp_path)) == 2
    with folder_written_atomically(path) as folder:
        (folder / "new.txt").write_text("new", encoding="utf-8")
    other, ours = names(tmp_path)
    assert (other.startswith(".artifact.v2."), ours) == (True, "artifact")
    report = tmp_path / "report.json"
    killed(report, "text")
    write_text_atomically(report, "whole")
    assert names(tmp_path) == [other, "artifact", "report.json"]


def test_a_crash_between_the_two_renames_is_mended_by_who_asks_and_by_who_writes(tmp_path):
    path = tmp_path / "artifact"
    path.mkdir()
    (path / "old.txt").write_text("old", encoding="utf-8")
    killed(path, "between")
    assert not path.exists()
    assert restore_interrupted(path)
    assert names(path) == ["old.txt"]
    assert not restore_interrupted(path)
    killed(path, "between")
    with folder_written_atomically(path) as folder:
        assert names(path) == ["old.txt"]
        (folder / "new.txt").write_text("new", encoding="utf-8")
    assert names(path) == ["new.txt"]
    assert names(tmp_path) == ["artifact"]


def test_a_writer_that_lives_keeps_its_temporary(tmp_path):
    path = tmp_path / "artifact"
    writer = subprocess.Popen(
        [sys.executable, "-c", KILLED, path, "waits"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    with writer:
        assert writer.stdout.readline() == b"ready\n"
        with folder_written_atomically(path) as folder:
            (folder / "ours.txt").write_text("ours", encoding="utf-8")
        assert len(names(tmp_path)) == 2
        writer.stdin.close()
        assert writer.wait(60) == 0
    assert names(path) == ["half.txt"]  # whole, for it came last
    assert names(tmp_path) == ["artifact"]
