"""What a model is called over HTTP and in receipts: another name for another set of vectors."""

from __future__ import annotations

import pytest

import retriever
from service.sinks import ArtifactWitness
from service.state import ServiceState


@pytest.fixture
def names(tiny_artifact):
    found = {}
    for precision in ("fp32", "fp16", "bf16"):
        scorer = retriever.load(tiny_artifact, "torch", "cpu", precision=precision)
        state = ServiceState(scorer, bank=None, searcher=None)
        witness = ArtifactWitness(tiny_artifact, scorer.manifest, scorer.fingerprint)
        found[precision] = (state.model_name, witness.name)
    return found


def test_each_precision_has_a_name_of_its_own_and_fp32_keeps_the_one_it_had(names, tiny_artifact):
    fingerprint = retriever.load(tiny_artifact, device="cpu").fingerprint
    assert names["fp32"] == (f"precedent-{fingerprint[:12]}", f"artifact {fingerprint[:12]}")
    for precision in ("fp16", "bf16"):
        assert names[precision] == tuple(f"{name}-{precision}" for name in names["fp32"])
