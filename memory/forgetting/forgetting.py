"""Forgetting: from selectors to everything that holds what they mean, and to its absence.

    selectors -> cases -> closure (copies, what is derived, the request itself) -> purge -> receipt

The closure runs downward: what was derived from a forgotten case goes, its sources stay unless they
are asked for. A near-verbatim copy of a forgotten case goes wherever it stands in the namespace;
other namespaces are neither touched nor mentioned. A purge is one transaction: words, full-text
entries, vectors, runs that showed or asked it, and the digests that tell a re-import. Sinks and
exported files are purged before it commits, so that a failure leaves the request to be repeated
rather than a receipt that claims too much. What is invalidated instead is kept for history and is
never retrieved.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from sqlalchemy import Connection, update

from memory.arrays.following import DatabaseFeed
from memory.case import Case, NewCase
from memory.checks import checked_text
from memory.errors import InvalidInput, shown
from memory.exchange.exporting import purge_exports
from memory.forgetting.lineage import children, parents
from memory.forgetting.receipts import (
    DONE,
    PENDING,
    Rebuild,
    Receipt,
    change_receipt,
    erased_state,
    new_uid,
    store_receipt,
)
from memory.forgetting.removing import drop_cases
from memory.forgetting.selecting import Scene, Selection, Similar, select_cases, texts_to_compare
from memory.forgetting.selectors import NAMES, Replacement, Selector
from memory.forgetting.waiting import forget_waiting
from memory.keys import normal_form
from memory.runs import log as runs
from memory.schema import cases, forgotten
from memory.sinks import Gone, Sinks
from memory.storage.erasing import owe, pay
from memory.storage.namespaces import NamespaceState, changed_namespace, namespace_state
from memory.storage.rows import (
    Place,
    cases_by_id,
    chunks,
    content_key,
    insert_cases,
    spoken,
)
from memory.storage.store import Store, insert_new
from memory.storage.vectors import Prepared, Shelf
from memory.text.matching import holds, near_verbatim
from memory.times import now

_ATTEMPTS = 3  # at selecting outside of the writer's turn
#: What stays is searched for forgotten texts of at most so many words, if there are not too many.
_STILL_HELD_WORDS = 200
_STILL_HELD_TEXTS = 500
_BY_TIME = {"span_valid", "span_told", "span_stored"}
#: A text outside the bank that quotes a forgotten query of so many words goes too; fewer words,
#: such as "thank you", are anybody's.
_QUOTED_WORDS = 4


class Ranker(Protocol):
    """How like a text the cases of a namespace are."""

    def similar(self, namespace: str, text: str, threshold: float) -> dict[int, float]:
        """Case ids with their cosine to a text, those at or above the threshold."""
        ...


@dataclass(frozen=True, slots=True)
class Request:
    """One request to forget, checked.

    Attributes:
        selectors: what is meant.
        namespace: where.
        mode: `purge`, `invalidate`, or `retention` (a purge by age).
        actor: who asks.
        words: the request as it was spoken, if it was: it is forgotten with the rest.
        strings: further texts that no sink, run or export may keep.
        echoes: keyed digests by which a conversation knows what was forgotten; kept in the receipt.
    """

    selectors: tuple[Selector, ...]
    namespace: str
    mode: str = "purge"
    actor: str | None = None
    words: str | None = None
    strings: tuple[str, ...] = ()
    echoes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.mode not in ("purge", "invalidate", "retention"):
            raise InvalidInput(f"mode = {self.mode!r}: purge or invalidate")
        for selector in self.selectors:
            if type(selector) not in NAMES:
                raise InvalidInput(
                    f"{type(selector).__name__} is no selector; use one of memory's: "
                    f"{', '.join(kind.__name__ for kind in NAMES)}"
                )

        for name in ("actor", "words"):
            if getattr(self, name) is not None:
                checked_text(name, getattr(self, name))
        for name in ("strings", "echoes"):
            given = getattr(self, name)
            if isinstance(given, str) or not isinstance(given, Sequence):
                raise InvalidInput(f"{name} = {shown(given)}: must be a list of texts")
            object.__setattr__(self, name, tuple(checked_text(name, item) for item in given))
        for echo in self.echoes:
            size, _, digest = echo.partition(":")
            if not (size.isdecimal() and digest):
                raise InvalidInput(f"echo {shown(echo)}: a count of words, a colon and a digest")

    @property
    def purges(self) -> bool:
        """Whether what is selected goes for good."""
        return self.mode != "invalidate"

    @property
    def new(self) -> list[NewCase]:
        """What is stored in place of what goes."""
        return [s.new for s in self.selectors if isinstance(s, Replacement) and s.new is not None]


@dataclass(frozen=True, slots=True)
class Plan:
    """What a request comes to at one version of a namespace: ids by why they go."""

    selection: Selection
    copies: frozenset[int]
    derived: frozenset[int]
    requests: frozenset[int]
    rebuild: tuple[Rebuild, ...]

    @property
    def ids(self) -> list[int]:
        """All cases that go, ascending."""
        return sorted({*self.selection.cases, *self.copies, *self.derived, *self.requests})


class Forgetting:
    """The forgetting of one open bank."""

    def __init__(
        self,
        store: Store,
        feed: DatabaseFeed,
        sinks: Sinks,
        on_gone: Callable[[str], tuple[int, list[str]]],
    ) -> None:
        self._store = store
        self._sinks = sinks
        self._shelf = feed.shelf(())
        self._ranker: Ranker | None = None
        #: Called once cases of a namespace are gone: drops arrays and snapshots; how many files,
        #: and the names of sinks that were not reached.
        self._on_gone = on_gone

    def use(self, shelf: Shelf, ranker: Ranker | None) -> None:
        """Embed replacements, and find what means the same, with these from now on."""
        self._shelf, self._ranker = shelf, ranker

    def similar(self, namespace: str, text: str, threshold: float) -> dict[int, float]:
        """Cosines of the cases with a text; none without a ranker."""
        return {} if self._ranker is None else self._ranker.similar(namespace, text, threshold)

    def forget(
        self,
        request: Request,
        *,
        dry_run: bool = False,
        also: Callable[[Connection], None] | None = None,
    ) -> Receipt:
        """Do it, or only say what would be done; see `CaseBank.forget`.

        Args:
            request: what to forget.
            dry_run: only say it.
            also: done in the same transaction.
        """
        similar = self._similar(request)
        if dry_run:
            return self._tried(request, similar)
        prepared = self._shelf.prepare(request.namespace, request.new) if request.new else None
        receipt = self._done(request, similar, prepared, also)
        if receipt.erased == PENDING:
            return self.settled(receipt, request.namespace)
        return receipt

    def _done(
        self,
        request: Request,
        similar: Similar,
        prepared: Sequence[Prepared] | None,
        also: Callable[[Connection], None] | None,
    ) -> Receipt:
        """Select and remove in one state of the namespace.

        Selecting may take long, so it is tried outside of the writer's turn at first; a namespace
        that others keep changing is selected from inside of it.
        """
        for _ in range(_ATTEMPTS):
            with self._store.read() as connection:
                state = self._state(connection, request)
                plan = self._plan(connection, state, request, similar)
            with self._store.write() as connection:
                if self._state(connection, request) == state:
                    return self._do(connection, request, plan, prepared, also)
            similar = self._similar(request)
        with self._store.write() as connection:
            plan = self._plan(connection, self._state(connection, request), request, similar)
            return self._do(connection, request, plan, prepared, also)

    def _tried(self, request: Request, similar: Similar) -> Receipt:
        with self._store.read() as connection:
            state = self._state(connection, request)
            plan = self._plan(connection, state, request, similar)
            found = {} if state is None else self._cases(connection, state, request, plan.ids)
        counts = {"cases": len(found), "copies": len(plan.copies), "derived": len(plan.derived)}
        return replace(self._receipt(request, plan, counts), uid="", dry_run=True)

    def _similar(self, request: Request) -> Similar:
        wanted = texts_to_compare(request.selectors)
        if self._ranker is None or not wanted:
            return {}
        return {
            text: self._ranker.similar(request.namespace, text, threshold)
            for text, threshold in wanted.items()
        }

    def _state(self, connection: Connection, request: Request) -> NamespaceState | None:
        return namespace_state(connection, self._store.keys, request.namespace)

    def _cases(
        self, connection: Connection, state: NamespaceState, request: Request, ids: Sequence[int]
    ) -> dict[int, Case]:
        return cases_by_id(connection, state.id, request.namespace, ids)

    def _plan(
        self,
        connection: Connection,
        state: NamespaceState | None,
        request: Request,
        similar: Similar,
    ) -> Plan:
        if state is None:
            return Plan(Selection(), frozenset(), frozenset(), frozenset(), ())
        scene = Scene(
            connection,
            state.id,
            request.namespace,
            self._store.keys,
            self._store.lexical,
            similar,
        )
        selection = select_cases(scene, request.selectors)
        said = frozenset(scene.alike(request.words)) if request.words else frozenset()
        by_time = {id_ for id_, ways in selection.cases.items() if ways <= _BY_TIME}
        closed, copies = _closure(scene, {*selection.cases, *said}, by_time - said)
        derived = closed - copies - set(selection.cases) - said
        return Plan(
            selection,
            frozenset(copies - set(selection.cases) - said),
            frozenset(derived),
            said - set(selection.cases),
            _to_rebuild(scene, closed),
        )

    def _do(
        self,
        connection: Connection,
        request: Request,
        plan: Plan,
        prepared: Sequence[Prepared] | None,
        also: Callable[[Connection], None] | None,
    ) -> Receipt:
        """Carry a plan out in the caller's transaction."""
        if also is not None:
            also(connection)
        state = self._state(connection, request)
        found = {} if state is None else self._cases(connection, state, request, plan.ids)
        strings = [*plan.selection.strings, *request.strings]
        if state is None and not request.new:
            return self._receipt(request, plan, {"cases": 0})
        words = strings or request.words
        if not found and not request.new and not (words and request.purges):
            assert state is not None, "checked above"
            receipt = self._receipt(request, plan, {"cases": 0})
            store_receipt(connection, receipt, state.id)
            return receipt
        raised = changed_namespace(
            connection, self._store.keys, request.namespace, self._store.lexical
        )
        place = Place.of(self._store, raised.id, raised.version)
        counts = {"cases": len(found), "copies": len(plan.copies), "derived": len(plan.derived)}
        if not request.purges:
            _invalidate(connection, place, found)
            receipt = self._receipt(request, plan, counts)
        else:
            receipt = self._purge(connection, request, plan, place, found, counts)
        receipt = self._replace(connection, request, place, prepared, receipt)
        number = store_receipt(connection, receipt, raised.id)
        if request.mode == "purge":
            _remember(connection, place, found.values(), number)
        return receipt

    def _purge(
        self,
        connection: Connection,
        request: Request,
        plan: Plan,
        place: Place,
        found: dict[int, Case],
        counts: dict[str, int],
    ) -> Receipt:
        strings = [*plan.selection.strings, *request.strings]
        gone = gone_of(request, strings, found.values())
        counts = dict(counts)
        unreached: list[str] = []
        if found or gone.strings or request.words:
            asked = runs.runs_to_forget(connection, place.namespace_id, place.keys, gone)
            for name, count in drop_cases(connection, place, sorted(found), asked).items():
                counts[name] = counts.get(name, 0) + count
            counts["scheduled"] = forget_waiting(connection, place.namespace_id, gone)
            files, missed = purge_exports(connection, place.namespace_id, gone)
            counts["exports"] = files
            from_sinks, silent = self._sinks.purge(gone)
            counts.update({f"sink:{name}": count for name, count in from_sinks.items()})
            unreached = [*missed, *silent]
            owe(connection)
        artifacts, unasked = self._sinks.witnesses(gone)
        return replace(
            self._receipt(request, plan, counts),
            digests=tuple(
                sorted(content_key(place.keys, place.namespace_id, c).hex() for c in found.values())
            ),
            artifacts=tuple(artifacts),
            unreached=tuple([*unreached, *unasked]),
            still_held=_still_held(connection, place, request, strings, found),
            erased=PENDING if found or gone.strings or request.words else DONE,
        )

    def _replace(
        self,
        connection: Connection,
        request: Request,
        place: Place,
        prepared: Sequence[Prepared] | None,
        receipt: Receipt,
    ) -> Receipt:
        if not request.new:
            return receipt
        ids = insert_cases(connection, place, request.new)
        if prepared is not None:
            self._shelf.attach(connection, place.namespace_id, ids, prepared)
        return replace(receipt, replaced_by=tuple(ids))

    def _receipt(self, request: Request, plan: Plan, counts: dict[str, int]) -> Receipt:
        return Receipt(
            uid=new_uid(),
            namespace=request.namespace,
            mode=request.mode,
            created_at=now(),
            actor=request.actor,
            selectors=tuple(dict.fromkeys(NAMES[type(s)] for s in request.selectors)),
            ids=tuple(plan.ids),
            counts=counts,
            matched_by=plan.selection.matched_by,
            thresholds=plan.selection.thresholds,
            rebuild=plan.rebuild,
            sources=tuple(sorted(plan.selection.sources)),
            kept_sources=plan.selection.kept_sources,
            echoes=request.echoes,
        )

    def settled(self, receipt: Receipt, namespace: str) -> Receipt:
        """Follow a committed removal into memory and files; the receipt with what came of it."""
        snapshots, unreached = self._on_gone(namespace)
        pay(self._store, self._store.config.erase_timeout_s)
        counts = dict(receipt.counts)
        if snapshots:
            counts["snapshots"] = snapshots
        missed = tuple(dict.fromkeys([*receipt.unreached, *unreached]))
        with self._store.write() as connection:
            # Whoever erased meanwhile, this process or another, has noted it in the row.
            erased = erased_state(connection, receipt.uid)
            receipt = replace(receipt, counts=counts, erased=erased, unreached=missed)
            change_receipt(connection, receipt)
        return receipt


