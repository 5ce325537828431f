"""Outcome logs with planted truth: what helped is known, and the words show part of it.

The truth is `logit(q, c) = intercept - difficulty(q) + usefulness(c) + fit(q, c)`, the log-odds
that query q succeeds when case c alone is shown. Text tells most of it (`planted_text`); `noise`
scales what it does not tell. A policy that goes by similarity, not by truth, chooses what is shown
and records its propensities; the outcome of a run follows from all its cases by `outcome_rule`.
The intercept is set so that about 35 % of the runs succeed.

Everything depends on the configuration alone: one seed gives one file, byte for byte, and the first
n rows of a longer log are the log of n rows. Made up for tests and comparisons; it says nothing of
the size of effects in real logs.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from retriever.errors import ConfigError, InvalidInput
from retriever.learning import planted_text as text
from retriever.learning.config import PlantedConfig
from retriever.learning.logging_policy import sample_without_replacement
from retriever.learning.planted_text import Traits
from retriever.types import Ids

SUCCESS_RATE = 0.35
_PILOT_QUERIES = 300
_LATENT = 3  # dimensions of the fit that no text tells
_START = datetime(2026, 1, 1, tzinfo=UTC)
# The streams of random numbers, so that no two draws of a world share one.
_CASE, _QUERY, _PILOT, _FAMILY = range(4)

#: The similarity that the policy goes by: points for what question and stored question share.
_SIMILARITY = {"family": 2.4, "relation": 0.8, "source": 0.6, "place": 0.8, "hops": 0.3}

Floats64 = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class PlantedCase:
    """A stored case: Memento's form of plan, and how the case itself once ended."""

    id: str
    query: str
    plan: str
    outcome: int


@dataclass(frozen=True, slots=True)
class PlantedQuery:
    """A query, what its words show, and what they do not."""

    index: int
    words: str
    traits: Traits
    difficulty: float
    latent: tuple[float, ...]


