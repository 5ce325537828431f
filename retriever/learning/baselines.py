"""What a trained retriever has to beat: simple predictors fitted on the same training rows.

Each baseline is a function of the training rows and the test rows that returns one probability a
test row. It reads no outcome of the test rows, and every setting is chosen inside the training
rows, on held-out queries. Training rows of one class give the base rate. All is deterministic.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray
from sklearn.feature_extraction.text import CountVectorizer, TfidfTransformer

from retriever.errors import InvalidInput
from retriever.learning import logistic, metrics
from retriever.learning.data.rows import Rows, joined
from retriever.learning.folds import query_folds
from retriever.learning.logistic import Block
from retriever.learning.metrics import Values

#: Rows of prior given to the base rate by `case_mean`: 0.5, 1, 2, ... 1024.
STRENGTHS: tuple[float, ...] = tuple(2.0**power for power in range(-1, 11))
#: Word characters in a row, single ones too; scikit-learn's default drops those.
TOKEN = r"(?u)\b\w+\b"
GATHER_ROWS = 65_536


@dataclass(frozen=True)
class Inputs:
    """What a baseline may use beside the rows.

    `query_vectors` (U, H) and `case_vectors` (C, H) are embeddings of `query_texts` and
    `case_texts` by an untrained encoder. `seed` shuffles the inner folds.
    """

    query_vectors: NDArray[np.floating[Any]] | None = None
    case_vectors: NDArray[np.floating[Any]] | None = None
    seed: int = 0


Baseline: TypeAlias = Callable[[Rows, Rows, Inputs], Values]


def base_rate(train: Rows, test: Rows, inputs: Inputs) -> Values:
    """The mean training outcome for every test row: -> (T,)."""
    return np.full(len(test), float(_outcome(train).mean()))


def query_words(train: Rows, test: Rows, inputs: Inputs) -> Values:
    """TF-IDF and logistic regression on the query's text alone: -> (T,); cannot rank cases."""
    return _fitted(train, [_words(train.query_texts, train.query, test.query)], inputs)


def case_words(train: Rows, test: Rows, inputs: Inputs) -> Values:
    """TF-IDF and logistic regression on the case's text alone: -> (T,); cannot see the query."""
    return _fitted(train, [_words(train.case_texts, train.case, test.case)], inputs)


def bag_of_words(train: Rows, test: Rows, inputs: Inputs) -> Values:
    """TF-IDF of query and case as two blocks of one logistic regression: -> (T,)."""
    query = _words(train.query_texts, train.query, test.query)
    case = _words(train.case_texts, train.case, test.case)
    return _fitted(train, [query, case], inputs)


def case_mean(train: Rows, test: Rows, inputs: Inputs) -> Values:
    """How often the same case text went with success before, pulled to the base rate: -> (T,).

    The pull is chosen from `STRENGTHS` on held-out training queries; ties and a single query take
    the strongest. A case never seen in training gets the base rate.
    """
    return smoothed_case_mean(train, test, _choose_strength(train, inputs.seed))


def encoder_cosine(train: Rows, test: Rows, inputs: Inputs) -> Values:
    """Logistic regression on the cosine of the untrained embeddings of query and case: -> (T,)."""
    query, case = _unit_vectors(train, inputs)
    cosine = np.concatenate([_cosine(rows, query, case) for rows in (train, test)])
    known = cosine[: len(train)]
    spread = float(known.std())
    # Standardised, because the penalty on the weight depends on the feature's scale.
    feature = (cosine - known.mean()) / (spread if spread > 0 else 1.0)
    index = np.arange(len(feature))
    both = (
        Block(feature[:, None], index[: len(train)]),
        Block(feature[:, None], index[len(train) :]),
    )
    return _fitted(train, [both], inputs)


#: Every baseline in the order of the report.
BASELINES: dict[str, Baseline] = {
    "base_rate": base_rate,
    "bag_of_words": bag_of_words,
    "query_words": query_words,
    "case_words": case_words,
    "case_mean": case_mean,
    "encoder_cosine": encoder_cosine,
}


def fit_baselines(
    train: Rows,
    test: Rows,
    *,
    query_vectors: NDArray[np.floating[Any]] | None = None,
    case_vectors: NDArray[np.floating[Any]] | None = None,
    seed: int = 0,
) -> dict[str, Values]:
    """Probabilities (T,) of every baseline for the test rows, in the order of `BASELINES`.

    `encoder_cosine` is left out when no vectors are given.

    Raises:
        InvalidInput: no training rows; rows whose texts are numbered differently (see
            `shared_texts`); vectors that do not fit the texts.
    """
    if len(train) == 0:
        raise InvalidInput("no training rows; a baseline needs at least one")
    if not _same_texts(train, test):
        raise InvalidInput(
            "training and test rows number their texts differently; "
            "pass both through shared_texts(train, test) first"
        )
    if (query_vectors is None) != (case_vectors is None):
        raise InvalidInput("give both query_vectors and case_vectors, or neither")
    inputs = Inputs(query_vectors, case_vectors, seed)
    return {
        name: baseline(train, test, inputs)
        for name, baseline in BASELINES.items()
        if name != "encoder_cosine" or query_vectors is not None
    }


