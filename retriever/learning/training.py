"""`train(config)`: the log read, split by query, a model fitted, judged beside baselines, exported.

With `data.folds` the same happens once a fold, each fold's rows scored by a model that never saw
their queries, and one report covers all of them; there is then no single model to export.
Finished folds are kept, and a run that is started again with `resume=true` does not fit them
anew.
"""

from __future__ import annotations

import dataclasses
import json
import logging
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from retriever.errors import ParityError
from retriever.files import write_text_atomically
from retriever.learning import calibration as calibrating
from retriever.learning.baselines import fit_baselines
from retriever.learning.config import TrainConfig
from retriever.learning.data.collate import tokenise
from retriever.learning.data.rows import Rows
from retriever.learning.data.split import Split, check_disjoint, grouped_folds, shared_queries
from retriever.learning.encoder import load_encoder
from retriever.learning.export import ExportFacts, export_artifact
from retriever.learning.export_encoder import export_encoder
from retriever.learning.fitting import Fitted, check_launch, fit
from retriever.learning.model import CaseClassifier
from retriever.learning.predict import embed_texts, predict_logits
from retriever.learning.quantise import add_int8, drawn
from retriever.learning.report import MODEL, UNCALIBRATED, build_report, render_text, write_report
from retriever.learning.selection import Data, judged_rows, read_data, split_of, training_rows
from retriever.types import Calibration, Floats, Ids

ARTIFACT = "artifact"
COSINE_ENCODER = "cosine_encoder"
REPORT = "report.json"

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class TrainResult:
    """What a run left behind; cross-validation keeps no single model, so no artifact."""

    output_dir: Path
    report: dict[str, Any]
    artifact: Path | None = None
    cosine_encoder: Path | None = None


@dataclass(frozen=True)
class Scored:
    """One split's outcome: probabilities (n,) of every system for the rows it was judged on."""

    predictions: dict[str, np.ndarray]
    calibration: Calibration
    summary: dict[str, Any]


def train(config: TrainConfig) -> TrainResult:
    """Run the whole job; report, checkpoints and artifact go to the output folder.

    Raises:
        DataError: a bad line of the log. SplitRefused: a log with one query or one class.
        InvalidInput: a test log that shares queries with the training log.
        EncoderUnavailable, DeviceUnavailable, ParityError: as their names say.
    """
    check_launch(config)
    output = Path(config.output_dir)
    output.mkdir(parents=True, exist_ok=True)
    data = read_data(config, output)
    if config.data.folds:
        return _cross_validate(config, data, output)
    return _train_once(config, data, output)


def _train_once(config: TrainConfig, data: Data, output: Path) -> TrainResult:
    split = split_of(config, data)
    check_disjoint(split, data.rows)
    fitted, scored = _fit_and_score(config, data.rows, split, output)
    if not fitted.is_main:  # another rank of a distributed run reports and exports
        return TrainResult(output, {})
    judged, evaluated_on = judged_rows(split)
    report = _report(
        config,
        data,
        data.rows.take(judged),
        scored.predictions,
        evaluated_on,
        {
            "digest": split.digest,
            "train_rows": len(training_rows(config, data.rows, split)),
            "validation_rows": len(split.validation),
            "test_rows": len(split.test),
        },
        [scored],
    )
    write_report(report, output / REPORT)
    log.info("%s", render_text(report))
    artifact = output / ARTIFACT
    _export(config, data, split, fitted, scored, report, artifact)
    cosine = _export_cosine_encoder(config, output)
    log.info("artifact: %s", artifact)
    return TrainResult(output, report, artifact, cosine)


def _cross_validate(config: TrainConfig, data: Data, output: Path) -> TrainResult:
    splits = grouped_folds(
        data.rows,
        folds=config.data.folds,
        validation_fraction=config.data.validation_fraction,
        seed=config.seed,
    )
    scored: list[Scored] = []
    for number, split in enumerate(splits):
        check_disjoint(split, data.rows)
        log.info("fold %d of %d", number + 1, len(splits))
        scored.append(_fold(config, data, split, output / f"fold-{number}"))
    judged = np.concatenate([split.test for split in splits])
    predictions = {
        name: np.concatenate([one.predictions[name] for one in scored])
        for name in scored[0].predictions
    }
    report = _report(
        config,
        data,
        data.rows.take(judged),
        predictions,
        "out-of-fold",
        [{"fold": i, "digest": s.digest, "test_rows": len(s.test)} for i, s in enumerate(splits)],
        scored,
    )
    write_report(report, output / REPORT)
    log.info("%s", render_text(report))
    return TrainResult(output, report)


def _fold(config: TrainConfig, data: Data, split: Split, folder: Path) -> Scored:
    stored = folder / "predictions.json"
    identity = {"split": split.digest, "log": data.log.digest, "config": _identity(config)}
    if config.resume and stored.is_file():
        body = json.loads(stored.read_text(encoding="utf-8"))
        if body["identity"] == identity:
            log.info("already fitted: %s", folder)
            return Scored(
                {name: np.asarray(values) for name, values in body["predictions"].items()},
                Calibration(**body["calibration"]),
                body["summary"],
            )
    _, scored = _fit_and_score(config, data.rows, split, folder)
    body = {
        "identity": identity,
        "predictions": {name: values.tolist() for name, values in scored.predictions.items()},
        "calibration": dataclasses.asdict(scored.calibration),
        "summary": scored.summary,
    }
    write_text_atomically(stored, json.dumps(body))
    return scored


