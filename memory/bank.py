"""`CaseBank`: the experience of agents, kept in one database.

Promises: what `add` or an import acknowledged survives a crash of the process and of the machine;
nothing crosses a namespace; the next `block` after an acknowledged write, by this process or
another, holds it. A bank may be shared by threads, and one file by several processes of one
machine; a process that forks opens its own. It does not promise anything on network file systems.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, TypeAlias

from sqlalchemy import select

from memory.block import Block, Blocks
from memory.case import Case, NewCase
from memory.checks import DEFAULT_NAMESPACE, checked_namespace
from memory.config import BankConfig
from memory.errors import InvalidInput, NotFound, shown
from memory.importing import ByteProgress, ImportReport, import_file
from memory.jsonl import write_rows
from memory.rows import (
    cases_after,
    cases_by_id,
    changed_namespace,
    count_cases,
    insert_cases,
    namespace_state,
)
from memory.schema import namespaces
from memory.store import Store
from memory.types import Embedder
from memory.vectors import Progress, Shelf

ON_BAD_LINE = ("error", "skip")
#: The most cases `list` gives at once.
MAX_PAGE = 10_000

# Inside the class, `list` is the method.
_Ids: TypeAlias = list[int]
_Cases: TypeAlias = list[Case]
_Names: TypeAlias = list[str]


class CaseBank:
    """A bank of cases; made by `CaseBank.open`.

    Attributes:
        uid: the bank's UUID, made with its database.
        path: the database file.
    """

    def __init__(
        self, store: Store, embeddings: Embedder | None, projections: Embedder | None
    ) -> None:
        self.uid = store.uid
        self.path = store.path
        self._store = store
        self._shelf = Shelf(store, [e for e in (embeddings, projections) if e is not None])
        self._blocks = Blocks(store, self._shelf, embeddings, projections)

    @classmethod
    def open(
        cls,
        location: str | Path,
        *,
        embeddings: Embedder | None = None,
        projections: Embedder | None = None,
        config: BankConfig | None = None,
    ) -> CaseBank:
        """Open the bank in a file, making it and its folder where there is none.

        Args:
            location: a path, or a `sqlite:///` URL.
            embeddings: embeds the stored queries, for cosine search.
            projections: projects whole cases, for exact search.
            config: times and sizes.

        Raises:
            ForeignBank: the file is something else, of a newer format, or damaged.
            BankUnavailable: it cannot be made, opened or written.
            EmbedderMismatch: the bank knows an embedder's key with another dimension.
        """
        store = Store.open(location, config or BankConfig())
        try:
            return cls(store, embeddings, projections)
        except BaseException:
            store.close()
            raise

    def add(
        self, new: Iterable[NewCase], *, namespace: str = DEFAULT_NAMESPACE, wait: bool = True
    ) -> _Ids:
        """Store cases in one transaction; their ids in the order given, ascending.

        A case that is stored already is stored again, under another id. A `Case` of another bank or
        namespace is copied.

        Args:
            new: the cases; none is fine and changes nothing.
            namespace: made when its first case is stored.
            wait: embed before returning. False leaves it to the next `block` or `embed_missing`.

        Raises:
            AlreadyStored: an external id that the namespace has; nothing was stored.
            EmbeddingFailed: an embedder returned what cannot be stored; nothing was stored.
        """
        given = _checked_cases(new)
        checked_namespace(namespace)
        if not given:
            return []
        prepared = self._shelf.prepare(namespace, given) if wait else None
        with self._store.write() as connection:
            namespace_id = changed_namespace(connection, namespace)
            ids = insert_cases(connection, namespace_id, given)
            if prepared is not None:
                self._shelf.attach(connection, namespace_id, ids, prepared)
        return ids

    def get(self, ids: Iterable[int], *, namespace: str = DEFAULT_NAMESPACE) -> _Cases:
        """The cases with these ids, in the order asked.

        Raises:
            NotFound: ids that the namespace does not have.
        """
        asked = [_checked_id("id", id_) for id_ in ids]
        checked_namespace(namespace)
        # Beyond 63 bits the driver could not even ask.
        possible = [id_ for id_ in dict.fromkeys(asked) if 0 < id_ < 2**53]
        with self._store.read() as connection:
            state = namespace_state(connection, namespace)
            found = {} if state is None else cases_by_id(connection, state.id, namespace, possible)
        unknown = [id_ for id_ in dict.fromkeys(asked) if id_ not in found]
        if unknown:
            raise NotFound(f"namespace {namespace!r} has no case with id {shown(unknown)[1:-1]}")
        return [found[id_] for id_ in asked]

    def list(
        self, *, namespace: str = DEFAULT_NAMESPACE, after: int | None = None, limit: int = 100
    ) -> _Cases:
        """A page of cases by id: those after the id `after`; the last id is the next cursor."""
        checked_namespace(namespace)
        start = 0 if after is None else _checked_id("after", after)
        if not 1 <= _checked_id("limit", limit) <= MAX_PAGE:
            raise InvalidInput(f"limit = {limit}: must be between 1 and {MAX_PAGE}")
        with self._store.read() as connection:
            state = namespace_state(connection, namespace)
            if state is None:
                return []
            start = max(0, min(start, 2**53))
            return cases_after(connection, state.id, namespace, start, limit)

    def count(self, namespace: str = DEFAULT_NAMESPACE) -> int:
        """How many cases a namespace has; 0 for one that does not exist."""
        checked_namespace(namespace)
        with self._store.read() as connection:
            state = namespace_state(connection, namespace)
            return 0 if state is None else count_cases(connection, state.id)

    def namespaces(self) -> _Names:
        """The namespaces that something was stored in, by name."""
        with self._store.read() as connection:
            return sorted(connection.execute(select(namespaces.c.name)).scalars())

    def block(self, namespace: str = DEFAULT_NAMESPACE) -> Block:
        """The arrays of a namespace at its newest version; cheap when nothing changed.

        Cases without vectors (added with `wait=False`, by a process without embedders, or before
        this encoder) are embedded first. A namespace that does not exist gives an empty block,
        version 0.
        """
        return self._blocks.block(checked_namespace(namespace))

    def embed_missing(
        self, namespace: str | None = None, *, progress: Progress | None = None
    ) -> int:
        """Embed the cases that lack a vector, in batches that are kept; how many there were.

        Args:
            namespace: one namespace, or every one of the bank.
            progress: called with how many of how many cases of a namespace are done.
        """
        names = self.namespaces() if namespace is None else [checked_namespace(namespace)]
        return sum(self._shelf.embed_missing(name, progress=progress) for name in names)

    def import_jsonl(
        self,
        path: str | Path,
        *,
        namespace: str = DEFAULT_NAMESPACE,
        on_bad_line: str = "error",
        again: bool = False,
        progress: ByteProgress | None = None,
        batch_size: int | None = None,
    ) -> ImportReport:
        """Add the cases of a file, once: a file with the same content is not added a second time.

        Every line is checked before any is stored. Batches are acknowledged as they are stored; an
        import that was interrupted goes on where it stopped when it is repeated.

        Args:
            path: a JSONL file of cases, or of one of Memento's two banks.
            namespace: where they go.
            on_bad_line: `error` stores nothing if a line is bad; `skip` lists them in the report.
            again: add the cases once more although the content was imported before.
            progress: called with how many of how many bytes are stored.
            batch_size: cases acknowledged together; the configuration's if not given.

        Raises:
            DataError: a bad line (file, line, field, value, remedy), no lines, or no file.
        """
        if on_bad_line not in ON_BAD_LINE:
            raise InvalidInput(f"on_bad_line = {on_bad_line!r}: one of {', '.join(ON_BAD_LINE)}")
        size = self._store.config.import_batch if batch_size is None else batch_size
        if _checked_id("batch_size", size) < 1:
            raise InvalidInput(f"batch_size = {size}: at least 1")
        return import_file(
            self._store,
            self._shelf,
            Path(path),
            checked_namespace(namespace),
            skip_bad=on_bad_line == "skip",
            again=again,
            progress=progress,
            batch_size=size,
        )

    def export_jsonl(self, path: str | Path, namespace: str = DEFAULT_NAMESPACE) -> int:
        """Write every case of a namespace, by id, as one snapshot; how many there were.

        The file appears whole or not at all.

        Raises:
            NotFound: nothing was ever stored in the namespace.
        """
        checked_namespace(namespace)
        if self.count(namespace) == 0:
            raise NotFound(f"namespace {namespace!r} has no cases to export; check its name")
        return write_rows(Path(path), (case.to_json() for case in self._every(namespace)))

    def close(self) -> None:
        """Close the database; using the bank afterwards is an error, closing it twice is not."""
        self._store.close()

    def __enter__(self) -> CaseBank:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"CaseBank({str(self.path)!r})"

    def _every(self, namespace: str) -> Iterator[Case]:
        with self._store.read() as connection:
            state = namespace_state(connection, namespace)
            after = 0
            while state is not None:
                page = cases_after(connection, state.id, namespace, after, MAX_PAGE)
                yield from page
                if len(page) < MAX_PAGE:
                    return
                after = page[-1].id


def _checked_cases(new: Any) -> Sequence[NewCase]:
    if isinstance(new, NewCase) or not isinstance(new, Iterable):
        raise InvalidInput(
            f"cases must be a list of NewCase, got {type(new).__name__}; put it in []"
        )
    given = list(new)
    seen = set()
    for position, case in enumerate(given):
        if not isinstance(case, NewCase):
            raise InvalidInput(
                f"cases[{position}] is {shown(case)}; make it a NewCase (NewCase.from_json does)"
            )
        if case.external_id is not None and case.external_id in seen:
            raise InvalidInput(
                f"external id {case.external_id!r} is given twice (again at cases[{position}]); "
                "make it unique"
            )
        seen.add(case.external_id)
    return given


def _checked_id(name: str, value: Any) -> int:
    if isinstance(value, bool):
        raise InvalidInput(f"{name} = {value!r}: must be an integer")
    try:
        return operator.index(value)  # NumPy's integers too
    except TypeError as error:
        raise InvalidInput(f"{name} = {shown(value)}: must be an integer") from error
