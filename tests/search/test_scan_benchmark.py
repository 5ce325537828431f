"""The benchmark of the scan, small: that it measures what it says."""

import json

import pytest

from benchmarks import scan
from benchmarks.scan import Bench, agreement, batches, single_query, small_bank


def test_every_side_is_timed_and_every_answer_compared():
    bench = Bench(rounds=1)
    figures = single_query(bench, 3000) | batches(bench, 500) | small_bank(bench)
    for name in ("float32", "float16", "bfloat16", "int8"):
        assert figures[f"single_{name}@3000_of_plain_read"].value > 0
        assert figures[f"single_{name}@3000_of_cached"].value > 0
    assert figures["single_float32@3000_of_plain_read"].target == 0.9
    assert figures["batch64_over_faiss@500"].target == 3.0
    assert figures["batch256_over_product@500"].target == 0.5


def test_the_answers_are_the_twins_from_every_storage_of_float32_vectors():
    figures = agreement(Bench(rounds=1), 600, 12)
    for name in ("float32", "bfloat16", "int8"):
        assert figures[f"{name}_answer_same_order"].value == 1.0
    assert 0.8 < figures["int8_kernel_overlap"].value < 1.0


def test_a_few_cases_are_quick_and_held_against_no_target(capsys):
    scan.main(["--cases", "5", "--rounds", "1", "--quick"])
    figures = json.loads(capsys.readouterr().out.splitlines()[-1])["figures"]
    assert figures["single_float32@5_ms"]["value"] < 1000
    assert "batch64_scan@5" in figures
    assert figures["float32_answer_overlap"]["value"] == 1.0
    assert {figure["met"] for figure in figures.values()} == {None}


def test_sizes_given_are_obeyed_and_only_those_of_the_targets_are_of_record():
    quick = scan.parse(["--quick", "--cases", "300", "--rounds", "2"])
    assert (quick.cases, quick.rounds, quick.batch_cases, quick.record) == (300, 2, 300, False)
    assert scan.parse([]).record
    assert scan.parse(["--rounds", "3"]).record
    assert not scan.parse(["--cases", "999999"]).record
    assert not scan.parse(["--quick", "--cases", "1000000"]).record


@pytest.mark.parametrize("given", [["--rounds", "0"], ["--cases", "0"], ["--cases", "-3"]])
def test_nothing_to_measure_is_refused(given, capsys):
    with pytest.raises(SystemExit) as status:
        scan.parse(given)
    assert status.value.code == 2
    assert f"{given[0]} must be at least 1, got {given[1]}" in capsys.readouterr().err