def _fit_and_score(
    config: TrainConfig, rows: Rows, split: Split, folder: Path
) -> tuple[Fitted, Scored]:
    train_rows = training_rows(config, rows, split)
    validation = rows.take(split.validation)
    judged, _ = judged_rows(split)
    baselines = (
        _baselines(config, rows, train_rows, rows.take(judged)) if config.report.baselines else {}
    )
    fitted = fit(config, train_rows, validation, folder)
    tokenizer = fitted.encoder.tokenizer
    validation_logits = predict_logits(fitted.model, tokenise(validation, tokenizer))
    calibrated = calibrating.fit_with_diagnostics(
        validation_logits, validation.outcome, calibrating.query_weights(validation.group)
    )
    calibration = calibrated.calibration
    if len(split.test):
        logits = predict_logits(fitted.model, tokenise(rows.take(split.test), tokenizer))
        probability = calibrating.apply(logits, calibration)
    else:
        # The calibration must not be judged on the rows it was fitted to.
        logits = validation_logits
        probability = calibrating.cross_fitted(
            logits, validation.outcome, validation.group, seed=config.seed
        )
    summary = {
        **fitted.summary,
        "logits_carry_signal": calibrated.carries_signal,
        "queries_shared_with_training": len(shared_queries(train_rows, rows.take(judged))),
    }
    predictions = {
        MODEL: probability,
        UNCALIBRATED: calibrating.apply(logits, Calibration()),
        **baselines,
    }
    return fitted, Scored(predictions, calibration, summary)


def _baselines(
    config: TrainConfig, rows: Rows, train_rows: Rows, judged: Rows
) -> dict[str, np.ndarray]:
    log.info("fitting the baselines on the same rows")
    queries, cases = _untrained_vectors(config, rows)
    return fit_baselines(
        train_rows, judged, query_vectors=queries, case_vectors=cases, seed=config.seed
    )


def _untrained_vectors(config: TrainConfig, rows: Rows) -> tuple[Floats, Floats]:
    """Embeddings (U, H) of the query texts and (C, H) of the case texts before any training."""
    encoder = load_encoder(config.encoder)
    model = CaseClassifier(encoder.model, encoder.pooling, None)
    return (
        embed_texts(model, encoder.tokenizer, rows.query_texts, config.device),
        embed_texts(model, encoder.tokenizer, rows.case_texts, config.device),
    )


def _report(
    config: TrainConfig,
    data: Data,
    judged: Rows,
    predictions: dict[str, np.ndarray],
    evaluated_on: str,
    split: Any,
    scored: list[Scored],
) -> dict[str, Any]:
    return build_report(
        judged,
        predictions,
        evaluated_on=evaluated_on,
        resamples=config.report.bootstrap,
        seed=config.seed,
        shared_queries=sum(int(one.summary["queries_shared_with_training"]) for one in scored),
        split=split,
        read=data.log.report.to_json(),
        calibration=[one.calibration for one in scored],
        truncation={
            "texts": max(int(one.summary["truncated_texts"]) for one in scored),
            "max_length": config.encoder.max_length,
        },
        training=[one.summary for one in scored],
        config=dataclasses.asdict(config),
    )


def _export(
    config: TrainConfig,
    data: Data,
    split: Split,
    fitted: Fitted,
    scored: Scored,
    report: dict[str, Any],
    path: Path,
) -> None:
    trained = training_rows(config, data.rows, split)
    log.info("exporting to %s", path)
    export_artifact(
        path,
        fitted.model,
        fitted.encoder.tokenizer,
        ExportFacts(
            source=config.encoder.source,
            revision=config.encoder.revision,
            calibration=scored.calibration,
            training={
                "log_digest": data.log.digest,
                "split_digest": split.digest,
                "rows": len(trained),
                "seed": config.seed,
                "use_plan": config.data.use_plan,
                **{key: scored.summary[key] for key in ("epochs", "steps", "precision")},
            },
            metrics={
                "evaluated_on": report["evaluated_on"],
                **{
                    name: figures["estimate"]
                    for name, figures in report["systems"][MODEL]["metrics"].items()
                },
            },
            # Validation rows chose the epoch and the calibration: they were learned from as well.
            case_texts=[
                data.rows.case_texts[i]
                for i in np.unique(data.rows.case[np.concatenate([split.train, split.validation])])
            ],
            # All but those of the report: what is judged later, such as int8, is judged on these.
            query_texts=_queries_met(data.rows, judged_rows(split)[0]),
        ),
        onnx=config.export.onnx,
        tolerance=config.export.tolerance,
    )
    if config.export.int8:
        held_out = data.rows.take(judged_rows(split)[0])
        rng = np.random.default_rng(config.seed)
        try:
            add_int8(path, drawn(data.rows, held_out, queries=200, cases=1500, rng=rng))
        except ParityError as refusal:  # the gate's answer, not a failure of the run
            log.warning("%s", refusal)


def _queries_met(rows: Rows, judged: Ids) -> list[str]:
    others = np.setdiff1d(np.arange(len(rows)), judged)
    return [rows.query_texts[i] for i in np.unique(rows.query[others])]


def _export_cosine_encoder(config: TrainConfig, output: Path) -> Path | None:
    if config.cosine_encoder is None:
        return None
    path = output / COSINE_ENCODER
    log.info("exporting the untrained encoder of cosine mode to %s", path)
    export_encoder(
        config.cosine_encoder, path, onnx=config.export.onnx, tolerance=config.export.tolerance
    )
    return path


def _identity(config: TrainConfig) -> dict[str, Any]:
    """The settings that a fold's numbers depend on."""
    ignored = {"output_dir", "resume", "logger"}
    return {key: value for key, value in dataclasses.asdict(config).items() if key not in ignored}
