"""Which case came from which: what a purge has to follow, and where a derivation can be cut."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from sqlalchemy import Connection, and_, select

from memory.schema import cases, lineage
from memory.storage.rows import chunks

#: Derivations that the search for a smallest cut looks at before it takes the best one found.
_STEPS = 200_000


#: A case and the rows that name it as their source.
_NAMED = and_(
    cases.c.namespace_id == lineage.c.namespace_id, cases.c.external_key == lineage.c.parent_key
)


def children(connection: Connection, namespace_id: int, ids: Iterable[int]) -> set[int]:
    """The cases that name one of these as a source."""
    found: set[int] = set()
    for part in chunks(sorted(set(ids))):
        rows = connection.execute(
            select(lineage.c.child_id)
            .join(cases, _NAMED)
            .where(lineage.c.namespace_id == namespace_id, cases.c.id.in_(part))
        )
        found.update(int(id_) for id_ in rows.scalars())
    return found


def parents(connection: Connection, namespace_id: int, ids: Iterable[int]) -> dict[int, set[int]]:
    """For each case, the stored cases that it names as its sources."""
    wanted = sorted(set(ids))
    found: dict[int, set[int]] = {id_: set() for id_ in wanted}
    for part in chunks(wanted):
        rows = connection.execute(
            select(lineage.c.child_id, cases.c.id)
            .join(cases, _NAMED)
            .where(lineage.c.namespace_id == namespace_id, lineage.c.child_id.in_(part))
        )
        for child, parent in rows:
            found[child].add(int(parent))
    return found


def descendants(connection: Connection, namespace_id: int, ids: Iterable[int]) -> set[int]:
    """Everything derived from these, at any depth, without these themselves."""
    start = set(ids)
    seen = set(start)
    frontier = start
    while frontier:
        frontier = children(connection, namespace_id, frontier) - seen
        seen |= frontier
    return seen - start


def roots(connection: Connection, namespace_id: int, id_: int) -> frozenset[int]:
    """The stored cases, without stored sources of their own, that a case is derived from.

    Empty for a case without stored sources. A derivation needs all of them, so that taking one away
    breaks it; taking away only a fact in between would let it be derived again. Where every way up
    ends in a cycle there is nothing below to start from, so that each case above is as good.
    """
    seen = {id_}
    frontier = {id_}
    found: set[int] = set()
    while frontier:
        above = parents(connection, namespace_id, frontier)
        found |= {child for child, sources in above.items() if not sources}
        frontier = set().union(*above.values()) - seen
        seen |= frontier
    return frozenset(found - {id_} or seen - {id_})


def smallest_cut(
    derivations: Sequence[frozenset[int]], cost: Mapping[int, int] | None = None
) -> tuple[int, ...]:
    """The fewest sources that take one away from every derivation (a minimum hitting set).

    Among sets of equal size the one of least total cost, then the one of lowest ids. Derivations
    without sources cannot be cut and are left out. Exact for every lineage that people write down;
    the problem itself is NP-hard, so a search of `_STEPS` ends with the best set found so far.
    """
    weight = cost or {}
    chosen: list[int] = []
    for part in _parts(_reduced([d for d in derivations if d], weight)):
        chosen.extend(_Cut(part, weight).best())
    return tuple(sorted(chosen))


def _reduced(
    derivations: Sequence[frozenset[int]], weight: Mapping[int, int]
) -> list[frozenset[int]]:
    """An easier instance with the same answer.

    A derivation that contains another one is cut with it. A source is not needed where another one
    is in all of its derivations and costs no more (equal cost: has the lower id).
    """
    current = _minimal(derivations)
    while True:
        within: dict[int, set[int]] = {}
        for number, derivation in enumerate(current):
            for source in derivation:
                within.setdefault(source, set()).add(number)
        spared = {
            source
            for source, numbers in within.items()
            # Whatever stands in for it is in its derivations, so the first of them names all.
            if any(
                numbers <= within[other]
                and (weight.get(other, 0), other) < (weight.get(source, 0), source)
                for other in current[min(numbers)]
            )
        }
        if not spared:
            return current
        current = _minimal([derivation - spared for derivation in current])


def _minimal(derivations: Sequence[frozenset[int]]) -> list[frozenset[int]]:
    """Without those that contain another one: cutting the smaller cuts them too."""
    unique = sorted(set(derivations), key=lambda d: (len(d), sorted(d)))
    kept: list[frozenset[int]] = []
    for derivation in unique:
        if not any(smaller <= derivation for smaller in kept):
            kept.append(derivation)
    return kept


def _parts(derivations: Sequence[frozenset[int]]) -> list[list[frozenset[int]]]:
    """Groups of derivations that share no source with another group: each is cut by itself."""
    groups: list[tuple[set[int], list[frozenset[int]]]] = []
    for derivation in derivations:
        sources, members = set(derivation), [derivation]
        apart = []
        for group in groups:
            if group[0].isdisjoint(derivation):
                apart.append(group)
            else:
                sources |= group[0]
                members = [*group[1], *members]
        groups = [*apart, (sources, members)]
    return [members for _, members in groups]


class _Cut:
    """Branch and bound over one group of derivations."""

    def __init__(self, derivations: Sequence[frozenset[int]], weight: Mapping[int, int]) -> None:
        self._all = derivations
        self._weight = weight
        self._steps = 0
        self._best = self._rank(self._greedy())

    def best(self) -> tuple[int, ...]:
        self._search(self._all, frozenset(), frozenset())
        return self._best[2]

    def _rank(self, cut: frozenset[int]) -> tuple[int, int, tuple[int, ...]]:
        return len(cut), sum(self._weight.get(id_, 0) for id_ in cut), tuple(sorted(cut))

    def _greedy(self) -> frozenset[int]:
        """What is in most of the derivations that are still whole, again and again."""
        cut: frozenset[int] = frozenset()
        whole = list(self._all)
        while whole:
            counts = Counter(source for derivation in whole for source in derivation)
            cut |= {min(counts, key=lambda s: (-counts[s], self._weight.get(s, 0), s))}
            whole = [derivation for derivation in whole if not derivation & cut]
        return cut

    def _search(
        self, whole: Sequence[frozenset[int]], chosen: frozenset[int], barred: frozenset[int]
    ) -> None:
        """Complete `chosen` to cuts without `barred`, in every way that may still be the best."""
        self._steps += 1 + len(whole)
        if not whole:
            self._best = min(self._best, self._rank(chosen))
            return
        left = sorted((derivation - barred for derivation in whole), key=len)
        if not left[0] or self._steps > _STEPS or not self._promising(left, chosen):
            return
        tried: frozenset[int] = frozenset()
        for source in sorted(left[0], key=lambda s: (self._weight.get(s, 0), s)):
            rest = [derivation for derivation in whole if source not in derivation]
            self._search(rest, chosen | {source}, barred | tried)
            tried |= {source}  # every cut with it has been seen

    def _promising(self, left: Sequence[frozenset[int]], chosen: frozenset[int]) -> bool:
        """Whether a cut beyond `chosen` may be the best: of disjoint derivations each needs one."""
        size, cost, _ = self._rank(chosen)
        used: set[int] = set()
        for derivation in left:
            if used.isdisjoint(derivation):
                used |= derivation
                size += 1
                cost += min(self._weight.get(source, 0) for source in derivation)
        return (size, cost) <= self._best[:2]
