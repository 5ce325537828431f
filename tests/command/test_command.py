"""The `precedent` command: what it prints, what it asks, how it ends."""

from __future__ import annotations

import json
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from memory import ByIds, CaseBank, NewCase, Shown

ROOT = Path(__file__).resolve().parents[2]
PHONE = "415-555-0186"


@pytest.fixture
def filled(run, cases):
    assert run("import", cases).status == 0
    return run


def test_an_import_reports_what_became_of_every_line(run, cases):
    answer = run("import", cases)
    assert (answer.status, answer.err) == (0, "")
    assert "added" in answer.out
    again = run("import", cases)
    assert "was imported before" in again.out
    cases.write_text(cases.read_text() + "no json\n")
    refused = run("import", cases, "--upsert")
    assert refused.status == 2
    assert "line 5" in refused.err
    assert refused.err.count("\n") == 1
    report = run("--json", "import", cases, "--on-bad-line", "skip", "--upsert")
    assert report.data["updated"] == 1
    assert report.data["added"] == 3
    assert [bad["line"] for bad in report.data["skipped"]] == [5]
    assert "line 5 skipped" in report.err


def test_an_import_asks_what_to_do_with_duplicates_and_forgotten_cases(filled, cases):
    filled("forget", "--ids", 3, "--yes")
    body = cases.read_text().replace('"id": "n", ', "")
    cases.write_text(body)
    answer = filled("--json", "import", cases, "--on-duplicate", "merge")
    assert answer.data["forgotten"] == [3]
    assert (answer.data["added"], answer.data["merged"]) == (0, 3)
    cases.write_text(body + "\n")
    kept = filled("--json", "import", cases, "--on-duplicate", "merge", "--on-forgotten", "keep")
    assert (kept.data["added"], kept.data["forgotten"]) == (1, [3])
    cases.write_text(body + "\n\n")
    assert filled("import", cases, "--on-duplicate", "reject").status == 2


@pytest.mark.parametrize("suffix", [".jsonl", ".parquet"])
def test_an_export_comes_back_by_an_import(filled, tmp_path, suffix, location):
    if suffix == ".parquet":
        pytest.importorskip("pyarrow")
    path = tmp_path / f"out{suffix}"
    assert "4 cases written" in filled("export", path).out
    other = tmp_path / "other.db"
    assert filled("--bank", other, "--json", "import", path).data["added"] == 4
    assert filled("export", path, "--kind", "fact", "--json").data["written"] == 1
    with CaseBank.open(location) as one, CaseBank.open(other) as two:
        assert [c.as_new() for c in one.list()] == [c.as_new() for c in two.list()]


def test_the_suffix_tells_the_format(filled, tmp_path):
    for command in ("import", "export"):
        answer = filled(command, tmp_path / "cases.csv")
        assert answer.status == 2
        assert "suffix" in answer.err


def test_a_search_is_lexical_and_filtered(filled):
    answer = filled("search", "kettle number", "--json")
    assert answer.data["mode"] == "lexical"
    assert {hit["case"]["id"] for hit in answer.data["hits"]} == {1, 3}
    assert [hit["rank"] for hit in answer.data["hits"]] == [1, 2]
    only = filled("search", "kettle number", "--kind", "turn", "--json")
    assert [hit["case"]["external_id"] for hit in only.data["hits"]] == ["n"]
    assert "boil the kettle" in filled("search", "kettle").out
    nothing = filled("search", "zebra")
    assert (nothing.status, nothing.out) == (0, "no case was found\n")
    assert filled("search", "kettle", "-k", "0").status == 2
    for mode in (), ("--mode", "exact"), ("--mode", "hybrid"):
        blank = filled("search", " \n", *mode)
        assert (blank.status, blank.out) == (2, "")
        assert "TEXT is blank; give words to search for" in blank.err
    assert "TEXT is not valid UTF-8" in filled("search", "kettle \udce9").err


def test_what_is_forgotten_during_a_search_is_not_shown(filled, location, monkeypatch):
    search = CaseBank.search_text

    def slow(bank, *asked, **more):
        found = search(bank, *asked, **more)
        with CaseBank.open(location) as other:
            other.forget(ByIds((1,)))
        return found

    monkeypatch.setattr(CaseBank, "search_text", slow)
    answer = filled("search", "kettle number", "--json")
    assert answer.status == 0
    assert [(hit["rank"], hit["case"]["id"]) for hit in answer.data["hits"]] == [(1, 3)]


