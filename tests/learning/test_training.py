"""Training through its public door, with a tiny encoder and a small planted log."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import retriever
import retriever.learning.training
from retriever.artifact import held_in_training, query_digest, read_manifest, training_queries
from retriever.errors import ConfigError, EncoderUnavailable, InvalidInput, SplitRefused
from retriever.learning.config import (
    DataConfig,
    EncoderConfig,
    ExportConfig,
    ModelConfig,
    ObjectiveConfig,
    PlantedConfig,
    ReportConfig,
    TrainConfig,
    TrainerConfig,
)
from retriever.learning.data.outcome_log import read_outcome_log
from retriever.learning.data.split import grouped_split
from retriever.learning.fitting import fit
from retriever.learning.training import train

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def planted_log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from retriever.learning.synthetic import PlantedWorld

    path = tmp_path_factory.mktemp("log") / "log.jsonl"
    PlantedWorld(PlantedConfig(rows=480, cases=40, cases_per_run=4, families=4)).write_log(path)
    return path


@pytest.fixture
def config(tmp_path: Path, tiny_encoder: Path, planted_log: Path) -> TrainConfig:
    return TrainConfig(
        output_dir=str(tmp_path / "run"),
        device="cpu",
        encoder=EncoderConfig(source=str(tiny_encoder), max_length=64),
        model=ModelConfig(hidden=16, dropout=0.2),
        data=DataConfig(train=str(planted_log)),
        trainer=TrainerConfig(
            epochs=2, learning_rate=1e-3, queries_per_batch=8, patience=0, progress=False
        ),
        report=ReportConfig(bootstrap=100, baselines=False),
        export=ExportConfig(onnx=False),
    )


def changed(config: TrainConfig, **sections: Any) -> TrainConfig:
    """A copy with values of its sections, or of itself, replaced."""
    plain = {k: v for k, v in sections.items() if not isinstance(v, dict)}
    nested = {
        k: dataclasses.replace(getattr(config, k), **v)
        for k, v in sections.items()
        if isinstance(v, dict)
    }
    return dataclasses.replace(config, **plain, **nested)


def split_rows(config: TrainConfig) -> tuple[Any, Any]:
    assert config.data.train is not None
    rows = read_outcome_log(config.data.train).rows(True)
    split = grouped_split(rows, validation_fraction=0.2, test_fraction=0.0, seed=0)
    return rows.take(split.train), rows.take(split.validation)


def weights(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    return {name: tensor.clone() for name, tensor in model.state_dict().items()}


def assert_same(first: dict[str, torch.Tensor], second: dict[str, torch.Tensor]) -> None:
    assert first.keys() == second.keys()
    for name, tensor in first.items():
        torch.testing.assert_close(tensor, second[name], rtol=0, atol=0, msg=name)


def test_training_leaves_a_report_and_an_artifact_that_scores_like_the_report(
    config: TrainConfig,
) -> None:
    result = train(config)
    report = json.loads((result.output_dir / "report.json").read_text())
    assert report["evaluated_on"] == "test"
    assert report["systems"].keys() == {"model", "model, uncalibrated"}
    assert result.artifact is not None
    # The artifact, in another engine's hands, gives the probabilities that the report judged.
    assert config.data.train is not None
    rows = read_outcome_log(config.data.train).rows(True)
    split = grouped_split(rows, validation_fraction=0.1, test_fraction=0.1, seed=0)
    test = rows.take(split.test)
    scorer = retriever.load(result.artifact, engine="torch", device="cpu")
    asked = scorer.query_projections([test.query_texts[i] for i in test.query])
    shown = scorer.project_texts([test.case_texts[i] for i in test.case])
    logit = np.maximum(asked + shown, 0) @ scorer.head.weight + scorer.head.offset
    a, b = scorer.calibration.a, scorer.calibration.b
    p = 1 / (1 + np.exp(-(a * logit.astype(np.float64) + b)))
    y = test.outcome
    log_loss = -np.mean(y * np.log(p) + (1 - y) * np.log(1 - p))
    assert report["systems"]["model"]["metrics"]["log_loss"]["estimate"] == pytest.approx(
        log_loss, abs=1e-4
    )
    assert report["calibration"][0]["a"] == pytest.approx(a)


def test_an_artifact_knows_which_cases_and_queries_it_was_trained_on(config: TrainConfig) -> None:
    result = train(config)
    assert result.artifact is not None
    manifest = read_manifest(result.artifact)
    rows = read_outcome_log(str(config.data.train)).rows(True)
    split = grouped_split(rows, validation_fraction=0.1, test_fraction=0.1, seed=0)
    seen = rows.case_texts[int(rows.case[split.train[0]])]
    assert held_in_training(result.artifact, manifest, seen)
    assert not held_in_training(result.artifact, manifest, seen + "!")
    assert manifest.training["split_digest"] == split.digest
    assert seen not in (result.artifact / "training_cases.txt").read_text()
    # And which queries it has met: all but those of its report.
    met, key = training_queries(result.artifact, manifest), manifest.training["case_key"]
    test = {rows.query_texts[i] for i in rows.query[split.test]}
    for text in rows.query_texts:
        assert (query_digest(key, text) in (met or ())) == (text not in test)


def test_dropout_is_on_while_training_and_off_afterwards(config: TrainConfig) -> None:
    seen: list[bool] = []
    forward = torch.nn.Dropout.forward

    def spy(self: torch.nn.Dropout, x: torch.Tensor) -> torch.Tensor:
        seen.append(self.training)
        return forward(self, x)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.nn.Dropout, "forward", spy)
        fitted = fit(config, *split_rows(config), Path(config.output_dir))
    # The encoder's layers as well as the head's: far more calls in training mode than the head's.
    assert sum(seen) > fitted.summary["steps"] * 4
    assert not fitted.model.training


def test_the_same_seed_gives_the_same_weights_and_another_seed_others(config: TrainConfig) -> None:
    rows = split_rows(config)
    first = weights(fit(config, *rows, Path(config.output_dir) / "a").model)
    second = weights(fit(config, *rows, Path(config.output_dir) / "b").model)
    assert_same(first, second)
    other = weights(fit(changed(config, seed=1), *rows, Path(config.output_dir) / "c").model)
    assert not torch.equal(first["head.output.weight"], other["head.output.weight"])


@pytest.mark.parametrize(
    ("stop_after", "every"),
    [(9, 1), (7, 7), (12, 0), (3, 1)],
    ids=["mid second epoch", "mid first epoch", "end of an epoch", "early"],
)
def test_an_interrupted_run_that_is_resumed_equals_the_straight_run(
    config: TrainConfig, stop_after: int, every: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    from retriever.learning.module import RetrieverModule

    rows = split_rows(config)
    steps_per_epoch = -(-len(np.unique(rows[0].group)) // 8)
    assert 4 < steps_per_epoch < stop_after + 5
    if every == 0:
        stop_after = steps_per_epoch
    config = changed(config, trainer={"checkpoint_every_steps": every, "epochs": 3})
    folder = Path(config.output_dir)
    straight = fit(config, *rows, folder / "straight")

    class Cut(Exception):
        """The power goes out."""

    step = RetrieverModule.training_step
    taken = 0

    def cut(self: RetrieverModule, batch: Any, batch_idx: int) -> torch.Tensor:
        nonlocal taken
        if taken == stop_after:
            raise Cut
        taken += 1
        return step(self, batch, batch_idx)

    with monkeypatch.context() as patch:
        patch.setattr(RetrieverModule, "training_step", cut)
        with pytest.raises(Cut):
            fit(config, *rows, folder / "cut")
    resumed = fit(changed(config, resume=True), *rows, folder / "cut")
    assert resumed.summary["steps"] == straight.summary["steps"]
    assert_same(weights(straight.model), weights(resumed.model))
    assert resumed.summary["best_validation_log_loss"] == pytest.approx(
        straight.summary["best_validation_log_loss"], abs=0
    )
    last = [
        torch.load(folder / name / "checkpoints" / "last.ckpt", weights_only=True)["state_dict"]
        for name in ("straight", "cut")
    ]
    assert_same(last[0], last[1])


def test_a_pipe_gets_lines_where_a_terminal_gets_a_bar(
    config: TrainConfig, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("retriever.learning.fitting.SECONDS_BETWEEN_LINES", 0.0)
    caplog.set_level("INFO", logger="retriever")
    fit(changed(config, trainer={"epochs": 1}), *split_rows(config), Path(config.output_dir))
    said = [record.getMessage() for record in caplog.records]
    steps = sum(line.startswith("step ") and "loss" in line for line in said)
    assert steps >= 5
    assert f"epoch 1/1: {steps} steps" in said
    assert any(line.startswith("epoch 1: validation log-loss 0.") for line in said)


def test_early_stopping_keeps_its_patience_and_the_best_epoch(config: TrainConfig) -> None:
    config = changed(
        config, trainer={"epochs": 30, "patience": 1, "learning_rate": 3e-2, "warmup_fraction": 0.0}
    )
    fitted = fit(config, *split_rows(config), Path(config.output_dir))
    assert fitted.summary["epochs"] < 30
    state = torch.load(Path(config.output_dir) / "checkpoints" / "best.ckpt", weights_only=True)
    assert state["epoch"] < fitted.summary["epochs"] - 1
    best = {k.removeprefix("model."): v for k, v in state["state_dict"].items()}
    assert_same(best, weights(fitted.model))


def test_cross_validation_scores_every_row_once_and_resumes_finished_folds(
    config: TrainConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = changed(config, data={"folds": 3}, trainer={"epochs": 1})
    config = changed(config, report={"baselines": True})
    result = train(config)
    report = result.report
    assert result.artifact is None
    assert report["evaluated_on"] == "out-of-fold"
    assert report["rows"]["rows"] == 480
    assert {"base_rate", "bag_of_words", "query_words", "case_words", "case_mean"} < set(
        report["systems"]
    )
    assert "encoder_cosine" in report["systems"]

    def refuse(*_: Any) -> None:
        raise AssertionError("a finished fold was fitted again")

    monkeypatch.setattr("retriever.learning.training.fit", refuse)
    again = train(changed(config, resume=True))
    assert again.report["systems"] == report["systems"]
    with pytest.raises(AssertionError, match="fitted again"):
        train(changed(config, resume=True, seed=5))


def test_a_test_log_that_shares_a_query_is_refused_by_name(
    config: TrainConfig, planted_log: Path, tmp_path: Path
) -> None:
    line = json.loads(planted_log.read_text().splitlines()[0])
    line["query"] = f"  {line['query'].upper()} "
    test = tmp_path / "test.jsonl"
    test.write_text(json.dumps(line) + "\n")
    with pytest.raises(InvalidInput, match="1 of its queries are also in the training log"):
        train(changed(config, data={"test": str(test)}))


def test_a_separate_test_log_is_what_the_report_is_about(
    config: TrainConfig, tmp_path: Path
) -> None:
    from retriever.learning.synthetic import PlantedWorld

    test = tmp_path / "test.jsonl"
    settings = PlantedConfig(rows=96, cases=40, cases_per_run=4, families=4, seed=9)
    PlantedWorld(settings).write_log(test)
    config = changed(config, data={"test": str(test)}, report={"baselines": True})
    report = train(config).report
    assert report["evaluated_on"] == "test"
    assert report["rows"]["rows"] == 96


def test_without_test_rows_the_report_says_it_is_about_the_rows_that_chose_the_epoch(
    config: TrainConfig,
) -> None:
    report = train(changed(config, data={"test_fraction": 0.0})).report
    assert report["evaluated_on"] == "validation"


def test_self_cases_are_not_trained_on_unless_wanted(config: TrainConfig, tmp_path: Path) -> None:
    lines = [json.loads(x) for x in Path(str(config.data.train)).read_text().splitlines()]
    for line in lines[::2]:
        line["case"] = line["query"]
    path = tmp_path / "self.jsonl"
    path.write_text("".join(json.dumps(x) + "\n" for x in lines))
    config = changed(config, data={"train": str(path)}, trainer={"max_steps": 2, "epochs": 1})
    without = read_manifest(Path(str(train(config).artifact))).training["rows"]
    config = changed(config, data={"drop_self_cases": False}, output_dir=str(tmp_path / "with"))
    assert read_manifest(Path(str(train(config).artifact))).training["rows"] == 2 * without


@pytest.mark.parametrize("rows", ["one query", "one class"])
def test_a_log_that_cannot_be_split_is_refused_with_the_reason(
    config: TrainConfig, tmp_path: Path, rows: str
) -> None:
    lines = [
        {
            "run_id": str(i),
            "query": "q" if rows == "one query" else f"q{i}",
            "case": f"c{i}",
            "outcome": 1 if rows == "one class" else i % 2,
        }
        for i in range(20)
    ]
    path = tmp_path / "log.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    with pytest.raises(SplitRefused, match=r"quer|class|outcome"):
        train(changed(config, data={"train": str(path)}))


def test_bf16_training_stays_close_to_fp32(config: TrainConfig) -> None:
    rows = split_rows(config)
    full = fit(config, *rows, Path(config.output_dir) / "full").summary
    half = fit(
        changed(config, trainer={"precision": "bf16-mixed"}),
        *rows,
        Path(config.output_dir) / "half",
    ).summary
    assert half["precision"] == "bf16-mixed"
    assert half["best_validation_log_loss"] == pytest.approx(
        full["best_validation_log_loss"], abs=0.03
    )


def test_several_devices_without_a_launcher_are_refused_with_the_command(
    config: TrainConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("LOCAL_RANK", raising=False)
    monkeypatch.delenv("SLURM_PROCID", raising=False)
    with pytest.raises(ConfigError, match="torchrun --nproc-per-node 2"):
        train(changed(config, trainer={"devices": 2}))


def test_a_missing_encoder_is_one_clear_error(config: TrainConfig, tmp_path: Path) -> None:
    with pytest.raises(EncoderUnavailable, match="nowhere"):
        train(changed(config, encoder={"source": str(tmp_path / "nowhere")}))


def learned_log_loss(config: TrainConfig, objective: ObjectiveConfig, folder: str) -> float:
    rows = split_rows(config)
    fitted = fit(
        dataclasses.replace(config, objective=objective), *rows, Path(config.output_dir) / folder
    )
    return float(fitted.summary["best_validation_log_loss"])


def test_class_weights_cost_log_loss_which_is_why_they_are_off(config: TrainConfig) -> None:
    config = changed(config, trainer={"epochs": 3})
    plain = learned_log_loss(config, ObjectiveConfig(), "plain")
    weighted = learned_log_loss(config, ObjectiveConfig(positive_weight=8.0), "weighted")
    assert weighted > plain + 0.02


def flipped(log: Path, queries: set[str], path: Path) -> Path:
    """The log with the outcomes of the rows of `queries` turned round."""
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    for line in lines:
        if line["query"] in queries:
            line["outcome"] = 1 - int(line["outcome"])
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def test_outcomes_of_test_rows_change_neither_model_nor_calibration_nor_baselines(
    config: TrainConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The split is stratified by outcome, so the same one is given to both runs.
    log = Path(str(config.data.train))
    rows = read_outcome_log(str(log)).rows(True)
    split = grouped_split(rows, validation_fraction=0.2, test_fraction=0.2, seed=0)
    monkeypatch.setattr("retriever.learning.training.split_of", lambda *_: split)
    tested = {rows.query_texts[i] for i in rows.query[split.test]}
    config = changed(config, report={"baselines": True}, trainer={"epochs": 1})
    seen: list[dict[str, Any]] = []
    build = retriever.learning.training.build_report

    def spy(judged: Any, predictions: dict[str, Any], **rest: Any) -> dict[str, Any]:
        seen.append(predictions)
        return build(judged, predictions, **rest)

    monkeypatch.setattr("retriever.learning.training.build_report", spy)
    first = train(config)
    other = flipped(log, tested, tmp_path / "flipped.jsonl")
    second = train(
        changed(config, data={"train": str(other)}, output_dir=str(tmp_path / "flipped"))
    )
    assert first.report["calibration"] == second.report["calibration"]
    assert seen[0].keys() == seen[1].keys() >= {"model", "bag_of_words", "case_mean"}
    for name, probability in seen[0].items():
        np.testing.assert_array_equal(probability, seen[1][name], err_msg=name)
    assert first.report["systems"]["model"] != second.report["systems"]["model"]


def test_the_leakage_figure_counts_what_is_there(
    config: TrainConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = read_outcome_log(str(config.data.train)).rows(True)
    split = grouped_split(rows, validation_fraction=0.1, test_fraction=0.1, seed=0)
    leaking = dataclasses.replace(split, test=np.concatenate([split.test, split.train[:1]]))
    monkeypatch.setattr("retriever.learning.training.split_of", lambda *_: leaking)
    with pytest.raises(Exception, match="quer"):
        train(config)
    monkeypatch.setattr("retriever.learning.training.check_disjoint", lambda *_: None)
    report = train(config).report
    assert report["leakage"]["shared_queries"] == 1


def test_rows_that_calibrate_are_not_judged_by_their_own_calibration(
    config: TrainConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    from retriever.learning import calibration

    asked: list[int] = []
    cross = calibration.cross_fitted

    def spy(logit: Any, *rest: Any, **named: Any) -> Any:
        asked.append(len(logit))
        return cross(logit, *rest, **named)

    monkeypatch.setattr("retriever.learning.calibration.cross_fitted", spy)
    result = train(changed(config, data={"test_fraction": 0.0}))
    assert asked == [result.report["rows"]["rows"]]


def test_the_validation_loss_is_the_mean_over_rows_not_over_batches(config: TrainConfig) -> None:
    from retriever.learning.data.collate import tokenise
    from retriever.learning.predict import predict_logits

    rows, validation = split_rows(config)
    rng = np.random.default_rng(0)
    uneven = validation.take(np.sort(rng.permutation(len(validation))[: len(validation) * 2 // 3]))
    config = changed(config, trainer={"queries_per_batch": 3, "epochs": 1})
    fitted = fit(config, rows, uneven, Path(config.output_dir))
    logit = predict_logits(fitted.model, tokenise(uneven, fitted.encoder.tokenizer))
    each = np.logaddexp(0, logit) - uneven.outcome * logit
    assert fitted.summary["best_validation_log_loss"] == pytest.approx(each.mean(), abs=1e-5)


def test_gradients_are_clipped_to_the_norm_that_was_set(
    config: TrainConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    norms: list[float] = []
    step = torch.optim.AdamW.step

    def spy(self: torch.optim.AdamW, closure: Any = None) -> Any:
        def watched() -> Any:
            loss = closure()
            gradients = [p.grad for g in self.param_groups for p in g["params"]]
            present = [g.norm() for g in gradients if g is not None]
            norms.append(float(torch.stack(present).norm()))
            return loss

        return step(self, watched)

    monkeypatch.setattr(torch.optim.AdamW, "step", spy)
    config = changed(config, trainer={"gradient_clip": 1e-3, "epochs": 1})
    fit(config, *split_rows(config), Path(config.output_dir))
    assert norms
    assert max(norms) <= 1e-3 * 1.001
