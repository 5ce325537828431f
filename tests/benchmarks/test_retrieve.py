"""The benchmarks of search and encoder run, agree with themselves, and end with a line of JSON."""

from __future__ import annotations

import json
import time

import numpy as np
import pytest

from benchmarks import encoder, retrieve
from benchmarks.retrieve import Clock, Times, figures_of
from retriever.scorer import load


@pytest.mark.slow
def test_retrieve_measures_both_ways_and_splits_the_query(tiny_artifact, capsys):
    sizes = ["--queries", "6", "--rounds", "3", "--sample", "5", "--threads", "1"]
    retrieve.main(["--quick", "--artifact", str(tiny_artifact), *sizes])
    said = capsys.readouterr().out
    line = json.loads(said.splitlines()[-1])
    figures = {name: figure["value"] for name, figure in line["figures"].items()}
    assert line["benchmark"] == "retrieve"
    parts = sum(figures[f"{name}_ms"] for name in ("tokens", "encoder", "scan", "rest"))
    assert parts == pytest.approx(figures["query_ms"], rel=1e-3)
    assert figures["ratio"] > 1
    assert figures["memento_s"] > figures["memento_query_once_s"]
    for words in ("medians of 3 rounds", "a pair at a time", "encoded once", "batches by ONNX"):
        assert words in said
    assert "target, a pair" not in said
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
        memento=[48_000.0, 52_000.0],
        pair=[29.0, 31.0],
        once=[40_000.0, 44_000.0],
        batched=[3000.0, 3000.0],
        ratios=[4000.0, 5000.0],
        once_ratios=[3000.0, 4000.0],
        batched_ratios=[300.0, 300.0],
    )
    figures = figures_of(times, 4000.0)
    assert figures["rest_ms"].value == pytest.approx(11.0 - 1.0 - 6.5 - 2.0)
    assert figures["memento_query_once_s"].value == pytest.approx(42.0)
    assert figures["memento_s"].value == pytest.approx(50.0)
    assert figures["memento_pair_ms"].value == pytest.approx(30.0)
    assert figures["ratio"].met is True
    assert figures_of(times)["ratio"].target is None


def test_both_ways_in_torch_are_timed_with_one_thread_and_with_all(monkeypatch):
    counts, seen = [1], []
    monkeypatch.setattr(retrieve.torch, "set_num_threads", lambda count: counts.append(count))
    monkeypatch.setattr(retrieve, "_ms", lambda work: work())

    def way(query, numbers):
        seen.append((counts[-1], len(numbers)))
        return len(numbers) * (9.0 if counts[-1] == 1 else 2.0)

    assert retrieve.memento_ms(way, "q", list(range(10)), 4) == 20.0
    assert seen == [(1, 5), (4, 5)]


class Recorded:
    """An encoder, by hand: what was encoded."""

    def __init__(self, memento):
        self.texts = []
        self.encode, memento._encode = memento._encode, self

    def __call__(self, text):
        self.texts.append(text)
        return self.encode(text)


def test_a_pair_is_both_texts_and_both_ways_give_the_same_scores(tiny_artifact):
    cases = ["one", "two", "three"]
    memento = retrieve.MementoWay(tiny_artifact, load(tiny_artifact, device="cpu"), cases)
    recorded = Recorded(memento)
    pairs = memento.pairs("asked", [0, 2])
    assert recorded.texts == ["asked", "one", "asked", "three"]
    recorded.texts.clear()
    np.testing.assert_array_equal(memento.logits("asked", [0, 2]), pairs)
    assert recorded.texts == ["asked", "one", "three"]


def written(folder, memory, training='{"query": "a"}'):
    (folder / "memory.jsonl").write_text(memory, encoding="utf-8")
    (folder / "training_data.jsonl").write_text(training, encoding="utf-8")
    return str(folder)


@pytest.mark.parametrize("benchmark", [retrieve, encoder])
@pytest.mark.parametrize(
    ("given", "says"),
    [
        (["--artifact", "/nope"], "--artifact /nope: no folder"),
        (["--artifact", "{folder}"], "{folder}"),
        (["--data", "/nope"], "no file memory.jsonl in /nope"),
        (["--data", "{broken}"], "memory.jsonl, line 2: a JSON object with case, plan"),
        (["--data", "{few}"], "0 queries"),
    ],
)
def test_a_wrong_path_or_file_is_said_in_one_line_with_status_2(
    tmp_path, capsys, benchmark, given, says
):
    for name in ("empty", "broken", "few"):
        (tmp_path / name).mkdir()
    places = {
        "folder": str(tmp_path / "empty"),
        "broken": written(tmp_path / "broken", '{"case": "a", "plan": "b"}\n["a"]\n'),
        "few": written(tmp_path / "few", '{"case": "a", "plan": "b"}'),
    }
    with pytest.raises(SystemExit) as status:
        benchmark.main(["--quick", *(text.format(**places) for text in given)])
    assert status.value.code == 2
    said = capsys.readouterr().err
    assert says.format(**places) in said.splitlines()[-1]
    assert "Traceback" not in said


@pytest.mark.parametrize(
    ("given", "says"),
    [
        (["--quick", "--precision", "int8"], "--precision int8 needs --artifact"),
        (["--quick", "--rounds", "2"], "--rounds 2: a median takes at least 3"),
    ],
)
def test_what_cannot_be_measured_is_refused_at_once(capsys, given, says):
    with pytest.raises(SystemExit) as status:
        retrieve.parse(given)
    assert status.value.code == 2
    assert says in capsys.readouterr().err
