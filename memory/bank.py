"""`CaseBank`: the experience of agents, kept in one database.

Promises: what `add` or an import acknowledged survives a crash of the process and of the machine;
nothing crosses a namespace; the next `block` after an acknowledged write, by this process or
another, holds it; what was forgotten is in no answer from then on. A bank may be shared by threads,
one file by several processes of one machine, and one PostgreSQL schema by many machines; a process
that forks opens its own. It does not promise anything for a file on a network file system.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from types import TracebackType
from typing import Any, TypeAlias

from memory.arrays.block import Block, Blocks
from memory.arrays.eligibility import BlockLike, eligible_rows
from memory.arrays.following import DatabaseFeed
from memory.arrays.ranking import BlockRanker
from memory.arrays.reembedding import Reembedding
from memory.arrays.snapshot import Snapshots
from memory.backups.backup import backup, write_receipts
from memory.backups.copying import Progress as CopyProgress
from memory.backups.restoring import RestoreReport, restore
from memory.case import Case, NewCase
from memory.checks import DEFAULT_NAMESPACE, checked_namespace, checked_query
from memory.config import BankConfig
from memory.errors import BankUnavailable, InvalidInput, NotFound, shown
from memory.exchange.exporting import ExportReport, RowProgress, export_cases
from memory.exchange.import_report import ByteProgress, ImportOptions, ImportReport
from memory.exchange.importing import import_file
from memory.filters import CaseFilter
from memory.forgetting.compaction import Budget, Policy, named_policy
from memory.forgetting.forgetting import Forgetting, Ranker, Request
from memory.forgetting.receipts import Receipt, load_receipts
from memory.forgetting.retiring import compact, delete_namespace
from memory.forgetting.scheduling import Schedule
from memory.forgetting.selectors import BySpan, ByStrings, Selector
from memory.forgetting.verifying import Prober, Verification, verify_receipt, verify_strings
from memory.latest import latest_first
from memory.runs.log import RunLog
from memory.sinks import Sink, Sinks, Witness
from memory.statistics import BankStats, bank_stats
from memory.storage.erasing import EraseProgress, ErasureState, erase, pay
from memory.storage.namespaces import namespace_names, namespace_state
from memory.storage.rows import cases_by_id, cases_where, count_where, newest_where
from memory.storage.store import Store
from memory.storage.vectors import Progress, drop_embedder
from memory.storage.writing import AddOptions, add_cases, patch_case
from memory.text import lexical
from memory.times import microseconds
from memory.types import Bools, Embedder

#: The most cases `list` gives at once.
MAX_PAGE = 10_000

# Inside the class, `list` is the method.
_Ids: TypeAlias = list[int]
_Cases: TypeAlias = list[Case]
_Names: TypeAlias = list[str]
_Scored: TypeAlias = list[tuple[int, float]]
_Receipts: TypeAlias = list[Receipt]


class CaseBank:
    """A bank of cases; made by `CaseBank.open`.

    Attributes:
        uid: the bank's UUID, made with its database.
        path: the database file; None where a server keeps it.
        location: where it is, for messages; without any password.
        runs: which cases were shown for which query, and how that ended.
        schedule: requests to forget that take effect later.
    """

    def __init__(
        self,
        store: Store,
        embeddings: Embedder | None,
        projections: Embedder | None,
        ranker: Ranker | None,
    ) -> None:
        self.uid = store.uid
        self.path = store.path
        self.location = store.shown
        self.runs = RunLog(store)
        self._store = store
        self._feed = DatabaseFeed(store)
        self._shelf = self._feed.shelf(_given(embeddings, projections))
        self._snapshots = _snapshots(store)
        self._blocks = Blocks(
            self._feed,
            embeddings,
            projections,
            dtype=store.config.vectors,
            snapshots=self._snapshots,
        )
        self._roles = (embeddings, projections)
        self._sinks = Sinks()
        self._forgetting = Forgetting(store, self._feed, self._sinks, self._gone)
        self._serve(embeddings, projections, ranker)
        self.schedule = Schedule(store, self._forgetting)

    @classmethod
    def open(
        cls,
        location: str | Path,
        *,
        embeddings: Embedder | None = None,
        projections: Embedder | None = None,
        ranker: Ranker | None = None,
        config: BankConfig | None = None,
    ) -> CaseBank:
        """Open the bank at a location, making it (and a file's folder) where there is none.

        Args:
            location: a path, a `sqlite:///` URL, or a `postgresql://` URL (extra `postgres`), whose
                tables live in the first schema of the connection's `search_path`.
            embeddings: embeds the stored queries, for cosine search.
            projections: projects whole cases, for exact search.
            ranker: finds cases that mean what a text means, for requests to forget; cosines of
                `embeddings` if not given.
            config: times and sizes.

        Raises:
            ForeignBank: the file is something else, of a newer format, or damaged.
            BankUnavailable: it cannot be made, opened or written.
            EmbedderMismatch: the bank knows an embedder's key with another dimension.
        """
        store = Store.open(location, config or BankConfig())
        try:
            pay(store, 0)  # a purge whose process died before its bytes were erased
            return cls(store, embeddings, projections, ranker)
        except BaseException:
            store.close()
            raise

    def add(
        self,
        new: Iterable[NewCase],
        *,
        namespace: str = DEFAULT_NAMESPACE,
        wait: bool = True,
        upsert: bool = False,
        on_duplicate: str = "keep",
        idempotency_key: str | None = None,
    ) -> _Ids:
        """Store cases in one transaction; their ids in the order given.

        New cases get ascending ids. A `Case` of another bank or namespace is copied.

        Args:
            new: the cases; none is fine and changes nothing.
            namespace: made when its first case is stored.
            wait: embed before returning. False leaves it to the next `block` or `embed_missing`.
            upsert: overwrite the case that has the external id already, instead of refusing.
            on_duplicate: what to do with a case whose query, plan and kind a live case of the
                namespace has, neither contradicting the other's outcome or external id. `keep`
                stores it again, `merge` adds to the stored one what it did not know (its id is
                returned), `reject` refuses.
            idempotency_key: names this request. The same key with the same cases, within
                `idempotency_hours`, stores nothing and returns the same ids.

        Raises:
            AlreadyStored: an external id that the namespace has; nothing was stored.
            DuplicateCase: a duplicate that was to be rejected; nothing was stored.
            IdempotencyConflict: the key was used for other cases; nothing was stored.
            EmbeddingFailed: an embedder returned what cannot be stored; nothing was stored.
        """
        given = _checked_cases(new)
        checked_namespace(namespace)
        options = AddOptions(wait, upsert, on_duplicate, idempotency_key)
        if not given:
            return []
        ids = add_cases(self._store, self._shelf, namespace, given, options)
        self._settle()
        return ids

    def update(
        self,
        id_: int,
        changes: Mapping[str, Any],
        *,
        namespace: str = DEFAULT_NAMESPACE,
        if_version: int | None = None,
        wait: bool = True,
    ) -> Case:
        """Change fields of a case; what it is now. The words it had are overwritten, not kept.

        Args:
            id_: the case.
            changes: fields of `NewCase` by name; None takes a value away.
            namespace: where it is.
            if_version: the version that the change is for; without it, the newest.
            wait: embed before returning.

        Raises:
            NotFound: no such case.
            VersionConflict: somebody changed it since `if_version`; nothing was changed.
            InvalidCase: the result would be no valid case.
        """
        checked_namespace(namespace)
        case = patch_case(
            self._store,
            self._shelf,
            namespace,
            _checked_id("id", id_),
            changes,
            if_version=if_version,
            wait=wait,
        )
        self._settle()
        return case

    def get(self, ids: Iterable[int], *, namespace: str = DEFAULT_NAMESPACE) -> _Cases:
        """The cases with these ids, in the order asked.

        Raises:
            NotFound: ids that the namespace does not have.
        """
        asked = [_checked_id("id", id_) for id_ in ids]
        found = self._found(asked, namespace)
        unknown = [id_ for id_ in dict.fromkeys(asked) if id_ not in found]
        if unknown:
            raise NotFound(f"namespace {namespace!r} has no case with id {shown(unknown)[1:-1]}")
        return [found[id_] for id_ in asked]

    def known(
        self, ids: Iterable[int], *, namespace: str = DEFAULT_NAMESPACE, history: bool = False
    ) -> dict[int, Case]:
        """Those of these cases that are there still, by id, in the order asked.

        For what was found a moment ago: what was forgotten since is left out and is no error, and
        so is, without `history`, what is kept for history only.
        """
        asked = list(dict.fromkeys(_checked_id("id", id_) for id_ in ids))
        found = self._found(asked, namespace)
        kept = (found[id_] for id_ in asked if id_ in found)
        return {case.id: case for case in kept if history or case.invalidated_at is None}

    def list(
        self,
        *,
        namespace: str = DEFAULT_NAMESPACE,
        after: int | None = None,
        limit: int = 100,
        where: CaseFilter | None = None,
    ) -> _Cases:
        """A page of cases by id: those after the id `after`; the last id is the next cursor.

        The cursor is stable: a case stored later has a larger id, whoever stores it. Cases kept
        only for history are left out unless `where` asks for them.
        """
        checked_namespace(namespace)
        start = 0 if after is None else _checked_id("after", after)
        if not 1 <= _checked_id("limit", limit) <= MAX_PAGE:
            raise InvalidInput(f"limit = {limit}: must be between 1 and {MAX_PAGE}")
        with self._store.read() as connection:
            state = namespace_state(connection, self._store.keys, namespace)
            if state is None:
                return []
            start = max(0, min(start, 2**53))
            condition = (where or CaseFilter()).condition(self._store.keys, state.id)
            return cases_where(connection, condition, namespace, start, limit)

    def count(self, namespace: str = DEFAULT_NAMESPACE, *, where: CaseFilter | None = None) -> int:
        """How many cases a namespace has; 0 for one that does not exist."""
        checked_namespace(namespace)
        with self._store.read() as connection:
            state = namespace_state(connection, self._store.keys, namespace)
            if state is None:
                return 0
            condition = (where or CaseFilter()).condition(self._store.keys, state.id)
            return count_where(connection, condition)

    def namespaces(self) -> _Names:
        """The namespaces that something was stored in, by name."""
        with self._store.read() as connection:
            return namespace_names(connection)

    def search_text(
        self,
        query: str,
        k: int = 10,
        *,
        namespace: str = DEFAULT_NAMESPACE,
        where: CaseFilter | None = None,
        latest: bool = False,
    ) -> _Scored:
        """The k best cases for a query by BM25, as (id, score), best first, ties to the lower id.

        On PostgreSQL the score is `ts_rank`: the same cases match, in another order. With `latest`,
        of several hits that give a value for one thing the newest comes first (`memory.latest`).
        """
        checked_namespace(namespace)
        if not 1 <= _checked_id("k", k) < 2**31:
            raise InvalidInput(f"k = {k}: at least 1, and below 2^31")
        if where is not None and not isinstance(where, CaseFilter):
            raise InvalidInput(f"where = {shown(where)}: must be a CaseFilter")
        checked_query(query)
        with self._store.read() as connection:
            state = namespace_state(connection, self._store.keys, namespace)
            if state is None:
                return []
            condition = None if where is None else where.condition(self._store.keys, state.id)
            hits = lexical.search(connection, state.id, query, k, self._store.lexical, condition)
        if not latest:
            return hits
        scores = dict(hits)
        ranked = list(self.known(scores, namespace=namespace).values())
        return [(case.id, scores[case.id]) for case in latest_first(ranked)]

    def text_scores(
        self, query: str, ids: Iterable[int], *, namespace: str = DEFAULT_NAMESPACE
    ) -> dict[int, float]:
        """The score that `search_text` has for each of these cases, by id.

        Cases that have none of the query's words, or are not there, are left out.
        """
        asked = list(dict.fromkeys(_checked_id("id", id_) for id_ in ids))
        checked_namespace(namespace)
        checked_query(query)
        with self._store.read() as connection:
            state = namespace_state(connection, self._store.keys, namespace)
            if state is None:
                return {}
            possible = [id_ for id_ in asked if 0 < id_ < 2**53]
            return lexical.scores(connection, state.id, query, possible, self._store.lexical)

    def newest(self, count: int, *, namespace: str = DEFAULT_NAMESPACE) -> _Cases:
        """The `count` live cases that were stored last, the latest last."""
        checked_namespace(namespace)
        if not 0 <= _checked_id("count", count) <= MAX_PAGE:
            raise InvalidInput(f"count = {count}: must be between 0 and {MAX_PAGE}")
        with self._store.read() as connection:
            state = namespace_state(connection, self._store.keys, namespace)
            if state is None:
                return []
            condition = CaseFilter().condition(self._store.keys, state.id)
            return newest_where(connection, condition, namespace, count)

    def may_hold(self, words: Iterable[str], *, namespace: str = DEFAULT_NAMESPACE) -> _Ids | None:
        """Ids of all cases that may hold one of these words; None: the index cannot tell."""
        checked_namespace(namespace)
        found: set[int] = set()
        with self._store.read() as connection:
            state = namespace_state(connection, self._store.keys, namespace)
            if state is None:
                return []
            for word in words:
                ids = lexical.holding(connection, state.id, word, self._store.lexical)
                if ids is None:
                    return None
                found.update(ids)
        return sorted(found)

    def similar(
        self, text: str, threshold: float = -1.0, *, namespace: str = DEFAULT_NAMESPACE
    ) -> dict[int, float]:
        """Cosines of the live cases with a text, by id; none where the bank has no embeddings."""
        return self._forgetting.similar(checked_namespace(namespace), text, threshold)

    def secret_for(self, purpose: str, namespace: str = DEFAULT_NAMESPACE) -> bytes:
        """32 bytes that only this bank can derive, for keyed digests outside of it."""
        return self._store.keys.derived(f"{purpose}/{namespace}")

    def block(self, namespace: str = DEFAULT_NAMESPACE) -> Block:
        """The arrays of a namespace at its newest version; cheap when nothing changed.

        Cases without vectors (added with `wait=False`, by a process without embedders, or before
        this encoder) are embedded first. A namespace that does not exist gives an empty block,
        version 0.
        """
        return self._blocks.block(checked_namespace(namespace))

    def eligible(self, block: BlockLike, where: CaseFilter) -> Bools | None:
        """The live rows of a block that a filter lets through: (N,), as SQL would have it.

        None where the filter asks for tags or a source, which are in no block, and the namespace
        changed since the block was read: take the newest block and ask again.
        """
        return eligible_rows(self._store, block, where)

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
        on_duplicate: str = "keep",
        on_forgotten: str = "skip",
        upsert: bool = False,
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
            on_duplicate: `keep`, `merge` or `reject`, as for `add`; the duplicate of a case or of
                an earlier line that is to be rejected is a bad line.
            on_forgotten: whether a line whose case was forgotten in the namespace once is left out
                (`skip`) or stored (`keep`); the report names such lines by number in either case.
            upsert: overwrite the case that has a line's external id, instead of a bad line.
            again: add the cases once more although the content was imported before.
            progress: called with how many of how many bytes are stored.
            batch_size: cases acknowledged together; the configuration's if not given.

        Raises:
            DataError: a bad line (file, line, field, value, remedy), no lines, or no file.
        """
        size = self._store.config.import_batch if batch_size is None else batch_size
        options = ImportOptions(
            on_bad_line, on_duplicate, on_forgotten, upsert, again, progress, size
        )
        return self._imported(path, namespace, "jsonl", options)

    def import_parquet(
        self,
        path: str | Path,
        *,
        namespace: str = DEFAULT_NAMESPACE,
        on_bad_line: str = "error",
        on_duplicate: str = "keep",
        on_forgotten: str = "skip",
        upsert: bool = False,
        again: bool = False,
        progress: ByteProgress | None = None,
        batch_size: int | None = None,
    ) -> ImportReport:
        """As `import_jsonl`, of a Parquet file; `memory.exchange.parquet` describes the columns.

        Rows are numbered from 1, as lines are.

        Raises:
            BankUnavailable: pyarrow is not installed.
        """
        size = self._store.config.import_batch if batch_size is None else batch_size
        options = ImportOptions(
            on_bad_line, on_duplicate, on_forgotten, upsert, again, progress, size
        )
        return self._imported(path, namespace, "parquet", options)

    def export_jsonl(
        self,
        path: str | Path,
        namespace: str = DEFAULT_NAMESPACE,
        *,
        where: CaseFilter | None = None,
        progress: RowProgress | None = None,
    ) -> ExportReport:
        """Write the live cases of a namespace, by id, as one snapshot; how many there were.

        The file appears whole or not at all. Later purges find it and rewrite it.

        Args:
            path: the file; an older one is replaced.
            namespace: whose cases.
            where: only those; all of them without it.
            progress: called with how many of how many cases are written.

        Raises:
            NotFound: the namespace has no live case.
            BankUnavailable: the file cannot be written.
            BankBusy: others kept forgetting while it was written.
        """
        checked_namespace(namespace)
        return export_cases(self._store, Path(path), namespace, "jsonl", where, progress)

    def export_parquet(
        self,
        path: str | Path,
        namespace: str = DEFAULT_NAMESPACE,
        *,
        where: CaseFilter | None = None,
        progress: RowProgress | None = None,
    ) -> ExportReport:
        """As `export_jsonl`, as a Parquet file; `memory.exchange.parquet` describes the columns.

        Raises:
            BankUnavailable: the file cannot be written, or pyarrow is not installed.
        """
        checked_namespace(namespace)
        return export_cases(self._store, Path(path), namespace, "parquet", where, progress)

    def reembed(
        self,
        *,
        embeddings: Embedder | None = None,
        projections: Embedder | None = None,
        on_swap: Callable[[], None] | None = None,
    ) -> Reembedding:
        """Change embedders in the background: the old ones serve until every case has new vectors.

        Vectors are kept as they are computed: a job that was cancelled or died goes on when it is
        started again. The old vectors stay (a swap back costs nothing) until `drop_vectors`.

        Args:
            embeddings: takes the place of the present one; None leaves it.
            projections: likewise.
            on_swap: called right after the swap, such as to exchange the searcher.
        """
        new = (embeddings or self._roles[0], projections or self._roles[1])

        def swapped() -> None:
            self._serve(*new, None)
            if on_swap is not None:
                on_swap()

        return Reembedding(self._feed, self._blocks, self.namespaces, *new, swapped)

    def drop_vectors(self, key: str) -> int:
        """Delete every vector of an embedder that no longer serves; how many there were."""
        if key in [role.key for role in self._roles if role is not None]:
            raise InvalidInput(f"embedder {key!r} serves this bank; re-embed under another first")
        return drop_embedder(self._store, key)

    def forget(
        self,
        what: Selector | Sequence[Selector],
        *,
        namespace: str = DEFAULT_NAMESPACE,
        mode: str = "purge",
        dry_run: bool = False,
        request: str | None = None,
        actor: str | None = None,
        strings: Sequence[str] = (),
        echoes: Sequence[str] = (),
    ) -> Receipt:
        """Forget what selectors mean, everything derived from it, and every near-verbatim copy.

        Args:
            what: one selector or several of `memory.forgetting.selectors`; several mean all that
                any means.
            namespace: where; nothing else is touched.
            mode: `purge`: gone from every table, index, array and file of ours. `invalidate`: kept
                as history, never retrieved.
            dry_run: only say what would go.
            request: the words it was asked with; they are forgotten too.
            actor: who asks, for the receipt.
            strings: further texts that no sink, run or export may keep.
            echoes: kept in the receipt; see `memory.conversation`.

        Returns:
            What went, by layer; 0 cases if nothing matched. `erased` is `pending` where bytes wait
            for an older reader (SQLite; the next write finishes it) or for `erase` (PostgreSQL).
        """
        asked = Request(
            _selectors(what),
            checked_namespace(namespace),
            mode,
            actor,
            request,
            strings,  # type: ignore[arg-type]  # checked, and made a tuple, there
            echoes,  # type: ignore[arg-type]
        )
        return self._forgetting.forget(asked, dry_run=dry_run)

    def verify(
        self,
        what: Receipt | Sequence[str],
        *,
        namespace: str = DEFAULT_NAMESPACE,
        request: str | None = None,
        prober: Prober | None = None,
    ) -> Verification:
        """Prove that something is gone: ask for it in every search mode, and read every byte.

        Finishes an erasure that is pending, if it can. A receipt holds no words, so that with one
        only the tables are looked through.

        Args:
            what: a receipt, or the strings that may occur nowhere.
            namespace: where they were.
            request: the words they were forgotten with, as one more probe.
            prober: searches in further modes; `retriever.searcher.Searcher` is one.
        """
        checked_namespace(namespace)
        if isinstance(what, str) or not isinstance(what, Receipt | Sequence):
            raise InvalidInput(
                f"what = {shown(what)}: give a receipt, or a list of strings; put one in []"
            )
        strings = () if isinstance(what, Receipt) else ByStrings(tuple(what)).strings
        pay(self._store, self._store.config.erase_timeout_s)
        if isinstance(what, Receipt):
            return verify_receipt(self._store, what.namespace or namespace, what)
        folder = None if self._snapshots is None else self._snapshots.folder
        return verify_strings(
            self._store, namespace, strings, request=request, prober=prober, snapshots=folder
        )

    def receipts(self, namespace: str | None = None) -> _Receipts:
        """Every receipt, oldest first, of one namespace or of all: who forgot how much, when."""
        with self._store.read() as connection:
            found = load_receipts(connection, self._store.keys, namespace, limit=2**31)
        return [receipt for _, receipt in found]

    def register(self, sink: Sink) -> None:
        """Have a place outside the bank that may hold words of cases purged with it."""
        self._sinks.add(sink)

    def register_artifact(self, witness: Witness) -> None:
        """Have receipts name something made from cases, such as a trained artifact."""
        self._sinks.add_witness(witness)

    def retire(
        self,
        before: int | str | datetime,
        *,
        namespace: str = DEFAULT_NAMESPACE,
        dry_run: bool = False,
        actor: str | None = None,
    ) -> Receipt:
        """Purge what is older than a moment: by valid time, else when told, else when stored."""
        span = BySpan(None, microseconds(before))
        asked = Request((span,), checked_namespace(namespace), "retention", actor)
        return self._forgetting.forget(asked, dry_run=dry_run)

    def compact(
        self,
        budget: Budget,
        policy: str | Policy = "newest",
        *,
        namespace: str = DEFAULT_NAMESPACE,
        dry_run: bool = False,
        actor: str | None = None,
    ) -> Receipt:
        """Keep what fits a budget, by falling value; policies: `memory.forgetting.compaction`.

        What goes may be stored again, and what was derived from it stays: this saves room, it does
        not forget. A SQLite file is written anew afterwards, for only that gives room back.
        """
        checked_namespace(namespace)
        if not isinstance(budget, Budget):
            raise InvalidInput(f"budget = {shown(budget)}: must be a Budget")
        chosen = named_policy(policy) if isinstance(policy, str) else policy
        receipt = compact(
            self._store, namespace, budget, chosen, self._sinks, actor=actor, dry_run=dry_run
        )
        settled = self._erased(receipt, namespace)
        if settled.ids and not dry_run and self.path is not None:
            self.erase(deep=True)
        return settled

    def delete_namespace(self, namespace: str, *, actor: str | None = None) -> Receipt:
        """Delete a namespace with everything in it, and its name.

        Raises:
            NotFound: there is none of that name.
        """
        checked_namespace(namespace)
        receipt = delete_namespace(self._store, namespace, self._sinks, actor=actor)
        return self._erased(receipt, namespace)

    def backup(self, path: str | Path, *, progress: CopyProgress | None = None) -> int:
        """Write the whole bank, as one snapshot, to a new SQLite file; how many cases it holds."""
        return backup(self._store, Path(path), progress=progress)

    @staticmethod
    def restore(
        path: str | Path,
        location: str | Path,
        *,
        receipts: str | Path | None = None,
        config: BankConfig | None = None,
        progress: CopyProgress | None = None,
    ) -> RestoreReport:
        """Put a backup in a bank's place, and forget again what was forgotten since.

        Args:
            path: the backup.
            location: where the bank is or is to be; it must be open nowhere. A bank that is there
                must be the one that was backed up: its receipts are applied, then it is replaced.
            receipts: a file of `export_receipts`, for where the bank itself is lost. Then ids go on
                after a gap, so that none is given out twice.
            config: times and sizes.
            progress: called with how many of how many rows are copied to a server.

        Raises:
            ForeignBank: not a backup, a damaged one, or the receipts or the place of another bank.
            BankBusy: the bank is open elsewhere.
        """
        return restore(
            Path(path),
            location,
            config=config or BankConfig(),
            receipts_file=None if receipts is None else Path(receipts),
            progress=progress,
        )

    def export_receipts(self, path: str | Path) -> int:
        """Write every receipt to a file, for `restore` where the bank is lost; no words in it."""
        return write_receipts(self._store, Path(path))

    def stats(self) -> BankStats:
        """What the bank holds, counted by namespace; its size, and whether erasing is pending."""
        folder = None if self._snapshots is None else self._snapshots.folder
        return bank_stats(self._store, folder)

    def erase(
        self,
        *,
        timeout_s: float | None = None,
        deep: bool = False,
        progress: EraseProgress | None = None,
    ) -> ErasureState:
        """Overwrite the bytes of everything that was deleted; how far that is done.

        SQLite does so by itself after every purge unless a reader has an older state open. On
        PostgreSQL it is this job, which rewrites tables, each locked meanwhile, and uses up the
        server's old log files; its state is kept, so that an interrupted one goes on, and receipts
        say `pending` until it is done. It reaches no archive, replica or backup.

        Args:
            timeout_s: how long it waits for others, in all; the configuration's `erase_timeout_s`
                if not given. The work itself is never cut short.
            deep: do it although nothing is owed; on SQLite, write the whole file anew.
            progress: called with a step's name, how many steps are done, and of how many.
        """
        wait_s = self._store.config.erase_timeout_s if timeout_s is None else timeout_s
        if not wait_s >= 0:
            raise InvalidInput(f"timeout_s = {timeout_s!r}: give a time, 0 or more")
        return erase(self._store, wait_s, deep=deep, progress=progress)

    def close(self) -> None:
        """Close the database; using the bank afterwards is an error, closing it twice is not.

        Large namespaces are written to snapshot files first, for a quick start.
        """
        if not self._store.closed:
            for namespace in self._blocks.namespaces():
                if self._blocks.size(namespace) >= self._store.config.snapshot_rows:
                    self._blocks.save(namespace)
        self._blocks.close()
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
        return f"CaseBank({self.location!r})"

    def _found(self, ids: Sequence[int], namespace: str) -> dict[int, Case]:
        """Those of these cases that are there, also those kept for history, by id."""
        checked_namespace(namespace)
        # Beyond 63 bits the driver could not even ask.
        possible = [id_ for id_ in dict.fromkeys(ids) if 0 < id_ < 2**53]
        with self._store.read() as connection:
            state = namespace_state(connection, self._store.keys, namespace)
            return {} if state is None else cases_by_id(connection, state.id, namespace, possible)

    def _imported(
        self, path: str | Path, namespace: str, format_: str, options: ImportOptions
    ) -> ImportReport:
        checked_namespace(namespace)
        report = import_file(self._store, self._shelf, Path(path), namespace, format_, options)
        if report.updated or report.merged:
            self._settle()
        return report

    def _serve(
        self, embeddings: Embedder | None, projections: Embedder | None, ranker: Ranker | None
    ) -> None:
        """Have everything use these embedders from now on."""
        self._roles = (embeddings, projections)
        self._shelf = self._feed.shelf(_given(embeddings, projections))
        if ranker is None and embeddings is not None:
            ranker = BlockRanker(embeddings, self.block)
        self._forgetting.use(self._shelf, ranker)

    def _gone(self, namespace: str) -> tuple[int, _Names]:
        """After cases went: their rows in memory too, the snapshot, and what follows the bank.

        How many files went, and the names of sinks that were not reached.
        """
        self._blocks.wipe(namespace)
        files = 0
        unreached = self._sinks.settle(namespace)
        if self._snapshots is not None:
            try:
                files = self._snapshots.delete(namespace)
            except BankUnavailable:
                unreached.append("snapshots")
        return files, unreached

    def _erased(self, receipt: Receipt, namespace: str) -> Receipt:
        """The receipt of a removal with its physical half."""
        if receipt.dry_run or not receipt.uid:
            return receipt
        return self._forgetting.settled(receipt, namespace)

    def _settle(self) -> None:
        """Erase what a change left behind if nobody is in the way; if so, it stays owed."""
        pay(self._store, 0)


def _given(*roles: Embedder | None) -> list[Embedder]:
    return [role for role in roles if role is not None]


def _snapshots(store: Store) -> Snapshots | None:
    """Where the arrays are kept between runs; beside a server there is no such place by itself."""
    folder = store.config.snapshot_folder
    if not store.config.snapshots or (folder is None and store.path is None):
        return None
    if folder is None:
        assert store.path is not None
        place = store.path.with_name(store.path.name + ".snapshots")
    else:
        place = Path(folder).expanduser().absolute()
    return Snapshots(place, lambda namespace: store.keys.of("snapshot", 0, namespace).hex())


def _selectors(what: Any) -> tuple[Selector, ...]:
    return tuple(what) if isinstance(what, list | tuple) else (what,)


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
