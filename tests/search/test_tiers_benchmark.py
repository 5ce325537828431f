"""The tiers' benchmark on a toy bank: what it calls recall is recall, and it ends as all do."""

import json

import numpy as np
import pytest

from benchmarks import tiers, tiers_world
from retriever.scan import open_scanner


@pytest.mark.slow
def test_a_toy_run_prints_curves_and_ends_with_one_line_of_json(monkeypatch, capsys):
    monkeypatch.setattr(tiers, "encoded", lambda cache: None)
    monkeypatch.setattr(tiers, "CANDIDATES", (64, 1024))
    monkeypatch.setattr(tiers, "PROBES", (4,))
    given = ["tiers", "--size", "3000", "--heads", "untrained"]
    monkeypatch.setattr("sys.argv", given)
    tiers.main()
    last = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert last["benchmark"] == "tiers"
    assert last["machine"]["source"] == "synthetic topics"
    recall = last["figures"]["untrained_flat_recall_at_8"]
    assert recall["value"] > 0.95
    assert recall["target"] is None  # the target is for a million cases


def test_the_same_seed_gives_the_same_bank_and_no_test_query_trains_the_head():
    found = tiers_world.substitute()
    one, two = (tiers_world.bank_of(found.cases, 500, 0.5) for _ in range(2))
    np.testing.assert_array_equal(one.projections[0], two.projections[0])
    made = tiers_world.world(found, trained=False)
    assert len(made.dev) + len(made.test) + tiers_world.TRAINING_QUERIES == len(found.queries)
    both = np.vstack([made.dev, made.test])
    assert len(np.unique(both, axis=0)) == len(both)


def test_recall_counts_the_exact_scans_best():
    found = tiers_world.substitute()
    made = tiers_world.world(found, trained=False)
    block = tiers_world.bank_of(made.cases, 800, 0.5)
    asked = tiers.asked_of(made.head, made.test[:6], block, open_scanner("cpu"))
    (cases,) = block.projections
    for query, rows in zip(made.test, asked.right, strict=False):
        exact = np.maximum(cases.astype(np.float64) + query, 0) @ made.head.weight
        assert rows.tolist() == np.argsort(-exact)[:8].tolist()
    everything = type("All", (), {"candidates": lambda *_: [np.arange(800)]})()
    nothing = type("Few", (), {"candidates": lambda *_: [np.arange(1)]})()
    assert tiers.point("all", everything, asked, 800).recall == 1.0
    assert tiers.point("few", nothing, asked, 1).recall < 0.2


@pytest.mark.parametrize("size", ["0", "-1", "999"])
def test_a_bank_too_small_for_tiers_is_refused_at_once(size, monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["tiers", "--size", size])
    with pytest.raises(SystemExit) as status:
        tiers.main()
    assert status.value.code == 2
    assert f"--size must be at least 1000, got {size}" in capsys.readouterr().err
