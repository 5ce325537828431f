"""Inputs made on the spot: a planted log as rows, and a small random encoder that can read it.

Needs numpy, torch and transformers only, so that it runs where the reader of log files cannot.
"""

from __future__ import annotations

import string
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.torch
import torch
import transformers
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors, trainers

from retriever.learning.config import PlantedConfig
from retriever.learning.data.rows import Rows, groups_of
from retriever.learning.synthetic import PlantedWorld
from retriever.text import case_text, normalise_query, query_text

_HEAD_SIZE = 32  # of one attention head, as in MiniLM


def planted_rows(config: PlantedConfig) -> Rows:
    """The rows that reading the planted log would give, plans used."""
    queries: dict[str, int] = {}
    cases: dict[str, int] = {}
    runs: dict[str, int] = {}
    logged = list(PlantedWorld(config).rows())
    query = [queries.setdefault(query_text(row["query"]), len(queries)) for row in logged]
    case = [cases.setdefault(case_text(row["case"], row["plan"]), len(cases)) for row in logged]
    run = [runs.setdefault(row["run_id"], len(runs)) for row in logged]
    numbers = np.array(query, dtype=np.int64)
    return Rows(
        query_texts=list(queries),
        case_texts=list(cases),
        query=numbers,
        case=np.array(case, dtype=np.int64),
        group=groups_of(list(queries), numbers),
        run=np.array(run, dtype=np.int64),
        outcome=np.array([row["outcome"] for row in logged], dtype=np.float32),
        propensity=np.array([row["propensity"] for row in logged], dtype=np.float32),
        self_case=np.array(
            [normalise_query(row["query"]) == normalise_query(row["case"]) for row in logged]
        ),
    )


def random_encoder(
    folder: Path, texts: Iterable[str], *, layers: int, hidden_size: int, seed: int = 0
) -> Path:
    """A random BERT with a WordPiece vocabulary learned from `texts`, as transformers reads it.

    The shape of MiniLM where `layers` is 6 and `hidden_size` 384; `hidden_size` is a multiple of
    32.
    """
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    specials = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    trainer = trainers.WordPieceTrainer(
        vocab_size=4000,
        special_tokens=specials,
        initial_alphabet=list(string.ascii_lowercase + string.digits),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        special_tokens=[(name, tokenizer.token_to_id(name)) for name in ("[CLS]", "[SEP]")],
    )
    names = {name.strip("[]").lower() + "_token": name for name in specials}
    tokenizer_class: Any = transformers.PreTrainedTokenizerFast  # its constructor has no types
    fast = tokenizer_class(tokenizer_object=tokenizer, **names)
    fast.save_pretrained(folder)
    settings = transformers.BertConfig(
        vocab_size=len(fast),
        hidden_size=hidden_size,
        num_hidden_layers=layers,
        num_attention_heads=hidden_size // _HEAD_SIZE,
        intermediate_size=4 * hidden_size,
        max_position_embeddings=512,
    )
    settings.save_pretrained(folder)
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = transformers.BertModel(settings, add_pooling_layer=False)
    # As `save_pretrained` would write them, without its progress bar.
    safetensors.torch.save_file(
        dict(model.state_dict()), folder / "model.safetensors", metadata={"format": "pt"}
    )
    return folder