@pytest.mark.slow
def test_a_search_with_a_model_scores_by_it(filled, tiny_artifact, tiny_cosine_encoder):
    exact = filled("--json", "search", "boil the kettle", "--artifact", tiny_artifact, "-k", 2)
    assert exact.data["mode"] == "exact"
    assert len(exact.data["hits"]) == 2
    scores = [hit["score"] for hit in exact.data["hits"]]
    assert scores == sorted(scores, reverse=True)
    cosine = filled("--json", "search", "boil the kettle", "--encoder", tiny_cosine_encoder)
    assert cosine.data["mode"] == "cosine"
    best = cosine.data["hits"][0]
    assert best["case"]["id"] == 3
    assert best["score"] == pytest.approx(1.0, abs=1e-5)
    both = ("--artifact", tiny_artifact, "--encoder", tiny_cosine_encoder)
    assert "say --mode" in filled("search", "x", *both).err
    assert filled("search", "x", *both, "--mode", "exact").status == 0
    for mode in ("exact", "cosine", "ann", "hybrid"):
        asked = ("--json", "search", "kettle", *both, "--mode", mode)
        assert len(filled(*asked).data["hits"]) == 4
        hits = filled(*asked, "--kind", "turn", "--valid-at", "2030-01-01T00:00:00Z").data["hits"]
        assert [hit["case"]["external_id"] for hit in hits] == ["n"]
    assert "needs --artifact" in filled("search", "x", "--mode", "exact").err
    assert "needs --encoder" in filled("search", "x", "--mode", "cosine").err
    assert "needs --artifact" in filled("search", "x", "--mode", "hybrid").err
    assert filled("search", "x", "--artifact", "nowhere").status == 2
    clean = filled("verify", "no such words", *both, "--json")
    assert clean.status == 0
    assert {"lexical", "exact", "cosine", "ann", "hybrid"} == set(clean.data["modes"])


def test_listing_goes_page_by_page(filled):
    first = filled("--json", "list", "--limit", "3").data
    assert [case["id"] for case in first["cases"]] == [1, 2, 3]
    rest = filled("--json", "list", "--after", first["next"]).data
    assert ([case["id"] for case in rest["cases"]], rest["next"]) == ([4], None)
    assert "--after 3" in filled("list", "--limit", "3").err
    assert [c["id"] for c in filled("--json", "list", "--min-outcome", "0.5").data["cases"]] == [3]
    assert filled("list", "--namespace", "empty").out == "no cases\n"
    assert filled("list", "--limit", "0").status == 2


def test_a_case_is_shown_whole(filled):
    (case,) = filled("get", 3, "--json").data
    assert case["query"] == "boil the kettle"
    assert case["source"] == "kitchen"
    assert "kitchen" in filled("get", 3).out
    answer = filled("get", 99)
    assert (answer.status, answer.out) == (2, "")
    assert "no case with id 99" in answer.err


def test_control_characters_of_a_case_never_reach_the_terminal(run, location):
    with CaseBank.open(location) as bank:
        bank.add([NewCase("red \x1b[31m alert\x07\u202e\r\nnext", tags=("[bold]x",))])
    for answer in (run("list"), run("get", 1), run("search", "alert")):
        assert not set("\x1b\x07\u202e\r") & set(answer.out)
        assert "[bold]x" in answer.out


def test_forgetting_needs_a_yes_where_nobody_can_be_asked(filled):
    answer = filled("forget", "--string", PHONE)
    assert answer.status == 2
    assert "--yes" in answer.err
    assert len(filled("--json", "list").data["cases"]) == 4
    receipt = filled("forget", "--string", PHONE, "--yes", "--json").data
    assert receipt["ids"] == [1, 2]
    assert receipt["actor"] == "tester"
    assert receipt["erased"] == "done"
    assert PHONE not in json.dumps(receipt)