class PlantedWorld:
    """C cases, any number of queries, the truth about both, and the log of a policy.

    Queries are made when asked for: `query(i)` works for every i from 0, also past those of the log
    (`query_count`), which makes queries for a test that no log holds. No query is a case's query.
    """

    def __init__(self, config: PlantedConfig) -> None:
        if config.families > text.MOST_FAMILIES:
            raise ConfigError(
                f"data.planted.families = {config.families}: at most {text.MOST_FAMILIES}"
            )
        self.config = config
        self.query_count = -(-config.rows // (config.cases_per_run * config.runs_per_query))
        if config.cases + self.query_count > text.NAMES:
            raise ConfigError(
                f"data.planted: {config.cases} cases and {self.query_count} queries need more than "
                f"the {text.NAMES} names there are; ask for fewer rows or cases, or for more "
                "runs_per_query"
            )
        self._family_difficulty = self._rng(_FAMILY).normal(0.0, 0.6, config.families)
        self._make_cases()
        self.intercept = 0.0
        self.intercept = self._intercept_for(SUCCESS_RATE)

    def query(self, index: int) -> PlantedQuery:
        """Query number `index`, 0-based."""
        return self._query(index)[0]

    def difficulty(self, queries: Sequence[int] | Ids) -> Floats64:
        """How much each query takes off the logit: (n,) indices -> (n,)."""
        return np.array([self.query(int(index)).difficulty for index in queries])

    def fit(self, query: int, cases: Sequence[int] | Ids) -> Floats64:
        """What each case adds for this query and not for others: (n,) case indices -> (n,)."""
        return self._fit(self.query(query), np.asarray(cases, dtype=np.int64))

    def logit(self, query: int, cases: Sequence[int] | Ids) -> Floats64:
        """Log-odds of success where one case alone is shown: (n,) case indices -> (n,)."""
        return self._logit(self.query(query), np.asarray(cases, dtype=np.int64))

    def success_probability(self, query: int, cases: Sequence[int] | Ids) -> Floats64:
        """Chance of success where one case alone is shown: (n,) case indices -> (n,)."""
        return _sigmoid(self.logit(query, cases))

    def run_success_probability(self, query: int, cases: Sequence[int] | Ids) -> float:
        """Chance of success where all these cases are shown together, by `outcome_rule`."""
        return run_success(self.config.outcome_rule, self.logit(query, cases))

    def lines(self) -> Iterator[str]:
        """The log, a JSON line a row, in bounded memory."""
        parts = [
            f'"case_id": {json.dumps(case.id)}, "case": {json.dumps(case.query)}, '
            f'"plan": {json.dumps(case.plan)}, "case_outcome": {case.outcome}, '
            for case in self.cases
        ]
        for row in range(0, self.config.rows, self.config.cases_per_run):
            run = row // self.config.cases_per_run
            index, attempt = divmod(run, self.config.runs_per_query)
            if attempt == 0:
                query, rng = self._query(index)
                scores = self._similarity(query.traits)
                words = json.dumps(query.words)
            shown, propensities = self._shown(scores, rng)
            outcome = int(rng.random() < self._run_success(query, shown))
            time = (_START + timedelta(minutes=run)).strftime("%Y-%m-%dT%H:%M:%SZ")
            head = f'{{"run_id": "q{index:07d}-r{attempt}", "query": {words}, '
            ranked = zip(shown.tolist(), propensities.tolist(), strict=True)
            for rank, (case, propensity) in enumerate(ranked, start=1):
                if row + rank > self.config.rows:
                    return
                yield (
                    f'{head}{parts[case]}"outcome": {outcome}, "rank": {rank}, "score": '
                    f'{scores[case]:.6g}, "propensity": {propensity:.9g}, "time": "{time}"}}\n'
                )

    def rows(self) -> Iterator[dict[str, Any]]:
        """The rows of the log, as a reader of its lines gets them."""
        yield from map(json.loads, self.lines())

    def write_log(
        self, path: Path | str, progress: Callable[[int, int], None] | None = None
    ) -> int:
        """Write the log as JSONL and return its number of rows; `progress` gets (done, total)."""
        return _write_lines(Path(path), self.lines(), self.config.rows, progress)

    def write_cases(self, path: Path | str) -> int:
        """Write the cases as the JSONL of a bank and return how many."""
        lines = (
            json.dumps({"id": c.id, "query": c.query, "plan": c.plan, "outcome": c.outcome}) + "\n"
            for c in self.cases
        )
        return _write_lines(Path(path), lines, len(self.cases), None)

    def _rng(self, *stream: int) -> np.random.Generator:
        return np.random.default_rng([self.config.seed, *stream])

    def _make_cases(self) -> None:
        cases: list[PlantedCase] = []
        traits: list[Traits] = []
        count = self.config.cases
        self._plan_source = np.empty(count, dtype=np.int64)
        self._latent = np.empty((count, _LATENT))
        self.usefulness = np.empty(count)  # (C,) what each case adds for every query
        for number in range(count):
            rng = self._rng(_CASE, number)
            trait = self._traits(rng, number)
            habits = [bool(rng.random() < habit.share) for habit in text.HABITS]
            visible = sum(h.effect for h, has in zip(text.HABITS, habits, strict=True) if has)
            fitting = rng.random() < 0.75
            source = trait.source if fitting else int(rng.integers(len(text.SOURCES)))
            useful = visible + 0.3 * self.config.noise * rng.normal()
            outcome = int(rng.random() < _sigmoid(np.array(useful - 0.5)))
            self._plan_source[number] = source
            self._latent[number] = rng.normal(size=_LATENT)
            self.usefulness[number] = useful
            plan = text.plan(trait, habits, source)
            cases.append(PlantedCase(f"case-{number:06d}", text.question(trait), plan, outcome))
            traits.append(trait)
        self.cases = tuple(cases)
        self._case_traits = {
            name: np.array([getattr(trait, name) for trait in traits]) for name in _SIMILARITY
        }

    def _query(self, index: int, stream: int = _QUERY) -> tuple[PlantedQuery, np.random.Generator]:
        """The query, and its random numbers at the point where its runs begin."""
        if not 0 <= index < text.NAMES - self.config.cases:
            raise InvalidInput(
                f"query index must be from 0 to {text.NAMES - self.config.cases - 1}, got {index}"
            )
        rng = self._rng(stream, index)
        traits = self._traits(rng, self.config.cases + index)
        difficulty = (
            self._family_difficulty[traits.family]
            + text.HOPS[traits.hops - 1]
            + text.OBSCURITY[traits.obscurity][1]
            + 0.4 * self.config.noise * rng.normal()
        )
        latent = tuple(rng.normal(size=_LATENT).tolist())
        return PlantedQuery(index, text.question(traits), traits, float(difficulty), latent), rng

    def _traits(self, rng: np.random.Generator, name: int) -> Traits:
        choices = text.draws()
        family = int(rng.integers(self.config.families))
        usual = rng.random() < 0.7
        return Traits(
            family=family,
            relation=int(rng.integers(choices["relation"])),
            hops=int(rng.integers(1, 4)),
            links=(int(rng.integers(choices["link"])), int(rng.integers(choices["link"]))),
            obscurity=int(rng.integers(len(text.OBSCURITY))),
            source=text.family(family).source if usual else int(rng.integers(len(text.SOURCES))),
            opening=int(rng.integers(choices["opening"])),
            # One name each, so that no two questions of a world are the same.
            name=text.scrambled(name, self.config.seed),
        )

    def _similarity(self, traits: Traits) -> Floats64:
        """The policy's score of every case: (C,)."""
        score = np.zeros(len(self.cases))
        for name, points in _SIMILARITY.items():
            score += points * (self._case_traits[name] == getattr(traits, name))
        return score

    def _shown(self, scores: Floats64, rng: np.random.Generator) -> tuple[Ids, Floats64]:
        return sample_without_replacement(
            scores, self.config.cases_per_run, self.config.policy_temperature, rng
        )

    def _fit(self, query: PlantedQuery, cases: Ids) -> Floats64:
        same_family = self._case_traits["family"][cases] == query.traits.family
        same_source = self._plan_source[cases] == query.traits.source
        untold = self._latent[cases] @ np.asarray(query.latent) / np.sqrt(_LATENT)
        told = 1.5 * same_family + 1.5 * same_source
        fit: Floats64 = told + 0.3 * self.config.noise * untold
        return fit

    def _logit(self, query: PlantedQuery, cases: Ids) -> Floats64:
        effect: Floats64 = self.usefulness[cases] + self._fit(query, cases)
        return self.intercept - query.difficulty + effect

    def _run_success(self, query: PlantedQuery, cases: Ids) -> float:
        return run_success(self.config.outcome_rule, self._logit(query, cases))

    def _intercept_for(self, rate: float) -> float:
        """The intercept at which pilot runs, which no log holds, succeed at `rate`: bisection."""
        pilot = []
        for index in range(_PILOT_QUERIES):
            query, rng = self._query(index, _PILOT)
            shown, _ = self._shown(self._similarity(query.traits), rng)
            pilot.append(self._logit(query, shown))
        low, high = -30.0, 30.0
        for _ in range(60):
            middle = (low + high) / 2
            rule = self.config.outcome_rule
            reached = np.mean([run_success(rule, logits + middle) for logits in pilot])
            low, high = (middle, high) if reached < rate else (low, middle)
        return (low + high) / 2


def run_success(rule: str, logits: Floats64) -> float:
    """Chance that a run succeeds, from the logits of its cases alone: (n,) -> a number."""
    if rule == "mean":
        return float(_sigmoid(logits.mean()))
    if rule == "noisy_or":
        return float(-np.expm1(-np.logaddexp(0.0, logits).sum()))  # 1 - prod(1 - sigmoid)
    if rule == "best":
        return float(_sigmoid(logits.max()))
    raise InvalidInput(f"outcome_rule must be mean, noisy_or or best, got {rule!r}")


def _sigmoid(logits: Any) -> Floats64:
    return np.asarray(np.exp(-np.logaddexp(0.0, -logits)))


def _write_lines(
    path: Path, lines: Iterator[str], total: int, progress: Callable[[int, int], None] | None
) -> int:
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    temporary = Path(name)
    count = 0
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8", newline="\n") as file:
            for count, line in enumerate(lines, start=1):
                file.write(line)
                if progress is not None and count % 1000 == 0:
                    progress(count, total)
            file.flush()
            os.fsync(file.fileno())
        temporary.chmod(0o644)
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    if progress is not None:
        progress(count, total)
    return count