def gone_of(request: Request, strings: Sequence[str], going: Iterable[Case]) -> Gone:
    """What sinks are told: the cases, the strings, and a test for either in a text."""
    cases_ = tuple(going)
    wanted = tuple(dict.fromkeys(strings))
    said = [spoken(case) for case in cases_] + [case.query for case in cases_]
    if request.words is not None:
        said.append(request.words)
    held = _Held(wanted, said, [case.query for case in cases_])
    return Gone(request.namespace, cases_, wanted, held)


class _Held:
    """Whether a text holds one of some strings, or is, or quotes, one of some texts."""

    def __init__(self, strings: Sequence[str], said: Sequence[str], queries: Sequence[str]) -> None:
        self._strings = strings
        self._said = {normal_form(words): words for words in said}
        long = (query for query in queries if len(query.split()) >= _QUOTED_WORDS)
        self._quoted = {normal_form(query): query for query in long}

    def __call__(self, text: str) -> bool:
        if any(holds(text, string) for string in self._strings):
            return True
        plain = normal_form(text)
        if plain in self._said:
            return True
        size = len(plain)
        # Texts that differ in length by more than this cannot share nine tenths of their pieces.
        near = (w for p, w in self._said.items() if abs(len(p) - size) <= 0.2 * max(len(p), size))
        if any(near_verbatim(text, words) for words in near):
            return True
        return any(p in plain and holds(text, query) for p, query in self._quoted.items())


