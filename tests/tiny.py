"""Tiny real models, made on the spot: a random BERT with a WordPiece vocabulary of its own."""

from __future__ import annotations

import string
from pathlib import Path

import torch
import transformers
from tokenizers import (
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
)

SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
WORDS = """
    what who when where which how many people work country city capital sport team player born
    the of in is was are did does find identify determine search verify number name date year
    film director writer song album band company school university river mountain king queen
    plan case step source two check compare list first then answer question report table
"""


def make_tiny_encoder(folder: Path, *, seed: int = 0, hidden_size: int = 32) -> Path:
    """A folder that transformers reads: config.json, model.safetensors, tokenizer files."""
    tokenizer = Tokenizer(models.WordPiece(_vocabulary(), unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[(t, tokenizer.token_to_id(t)) for t in ("[CLS]", "[SEP]")],
    )
    fast = transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token="[PAD]",
        unk_token="[UNK]",
        cls_token="[CLS]",
        sep_token="[SEP]",
        mask_token="[MASK]",
    )
    fast.save_pretrained(folder)
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = transformers.BertModel(
            transformers.BertConfig(
                vocab_size=len(fast),
                hidden_size=hidden_size,
                num_hidden_layers=2,
                num_attention_heads=2,
                intermediate_size=64,
                max_position_embeddings=64,
            ),
            add_pooling_layer=False,
        )
    model.save_pretrained(folder)
    return folder


def _vocabulary() -> dict[str, int]:
    """Written down, not trained: a trainer breaks ties differently in every process."""
    letters = string.ascii_lowercase + string.digits
    pieces = [*letters, *(f"##{letter}" for letter in letters), *sorted(set(WORDS.split()))]
    tokens = dict.fromkeys([*SPECIAL, *pieces])
    return {token: number for number, token in enumerate(tokens)}
