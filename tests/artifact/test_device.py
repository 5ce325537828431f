"""One spelling for devices."""

from __future__ import annotations

import pytest

from retriever.device import Device
from retriever.errors import ConfigError


@pytest.mark.parametrize(
    ("text", "device", "shown"),
    [
        ("auto", Device("auto"), "auto"),
        ("cpu", Device("cpu"), "cpu"),
        ("cuda", Device("cuda", 0), "cuda:0"),
        ("cuda:3", Device("cuda", 3), "cuda:3"),
    ],
)
def test_a_device_is_read_and_shown_again(text, device, shown):
    assert Device.parse(text) == device
    assert str(device) == shown
    assert Device.parse(shown) == device


@pytest.mark.parametrize(
    "text",
    [
        "",
        "gpu",
        "CUDA",
        "cuda:",
        "cuda:-1",
        "cuda:x",
        "cpu:0",
        "auto:1",
        " cpu",
        "cuda:1\n",
        "cuda:١",
    ],
)
def test_any_other_spelling_is_refused_with_the_list(text):
    with pytest.raises(ConfigError, match=r"one of auto, cpu, cuda, cuda:<index>"):
        Device.parse(text)


@pytest.mark.parametrize("value", [None, 0, True])
def test_what_is_not_text_is_refused_too(value):
    with pytest.raises(ConfigError, match=f"device = {value!r}"):
        Device.parse(value)
