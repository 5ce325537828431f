from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from benchmarks import train_throughput
from benchmarks.memento_loop import MementoLoop, class_weight, with_weights_of
from benchmarks.pace import StepClock
from benchmarks.planted import planted_rows
from retriever.learning.config import (
    EncoderConfig,
    LoggerConfig,
    ModelConfig,
    PlantedConfig,
    TrainConfig,
    TrainerConfig,
)
from retriever.learning.data.collate import TokenTable, tokenise
from retriever.learning.data.outcome_log import read_outcome_log
from retriever.learning.encoder import load_encoder
from retriever.learning.fitting import fit
from retriever.learning.model import CaseClassifier, SplitHead
from retriever.learning.synthetic import PlantedWorld

SMALL = PlantedConfig(rows=100, cases=20, cases_per_run=5, runs_per_query=2, seed=3)


@pytest.fixture
def model_and_table(tiny_encoder: Path) -> tuple[CaseClassifier, TokenTable]:
    encoder = load_encoder(EncoderConfig(source=str(tiny_encoder), max_length=64, pooling="first"))
    with torch.random.fork_rng():
        torch.manual_seed(0)
        head = SplitHead(encoder.hidden_size, 16, 0.2)
    model = CaseClassifier(encoder.model, encoder.pooling, head)
    return model, tokenise(planted_rows(SMALL), encoder.tokenizer)


def test_both_loops_compute_the_same_loss_of_the_same_rows_and_weights(model_and_table):
    model, table = model_and_table
    assert class_weight(table) > 1.0, "equal classes would not show a wrong weight"
    assert train_throughput.loss_difference(model, table, seed=0) < 1e-6


def test_loops_whose_weights_differ_are_not_taken_for_the_same(
    model_and_table, monkeypatch: pytest.MonkeyPatch
):
    model, table = model_and_table

    def with_other_weights(model: CaseClassifier) -> torch.nn.Module:
        twin = with_weights_of(model)
        with torch.no_grad():
            twin.classifier[3].bias[1] += 0.5
        return twin

    monkeypatch.setattr(train_throughput, "with_weights_of", with_other_weights)
    assert train_throughput.loss_difference(model, table, seed=0) > 0.01


def test_mementos_batch_is_padded_to_the_longest_text_of_each_side(model_and_table):
    model, table = model_and_table
    row = np.arange(7)
    _, work = MementoLoop(with_weights_of(model), table, seed=0).loss(row)
    queries = [len(table.query_tokens[i]) for i in table.rows.query[row]]
    cases = [len(table.case_tokens[i]) for i in table.rows.case[row]]
    assert work.positions == 7 * max(queries) + 7 * max(cases)
    assert work.tokens == sum(queries) + sum(cases)
    assert work.padding == pytest.approx(1 - work.tokens / work.positions)


def test_mementos_loop_goes_through_every_row_before_it_repeats_one(
    model_and_table, monkeypatch: pytest.MonkeyPatch
):
    model, table = model_and_table
    loop = MementoLoop(with_weights_of(model), table, seed=0)
    seen: list[np.ndarray] = []
    honest = loop.loss
    monkeypatch.setattr(loop, "loss", lambda row: (seen.append(row), honest(row))[1])
    while sum(map(len, seen)) < 2 * len(table.rows):
        loop.run(1e-9)
    first, second = np.split(np.concatenate(seen)[: 2 * len(table.rows)], 2)
    assert sorted(first) == sorted(second) == list(range(len(table.rows)))
    assert list(first) != list(second)
    assert max(map(len, seen)) == 32


def test_planted_rows_are_what_the_reader_makes_of_the_planted_log(tmp_path: Path):
    PlantedWorld(SMALL).write_log(tmp_path / "log.jsonl")
    read = read_outcome_log(str(tmp_path / "log.jsonl")).rows(use_plan=True)
    made = planted_rows(SMALL)
    assert made.query_texts == read.query_texts
    assert made.case_texts == read.case_texts
    for name in ("query", "case", "group", "run", "outcome", "propensity", "self_case"):
        ours, theirs = getattr(made, name), getattr(read, name)
        assert ours.dtype == theirs.dtype, name
        np.testing.assert_array_equal(ours, theirs, err_msg=name)


