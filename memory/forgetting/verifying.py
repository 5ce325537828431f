"""Proof that what was forgotten is gone: by asking for it, and by reading every byte of ours.

Asking means what somebody who wants it back would try: the text itself, the request, an indirect
and a yes/no question about every string, in every search mode there is. Reading means the files of
the bank: database, write-ahead log, snapshots, exports we know of. A receipt alone holds no words,
so it can prove that ids and contents are gone, and not that no byte is left; strings can.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from sqlalchemy import Connection, select

from memory.case import Case
from memory.errors import BankError
from memory.exchange.exporting import exports_of, rows_holding
from memory.forgetting.receipts import Receipt
from memory.forgetting.selecting import Scene
from memory.keys import normal_form
from memory.runs.log import all_run_words
from memory.schema import (
    case_tags,
    case_vectors,
    cases,
    lineage,
    shown,
)
from memory.schema import texts as text_rows
from memory.storage.bytescan import scan
from memory.storage.erasing import owed
from memory.storage.namespaces import NamespaceState, namespace_state
from memory.storage.rows import all_words, cases_by_id, chunks
from memory.storage.store import Store
from memory.text import lexical
from memory.text.matching import holds

log = logging.getLogger(__name__)

#: How far down the hits of a probe are read.
PROBE_DEPTH = 50
#: Fewer bytes occur by chance: five of them about once in a terabyte, four in every few gigabytes.
_SHORTEST = 6


class Prober(Protocol):
    """A search over the bank in several modes; `retriever.searcher.Searcher` is one."""

    @property
    def modes(self) -> Sequence[str]:
        """Names of the modes."""
        ...

    def search(
        self, queries: Sequence[str], k: int, *, namespace: str, mode: str
    ) -> Sequence[Sequence[Any]]:
        """Hits with an `id` for each query, best first."""
        ...


@dataclass(frozen=True, slots=True)
class Finding:
    """Where something forgotten is still found.

    Attributes:
        layer: `search:MODE`, `runs`, `export`, `bytes`; of a receipt, the table.
        what: `id` or `string`.
        number: the case's id, or the position of the string among those given.
        where: of bytes and exports: the file's name.
    """

    layer: str
    what: str
    number: int
    where: str = ""


@dataclass(frozen=True, slots=True)
class Verification:
    """What a check found.

    Attributes:
        findings: traces of what should be gone; none if all is well.
        still_held: cases of the namespace that hold a string although no request covered them.
        probes: how many searches were made.
        modes: the search modes they were made in.
        files: how many files were read byte by byte.
        bytes_read: how many bytes that were.
        unscanned: positions of strings too short to mean anything among bytes (below 6).
        unreached: files that could not be read.
        at_server: the bytes lie at a database server, and were not read.
        pending: bytes may be left until the engine has erased them; see `CaseBank.erase`.
    """

    findings: tuple[Finding, ...]
    still_held: tuple[int, ...]
    probes: int
    modes: tuple[str, ...]
    files: int
    bytes_read: int
    unscanned: tuple[int, ...]
    unreached: tuple[str, ...]
    pending: bool
    at_server: bool = False

    @property
    def clean(self) -> bool:
        """Nothing was found, no case holds it, nothing is pending, and all files could be read.

        Of a server's bytes it says nothing: see `at_server`.
        """
        return not (self.findings or self.still_held or self.pending or self.unreached)

    def to_json(self) -> dict[str, Any]:
        """As plain JSON values."""
        return {**asdict(self), "clean": self.clean}


def verify_strings(
    store: Store,
    namespace: str,
    strings: Sequence[str],
    *,
    request: str | None,
    prober: Prober | None,
    snapshots: Path | None,
) -> Verification:
    """Look for strings in every search mode, table and file; see `CaseBank.verify`.

    A case that was told after the request, or that no request covered, may rightly hold a string:
    such cases are listed as `still_held`, and hits that are among them are no findings.
    """
    findings: list[Finding] = []
    with store.read() as connection:
        state = namespace_state(connection, store.keys, namespace)
        scene = _scene(store, connection, state, namespace)
        held = sorted({id_ for s in strings for id_ in (scene.holders(s) if scene else ())})
        probes, modes, hit = _probe(store, connection, state, namespace, strings, request, prober)
        findings += [f for f in hit if f.number not in held]
        if state is not None:
            findings += _in_runs(connection, state.id, strings)
        pending = owed(connection) is not None
        written = [] if state is None else exports_of(connection, state.id)
        allowed = _texts_of(scene, held)
    files, size, found, unreached = _scan(_own_files(store, snapshots), strings)
    for path, format_ in written:
        if path.exists():
            found += _in_export(path, format_, strings, unreached)
    # What a case that stays says may stand in the files; which bytes are whose cannot be told.
    findings += [f for f in found if not any(holds(w, strings[f.number]) for w in allowed)]
    short = tuple(i for i, string in enumerate(strings) if len(string.encode()) < _SHORTEST)
    return Verification(
        tuple(findings),
        tuple(held),
        probes,
        modes,
        files,
        size,
        short,
        tuple(unreached),
        pending,
        at_server=store.path is None,
    )


def verify_receipt(store: Store, namespace: str, receipt: Receipt) -> Verification:
    """Check that nothing of a receipt's cases is left in any table; see `CaseBank.verify`."""
    findings: list[Finding] = []
    with store.read() as connection:
        state = namespace_state(connection, store.keys, namespace)
        if state is not None and receipt.mode != "invalidate":
            findings += _rows_left(connection, receipt)
        held = _contents_left(connection, state, receipt)
        pending = owed(connection) is not None
    return Verification(tuple(findings), tuple(held), 0, (), 0, 0, (), (), pending)


