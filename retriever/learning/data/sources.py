"""What the name of a log stands for, as numbered rows: files, or a split of a hub data set."""

from __future__ import annotations

import glob
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeAlias

import datasets

from retriever.errors import DataError, InvalidInput
from retriever.files import sha256_of_file
from retriever.learning.data.lines import KINDS, NumberedRow, numbered_rows

HUB_PREFIX = "hub:"
_HUB_ID = re.compile(r"\w[\w.-]*(/\w[\w.-]*)?")

#: Called with (done, total); bytes for files, rows for a hub split.
Progress: TypeAlias = Callable[[int, int], None]


class FileSource:
    """Rows out of files, in the order given."""

    def __init__(self, paths: list[Path], ignored: list[Path]) -> None:
        self.names = tuple(map(str, paths))
        self.ignored = tuple(map(str, ignored))
        self._paths = paths
        self._stamps = self._now()
        self._total = sum(path.stat().st_size for path in paths)
        self._done = 0
        self._identity: list[list[str]] = []

    def identity(self) -> list[list[str]]:
        """What the rows depend on: the kind and the content of each file, not its name."""
        self._identity = [[_kind(path), sha256_of_file(path)] for path in self._paths]
        return self._identity

    def read(self, file: int, progress: Progress) -> Iterator[NumberedRow]:
        """The rows of file number `file`."""
        path = self._paths[file]
        yield from numbered_rows(
            path, _kind(path), lambda done, _: progress(self._done + done, self._total)
        )
        self._done += path.stat().st_size

    def where(self, file: int, number: int) -> str:
        """The place of a row, for a message."""
        kind = "row" if _kind(self._paths[file]) == "parquet" else "line"
        return f"{self.names[file]}, {kind} {number}"

    def check_unchanged(self) -> None:
        """Refuse files whose content is no longer what `identity` saw.

        The same content written again is fine: processes of one job may each make a planted log.
        """
        seen = self._identity
        if self._now() != self._stamps and self.identity() != seen:
            raise DataError(
                f"{', '.join(self.names)} changed while being read; read again when it is complete"
            )

    def _now(self) -> list[tuple[int, int]]:
        return [(path.stat().st_size, path.stat().st_mtime_ns) for path in self._paths]


class HubSource:
    """Rows out of one split of a hub data set, which `datasets` downloads or has in its cache."""

    def __init__(self, name: str, dataset: str, split: str, *, show_progress: bool) -> None:
        self.names: tuple[str, ...] = (name,)
        self.ignored: tuple[str, ...] = ()
        with _progress_bars(show_progress):
            try:
                self._split = datasets.load_dataset(dataset, split=split)
            except Exception as error:  # of many kinds and three libraries: it cannot be had
                first = (str(error).strip() or type(error).__name__).splitlines()[0]
                raise DataError(
                    f"hub:{dataset}:{split} cannot be loaded: {first}; check the id, the split and "
                    "the network, or download it and name the file"
                ) from error

    def identity(self) -> list[list[str]]:
        """The fingerprint that `datasets` gives to the content."""
        return [["hub", str(self._split._fingerprint)]]

    def read(self, file: int, progress: Progress) -> Iterator[NumberedRow]:
        """The rows of the split, which is the only file."""
        number = 0
        for piece in self._split.with_format("arrow").iter(batch_size=4096):
            for fields in piece.to_pylist():
                number += 1
                yield number, fields
            progress(number, len(self._split))

    def where(self, file: int, number: int) -> str:
        """The place of a row, for a message."""
        return f"{self.names[file]}, row {number}"

    def check_unchanged(self) -> None:
        """A split that was loaded does not change."""


Source: TypeAlias = FileSource | HubSource


def resolve(source: str, *, show_progress: bool) -> Source:
    """Find what `source` names; a folder and a glob are read in the order of the file names.

    Raises:
        InvalidInput: a blank source, or a hub id that is none.
        DataError: nothing is there, or nothing that is read.
    """
    if not source.strip():
        raise InvalidInput(
            f"the outcome log has no name ({source!r}); name a file, a folder or hub:<id>"
        )
    if source.startswith(HUB_PREFIX):
        return _hub(source, show_progress)
    path = Path(source).expanduser()
    if path.is_dir():
        return _several(source, sorted(path.iterdir()))
    if path.exists():
        if path.suffix.lower() not in KINDS:
            raise DataError(
                f"{source} has the suffix {path.suffix!r}, which is not read; "
                f"rename or convert it to one of {', '.join(KINDS)}"
            )
        return FileSource([path], [])
    if glob.has_magic(str(path)):
        found = glob.glob(str(path), recursive=True)  # noqa: PTH207 - Path.glob: relative only
        return _several(source, sorted(map(Path, found)))
    raise DataError(f"no outcome log at {source}: there is no such file or folder; check the path")


def _hub(source: str, show_progress: bool) -> HubSource:
    dataset, _, split = source.removeprefix(HUB_PREFIX).partition(":")
    if not _HUB_ID.fullmatch(dataset):
        raise InvalidInput(
            f"{dataset!r} in {source!r} is no hub id; write hub:<owner>/<name>[:<split>]"
        )
    return HubSource(source, dataset, split or "train", show_progress=show_progress)


def _several(source: str, found: list[Path]) -> FileSource:
    files = [path for path in found if path.is_file() and not path.name.startswith(".")]
    logs = [path for path in files if path.suffix.lower() in KINDS]
    if not logs:
        raise DataError(
            f"{source} holds no outcome log: of {len(files)} files none ends in "
            f"{', '.join(KINDS)}; name another folder or pattern"
        )
    return FileSource(logs, [path for path in files if path not in logs])


def _kind(path: Path) -> str:
    return KINDS[path.suffix.lower()]


@contextmanager
def _progress_bars(shown: bool) -> Iterator[None]:
    were_shown = datasets.is_progress_bar_enabled()
    if not shown:
        datasets.disable_progress_bars()
    try:
        yield
    finally:
        if were_shown:
            datasets.enable_progress_bars()