def shared_texts(train: Rows, test: Rows) -> tuple[Rows, Rows]:
    """Logs read from two files, over one list of texts and one numbering of queries."""
    if _same_texts(train, test):
        return train, test
    both = joined(train, test)
    return both.take(np.arange(len(train))), both.take(np.arange(len(train), len(both)))


def smoothed_case_mean(train: Rows, test: Rows, strength: float) -> Values:
    """(the case's outcomes + strength * base rate) / (its rows + strength): -> (T,)."""
    y = _outcome(train)
    sums = np.bincount(train.case, weights=y, minlength=len(train.case_texts))
    rows = np.bincount(train.case, minlength=len(train.case_texts))
    means = (sums + strength * y.mean()) / (rows + strength)
    return np.asarray(means[test.case])


def _choose_strength(train: Rows, seed: int) -> float:
    fold = query_folds(train.outcome, train.group, folds=logistic.INNER_FOLDS, seed=seed)
    if fold.max() == 0:
        return STRENGTHS[-1]
    held_out = np.empty((len(STRENGTHS), len(train)))
    for number in range(int(fold.max()) + 1):
        inside = fold == number
        rest, rows = train.take(~inside), train.take(inside)
        for i, strength in enumerate(STRENGTHS):
            held_out[i, inside] = smoothed_case_mean(rest, rows, strength)
    losses = np.array([metrics.log_loss(train.outcome, p) for p in held_out])
    return STRENGTHS[int(np.flatnonzero(losses == losses.min())[-1])]


def _fitted(train: Rows, features: Sequence[tuple[Block, Block]], inputs: Inputs) -> Values:
    """A logistic regression on (training block, test block) pairs -> probabilities (T,)."""
    y = _outcome(train)
    blocks, asked = [pair[0] for pair in features], [pair[1] for pair in features]
    if not 0.0 < float(y.mean()) < 1.0:
        return np.full(len(asked[0].index), float(y.mean()))
    c = logistic.choose_c(blocks, y, train.group, seed=inputs.seed)
    return logistic.probability(logistic.decision(asked, logistic.fit(blocks, y, c=c)))


def _words(
    texts: list[str], train: NDArray[np.int64], test: NDArray[np.int64]
) -> tuple[Block, Block]:
    """TF-IDF of every distinct text once, weighted by the training texts.

    Words that no training text has keep their share of a text's length. Were they dropped, the
    other words of a new text would weigh more than any training text showed, and the inner folds,
    whose held-out words are in the vocabulary, would choose C for another world than the test's.
    """
    used = np.union1d(train, test)
    if any(re.search(TOKEN, texts[i]) for i in used):
        counts = CountVectorizer(token_pattern=TOKEN).fit_transform([texts[i] for i in used])
        weighting = TfidfTransformer(sublinear_tf=True)
        weighting.fit(counts[np.searchsorted(used, np.unique(train))])
        matrix = weighting.transform(counts)
    else:  # nothing but punctuation: no features, which leaves the base rate
        matrix = np.zeros((len(used), 1))
    return Block(matrix, np.searchsorted(used, train)), Block(matrix, np.searchsorted(used, test))


def _unit_vectors(rows: Rows, inputs: Inputs) -> tuple[Values, Values]:
    """Both sets of embeddings, each vector of length 1 (a zero vector stays zero)."""
    unit = []
    for name, vectors, texts in (
        ("query_vectors", inputs.query_vectors, rows.query_texts),
        ("case_vectors", inputs.case_vectors, rows.case_texts),
    ):
        if vectors is None:
            raise InvalidInput(f"{name} is missing; encoder_cosine needs one vector a text")
        if vectors.ndim != 2 or len(vectors) != len(texts):
            raise InvalidInput(
                f"{name} has shape {vectors.shape}; give one vector a text, shape ({len(texts)}, H)"
            )
        if not np.isfinite(vectors).all():
            row = int(np.flatnonzero(~np.isfinite(vectors).all(axis=1))[0])
            raise InvalidInput(f"{name}[{row}] is not finite; check the encoder")
        length = np.linalg.norm(vectors, axis=1, keepdims=True)
        unit.append(np.asarray(vectors / np.where(length > 0, length, 1.0), dtype=np.float64))
    if unit[0].shape[1] != unit[1].shape[1]:
        raise InvalidInput(
            f"query_vectors have {unit[0].shape[1]} values, case_vectors {unit[1].shape[1]}; "
            "both must come from one encoder"
        )
    return unit[0], unit[1]


def _cosine(rows: Rows, query: Values, case: Values) -> Values:
    """(R,) cosines; gathered in slices, so that 10^6 rows do not need 10^6 vectors at once."""
    out = np.empty(len(rows))
    for start in range(0, len(rows), GATHER_ROWS):
        part = slice(start, start + GATHER_ROWS)
        out[part] = np.einsum("rh,rh->r", query[rows.query[part]], case[rows.case[part]])
    return out


def _outcome(rows: Rows) -> Values:
    return metrics.numbers("outcome", rows.outcome)


def _same_texts(first: Rows, second: Rows) -> bool:
    return (
        first.query_texts is second.query_texts or first.query_texts == second.query_texts
    ) and (first.case_texts is second.case_texts or first.case_texts == second.case_texts)