def test_the_clock_counts_every_step_but_the_warm_up(tiny_encoder: Path, tmp_path: Path):
    rows = planted_rows(SMALL)
    clock = StepClock(warmup_steps=1)
    config = TrainConfig(
        output_dir=str(tmp_path),
        device="cpu",
        encoder=EncoderConfig(source=str(tiny_encoder), max_length=64),
        model=ModelConfig(hidden=8),
        trainer=TrainerConfig(epochs=2, queries_per_batch=5, precision="fp32", progress=False),
        logger=LoggerConfig(csv=False, tensorboard=False),
    )
    fitted = fit(config, rows, rows, tmp_path, callbacks=[clock])
    # 10 queries of 10 rows, five a step: 2 steps an epoch, 4 in all.
    assert fitted.summary["steps"] == 4
    assert clock.pace.steps == 3
    assert clock.pace.rows == 150
    assert 0 < clock.pace.tokens <= clock.pace.positions
    assert 0 < clock.pace.seconds < fitted.summary["seconds"]


def test_the_quick_benchmark_prints_a_table_and_ends_with_its_json(
    tiny_encoder: Path, capsys: pytest.CaptureFixture[str]
):
    size = ["--encoder", str(tiny_encoder), "--max-length", "64"]
    short = ["--rounds", "1", "--seconds", "0.01", "--precision", "both"]
    train_throughput.main(["--quick", *size, *short])
    lines = capsys.readouterr().out.splitlines()
    assert any(line.startswith("Memento's loop") for line in lines)
    assert any(line.startswith("Precedent fp32") for line in lines)
    body = json.loads(lines[-1])
    assert body["benchmark"] == "train_throughput"
    figures = body["figures"]
    assert set(figures) == {
        "precedent_fp32_pairs_per_s",
        "precedent_bf16_mixed_pairs_per_s",
        "memento_pairs_per_s",
        "ratio_fp32",
        "ratio_bf16_mixed",
        "loss_difference",
    }
    assert all(set(f) == {"value", "unit", "target", "met"} for f in figures.values())
    ratio = figures["precedent_fp32_pairs_per_s"]["value"] / figures["memento_pairs_per_s"]["value"]
    assert figures["ratio_fp32"]["value"] == pytest.approx(ratio, rel=1e-3)
    assert figures["ratio_fp32"]["target"] == 3.0
    assert figures["ratio_bf16_mixed"]["target"] is None
    assert figures["loss_difference"]["met"] is True


def test_the_benchmark_reads_a_log_and_leaves_out_self_cases(
    tiny_encoder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    rows = [
        {"query": f"q{i // 4}", "case": f"c{i}", "plan": "look it up", "truth_label": i < 8}
        for i in range(16)
    ]
    rows.append({"query": "q3", "case": "Q3 ", "plan": "look it up", "truth_label": False})
    log = tmp_path / "rows.jsonl"
    log.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    size = ["--encoder", str(tiny_encoder), "--max-length", "64"]
    train_throughput.main(
        ["--quick", "--log", str(log), *size, "--rounds", "1", "--seconds", "0.01"]
    )
    out = capsys.readouterr().out
    assert "rows.jsonl: 16 rows, 4 queries" in out
    assert json.loads(out.splitlines()[-1])["figures"]["precedent_fp32_pairs_per_s"]["value"] > 0


@pytest.mark.parametrize("wrong", [["--rounds", "0"], ["--seconds", "0"], ["--seconds", "nan"]])
def test_a_measurement_of_nothing_is_refused(wrong, capsys: pytest.CaptureFixture[str]):
    with pytest.raises(SystemExit) as stopped:
        train_throughput.main(["--quick", *wrong])
    assert stopped.value.code == 2
    assert "at least one round, and more than 0 seconds" in capsys.readouterr().err
