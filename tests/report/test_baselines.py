from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression

from retriever.errors import InvalidInput
from retriever.learning import logistic, metrics
from retriever.learning.baselines import (
    BASELINES,
    Inputs,
    case_mean,
    fit_baselines,
    shared_texts,
    smoothed_case_mean,
)
from retriever.learning.logistic import Block
from tests.report.logs import log


def planted(seed=0, queries=60, cases=12, per_query=6):
    """Easy and hard queries, good and bad cases, told by one word each: train, test, vectors."""
    rng = np.random.default_rng(seed)
    easy, good = rng.random(queries) < 0.5, rng.random(cases) < 0.5
    easy[:2], good[:2] = (True, False), (True, False)
    rows = []
    for q in range(queries):
        for c in rng.permutation(cases)[:per_query]:
            chance = 0.1 + 0.4 * easy[q] + 0.4 * good[c]
            query = f"{'plain' if easy[q] else 'obscure'} question {q}"
            rows.append(
                (query, f"{'verify' if good[c] else 'guess'} plan {c}", rng.random() < chance)
            )
    both = log(rows)
    held_out = both.group % 3 == 0
    texts = both.query_texts, both.case_texts
    vectors = [
        np.array([[1.0, 2.0 * ("verify" in t or "plain" in t)] for t in side]) for side in texts
    ]
    return both.take(~held_out), both.take(held_out), vectors


def all_baselines(train, test, vectors):
    return fit_baselines(train, test, query_vectors=vectors[0], case_vectors=vectors[1], seed=0)


def test_every_baseline_gives_one_probability_a_test_row_in_the_reports_order():
    train, test, vectors = planted()
    found = all_baselines(train, test, vectors)
    assert list(found) == list(BASELINES)
    for probability in found.values():
        assert probability.shape == (len(test),)
        assert ((probability >= 0) & (probability <= 1)).all()


def test_each_baseline_finds_the_part_of_the_signal_that_it_can_see():
    train, test, vectors = planted(queries=240, per_query=8)
    found = all_baselines(train, test, vectors)
    loss = {name: metrics.log_loss(test.outcome, p) for name, p in found.items()}
    assert loss["query_words"] < loss["base_rate"] - 0.01
    assert loss["case_words"] < loss["base_rate"] - 0.01
    assert loss["case_mean"] < loss["base_rate"] - 0.01
    assert loss["bag_of_words"] < min(loss["query_words"], loss["case_words"])
    # What sees only the query cannot rank cases; what sees only the case ranks all queries alike.
    assert metrics.within_query_auc(test.outcome, found["query_words"], test.group).auc == 0.5
    assert len(set(zip(test.case, found["case_words"], strict=True))) == len(set(test.case))


def test_no_baseline_looks_at_a_test_outcome():
    train, test, vectors = planted()
    before = all_baselines(train, test, vectors)
    after = all_baselines(train, replace(test, outcome=1 - test.outcome), vectors)
    for name in before:
        np.testing.assert_array_equal(before[name], after[name], err_msg=name)


def test_the_same_rows_and_seed_give_the_same_probabilities():
    train, test, vectors = planted()
    first, second = (all_baselines(train, test, vectors) for _ in range(2))
    for name in first:
        np.testing.assert_array_equal(first[name], second[name], err_msg=name)


def test_the_case_mean_is_the_one_worked_out_by_hand():
    # Base rate 3/5. "a": 2 of 2; "b": 0 of 2; "c": 1 of 1; "new": never seen.
    train = [("q1", "a", 1), ("q2", "a", 1), ("q1", "b", 0), ("q3", "b", 0), ("q3", "c", 1)]
    both = log([*train, ("q4", "a", 0), ("q4", "b", 0), ("q4", "c", 0), ("q4", "new", 0)])
    rows, test = both.take(np.arange(5)), both.take(np.arange(5, 9))
    expected = [(2 + 1.2) / 4, (0 + 1.2) / 4, (1 + 1.2) / 3, 0.6]
    np.testing.assert_allclose(smoothed_case_mean(rows, test, 2.0), expected)


def test_the_case_mean_trusts_cases_that_repeat_themselves_and_distrusts_noise():
    rng = np.random.default_rng(0)
    telling = log([(f"q{i}", f"c{i % 4}", float(i % 4 < 2)) for i in range(80)])
    noise = log([(f"q{i}", f"c{i % 20}", float(rng.random() < 0.5)) for i in range(600)])
    trusted = case_mean(telling, telling, Inputs())
    np.testing.assert_array_equal(trusted >= 0.5, telling.outcome >= 0.5)
    assert np.ptp(trusted) > 0.9
    assert np.ptp(smoothed_case_mean(noise, noise, 0.5)) > 0.2
    assert np.ptp(case_mean(noise, noise, Inputs())) < 0.1


