"""Endpoints in the shapes of other services, whose clients work unchanged: OpenAI's embeddings and
vLLM's scores (the latter also takes our own `pairs`).
"""

from __future__ import annotations

import base64
import time
import uuid

from fastapi import APIRouter, Response

from retriever.text import case_text
from retriever.types import Floats, Pair
from service.body import JsonRoute
from service.errors import BadRequest
from service.schemas import (
    Embedding,
    Embeddings,
    EmbeddingsBody,
    PairsBody,
    Score,
    ScoreBody,
    Scores,
    TextsBody,
    Usage,
)
from service.state import ServiceState, State, within

router = APIRouter(route_class=JsonRoute, tags=["compatible"])


@router.post("/v1/embeddings", response_model=Embeddings)
def embeddings(body: EmbeddingsBody, state: State) -> Response:
    """Embed texts with the trained encoder, in OpenAI's shape. As pooled, not normalised."""
    texts = body.input
    within(len(texts), state.limits.max_texts, "input")
    own = state.scorer.dim
    if body.dimensions not in (None, own):
        raise BadRequest(
            f"dimensions = {body.dimensions}: this model has {own}, and its vectors cannot be "
            f"shortened; leave dimensions out or give {own}",
            "dimensions",
        )
    vectors = state.scorer.embed(texts)  # (N, H)
    answer = Embeddings.model_construct(
        object="list",
        data=[
            Embedding.model_construct(
                object="embedding", index=index, embedding=_encoded(vector, body.encoding_format)
            )
            for index, vector in enumerate(vectors)
        ],
        model=state.model_name,
        usage=_usage(state, texts),
    )
    return Response(answer.model_dump_json(), media_type="application/json")


@router.post("/v1/score", response_model=Scores)
def score(body: ScoreBody, state: State) -> Response:
    """The calibrated chance that a run of each query succeeds, given that the case was shown."""
    pairs = _pairs(body)
    within(len(pairs), state.limits.max_texts, "pairs")
    scores = state.scorer.score(pairs)  # (N,)
    answer = Scores(
        id=f"score-{uuid.uuid4().hex}",
        created=int(time.time()),
        model=state.model_name,
        data=[Score(index=index, score=float(value)) for index, value in enumerate(scores)],
        usage=_usage(
            state,
            [pair.query for pair in pairs] + [case_text(pair.case, pair.plan) for pair in pairs],
        ),
    )
    return Response(answer.model_dump_json(), media_type="application/json")


def _pairs(body: PairsBody | TextsBody) -> list[Pair]:
    if isinstance(body, PairsBody):
        return [Pair(pair.query, pair.case, pair.plan) for pair in body.pairs]
    queries, cases = body.text_1, body.text_2
    if len(queries) == 1:
        queries = queries * len(cases)
    if len(queries) != len(cases):
        raise BadRequest(
            f"text_1 has {len(queries)} texts and text_2 {len(cases)}; give one query and N cases, "
            "or as many queries as cases",
            "text_1",
        )
    return [Pair(query, case) for query, case in zip(queries, cases, strict=True)]


def _encoded(vector: Floats, encoding: str) -> list[float] | str:
    if encoding == "base64":
        return base64.b64encode(vector.astype("<f4").tobytes()).decode("ascii")
    numbers: list[float] = vector.tolist()
    return numbers


def _usage(state: ServiceState, texts: list[str]) -> Usage:
    tokens = sum(state.scorer.count_tokens(texts))
    return Usage(prompt_tokens=tokens, total_tokens=tokens)
