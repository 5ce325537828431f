"""Every setting of an index can be given on the command line as it is documented."""

from __future__ import annotations

from dataclasses import fields

import pytest

from service.config import IndexConfig
from tests.repo.configs import CONF, options, parsed

GIVEN = {
    "kind": "flat",
    "device": "cpu",
    "candidates": 500,
    "storage": "int8",
    "width": 32,
    "lists": 77,
    "probes": 7,
    "links": 16,
    "breadth": 900,
    "sample": 5000,
    "seed": 3,
    "retrain_growth": 1.5,
    "rebuild_share": 0.4,
    "folder": "elsewhere",
}


@pytest.mark.parametrize("option", options("index"))
def test_every_setting_is_taken_with_every_choice_of_index(option):
    assert set(GIVEN) == {field.name for field in fields(IndexConfig)}
    changes = [f"index.{name}={value}" for name, value in GIVEN.items()]
    index = parsed("serve", f"index={option}", *changes).index
    assert {name: getattr(index, name) for name in GIVEN} == GIVEN


def test_what_a_choice_does_not_change_is_the_default_of_the_code():
    plain = IndexConfig()
    for option, changed in {
        "auto": {},
        "base": {},
        "flat": {"kind": "flat"},
        "ivf": {"kind": "ivf"},
        "hnsw": {"kind": "hnsw", "device": "cpu"},
        "faiss_gpu": {"device": "cuda", "storage": "float16"},
        "transient": {"folder": None},
    }.items():
        index = parsed("serve", f"index={option}").index
        for field in fields(IndexConfig):
            wanted = changed.get(field.name, getattr(plain, field.name))
            assert getattr(index, field.name) == wanted, (option, field.name)


def test_every_choice_of_index_is_looked_at():
    assert len(options("index")) == len(list((CONF / "index").glob("*.yaml"))) == 7
