"""One clear error for every wrong configuration, before any work."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from omegaconf import MISSING, OmegaConf

from retriever.errors import ConfigError
from retriever.learning.config import TrainConfig
from retriever.settings import parse_config, require


@dataclass
class Inner:
    rate: float = 0.5
    name: str | None = None

    def __post_init__(self) -> None:
        require(0 < self.rate <= 1, "inner.rate", self.rate, "in (0, 1]")


@dataclass
class Outer:
    folder: str = MISSING
    count: int = 3
    flag: bool = True
    inner: Inner = field(default_factory=Inner)
    other: Inner | None = None
    tags: list[str] = field(default_factory=list)


def parsed(**values):
    return parse_config(Outer, {"folder": "here"} | values)


def test_values_become_plain_dataclasses_all_the_way_down():
    found = parsed(count=5, inner={"rate": 1}, other={"name": "x"}, tags=["a"])
    assert found == Outer("here", 5, True, Inner(1.0), Inner(name="x"), ["a"])
    assert type(found.inner) is Inner
    assert type(found.tags) is list


def test_what_is_not_given_keeps_its_default():
    assert parsed() == Outer("here")
    assert parsed(other=None).other is None


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"coutn": 1}, r"unknown configuration key coutn \(value 1\); did you mean count\?"),
        ({"inner": {"rat": 1}}, r"unknown configuration key inner\.rat .*did you mean inner\.rate"),
        ({"other": {"naem": "x"}}, r"other\.naem .*did you mean other\.name"),
        ({"zzz": None}, "unknown configuration key zzz .*known here: folder, count, flag"),
        ({7: 1}, "unknown configuration key 7"),
        ({"count": "many"}, "count: .*many"),
        ({"count": 1.5}, r"count: .*1\.5"),
        ({"count": None}, "count: .*[Nn]one"),
        ({"count": [1]}, "count: "),
        ({"flag": "perhaps"}, "flag: .*perhaps"),
        ({"inner": {"rate": "fast"}}, r"inner\.rate: .*fast"),
        ({"inner": "fast"}, r"inner = 'fast': a group of settings is needed \(rate, name\)"),
        ({"other": 3}, "other = 3: a group"),
        ({"inner": None}, "inner"),
        ({"tags": "a"}, "tags: "),
        ({"inner": {"rate": 2}}, r"inner\.rate = 2\.0: in \(0, 1\]"),
        ({"inner": {"rate": float("nan")}}, r"inner\.rate = nan: in"),
        ({"folder": "???"}, r"folder has no value; .* folder=\.\.\."),
        ({"count": "${nowhere}"}, "nowhere"),
        ({"count": "${"}, r"\$\{"),
    ],
)
def test_a_wrong_value_is_one_error_that_names_key_and_value(values, message):
    with pytest.raises(ConfigError, match=message) as refused:
        parse_config(Outer, {"folder": "here"} | values)
    assert "\n" not in str(refused.value)


def test_a_value_left_open_in_a_nested_part_is_named_with_its_path():
    with pytest.raises(ConfigError, match=r"encoder\.source has no value"):
        parse_config(TrainConfig, {"output_dir": "x", "encoder": {"source": "???"}})


def test_interpolations_are_resolved_before_the_check():
    composed = OmegaConf.create({"folder": "${oc.env:NOT_SET_ANYWHERE,fallback}", "count": 4})
    assert parse_config(Outer, composed) == Outer("fallback", 4)
    assert parsed(count="${inner.rate}0", inner={"rate": 1}).count == 10


def test_text_that_reads_as_a_number_is_one_where_a_number_is_needed():
    assert parsed(count="12").count == 12


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"encoder": {"pooling": "max"}}, r"encoder\.pooling = 'max': one of"),
        ({"encoder": {"max_length": 3}}, r"encoder\.max_length = 3: at least 4"),
        ({"encoder": {"source": "  "}}, r"encoder\.source = '  ': name an encoder"),
        ({"device": "gpu"}, "device = 'gpu': one of auto, cpu, cuda"),
        ({"seed": -1}, "seed = -1"),
        ({"trainer": {"learning_rate": "nan"}}, r"trainer\.learning_rate = nan: above 0"),
        ({"data": {"validation_fraction": 1.0}}, r"data\.validation_fraction = 1\.0"),
        ({"export": {"tolerance": 0}}, r"export\.tolerance = 0\.0: above 0"),
        ({"trainer": {"lr": 1}}, r"unknown configuration key trainer\.lr"),
    ],
)
def test_impossible_training_settings_are_refused_by_key(values, message):
    composed = {"output_dir": "x", "data": {"planted": {}}} | values
    with pytest.raises(ConfigError, match=message):
        parse_config(TrainConfig, composed)