def test_a_telling_cosine_is_used_whatever_its_sign():
    rng = np.random.default_rng(1)
    vectors = rng.standard_normal((200, 8))
    rows = log([(f"q{i}", f"c{i}", 0.0) for i in range(200)])
    agree = np.arange(200) % 2 == 0
    cases = np.where(agree[:, None], vectors, -vectors) + 0.3 * rng.standard_normal((200, 8))
    rows = replace(rows, outcome=(~agree).astype(np.float32))  # far cases help
    train, test = rows.take(np.arange(150)), rows.take(np.arange(150, 200))
    found = BASELINES["encoder_cosine"](train, test, Inputs(vectors, cases))
    assert metrics.auc(test.outcome, found) == 1.0


@pytest.mark.parametrize("outcome", [0.0, 1.0])
def test_training_rows_of_one_class_give_the_base_rate(outcome):
    train, test, vectors = planted()
    train = replace(train, outcome=np.full_like(train.outcome, outcome))
    for name, probability in all_baselines(train, test, vectors).items():
        np.testing.assert_array_equal(probability, outcome, err_msg=name)


def test_one_training_query_is_enough():
    both = log([("q", "a", 1), ("q", "b", 0), ("other", "a", 0)])
    found = fit_baselines(both.take(np.arange(2)), both.take(np.arange(2, 3)))
    assert found["base_rate"].tolist() == [0.5]
    for probability in found.values():
        assert probability[0] == pytest.approx(0.5, abs=0.05)


def test_no_test_rows_give_no_probabilities():
    train, test, vectors = planted()
    for probability in all_baselines(train, test.take(np.arange(0)), vectors).values():
        assert probability.shape == (0,)


def test_texts_without_a_single_word_leave_the_base_rate():
    both = log([("?", "!", 1), ("??", "!!", 0), ("???", "!", 0), ("????", "…", 1)])
    found = fit_baselines(both.take(np.arange(3)), both.take(np.arange(3, 4)))
    for name in ("query_words", "case_words", "bag_of_words"):
        assert found[name][0] == pytest.approx(1 / 3, abs=1e-3)


def test_words_new_in_the_test_rows_do_not_make_the_known_ones_louder():
    # Every query has a word of its own. Dropping those of the test side would double the weight of
    # the one word that matters, and probabilities fitted on the training side would be too extreme.
    train, test, _ = planted(queries=240, per_query=8)
    found = fit_baselines(train, test)["query_words"]
    assert metrics.ece(test.outcome, found) < 0.1
    alone = fit_baselines(train, test.take(np.arange(1)))["query_words"]
    assert alone[0] == pytest.approx(found[0], rel=1e-9)  # other test rows change nothing


def test_the_cosine_is_left_out_without_vectors():
    train, test, _ = planted()
    assert "encoder_cosine" not in fit_baselines(train, test)


def test_a_zero_vector_has_a_cosine_of_zero():
    train, test, vectors = planted()
    vectors[0][:] = 0.0
    found = all_baselines(train, test, vectors)["encoder_cosine"]
    np.testing.assert_allclose(found, train.outcome.mean(), atol=1e-4)


def test_fractional_outcomes_are_learnt_from():
    train, test, vectors = planted(queries=120)
    soft = replace(train, outcome=(0.2 + 0.6 * train.outcome).astype(np.float32))
    found = all_baselines(soft, test, vectors)
    assert found["base_rate"][0] == pytest.approx(soft.outcome.mean())
    assert metrics.auc(test.outcome, found["bag_of_words"]) > 0.6


def test_a_test_log_of_its_own_is_scored_like_a_part_of_the_same_log():
    train, test, _ = planted()
    part = fit_baselines(train, test)
    names = [
        (test.query_texts[q], test.case_texts[c])
        for q, c in zip(test.query, test.case, strict=True)
    ]
    order = np.arange(len(test))[::-1]
    own = log([(*names[i], float(test.outcome[i])) for i in order])
    with pytest.raises(InvalidInput, match="shared_texts"):
        fit_baselines(train, own)
    joined_train, joined = shared_texts(train, own)
    for name, probability in fit_baselines(joined_train, joined).items():
        np.testing.assert_allclose(probability, part[name][order], rtol=1e-6, err_msg=name)


