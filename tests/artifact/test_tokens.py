"""Text to ids: the same as the encoder's own tokenizer, in order, cut and counted."""

from __future__ import annotations

import threading

import numpy as np
import pytest
import transformers

from retriever.errors import ArtifactCorrupt, InvalidInput
from retriever.tokens import TextTokenizer

UGLY = [
    "",
    " ",
    "\n\t",
    "😀 café",
    "a\x00b",
    "שלום 世界",
    "e\u0301",
    "\ufeffwho",
    "a\r\nb",
    "[CASE]\nwho",
]


def test_ids_are_those_of_the_encoders_own_tokenizer(tiny_encoder, tokenizer):
    reference = transformers.AutoTokenizer.from_pretrained(tiny_encoder)
    texts = [*UGLY, "what is the capital of the country " * 5]
    expected = reference(texts, truncation=True, max_length=12)["input_ids"]
    assert [one.tolist() for one in tokenizer.encode(texts)] == expected


def test_no_texts_give_no_ids(tokenizer):
    assert tokenizer.encode([]) == []
    assert tokenizer.count([]) == []


def test_many_texts_come_back_in_the_order_given(tokenizer):
    texts = [f"case {number}" for number in range(9000)]
    encoded = tokenizer.encode(texts)
    assert len(encoded) == len(texts)
    for number in (0, 1, 4095, 4096, 8999):
        np.testing.assert_array_equal(encoded[number], tokenizer.encode([texts[number]])[0])


def test_each_cut_text_is_counted_once_however_long(tokenizer):
    short, long, huge = "a b c", "a b c " * 10, "a " * 100_000
    encoded = tokenizer.encode([short, long, huge, short])
    assert [len(one) for one in encoded] == [5, 12, 12, 5]
    assert tokenizer.truncated == 2
    tokenizer.encode([huge])
    assert tokenizer.truncated == 3


def test_a_text_of_exactly_the_maximum_is_not_cut(tokenizer):
    tokenizer.encode(["a " * 10])
    assert tokenizer.truncated == 0
    tokenizer.encode(["a " * 11])
    assert tokenizer.truncated == 1


def test_counting_tokens_does_not_count_as_cutting(tokenizer):
    assert tokenizer.count(["a b c", "a " * 500]) == [5, 12]
    assert tokenizer.truncated == 0


def test_cuts_are_counted_exactly_when_threads_share_a_tokenizer(tokenizer):
    threads = [
        threading.Thread(target=tokenizer.encode, args=(["who " * 50, "who"] * 20,))
        for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert tokenizer.truncated == 8 * 20


@pytest.mark.parametrize("wrong", [None, 3, 1.5, b"who", ["who"], float("nan")])
def test_what_is_not_text_is_refused_with_its_place(tokenizer, wrong):
    with pytest.raises(InvalidInput, match=rf"texts\[1\] must be text, got {type(wrong).__name__}"):
        tokenizer.encode(["who", wrong])


def test_one_text_instead_of_a_list_is_refused(tokenizer):
    with pytest.raises(InvalidInput, match="list of texts"):
        tokenizer.encode("who")


def test_a_lone_surrogate_is_refused_with_its_place_and_the_remedy(tokenizer):
    with pytest.raises(
        InvalidInput, match=r"texts\[2\] is not valid Unicode.*character 4.*errors="
    ):
        tokenizer.encode(["who", "what", "who \ud800 is"])
    assert tokenizer.truncated == 0


@pytest.mark.parametrize("definition", ["", "{", "[]", '{"version": "1.0"}'])
def test_a_definition_that_is_no_tokenizer_is_refused(definition):
    with pytest.raises(ArtifactCorrupt, match="tokenizer definition cannot be read"):
        TextTokenizer(definition, max_length=8, pad_id=0)
