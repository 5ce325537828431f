"""LoCoMo's loader on what its file holds, and the benchmark on a made-up conversation."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest

from benchmarks import locomo
from harness.datasets.locomo import read_locomo
from memory import DataError
from memory.times import microseconds
from retriever.artifact import MANIFEST

WORDS = ("hike", "lake", "boat", "dog", "puppy", "paint", "sunset", "job", "bakery", "ann", "bob")


def turn(number, speaker, text, **more):
    return {"dia_id": f"D{number}", "speaker": speaker, "text": text, **more}


def conversation(**more):
    return {
        "sample_id": "conv-1",
        "conversation": {
            "speaker_a": "Ann",
            "speaker_b": "Bob",
            "session_10": [turn("10:1", "Bob", "The bakery gave me the job!")],
            "session_10_date_time": "12:05 am on 1 March, 2024",
            "session_2": [
                turn("2:1", "Ann", "We took a boat on the lake.", blip_caption="a red boat"),
                turn("2:2", "Bob", "I will paint a sunset."),
            ],
            "session_2_date_time": "1:56 pm on 8 May, 2023",
            "session_3_date_time": "1:00 pm on 9 May, 2023",
        },
        "qa": [
            {"question": "Who has a boat?", "answer": "Ann", "category": 4, "evidence": ["D2:1"]},
            {"question": "What will Bob paint?", "category": 2, "evidence": ["D2:2; D:10:1, D9:9"]},
            {"question": "Where is Ann?", "answer": 7, "category": 3, "evidence": []},
            {"question": "Who flew?", "category": 5, "evidence": ["D2:1"]},
            {"question": "Which job?", "category": 1, "evidence": ["D", "D10:01", "D10:1"]},
        ],
        **more,
    }


def written(tmp_path, rows):
    path = tmp_path / "locomo.json"
    path.write_text(json.dumps(rows), encoding="utf-8")
    return path


def test_turns_come_in_order_with_speaker_session_time_words_and_caption(tmp_path):
    (read,) = read_locomo(written(tmp_path, [conversation()]))
    assert [t.turn_id for t in read.turns] == ["D2:1", "D2:2", "D10:1"]
    first, _, last = read.turns
    assert (first.speaker, first.session, first.caption) == ("Ann", 2, "a red boat")
    assert first.told_at == microseconds("2023-05-08T13:56:00Z")
    assert last.told_at == microseconds("2024-03-01T00:05:00Z")
    assert last.caption is None


def test_evidence_is_read_as_it_was_written_and_what_is_lost_is_listed(tmp_path):
    (read,) = read_locomo(written(tmp_path, [conversation()]))
    assert [q.evidence for q in read.questions] == [
        ("D2:1",),
        ("D2:2", "D10:1"),
        (),
        ("D2:1",),
        ("D10:1",),
    ]
    assert [(one.question_id, one.evidence) for one in read.lost] == [
        ("conv-1/q1", "D2:2; D:10:1, D9:9"),
        ("conv-1/q4", "D"),
    ]
    assert [q.question_id for q in read.asked()] == ["conv-1/q0", "conv-1/q1", "conv-1/q4"]
    assert [q.answer for q in read.questions] == ["Ann", None, "7", None, None]


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([], "not empty"),
        ({}, "must be a JSON list"),
        ([{}], "conversation 0 has no object 'conversation'"),
        ([conversation(), conversation()], "two conversations have one sample_id"),
        ([conversation(qa=[{"question": " ", "category": 1}])], "question = ' '"),
        ([conversation(qa=[{"question": "x", "category": 6}])], "category = 6: one of 1 to 5"),
        ([conversation(conversation={})], "dia_ids are missing or repeated"),
        ([conversation(conversation={"session_1": [turn("1:1", "A", "x")] * 2})], "repeated"),
        ([conversation(conversation={"session_1": [turn("x", "A", "x")]})], "dia_id = 'Dx'"),
        ([conversation(conversation={"session_1": [turn("1:1", "A", "x")],
                                     "session_1_date_time": "May"})], "date_time = 'May'"),
    ],
)  # fmt: skip
def test_a_file_of_another_form_is_refused_with_the_place(tmp_path, rows, message):
    with pytest.raises(DataError, match=message):
        read_locomo(written(tmp_path, rows))
    path = tmp_path / "not.json"
    path.write_text("{", encoding="utf-8")
    with pytest.raises(DataError, match="is not JSON"):
        read_locomo(path)


def test_the_real_file_loads_whole(shared_data):
    read = read_locomo(shared_data / "locomo" / "locomo7.json")
    assert [len(talk.turns) for talk in read] == [419, 369, 663, 629, 680, 675, 689]
    assert sum(len(talk.questions) for talk in read) == 1347
    assert sum(len(talk.asked()) for talk in read) == 1033
    assert [one.evidence for talk in read for one in talk.lost] == ["D10:19", "D", "D4:36"]
    assert all(turn.told_at is not None and turn.speaker for talk in read for turn in talk.turns)


def test_measures_are_what_their_definitions_say():
    found = [f"D1:{i}" for i in range(1, 11)]
    assert locomo.measured(found, ["D1:1"]) == (1.0, 1.0, 1.0)
    recall5, recall10, ndcg = locomo.measured(found, ["D1:2", "D1:7", "D9:9"])
    assert (recall5, recall10) == (1 / 3, 2 / 3)
    ideal = 1 + 1 / math.log2(3) + 1 / 2
    assert ndcg == pytest.approx((1 / math.log2(3) + 1 / math.log2(8)) / ideal)
    assert locomo.measured([], ["D1:1"]) == (0.0, 0.0, 0.0)
    many = [f"D1:{i}" for i in range(1, 41)]
    assert locomo.measured(found, many) == (5 / 40, 10 / 40, pytest.approx(1.0))


def test_an_interval_holds_the_mean_and_narrows_with_more_questions():
    rng = np.random.default_rng(0)
    mean, low, high = locomo.interval(np.arange(10.0), rng)
    assert low < mean == 4.5 < high
    _, lower, higher = locomo.interval(np.tile(np.arange(10.0), 100), rng)
    assert higher - lower < (high - low) / 5
    assert locomo.interval(np.ones(3), rng) == (1.0, 1.0, 1.0)
    assert math.isnan(locomo.interval(np.empty(0), rng)[0])


class BagOfWords:
    """An encoder of a few words."""

    fingerprint, dim = "bag", len(WORDS)

    def embed(self, texts):
        counts = [[text.lower().count(word) for word in WORDS] for text in texts]
        return np.array(counts, np.float32).reshape(-1, len(WORDS)) + 0.01


def test_the_benchmark_asks_every_question_in_every_mode_and_ends_with_its_line(tmp_path, capsys):
    talks = read_locomo(written(tmp_path, [conversation(), conversation(sample_id="conv-2")]))
    locomo.run(talks, locomo.Models(BagOfWords()), {"conv-1", "conv-2"}, weights=True)
    out = capsys.readouterr().out
    line = json.loads(out.splitlines()[-1])
    assert line["benchmark"] == "locomo"
    figures = line["figures"]
    assert figures["lexical_recall@5"]["value"] == pytest.approx(5 / 6)  # no word of D10:1 is asked
    assert figures["hybrid_nDCG@10"]["value"] > 0.5
    assert figures["hybrid_less_cosine_recall@10"]["met"] in (True, False)
    for words in (
        "all (6 questions)",
        "single-hop (2 questions)",
        "cosine",
        "hybrid rrf",
        "conv-2",
    ):
        assert words in out
    assert "zscore 0.5" in out
    assert "weight of the dense side, 2 conversations" in out
    assert not any(name.startswith("unseen") for name in figures)


def test_conversations_that_no_setting_was_looked_at_on_have_figures_of_their_own(tmp_path, capsys):
    other = conversation(sample_id="conv-3")
    other["qa"] = [{"question": "job?", "category": 4, "evidence": ["D10:1"]}]
    rows = [conversation(), conversation(sample_id="conv-2"), other]
    talks = read_locomo(written(tmp_path, rows))
    locomo.run(talks, locomo.Models(BagOfWords()), {"conv-1", "conv-2"})
    figures = json.loads(capsys.readouterr().out.splitlines()[-1])["figures"]
    assert figures["unseen_lexical_recall@5"]["value"] == 1.0
    assert figures["lexical_recall@5"]["value"] == pytest.approx(6 / 7)
    every = {name for name in figures if not name.startswith("unseen_")}
    assert {name.removeprefix("unseen_") for name in figures} == every
    even = figures["unseen_hybrid_less_lexical_recall@5"]
    assert (even["value"], even["target"], even["met"]) == (0.0, 0.0, False)


@pytest.mark.parametrize(
    ("given", "says"),
    [
        (["--data", "/nope.json"], "/nope.json"),
        (["--data", "{folder}"], "{folder}"),
        (["--data", "{lines}"], "is not JSON"),
        (["--data", "{good}", "--artifact", "/nope"], "/nope"),
        (["--data", "{good}", "--encoder", "/nope"], "/nope"),
        (["--data", "{good}", "--quick"], "--quick asks conversation 3"),
        (["--data", "{good}", "--quick", "--weights"], "--weights is of the conversations"),
    ],
)
def test_a_wrong_path_or_file_is_said_in_one_line_with_status_2(
    tmp_path, capsys, monkeypatch, given, says
):
    lines = tmp_path / "lines.jsonl"
    lines.write_text("{}\n{}\n", encoding="utf-8")
    places = {"folder": tmp_path, "lines": lines, "good": written(tmp_path, [conversation()])}
    if "--artifact" in given:
        monkeypatch.setattr(locomo, "_encoder", lambda source, folder: BagOfWords())
    with pytest.raises(SystemExit) as status:
        locomo.main([text.format(**places) for text in given])
    assert status.value.code == 2
    said = capsys.readouterr().err
    assert says.format(**places) in said.splitlines()[-1]
    assert "Traceback" not in said


@pytest.mark.slow
def test_the_command_takes_an_artifact_and_an_exported_encoder(
    tmp_path, capsys, tiny_artifact, tiny_cosine_encoder
):
    assert (tiny_cosine_encoder / MANIFEST).is_file()
    path = written(tmp_path, [conversation(sample_id=f"conv-{i}") for i in range(4)])
    locomo.main(["--data", str(path), "--artifact", str(tiny_artifact), "--quick",
                 "--encoder", str(tiny_cosine_encoder)])  # fmt: skip
    out = capsys.readouterr().out
    assert "1 conversations, 3 turns, 3 questions asked; 1 left out" in out
    figures = json.loads(out.splitlines()[-1])["figures"]
    assert {"exact_recall@5", "hybrid_exact_less_exact_nDCG@10"} <= figures.keys()
    assert "unseen_exact_recall@5" in figures
