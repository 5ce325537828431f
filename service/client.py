"""Talk to a running service, with the standard library only.

    client = Client("http://127.0.0.1:8080")
    client.search("How many people live in Bern?", k=3)

One connection per call, no retries, no proxies; safe for threads.
"""

from __future__ import annotations

import base64
import http.client
import json
import math
import sys
from array import array
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias
from urllib.parse import urlencode, urlsplit

Json: TypeAlias = dict[str, Any]


class ClientError(Exception):
    """Base of what a `Client` raises."""


class Unreachable(ClientError):
    """Nobody answered at the address, or not in time, or not in JSON."""


class Refused(ClientError):
    """The service answered with an error: its message, `status`, `code`, and the field's path."""

    def __init__(self, status: int, message: str, code: str | None, param: str | None) -> None:
        super().__init__(f"{message} (HTTP {status})")
        self.status = status
        self.message = message
        self.code = code
        self.param = param


class Client:
    """The endpoints of a service as methods.

    Args:
        base_url: such as `http://127.0.0.1:8080`; a path before the endpoints is kept.
        timeout_s: for connecting, and for each wait for an answer.
    """

    def __init__(self, base_url: str, *, timeout_s: float = 60.0) -> None:
        parts = urlsplit(base_url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError(f"base_url = {base_url!r}: must be like http://127.0.0.1:8080")
        if not (math.isfinite(timeout_s) and timeout_s > 0):
            raise ValueError(f"timeout_s = {timeout_s!r}: seconds, above 0")
        self.base_url = base_url.rstrip("/")
        self.timeout_s = timeout_s
        self._secure = parts.scheme == "https"
        self._address = (parts.hostname, parts.port)
        self._prefix = parts.path.rstrip("/")

    def health(self) -> Json:
        """What is served."""
        return self._call("GET", "/health")

    def embed(self, texts: Sequence[str]) -> list[list[float]]:
        """N texts -> N vectors of the trained encoder, as pooled, not normalised."""
        _refuse_one_text("texts", texts)
        body = {"input": list(texts), "encoding_format": "base64"}
        answer = self._call("POST", "/v1/embeddings", body)
        return [_decoded(one["embedding"]) for one in answer["data"]]

    def score(self, pairs: Sequence[Sequence[Any]]) -> list[float]:
        """(query, case) or (query, case, plan) -> the calibrated chance of success, per pair."""
        sent = []
        for index, pair in enumerate(pairs):
            if isinstance(pair, str) or len(pair) not in (2, 3):
                raise ValueError(f"pairs[{index}] = {pair!r}: (query, case) or (query, case, plan)")
            sent.append(dict(zip(("query", "case", "plan"), pair, strict=False)))
        answer = self._call("POST", "/v1/score", {"pairs": sent})
        return [float(one["score"]) for one in answer["data"]]

    def search(self, query: str | Sequence[str], k: int = 8, **options: Any) -> Json:
        """The k best cases: `results` is a list, or for several queries a list of lists.

        Options: namespace, mode ("exact" | "cosine" | "ann" | "lexical" | "hybrid"), min_score,
        return_cases.
        """
        asked = {"query": query} if isinstance(query, str) else {"queries": list(query)}
        return self._call("POST", "/v1/search", {**asked, "k": k, **options})

    def add_cases(
        self, cases: Sequence[Mapping[str, Any]], *, namespace: str = "default"
    ) -> list[int]:
        """Add cases, all or none; returns their ids. The keys are those of a line of JSONL."""
        body = {"cases": [dict(case) for case in cases], "namespace": namespace}
        ids: list[int] = self._call("POST", "/v1/cases", body)["case_ids"]
        return ids

    def get_case(self, case_id: int, *, namespace: str = "default") -> Json:
        """One case by its id."""
        return self._call("GET", f"/v1/cases/{case_id}?{urlencode({'namespace': namespace})}")

    def list_cases(
        self, *, namespace: str = "default", after: int = 0, limit: int | None = None
    ) -> Json:
        """A page of cases by rising id: `data`, `has_more`, and `next` to go on after."""
        query = {"namespace": namespace, "after": after}
        if limit is not None:
            query["limit"] = limit
        return self._call("GET", f"/v1/cases?{urlencode(query)}")

    def _call(self, method: str, path: str, body: Json | None = None) -> Json:
        content = None if body is None else json.dumps(body, allow_nan=False).encode()
        headers = {"Accept": "application/json", "Connection": "close"}
        if content is not None:
            headers["Content-Type"] = "application/json"
        make = http.client.HTTPSConnection if self._secure else http.client.HTTPConnection
        connection = make(*self._address, timeout=self.timeout_s)
        try:
            try:
                connection.request(method, self._prefix + path, content, headers)
            except (BrokenPipeError, ConnectionResetError):
                # Refused while it was still being sent (too large): the answer may have come.
                if connection.sock is None:
                    raise
            response = connection.getresponse()
            status, data = response.status, response.read()
        except (OSError, http.client.HTTPException) as error:
            raise Unreachable(
                f"no answer from {self.base_url}{path.split('?')[0]}: "
                f"{error or type(error).__name__}; is the service running there?"
            ) from error
        finally:
            connection.close()
        return self._read(status, data)

    def _read(self, status: int, data: bytes) -> Json:
        try:
            answer = json.loads(data)
        except ValueError:
            answer = None
        if not isinstance(answer, dict):
            raise Unreachable(
                f"{self.base_url} answered {status} without JSON; is it this service?"
            )
        if status >= http.client.BAD_REQUEST:
            error = answer.get("error")
            error = error if isinstance(error, dict) else {}
            message = error.get("message") or answer.get("detail") or "no reason given"
            raise Refused(status, str(message), error.get("code"), error.get("param"))
        return answer


def _refuse_one_text(name: str, texts: Sequence[str]) -> None:
    if isinstance(texts, str):
        raise ValueError(f"{name} must be a list of texts, got one text; wrap it in a list")


def _decoded(text: str) -> list[float]:
    vector = array("f", base64.b64decode(text))
    if sys.byteorder == "big":
        vector.byteswap()
    return vector.tolist()
