"""The bodies of requests and answers. Native requests are strict: an unknown key is an error that
names it. OpenAI- and vLLM-shaped ones ignore keys they do not know, as their clients expect.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Discriminator,
    Field,
    Tag,
    model_validator,
)
from pydantic_core import PydanticCustomError

from service.errors import FORM, did_you_mean


def _words(text: str) -> str:
    if not text.strip():
        raise PydanticCustomError("blank", "is blank; give some words")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise PydanticCustomError(
            "not_unicode", "holds half a surrogate pair, which is not valid Unicode"
        ) from error
    return text


def _searched(text: str) -> str:
    if "\0" in text:
        raise PydanticCustomError(
            "not_searchable", "holds NUL, which no stored text has; take it out"
        )
    return text


def _listed(given: Any) -> Any:
    return [given] if isinstance(given, str) else given


Text = Annotated[str, AfterValidator(_words)]
#: What a search looks for.
Wanted = Annotated[Text, AfterValidator(_searched)]
Texts = Annotated[list[Text], Field(min_length=1)]
#: One text or several, as other services take them; always a list here.
OneOrMore = Annotated[Texts, BeforeValidator(_listed, json_schema_input_type=str | list[str])]


class Native(BaseModel):
    """A request of our own: no guessing at types, no unknown keys."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)

    @model_validator(mode="before")
    @classmethod
    def _known_keys(cls, values: Any) -> Any:
        if isinstance(values, dict):
            for key in values:
                if key not in cls.model_fields:
                    raise PydanticCustomError(
                        "unknown_key",
                        "unknown key {key}; {hint}",
                        {"key": repr(key), "hint": did_you_mean(key, list(cls.model_fields))},
                    )
        return values


class Foreign(BaseModel):
    """A request in the shape of another service's clients."""

    model_config = ConfigDict(extra="ignore", allow_inf_nan=False)


def _one_of(values: BaseModel, first: str, second: str) -> None:
    if (getattr(values, first) is None) == (getattr(values, second) is None):
        raise PydanticCustomError(
            "one_of", "give either {first} or {second}", {"first": first, "second": second}
        )


class EmbeddingsBody(Foreign):
    """As `embeddings.create` of the OpenAI client sends it; `model` is not looked at."""

    input: OneOrMore = Field(description="one text, or a list of texts")
    encoding_format: Literal["float", "base64"] = Field(
        default="float", description="base64: little-endian float32"
    )
    dimensions: int | None = Field(default=None, description="the model's own, or left out")

    @model_validator(mode="before")
    @classmethod
    def _text_not_tokens(cls, values: Any) -> Any:
        given = values.get("input") if isinstance(values, dict) else None
        if isinstance(given, list) and any(isinstance(one, int | list) for one in given):
            raise PydanticCustomError(
                "tokens", "input must be text or a list of texts; token ids are not accepted"
            )
        return values


class PairBody(Native):
    """A query and the case that was, or might be, shown for it."""

    query: Text
    case: Text
    plan: Any = Field(default=None, description="text, an object or a list of steps")


class PairsBody(Native):
    """Our own form of a scoring request."""

    pairs: Annotated[list[PairBody], Field(min_length=1)]


class TextsBody(Foreign):
    """vLLM's form of a scoring request: one query against N cases, or N against N."""

    text_1: OneOrMore = Field(description="the query, or N queries")
    text_2: OneOrMore = Field(description="the case, or N cases")


PAIRS, TEXTS = f"pairs{FORM}", f"texts{FORM}"


def _form(values: Any) -> str | None:
    if isinstance(values, dict):
        if "pairs" in values:
            return PAIRS
        if "text_1" in values or "text_2" in values:
            return TEXTS
    return None


ScoreBody = Annotated[
    Annotated[PairsBody, Tag(PAIRS)] | Annotated[TextsBody, Tag(TEXTS)],
    Discriminator(
        _form,
        custom_error_type="one_of",
        custom_error_message="give either pairs, or text_1 and text_2",
    ),
]


class SearchBody(Native):
    """A search: one `query`, or several `queries`."""

    query: Wanted | None = None
    queries: Annotated[list[Wanted], Field(min_length=1)] | None = None
    k: Annotated[int, Field(ge=1)] = 8
    namespace: str = "default"
    mode: Literal["exact", "cosine", "ann", "lexical", "hybrid"] = "exact"
    min_score: float | None = None
    return_cases: bool = False

    @model_validator(mode="after")
    def _one_form(self) -> SearchBody:
        _one_of(self, "query", "queries")
        return self


class CasesBody(Native):
    """One `case`, or several `cases`, in the form of a line of a JSONL file."""

    case: dict[str, Any] | None = Field(
        default=None,
        examples=[{"query": "How was it done?", "plan": ["look", "act"], "outcome": 1.0}],
    )
    cases: Annotated[list[dict[str, Any]], Field(min_length=1)] | None = None
    namespace: str = "default"

    @model_validator(mode="after")
    def _one_form(self) -> CasesBody:
        _one_of(self, "case", "cases")
        return self


class Usage(BaseModel):
    """Tokens the model read."""

    prompt_tokens: int
    total_tokens: int


class Embedding(BaseModel):
    """One vector, in the order of the input."""

    object: Literal["embedding"] = "embedding"
    index: int
    embedding: list[float] | str


class Embeddings(BaseModel):
    """The answer of `/v1/embeddings`."""

    object: Literal["list"] = "list"
    data: list[Embedding]
    model: str
    usage: Usage


class Score(BaseModel):
    """One calibrated chance, in the order of the pairs."""

    index: int
    object: Literal["score"] = "score"
    score: float


class Scores(BaseModel):
    """The answer of `/v1/score`."""

    id: str
    object: Literal["list"] = "list"
    created: int
    model: str
    data: list[Score]
    usage: Usage


class StoredCase(BaseModel):
    """A case of the bank: `case_id` is the database's, `id` the one it was given from outside."""

    model_config = ConfigDict(extra="allow")

    case_id: int
    namespace: str
    query: str


class Result(BaseModel):
    """One hit; `logit` and `probability` are null where the trained head was not used, `case` where
    it was not asked for.
    """

    case_id: int
    rank: int
    score: float
    logit: float | None
    probability: float | None
    case: StoredCase | None = None


class Found(BaseModel):
    """The answer of `/v1/search`: for `queries`, one list of results per query."""

    object: Literal["search"] = "search"
    results: list[Result] | list[list[Result]]
    mode: str
    namespace: str
    bank_version: int
    model: str
    model_fingerprint: str


class Added(BaseModel):
    """The answer to added cases: their ids, in the order they were given."""

    object: Literal["cases.added"] = "cases.added"
    case_ids: list[int]
    namespace: str


class CasePage(BaseModel):
    """Some cases, by id; `next` is what to send as `after` for those that follow, or null."""

    object: Literal["list"] = "list"
    data: list[StoredCase]
    has_more: bool
    next: int | None


class ModelFacts(BaseModel):
    """What scores here."""

    name: str
    fingerprint: str
    dimensions: int
    max_length: int
    provider: str
    device: str


class Health(BaseModel):
    """The answer of `/health`."""

    status: Literal["ok"] = "ok"
    version: str
    model: ModelFacts
    bank: str
    modes: list[str]
