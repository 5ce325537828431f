"""Text to token ids, the same way in training and in serving (the `tokenizers` library only)."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from tokenizers import Tokenizer

from retriever.errors import ArtifactCorrupt, InvalidInput
from retriever.types import Ids

_TEXTS_AT_ONCE = 4096


class TextTokenizer:
    """Token ids with the encoder's special tokens, cut at `max_length` tokens.

    What was cut is counted in `truncated`: nobody has to wonder whether texts were too long.
    """

    def __init__(self, definition: str, *, max_length: int, pad_id: int) -> None:
        try:
            self._tokenizer = Tokenizer.from_str(definition)
        except Exception as error:  # the library raises bare Exception
            raise ArtifactCorrupt(f"the tokenizer definition cannot be read: {error}") from error
        self._tokenizer.no_padding()
        self._tokenizer.enable_truncation(max_length)
        self.definition = definition
        self.max_length = max_length
        self.pad_id = pad_id
        self.truncated = 0
        self._lock = threading.Lock()

    @classmethod
    def from_file(cls, path: Path, *, max_length: int, pad_id: int) -> TextTokenizer:
        """Read `tokenizer.json`."""
        return cls(path.read_text(encoding="utf-8"), max_length=max_length, pad_id=pad_id)

    @property
    def vocabulary_size(self) -> int:
        """Number of ids, added tokens included."""
        return int(self._tokenizer.get_vocab_size(with_added_tokens=True))

    def count(self, texts: Sequence[str]) -> list[int]:
        """Ids of each text after truncation; counting does not count as cutting."""
        return [len(ids) for ids in self._encode(texts)[0]]

    def encode(self, texts: Sequence[str]) -> list[Ids]:
        """N texts -> N arrays of ids, each at most `max_length` long.

        Raises:
            InvalidInput: an item is not text, or holds characters that are not (lone surrogates).
        """
        encoded, cut = self._encode(texts)
        if cut:
            with self._lock:
                self.truncated += cut
        return encoded

    def _encode(self, texts: Sequence[str]) -> tuple[list[Ids], int]:
        if isinstance(texts, str):
            raise InvalidInput("texts must be a list of texts, got one text; wrap it in a list")
        for index, text in enumerate(texts):
            _refuse_what_is_not_text(text, index)
        encoded: list[Ids] = []
        cut = 0
        for start in range(0, len(texts), _TEXTS_AT_ONCE):
            found = self._tokenizer.encode_batch(list(texts[start : start + _TEXTS_AT_ONCE]))
            encoded += [np.asarray(one.ids, dtype=np.int64) for one in found]
            cut += sum(bool(one.overflowing) for one in found)
        return encoded, cut


def _refuse_what_is_not_text(text: object, index: int) -> None:
    if not isinstance(text, str):
        raise InvalidInput(f"texts[{index}] must be text, got {type(text).__name__}: {text!r}")
    try:
        text.encode()
    except UnicodeEncodeError as error:  # a lone surrogate; the tokenizer's own error says nothing
        raise InvalidInput(
            f"texts[{index}] is not valid Unicode: {error.reason} at character {error.start}; "
            "decode it with errors='replace'"
        ) from error
