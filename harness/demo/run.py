"""The seven steps of the demo, top to bottom: log, train, bank, serve, ask, report, stop."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rich.console import Console

import retriever
from harness.demo.errors import DemoFailed
from harness.demo.overrides import override
from harness.demo.server import running
from harness.demo.show import hits_table, summary
from memory import CaseBank
from retriever.embedders import CaseProjector, QueryEmbedder
from retriever.learning.config import PlantedConfig
from retriever.learning.synthetic import PlantedWorld
from retriever.progress import byte_progress
from retriever.text import normalise_query
from service.client import Client

#: Where `train.py`, `serve.py` and `conf/` lie.
ROOT = Path(__file__).resolve().parents[2]
#: A folder that the demo may empty again holds this file.
MARK = ".made-by-the-demo"
QUESTIONS = 3
TOP_K = 4

#: Two processor cores learn something from this in about two minutes with MiniLM: few cases, so
#: that a batch holds few different texts; two a run, so that credit is not spread thin; a policy
#: that explores, so that a case's help can be told from the ease of the questions it was shown for.
WORLD = PlantedConfig(
    rows=1600, cases=64, cases_per_run=2, runs_per_query=2, policy_temperature=4.0, noise=0.5
)


@dataclass(frozen=True)
class Demo:
    """What to run on. Without `log` and `cases` the demo makes both."""

    out: Path
    log: Path | None = None
    cases: Path | None = None
    rows: int | None = None  # of the log that is made
    train_overrides: tuple[str, ...] = ()


@dataclass(frozen=True)
class Inputs:
    """The files of step 1, and what will be asked."""

    log: Path
    cases: Path
    questions: list[str]
    about: str  # where the questions come from
    #: Per question, the chance that each case (by its id) helps; only where the truth is known.
    truth: list[dict[str, float]] | None = None


def run(demo: Demo, screen: Console) -> None:
    """Run the main job from end to end; whatever was started is stopped again.

    Raises:
        DemoFailed: a step failed; the message names it.
    """
    started = time.monotonic()
    given = _given(demo)
    out = _fresh_folder(demo.out.resolve())

    with _step(screen, "1/7  outcome log and cases"):
        inputs = given or _planted(_world(demo.rows), out, screen)
        screen.print(
            f"  log    {inputs.log}\n  cases  {inputs.cases}", soft_wrap=True, highlight=False
        )

    with _step(screen, "2/7  train the retriever and export it to ONNX"):
        trained = out / "train"
        one_epoch = ("trainer.epochs=1",) if given else ()
        _train(inputs.log, trained, (*one_epoch, *demo.train_overrides))

    with _step(screen, "3/7  fill the case bank"):
        bank = out / "bank.sqlite"
        _fill(bank, inputs.cases, trained, screen)

    settings = {
        "artifact": str(trained / "artifact"),
        "cosine_encoder": str(trained / "cosine_encoder"),
        "bank.url": str(bank),
        "index.folder": str(out / "index"),
        "device": "cpu",
    }
    with _step(screen, "4/7  start the HTTP service"), running(ROOT, settings, out) as server:
        screen.print(
            f"  {server.url} answers; its log is {server.log}", soft_wrap=True, highlight=False
        )
        with _step(screen, f"5/7  ask {inputs.about}"):
            for number, question in enumerate(inputs.questions):
                truth = inputs.truth[number] if inputs.truth else None
                _ask(server.client, question, truth, screen)
        with _step(screen, "6/7  the report"):
            screen.print(summary(_read_report(trained)))
        screen.rule("7/7  stop the service", align="left", style="bold")
    screen.print("  stopped by SIGTERM, exit status 0\n")
    took = time.monotonic() - started
    screen.print(
        f"Done in {took:.0f} s. Everything is below {out}:", soft_wrap=True, highlight=False
    )
    for name, what in (
        ("train/artifact", "the trained retriever: retriever.load(...)"),
        ("train/report.json", "every figure of the report"),
        ("bank.sqlite", "the case bank: memory.CaseBank.open(...)"),
    ):
        screen.print(f"  {name:<18} {what}", highlight=False)


@contextmanager
def _step(screen: Console, title: str) -> Iterator[None]:
    screen.rule(title, align="left", style="bold")
    try:
        yield
    except DemoFailed:
        raise
    except Exception as error:
        raise DemoFailed(f"step {title}: {error}") from error


def _fresh_folder(out: Path) -> Path:
    if out.exists():
        if any(out.iterdir()) and not (out / MARK).exists():
            raise DemoFailed(f"{out} holds files that are not the demo's; choose another --out")
        shutil.rmtree(out)
    out.mkdir(parents=True)
    (out / MARK).touch()
    return out


def _given(demo: Demo) -> Inputs | None:
    """The files of the user, or None where the demo is to make its own."""
    if demo.log is None and demo.cases is None:
        return None
    if demo.log is None or demo.cases is None:
        raise DemoFailed("give both an outcome log and its cases (LOG=... CASES=...), or neither")
    for path in (demo.log, demo.cases):
        if not path.is_file():
            raise DemoFailed(f"there is no file {path}; give an outcome log and its cases as JSONL")
    log, cases = demo.log.resolve(), demo.cases.resolve()
    return Inputs(log, cases, _spread(log), "three questions of the log")


def _world(rows: int | None) -> PlantedWorld:
    return PlantedWorld(WORLD if rows is None else replace(WORLD, rows=rows))


def _planted(world: PlantedWorld, out: Path, screen: Console) -> Inputs:
    log, cases = out / "log.jsonl", out / "cases.jsonl"
    with byte_progress("  writing the log") as advance:
        rows = world.write_log(log, advance)
    world.write_cases(cases)
    screen.print(f"  a made-up log of {rows} rows whose truth is known", highlight=False)
    # Beyond the last query of the log: nobody has asked these before.
    new = [world.query(world.query_count + number) for number in range(QUESTIONS)]
    every = range(len(world.cases))
    truth = [
        dict(
            zip((c.id for c in world.cases), world.success_probability(q.index, every), strict=True)
        )
        for q in new
    ]
    return Inputs(log, cases, [q.words for q in new], "three questions that are in no log", truth)


def _spread(log: Path) -> list[str]:
    """Different questions from the beginning, the middle and the end of a log."""
    found: dict[str, str] = {}
    with log.open(encoding="utf-8-sig") as lines:
        for line in lines:
            if line.strip():
                query = json.loads(line)["query"]
                found.setdefault(normalise_query(query), query)
    queries = list(found.values())
    places = [len(queries) * part // QUESTIONS for part in range(QUESTIONS)]
    return [queries[place] for place in dict.fromkeys(places)] if queries else []


def _train(log: Path, out: Path, overrides: tuple[str, ...]) -> None:
    """`train.py` as anyone would run it, its progress bars on this terminal."""
    command = [
        sys.executable,
        str(ROOT / "train.py"),
        "experiment=demo",
        override("data.train", str(log)),
        override("hydra.run.dir", str(out)),
        *overrides,
    ]
    environment = os.environ | {"HF_HUB_OFFLINE": "1"}  # nothing here needs a hub
    status = subprocess.run(command, cwd=ROOT, env=environment, check=False).returncode
    if status != 0:
        raise DemoFailed(f"train.py exited with status {status}; its own message stands above")


def _fill(bank: Path, cases: Path, trained: Path, screen: Console) -> None:
    scorer = retriever.load(trained / "artifact", device="cpu")
    encoder = retriever.load_encoder(trained / "cosine_encoder", device="cpu")
    with (
        CaseBank.open(
            bank, embeddings=QueryEmbedder(encoder), projections=CaseProjector(scorer)
        ) as opened,
        byte_progress("  embedding and storing") as advance,
    ):
        report = opened.import_jsonl(cases, progress=advance)
    screen.print(f"  {report.added} cases in {bank}", soft_wrap=True, highlight=False)


def _ask(client: Client, question: str, truth: Mapping[str, float] | None, screen: Console) -> None:
    screen.print(f"\n[bold]{' '.join(question.split())}[/bold]", highlight=False)
    for mode, column in (("exact", "chance"), ("cosine", "cosine")):
        hits = client.search(question, k=TOP_K, mode=mode, return_cases=True)["results"]
        screen.print(hits_table(mode, column, hits, truth, width=screen.width))


def _read_report(trained: Path) -> Mapping[str, Any]:
    report: Mapping[str, Any] = json.loads((trained / "report.json").read_text(encoding="utf-8"))
    return report