def _scene(
    store: Store, connection: Connection, state: NamespaceState | None, namespace: str
) -> Scene | None:
    if state is None:
        return None
    return Scene(connection, state.id, namespace, store.keys, store.lexical)


def _probe(
    store: Store,
    connection: Connection,
    state: NamespaceState | None,
    namespace: str,
    strings: Sequence[str],
    request: str | None,
    prober: Prober | None,
) -> tuple[int, tuple[str, ...], list[Finding]]:
    """Search for the strings as somebody would who wants them back."""
    if state is None:
        return 0, (), []
    modes = ("lexical", *(mode for mode in (prober.modes if prober else ()) if mode != "lexical"))
    findings = []
    queries = [(i, query) for i, s in enumerate(strings) for query in _questions(s, request)]
    for mode in modes:
        for number, query in queries:
            if mode == "lexical":
                found = lexical.search(connection, state.id, query, PROBE_DEPTH, store.lexical)
                ids = [id_ for id_, _ in found]
            else:
                assert prober is not None
                (hits,) = prober.search([query], PROBE_DEPTH, namespace=namespace, mode=mode)
                ids = [int(hit.id) for hit in hits]
            there = cases_by_id(connection, state.id, namespace, ids)
            for id_ in ids:
                if id_ not in there or _says(there[id_], strings[number]):
                    findings.append(Finding(f"search:{mode}", "id", id_))
    return len(queries) * len(modes), modes, list(dict.fromkeys(findings))


def _questions(string: str, request: str | None) -> Iterator[str]:
    yield string
    if request is not None:
        yield request
    yield f"What do you remember about {string}?"
    yield f"What was it before it was deleted: {string[: max(3, len(string) // 2)]}…?"
    yield f"Yes or no: is it {string}?"


def _says(case: Case, string: str) -> bool:
    return any(holds(words, string) for words in all_words(case))


def _texts_of(scene: Scene | None, ids: Sequence[int]) -> list[str]:
    if scene is None:
        return []
    return [words for case in scene.cases(ids).values() for words in all_words(case)]


def _in_runs(connection: Connection, namespace_id: int, strings: Sequence[str]) -> list[Finding]:
    found = {
        i
        for _, words in all_run_words(connection, namespace_id)
        for i, string in enumerate(strings)
        if any(holds(word, string) for word in words)
    }
    return [Finding("runs", "string", i) for i in sorted(found)]


def _in_export(
    path: Path, format_: str, strings: Sequence[str], unreached: list[str]
) -> list[Finding]:
    """Read a file row by row: Parquet is compressed, and its bytes prove nothing."""
    try:
        return [
            Finding("export", "string", i, path.name)
            for i, string in enumerate(strings)
            if rows_holding(path, format_, partial(holds, string=string))
        ]
    except (OSError, BankError) as error:
        # Its message might quote what is looked for.
        log.warning("%s could not be read: %s", path, type(error).__name__)
        unreached.append(path.name)
        return []


def _rows_left(connection: Connection, receipt: Receipt) -> list[Finding]:
    tables = (
        ("cases", cases.c.id),
        ("texts", text_rows.c.case_id),
        ("tags", case_tags.c.case_id),
        ("lineage", lineage.c.child_id),
        ("vectors", case_vectors.c.case_id),
        ("shown", shown.c.case_id),
    )
    findings = []
    for layer, column in tables:
        for part in chunks(receipt.ids):
            left = connection.execute(select(column).where(column.in_(part)).distinct()).scalars()
            findings += [Finding(layer, "id", int(id_)) for id_ in left]
    return findings


def _contents_left(
    connection: Connection, state: NamespaceState | None, receipt: Receipt
) -> list[int]:
    """Cases whose content is that of a forgotten one: told again since, or restored."""
    if state is None:
        return []
    found: list[int] = []
    for part in chunks([bytes.fromhex(digest) for digest in receipt.digests]):
        rows = connection.execute(
            select(cases.c.id).where(
                cases.c.namespace_id == state.id, cases.c.content_key.in_(part)
            )
        )
        found += [int(id_) for id_ in rows.scalars()]
    return sorted(set(found) - (set(receipt.ids) if receipt.mode == "invalidate" else set()))


def _own_files(store: Store, snapshots: Path | None) -> list[Path]:
    """The database with what SQLite and we keep beside it."""
    found: list[Path] = []
    if store.path is not None:
        beside = store.path.parent.iterdir()
        found += [p for p in beside if p.is_file() and p.name.startswith(store.path.name)]
    if snapshots is not None and snapshots.is_dir():
        found += [p for p in snapshots.rglob("*") if p.is_file()]
    return sorted(set(found))


def _scan(
    paths: Sequence[Path], strings: Sequence[str]
) -> tuple[int, int, list[Finding], list[str]]:
    """Read files for strings: as they are, as JSON writes them, and as the full-text index does."""
    needles = [
        (i, needle)
        for i, string in enumerate(strings)
        for needle in _spellings(string)
        if len(needle) >= _SHORTEST
    ]
    unreached: list[str] = []
    files = size = 0
    findings: list[Finding] = []
    for path, (length, found) in zip(paths, scan(paths, needles), strict=True):
        if isinstance(found, str):
            log.warning("%s could not be read: %s", path, found)
            unreached.append(path.name)
            continue
        files += 1
        size += length
        findings += [Finding("bytes", "string", i, path.name) for i in found]
    return files, size, findings, unreached


def _spellings(string: str) -> set[bytes]:
    spelled = {string, normal_form(string), " ".join(lexical.word_list(string))}
    spelled |= {json.dumps(s)[1:-1] for s in list(spelled)}
    return {s.encode() for s in spelled if s.strip()}