def test_forgetting_asks_at_a_terminal(filled):
    no = filled("forget", "--ids", 3, stdin="n\n", terminal=True)
    assert no.status == 2
    assert "Forget 1 cases" in no.err
    assert "nothing was done" in no.err
    assert filled("forget", "--ids", 3, stdin="y\n", terminal=True).status == 0
    assert filled("get", 3).status == 2


def test_a_dry_run_shows_what_would_go_and_touches_nothing(filled):
    answer = filled("forget", "--tag", "private", "--dry-run")
    assert answer.status == 0
    assert "would be gone: 2 cases" in answer.out
    assert "my number is" in answer.out
    assert filled("forget", "--tag", "private", "--dry-run", "--json").data["dry_run"] is True
    assert len(filled("--json", "list").data["cases"]) == 4
    assert filled("receipts").out == "no receipts\n"


@pytest.mark.parametrize(
    ("selector", "ids"),
    [
        (("--ids", 3, 4), [3, 4]),
        (("--ids", 3, "--ids", 4), [3, 4]),
        (("--source", "kitchen"), [3]),
        (("--tag", "private"), [1, 2]),
        (("--to", "2000-01-01T00:00:00Z"), [4]),
        (("--from", "1999-01-01T00:00:00Z", "--to", "2000-01-01T00:00:00Z"), [4]),
        (("--text", "boil the kettle"), [3]),
        (("--fact", "the user can be reached"), [1, 2]),
        (("--fact", "the user can be reached", "--keep-sources"), [2]),
        (("--string", "kettle", "--source", "kitchen", "--ids", 4), [3, 4]),
        (("--string", "zebra"), []),
    ],
)
def test_every_selector_means_its_cases(filled, selector, ids):
    assert filled("forget", *selector, "--yes", "--json").data["ids"] == ids


def test_secrets_are_read_from_stdin_so_that_no_history_keeps_them(filled):
    answer = filled("forget", "--string", "-", "--yes", "--json", stdin=f"{PHONE}\n\nkettle\n")
    assert answer.data["ids"] == [1, 2, 3]
    assert filled("verify", stdin=f"{PHONE}\nkettle\n").status == 0
    assert filled("verify", stdin="\n").status == 2


def test_a_replacement_stores_the_new_value(filled):
    receipt = filled(
        "forget", "--replace", PHONE, "--with", "my number is 555-0100", "--yes", "--json"
    ).data
    assert receipt["ids"] == [1, 2]
    (case,) = filled("get", *receipt["replaced_by"], "--json").data
    assert case["query"] == "my number is 555-0100"
    assert "--with needs --replace" in filled("forget", "--with", "x").err


def test_invalidating_keeps_a_case_for_history(filled):
    filled("forget", "--ids", 3, "--mode", "invalidate", "--yes")
    assert 3 not in [case["id"] for case in filled("--json", "list").data["cases"]]
    history = filled("--json", "list", "--history").data["cases"]
    assert next(case for case in history if case["id"] == 3)["invalidated_at"] is not None


def test_forgetting_nothing_in_particular_is_refused(filled):
    answer = filled("forget", "--yes")
    assert answer.status == 2
    assert "nothing is named" in answer.err
    assert filled("forget", "--from", "yesterday").status == 2


def test_a_request_in_plain_words_is_carried_out(filled):
    words = f"Please forget my number {PHONE}."
    assert filled("forget", "--request", words, "--dry-run", "--json").data["ids"] == [1, 2]
    assert filled("forget", "--request", words).status == 2
    nothing = filled("forget", "--request", "nice weather today", "--yes")
    assert nothing.status == 2
    assert "nothing is asked" in nothing.out
    assert filled("forget", "--request", "-", "--yes", "--json", stdin=words).data["ids"] == [1, 2]


def test_verify_ends_with_one_where_something_is_left(filled, location, tmp_path):
    filled("forget", "--string", PHONE, "--yes")
    uid = filled("receipts", "--json").data[0]["uid"]
    assert filled("verify", "--receipt", uid).status == 0
    assert filled("verify", PHONE).status == 0
    left = Path(location + ".restore-left")
    left.write_text(f"somebody left {PHONE} here")
    answer = filled("verify", PHONE)
    assert answer.status == 1
    assert left.name in answer.out
    assert PHONE not in answer.out
    assert filled("verify", PHONE, "--json").data["clean"] is False
    assert filled("verify", "--receipt", "unknown").status == 2
    assert filled("verify", "x", "--receipt", uid).status == 2