def _closure(scene: Scene, start: set[int], alone: set[int]) -> tuple[set[int], set[int]]:
    """The cases with everything derived from them, and the near-verbatim copies of all these.

    A copy of a copy is none: notes that each differ a little from the next are not one text. Of the
    cases in `alone`, found by nothing but their time, copies of another time stay.

    Returns:
        All of them, and which are there only as copies.
    """
    closed = set(start)
    copies: set[int] = set()
    frontier = set(start)
    while frontier:
        meant = frontier - copies - alone
        found: set[int] = set()
        for case in scene.cases(meant).values():
            found |= scene.copies(case)
        derived = children(scene.connection, scene.namespace_id, frontier)
        copies |= found - closed - derived
        frontier = (found | derived) - closed
        closed |= frontier
    return closed, copies


def _to_rebuild(scene: Scene, closed: set[int]) -> tuple[Rebuild, ...]:
    """Cases that go although some of their sources stay."""
    above = parents(scene.connection, scene.namespace_id, closed)
    left = {id_: sources - closed for id_, sources in above.items() if sources & closed}
    return tuple(
        Rebuild(id_, tuple(sorted(sources))) for id_, sources in sorted(left.items()) if sources
    )


def _invalidate(connection: Connection, place: Place, found: dict[int, Case]) -> None:
    moment = now()
    for part in chunks(sorted(found)):
        connection.execute(
            update(cases)
            .where(cases.c.id.in_(part), cases.c.invalidated_at.is_(None))
            .values(invalidated_at=moment, seq=place.seq, version=cases.c.version + 1)
        )


def _remember(connection: Connection, place: Place, going: Iterable[Case], receipt_id: int) -> None:
    keys = {content_key(place.keys, place.namespace_id, case) for case in going}
    insert_new(
        connection,
        forgotten,
        [
            {"namespace_id": place.namespace_id, "content_key": key, "receipt_id": receipt_id}
            for key in sorted(keys)
        ],
    )


def _still_held(
    connection: Connection,
    place: Place,
    request: Request,
    strings: Sequence[str],
    found: dict[int, Case],
) -> int | None:
    """How many cases that stay hold a forgotten string, or the query of a forgotten case."""
    scene = Scene(connection, place.namespace_id, request.namespace, place.keys, place.style)
    wanted = [*strings, *(case.query for case in found.values())]
    if len(wanted) > _STILL_HELD_TEXTS:
        return None
    held: set[int] = set()
    for string in dict.fromkeys(wanted):
        if len(string.split()) <= _STILL_HELD_WORDS:
            held.update(scene.holders(string))
    return len(held - set(found))