def test_joining_two_logs_keeps_texts_and_tells_one_query_from_another():
    train = log([("How far?", "a", 1), ("Who?", "b", 0)])
    test = log([("who?  ", "b", 1), ("When?", "c", 0), ("How far?", "b", 0)])
    first, second = shared_texts(train, test)
    assert first.query_texts is second.query_texts
    assert [second.query_texts[q] for q in second.query] == ["who?  ", "When?", "How far?"]
    assert [second.case_texts[c] for c in second.case] == ["b", "c", "b"]
    assert second.group.tolist() == [1, 2, 0]
    assert first.group.tolist() == [0, 1]
    assert not set(first.run.tolist()) & set(second.run.tolist())


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (lambda q, c: (q, None), "both query_vectors and case_vectors"),
        (lambda q, c: (q[:-1], c), "query_vectors has shape"),
        (lambda q, c: (q, c[:, :1]), "one encoder"),
        (lambda q, c: (q, np.where(c > 1, np.nan, c)), "case_vectors.* is not finite"),
    ],
)
def test_vectors_that_do_not_fit_are_refused_by_name(change, named):
    train, test, vectors = planted()
    query, case = change(*vectors)
    with pytest.raises(InvalidInput, match=named):
        fit_baselines(train, test, query_vectors=query, case_vectors=case)


def test_the_cosine_asked_for_by_name_without_vectors_is_refused():
    train, test, _ = planted()
    with pytest.raises(InvalidInput, match="query_vectors is missing"):
        BASELINES["encoder_cosine"](train, test, Inputs())


def test_an_empty_training_side_is_refused():
    train, test, _ = planted()
    with pytest.raises(InvalidInput, match="no training rows"):
        fit_baselines(train.take(np.arange(0)), test)


@pytest.mark.parametrize("c", [0.01, 1.0, 10.0])
def test_the_logistic_regression_over_shared_texts_is_scikit_learns(c):
    train, _, _ = planted(seed=3)
    blocks, dense = [], []
    for texts, index in ((train.query_texts, train.query), (train.case_texts, train.case)):
        matrix = TfidfVectorizer().fit_transform(texts)
        blocks.append(Block(matrix, index))
        dense.append(matrix.toarray()[index])
    y = train.outcome.astype(np.float64)
    twin = LogisticRegression(C=c, tol=1e-8, max_iter=5000).fit(np.hstack(dense), y)
    found = logistic.fit(blocks, y, c=c)
    np.testing.assert_allclose(found[:-1], twin.coef_[0], atol=2e-3)
    assert found[-1] == pytest.approx(twin.intercept_[0], abs=2e-3)
    logits = logistic.decision(blocks, found)
    np.testing.assert_allclose(logits, twin.decision_function(np.hstack(dense)), atol=2e-3)


def test_a_logistic_regression_on_one_class_is_refused():
    with pytest.raises(InvalidInput, match="needs two classes, got only outcome 1"):
        logistic.fit([Block(np.ones((1, 1)), np.zeros(3, np.int64))], np.ones(3), c=1.0)


def test_regularisation_is_strong_for_noise_and_weak_for_signal():
    rng = np.random.default_rng(0)
    group = np.arange(150)
    noise = Block(rng.standard_normal((150, 40)), group)
    telling = Block(rng.standard_normal((150, 1)), group)
    coin = (rng.random(150) < 0.5).astype(float)
    sign = (telling.matrix[:, 0] > 0).astype(float)
    assert logistic.choose_c([noise], coin, group, seed=0) == logistic.GRID[0]
    assert logistic.choose_c([telling], sign, group, seed=0) == logistic.GRID[-1]


def test_c_is_chosen_on_queries_that_no_inner_fold_has_seen():
    # Rows of a query share features and a coin's outcome. Folds that split a query would find its
    # features telling and choose a weak regularisation, which the second half shows.
    rng = np.random.default_rng(0)
    queries, per_query = 60, 5
    group = np.repeat(np.arange(queries), per_query)
    words = Block(rng.standard_normal((queries, 90)), group)
    coin = rng.permutation(np.arange(queries) % 2).astype(float)[group]
    assert logistic.choose_c([words], coin, group, seed=0) == logistic.GRID[0]
    split = np.arange(len(group))
    assert logistic.choose_c([words], coin, split, seed=0) > logistic.GRID[0]


def test_the_pull_of_the_case_mean_is_chosen_on_unseen_queries_too():
    # Every query has a case of its own and one outcome, so no case tells of another query.
    rows = log([(f"q{i // 5}", f"c{i // 5}", float(i // 5 % 2)) for i in range(200)])
    assert np.ptp(case_mean(rows, rows, Inputs())) < 0.01
