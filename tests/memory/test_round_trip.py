"""Any valid case survives add → get → export → import unchanged."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import select

from memory import KINDS, CaseBank, NewCase
from memory.filters import CaseFilter
from memory.schema import lineage
from memory.storage.namespaces import namespace_state

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
    max_examples=30, deadline=None, suppress_health_check=[HealthCheck.too_slow], derandomize=True
)
@given(
    cases=st.lists(new_cases(), min_size=1, max_size=3, unique_by=lambda c: c.external_id or id(c))
)
def test_any_valid_case_survives_the_bank_and_a_file_of_either_format(bank, cases):
    one = f"n{next(names)}"
    stored = bank.get(bank.add(cases, namespace=one), namespace=one)
    assert [case.as_new() for case in stored] == cases
    assert [NewCase.from_json(case.to_json()) for case in stored] == cases
    for format_ in ("jsonl", "parquet"):
        two = f"{one}-{format_}"
        path = bank.path.with_name(f"{one}.{format_}")
        assert getattr(bank, f"export_{format_}")(path, one).written == len(cases)
        assert getattr(bank, f"import_{format_}")(path, namespace=two).added == len(cases)
        assert [case.as_new() for case in bank.list(namespace=two)] == cases
        path.unlink()


@pytest.mark.parametrize("format_", ["jsonl", "parquet"])
def test_lineage_tags_and_words_lead_to_the_same_cases_in_another_bank(
    bank, bank_location, tmp_path, format_
):
    """From a file's bank into a bank on either engine, and back."""
    one, back = f"n{next(names)}", f"n{next(names)}"
    cases = [
        NewCase("the raw turn", kind="turn", external_id="t1", metadata={"speaker": "Ana"}),
        NewCase("a fact", kind="fact", derived_from=["t1"], external_id="f1", tags=["x", "y"]),
        NewCase("a summary", kind="summary", derived_from=["f1", "t1", "not there"], source="s"),
        NewCase("a plan", plan={"plan": [{"id": 1, "step": "go"}]}, outcome=0.1 + 0.2),
        NewCase("as text", plan='{"plan": [{"id": 1, "step": "go"}]}', valid_from=-1, valid_to=0),
    ]
    bank.add(cases, namespace=one)
    path = tmp_path / f"cases.{format_}"
    getattr(bank, f"export_{format_}")(path, one)
    with CaseBank.open(bank_location) as other:
        other.add([NewCase("was here", external_id="t1")], namespace="elsewhere")
        assert getattr(other, f"import_{format_}")(path).added == len(cases)
        assert [case.as_new() for case in other.list()] == cases
        (fact,) = other.list(where=CaseFilter(tags=["y"], kinds=["fact"]))
        assert fact.query == "a fact"
        assert [case.query for case in other.list(where=CaseFilter(source="s"))] == ["a summary"]
        turn = other.list(limit=1)[0]
        assert derived(other, turn) == ["a fact", "a summary"]
        assert derived(other, fact) == ["a summary"]
        assert [id_ for id_, _ in other.search_text("raw turn")] == [turn.id]
        getattr(other, f"export_{format_}")(path)
    assert getattr(bank, f"import_{format_}")(path, namespace=back).already_imported is False
    assert [case.as_new() for case in bank.list(namespace=back)] == cases


def derived(bank, parent):
    """The queries of the cases that say they derive from a case."""
    keys = bank._store.keys
    with bank._store.read() as connection:
        state = namespace_state(connection, keys, parent.namespace)
        ids = connection.execute(
            select(lineage.c.child_id)
            .where(
                lineage.c.namespace_id == state.id,
                lineage.c.parent_key == keys.of("external", state.id, parent.external_id),
            )
            .order_by(lineage.c.child_id)
        ).scalars()
        return [case.query for case in bank.get(list(ids), namespace=parent.namespace)]
