"""The benchmarks of search and encoder run, agree with themselves, and end with a line of JSON."""

from __future__ import annotations

import json
import time

import numpy as np
import pytest

from benchmarks import encoder, retrieve
from benchmarks.retrieve import Clock, Times, figures_of


@pytest.mark.slow
def test_retrieve_measures_both_ways_and_splits_the_query(tiny_artifact, capsys):
    sizes = ["--queries", "6", "--rounds", "2", "--sample", "5", "--threads", "1"]
    retrieve.main(["--quick", "--artifact", str(tiny_artifact), *sizes])
    said = capsys.readouterr().out
    line = json.loads(said.splitlines()[-1])
    figures = {name: figure["value"] for name, figure in line["figures"].items()}
    assert line["benchmark"] == "retrieve"
    parts = sum(figures[f"{name}_ms"] for name in ("tokens", "encoder", "scan", "rest"))
    assert parts == pytest.approx(figures["query_ms"], rel=1e-3)
    assert figures["ratio"] > 1
    assert line["figures"]["ratio"]["met"] is None  # of a tiny encoder


@pytest.mark.slow
def test_encoder_measures_settings_batches_and_the_gate(tiny_artifact, capsys):
    sizes = ["--queries", "5", "--cases", "12", "--rounds", "1", "--threads", "1"]
    encoder.main(["--quick", "--artifact", str(tiny_artifact), *sizes])
    said = capsys.readouterr().out
    figures = json.loads(said.splitlines()[-1])["figures"]
    assert "int8 gate: " in said
    assert 0 <= figures["int8_top8_overlap"]["value"] <= 1
    assert figures["padding_small_batches"]["value"] <= figures["padding_full_batches"]["value"]
    assert figures["cases_small_batches"]["value"] > 0


def test_a_clock_adds_up_one_method_and_changes_nothing():
    class Thing:
        def double(self, number, *, plus=0):
            time.sleep(0.002)
            return 2 * number + plus

    thing = Thing()
    clock = Clock(thing, "double")
    assert [thing.double(3), thing.double(3, plus=1)] == [6, 7]
    assert clock.ms >= 4
    with pytest.raises(TypeError):
        thing.double()


def test_the_rest_is_what_the_parts_leave_and_only_a_given_target_is_held_against_the_ratio():
    rng = np.random.default_rng(0)
    times = Times(
        ours=[10.0, 12.0, 11.0],
        tokens=[1.0, 1.0, 1.0],
        encoder=[6.0, 7.0, 6.5],
        scan=[2.0, 2.0, 2.0],
        cached=rng.random(3).tolist(),
        memento=[40_000.0, 44_000.0],
        asked_again=[8_000.0, 8_000.0],
        batched=[3000.0, 3000.0],
        ratios=[4000.0, 5000.0],
        once_ratios=[3000.0, 4000.0],
        batched_ratios=[300.0, 300.0],
    )
    figures = figures_of(times, 4000.0)
    assert figures["rest_ms"].value == pytest.approx(11.0 - 1.0 - 6.5 - 2.0)
    assert figures["memento_query_once_s"].value == pytest.approx(42.0)
    assert figures["memento_s"].value == pytest.approx(50.0)
    assert figures["ratio"].met is True
    assert figures_of(times)["ratio"].target is None