def test_receipts_are_listed_and_exported(filled, tmp_path):
    filled("forget", "--ids", 3, "--yes", "--actor", "ann")
    filled("import", tmp_path / "cases.jsonl", "--namespace", "tenant")
    filled("delete-namespace", "tenant", "--yes")
    assert "ann" in filled("receipts").out
    assert [r["mode"] for r in filled("receipts", "--json").data] == ["purge"]
    every = filled("receipts", "--all", "--json").data
    assert [r["mode"] for r in every] == ["purge", "namespace"]
    assert "(deleted)" in filled("receipts", "--all").out
    path = tmp_path / "receipts.jsonl"
    assert filled("receipts", "--export", path, "--json").data["receipts"] == 2
    assert len(path.read_text().splitlines()) == 2


def test_a_namespace_is_deleted_only_when_it_is_there(filled, cases):
    filled("import", cases, "--namespace", "tenant")
    assert filled("delete-namespace", "tenant").status == 2
    assert filled("delete-namespace", "tenant", "--yes", "--json").data["counts"]["cases"] == 4
    assert filled("delete-namespace", "tenant", "--yes").status == 2


def test_retire_and_compact_drop_by_rule(filled):
    before = ("--before", "2000-01-01T00:00:00Z")
    assert filled("retire", *before, "--dry-run", "--json").data["ids"] == [4]
    assert filled("retire", *before).status == 2
    assert filled("retire", *before, "--yes", "--json").data["mode"] == "retention"
    tried = filled("compact", "--max-cases", 1, "--policy", "best_outcome", "--dry-run", "--json")
    assert tried.data["ids"] == [1, 2]
    assert filled("compact", "--max-cases", 1, "--policy", "best_outcome").status == 2
    filled("compact", "--max-cases", 1, "--policy", "best_outcome", "--yes")
    assert [case["id"] for case in filled("--json", "list").data["cases"]] == [3]
    assert filled("compact", "--max-bytes", 0, "--yes", "--json").data["ids"] == [3]
    assert "budget" in filled("compact").err
    assert filled("compact", "--max-cases", -1).status == 2


def test_what_is_forgotten_later_is_listed_run_and_cancelled(filled):
    filled("forget", "--ids", 3, "--at", "2020-01-01T00:00:00Z")
    later = filled("forget", "--ids", 4, "--at", "2099-01-01T00:00:00+02:00", "--json").data
    assert later == {"scheduled": 2, "due_at": "2098-12-31T22:00:00Z"}
    assert [due["number"] for due in filled("schedule", "list", "--json").data] == [1, 2]
    assert "2098-12-31" in filled("schedule", "list").out
    assert [r["ids"] for r in filled("schedule", "run", "--json").data] == [[3]]
    assert filled("schedule", "cancel", 2).status == 0
    assert filled("schedule", "list").out == "nothing waits\n"
    assert filled("schedule", "cancel", 2).status == 2
    assert filled("schedule", "cancel").status == 2
    assert filled("schedule", "run", 3).status == 2


def test_backup_and_restore_bring_everything_back_but_the_forgotten(filled, tmp_path, location):
    saved = tmp_path / "saved.db"
    assert filled("backup", saved, "--json").data["cases"] == 4
    assert filled("backup", saved).status == 2
    filled("forget", "--string", PHONE, "--yes")
    assert filled("restore", saved).status == 2
    report = filled("restore", saved, "--yes", "--json").data
    assert (report["cases"], report["forgotten"]) == (2, 2)
    receipts = tmp_path / "receipts.jsonl"
    filled("receipts", "--export", receipts)
    other = tmp_path / "other.db"
    answer = filled("--bank", other, "restore", saved, "--receipts", receipts)
    assert answer.status == 0
    assert "forgotten again" in answer.out
    assert [c["id"] for c in filled("--bank", other, "--json", "list").data["cases"]] == [3, 4]


