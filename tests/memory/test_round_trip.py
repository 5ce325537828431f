"""Any valid case survives add → get → export → import unchanged."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from memory import KINDS, CaseBank, NewCase

texts = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\x00"), max_size=20)
words = texts.filter(str.strip)
numbers = st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False, allow_infinity=False)
json_values = st.recursive(
    st.none() | st.booleans() | numbers | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=8,
)
objects = st.dictionaries(texts, json_values, max_size=3)
steps = st.lists(json_values, max_size=3)
# An object's "plan" holds steps, not any value.
plans = (
    texts
    | steps
    | objects.filter(lambda plan: "plan" not in plan)
    | st.builds(lambda others, plan: others | {"plan": plan}, objects, texts | steps)
)
moments = st.none() | st.integers(-62135596800_000_000, 253402300799_999_999)


@st.composite
def new_cases(draw):
    start, end = draw(moments), draw(moments)
    if start is not None and end is not None and start >= end:
        end = None
    return NewCase(
        draw(words),
        plan=draw(st.none() | plans),
        outcome=draw(st.none() | st.floats(0, 1)),
        kind=draw(st.sampled_from(KINDS)),
        tags=draw(st.lists(words, max_size=3)),
        source=draw(st.none() | words),
        created_at=draw(moments),
        valid_from=start,
        valid_to=end,
        derived_from=draw(st.lists(words.map("of:{}".format), max_size=3)),
        metadata=draw(objects),
        external_id=draw(st.none() | words.map("id:{}".format)),
    )


@pytest.fixture(scope="module")
def bank(tmp_path_factory):
    with CaseBank.open(tmp_path_factory.mktemp("round_trip") / "bank.db") as opened:
        yield opened


names = itertools.count()


@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow], derandomize=True
)
@given(
    cases=st.lists(new_cases(), min_size=1, max_size=3, unique_by=lambda c: c.external_id or id(c))
)
def test_any_valid_case_survives_the_bank_and_a_file(bank, cases):
    one, two = f"n{next(names)}", f"n{next(names)}"
    stored = bank.get(bank.add(cases, namespace=one), namespace=one)
    assert [case.as_new() for case in stored] == cases
    assert [NewCase.from_json(case.to_json()) for case in stored] == cases
    path = bank.path.with_name(f"{one}.jsonl")
    assert bank.export_jsonl(path, one) == len(cases)
    assert bank.import_jsonl(path, namespace=two).added == len(cases)
    assert [case.as_new() for case in bank.list(namespace=two)] == cases
    path.unlink()
