"""Our own endpoints: search, and the cases that are searched."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Path, Query, Response
from pydantic import BaseModel

from memory import Case, NewCase
from memory.errors import InvalidCase
from retriever.types import Hit
from service.body import JsonRoute
from service.errors import BadRequest
from service.schemas import (
    Added,
    CasePage,
    CasesBody,
    Found,
    Result,
    SearchBody,
    StoredCase,
)
from service.state import ServiceState, State, within

router = APIRouter(route_class=JsonRoute, tags=["native"])

#: Cases a page unless asked otherwise.
PAGE = 100

Namespace = Annotated[str, Query(description="nothing crosses from one namespace to another")]


@router.post("/v1/search", response_model=Found)
def search(body: SearchBody, state: State) -> Response:
    """The k best cases for a query, or for each of several, best first."""
    queries = body.queries if body.query is None else [body.query]
    assert queries is not None
    within(len(queries), state.limits.max_queries, "queries")
    if body.k > state.limits.max_k:
        raise BadRequest(f"k = {body.k}: at most {state.limits.max_k} here", "k")
    answer = state.searcher.answer(
        queries, body.k, namespace=body.namespace, mode=body.mode, min_score=body.min_score
    )
    results = _results(answer.hits, state, body)
    found = Found(
        results=results if body.query is None else results[0],
        mode=body.mode,
        namespace=body.namespace,
        bank_version=answer.version,
        model=state.model_name,
        model_fingerprint=state.scorer.fingerprint,
    )
    return _json(found)


@router.post("/v1/cases", response_model=Added, status_code=201)
def add_cases(body: CasesBody, state: State) -> Response:
    """Add one case or several, all or none; the next search sees them."""
    rows = body.cases if body.case is None else [body.case]
    assert rows is not None
    within(len(rows), state.limits.max_cases, "cases")
    one = body.case is not None
    new = [_new_case(row, "case" if one else f"cases[{i}]") for i, row in enumerate(rows)]
    ids = state.bank.add(new, namespace=body.namespace)
    return _json(Added(case_ids=ids, namespace=body.namespace), status=201)


@router.get("/v1/cases", response_model=CasePage)
def list_cases(
    state: State,
    namespace: Namespace = "default",
    after: Annotated[int, Query(ge=0, description="the last id of the page before")] = 0,
    limit: Annotated[int | None, Query(ge=1, description="100, if the limits allow")] = None,
) -> Response:
    """Cases by rising id, a page at a time."""
    if limit is None:
        limit = min(PAGE, state.limits.max_cases)
    within(limit, state.limits.max_cases, "cases")
    cases = state.bank.list(namespace=namespace, after=after, limit=limit + 1)
    page, more = cases[:limit], len(cases) > limit
    return _json(
        CasePage(
            data=[_stored(case) for case in page],
            has_more=more,
            next=page[-1].id if more else None,
        )
    )


@router.get("/v1/cases/{case_id}", response_model=StoredCase)
def get_case(
    state: State, case_id: Annotated[int, Path(ge=1, lt=2**53)], namespace: Namespace = "default"
) -> Response:
    """One case by its id."""
    (case,) = state.bank.get([case_id], namespace=namespace)
    return _json(_stored(case))


def _results(hits: list[list[Hit]], state: ServiceState, body: SearchBody) -> list[list[Result]]:
    if not body.return_cases:
        return [[_result(hit, hit.rank) for hit in found] for found in hits]
    ids = sorted({hit.id for found in hits for hit in found})
    known = state.bank.known(ids, namespace=body.namespace)
    cases = {id_: _stored(case) for id_, case in known.items()}
    # What was forgotten after it was found is not shown, and the ranks close up.
    return [
        [
            _result(hit, rank, cases[hit.id])
            for rank, hit in enumerate((hit for hit in found if hit.id in cases), start=1)
        ]
        for found in hits
    ]


def _result(hit: Hit, rank: int, case: StoredCase | None = None) -> Result:
    return Result(
        case_id=hit.id,
        rank=rank,
        score=hit.score,
        logit=hit.logit,
        probability=hit.probability,
        case=case,
    )


def _stored(case: Case) -> StoredCase:
    return StoredCase(case_id=case.id, namespace=case.namespace, **case.to_json())


def _new_case(row: dict[str, Any], place: str) -> NewCase:
    try:
        return NewCase.from_json(row)
    except InvalidCase as error:
        raise BadRequest(f"body.{place}.{error}", f"body.{place}.{error.field}") from error


def _json(answer: BaseModel, status: int = 200) -> Response:
    # Made here, in the worker thread: writing a large answer is work too.
    return Response(answer.model_dump_json(), status, media_type="application/json")
