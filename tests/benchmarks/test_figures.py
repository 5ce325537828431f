from __future__ import annotations

import json

import pytest

from benchmarks.figures import Figure, refusing, result_line


@pytest.mark.parametrize(
    ("figure", "met"),
    [
        (Figure(3.0, "x", 3.0), True),
        (Figure(2.99, "x", 3.0), False),
        (Figure(0.02, "nats", 0.02, at_most=True), True),
        (Figure(0.03, "nats", 0.02, at_most=True), False),
        (Figure(float("nan"), "x", 3.0), False),
        (Figure(float("nan"), "nats", 0.02, at_most=True), False),
        (Figure(5.0, "pairs/s"), None),
    ],
)
def test_a_target_is_met_on_its_own_side_only_and_never_by_nan(figure, met):
    assert figure.met is met


def test_the_result_line_is_one_line_of_json_with_the_machine_in_it():
    line = result_line("some", {"speed": Figure(1234.56789, "pairs/s", 1000.0)}, torch="2.0")
    assert "\n" not in line
    body = json.loads(line)
    assert body["benchmark"] == "some"
    assert body["figures"] == {
        "speed": {"value": 1234.57, "unit": "pairs/s", "target": 1000.0, "met": True}
    }
    assert body["machine"]["torch"] == "2.0"
    assert body["machine"]["cores"] >= 1
    assert set(body["machine"]) == {"system", "cpu", "cores", "python", "torch"}


def test_a_target_to_be_above_is_not_reached_by_the_target_itself():
    met = [Figure(value, "", 0.0, above=True).met for value in (-0.1, 0.0, 0.1, float("nan"))]
    assert met == [False, False, True, False]


@pytest.mark.parametrize(
    "error", [FileNotFoundError(2, "No such file", "x"), ValueError("two\nlines"), KeyError("own")]
)
def test_a_refusal_is_one_line_and_status_2(error, capsys):
    with pytest.raises(SystemExit) as status, refusing(KeyError):
        raise error
    assert status.value.code == 2
    assert len(capsys.readouterr().err.splitlines()) == 1


def test_what_nobody_expects_is_not_refused_but_raised():
    with pytest.raises(ZeroDivisionError), refusing():
        raise ZeroDivisionError