def test_stats_count_everything(filled, location, cases):
    filled("import", cases, "--namespace", "tenant")
    with CaseBank.open(location) as bank:
        bank.runs.log("q", [Shown(3, 1)], policy="x", run_id="r")
        bank.runs.log("p", [], policy="x")
        bank.runs.record_outcome("r", 1.0)
    filled("forget", "--ids", 4, "--mode", "invalidate", "--yes")
    stats = filled("stats", "--json").data
    mine, tenant = stats["namespaces"]
    assert (mine["name"], tenant["name"]) == ("default", "tenant")
    assert (mine["cases"], mine["history"], mine["scored"]) == (3, 1, 1)
    assert mine["by_kind"] == {"case": 1, "fact": 1, "turn": 1}
    assert (mine["runs"], mine["scored_runs"], mine["receipts"]) == (2, 1, 1)
    assert stats["erasure"] == "done"
    assert stats["database_bytes"] > 4096
    assert "tenant" in filled("stats").out


def test_erase_says_that_all_is_done(filled):
    assert filled("erase", "--deep", "--json").data["state"] == "done"
    assert "overwritten" in filled("erase").out


def test_a_misspelt_bank_is_not_made(run, tmp_path, monkeypatch):
    missing = tmp_path / "nowhere" / "bank.db"
    for command in (("list",), ("stats",), ("search", "x"), ("forget", "--ids", 1, "--yes")):
        answer = run("--bank", missing, *command)
        assert answer.status == 2
        assert "no bank at" in answer.err
    assert run("--bank", missing, "import", tmp_path / "none.jsonl").status == 2
    assert not missing.parent.exists()
    monkeypatch.delenv("PRECEDENT_BANK")
    answer = run("list")
    assert answer.status == 2
    assert "PRECEDENT_BANK" in answer.err


@pytest.mark.parametrize(
    "arguments",
    [
        (),
        ("dance",),
        ("list", "--limit", "many"),
        ("list", "--lim", "3"),
        ("get",),
        ("--bank", "mysql://host/bank", "list"),
        ("list", "--namespace", " "),
        ("retire",),
    ],
)
def test_a_mistake_is_one_line_and_status_two(filled, arguments):
    answer = filled(*arguments)
    assert (answer.status, answer.out) == (2, "")
    assert answer.err.count("\n") == 1
    assert answer.err.startswith("precedent")


def test_what_is_no_bank_is_left_alone(run, tmp_path):
    path = tmp_path / "notes.txt"
    path.write_text("my notes, not a bank, and long enough")
    answer = run("--bank", path, "list")
    assert answer.status == 2
    assert path.read_text().startswith("my notes")


def test_options_stand_before_or_after_the_command(filled, location):
    for arguments in (
        ("--json", "--namespace", "default", "list"),
        ("list", "--json", "--namespace", "default", "--bank", location),
    ):
        assert len(filled(*arguments).data["cases"]) == 4
    assert filled("--namespace", "tenant", "--json", "list").data["cases"] == []


def run_python(*arguments, **options):
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        **options,
    )


def test_the_module_runs_as_a_program_on_a_server_too(postgres_url, cases):
    done = run_python("-m", "service.command", "--bank", postgres_url, "--json", "import", cases)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["added"] == 4
    done = run_python("-m", "service.command", "--bank", postgres_url, "stats")
    assert done.returncode == 0, done.stderr
    assert "postgresql" in done.stdout


def test_the_command_brings_neither_the_http_side_nor_a_model_library():
    code = (
        "import sys, service.command.main\n"
        "heavy = ('fastapi', 'uvicorn', 'torch', 'faiss', 'onnxruntime', 'retriever')\n"
        "print([name for name in heavy if name in sys.modules])\n"
    )
    done = run_python("-c", code)
    assert done.stdout.strip() == "[]", done.stderr


def test_the_script_is_declared():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert project["scripts"]["precedent"] == "service.command.main:main"


def test_a_reader_that_has_enough_ends_the_command_quietly(filled, location):
    command = [sys.executable, "-m", "service.command", "--bank", location, "list"]
    with subprocess.Popen(
        command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        process.stdout.close()  # as `| head -n 0` does
        assert process.stderr.read() == ""
        process.wait(120)
