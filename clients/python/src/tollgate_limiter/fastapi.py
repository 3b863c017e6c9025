"""A dependency for FastAPI, which limits one route or one router."""

from __future__ import annotations

from collections.abc import Iterable

from fastapi import HTTPException, Request, Response
from typing_extensions import Unpack

from . import request as requests
from .aio import AsyncClient
from .base import DEFAULT_NODE
from .errors import TollgateError
from .fields import Refusal, quota_fields
from .limiter import Limiter, Options, client_of
from .types import Decision


class Refused(HTTPException):
    """The request does not pass. `add_exception_handler` of the application may replace it."""

    def __init__(self, refusal: Refusal) -> None:
        super().__init__(refusal.status, headers=dict(refusal.headers))
        self.refusal = refusal


class RateLimit:
    """`Depends(RateLimit(policy="login"))` checks the requests of a route.

    `Options` describes the options, without `hold`, `drain` and `refund`: a dependency does not see
    the response. `key` and the other functions get the request of FastAPI as `raw`. Handlers get
    the decision from the dependency, or None without one.
    """

    def __init__(
        self,
        *,
        nodes: str | Iterable[str] = DEFAULT_NODE,
        client: AsyncClient | None = None,
        **options: Unpack[Options],
    ) -> None:
        self._limiter = Limiter(client_of(AsyncClient, client, nodes), options)
        if self._limiter.finishes:
            fault = "a dependency does not see the response: use the middleware for"
            raise TollgateError(f"{fault} `hold`, `drain` and `refund`")

    async def __call__(self, request: Request, response: Response) -> Decision | None:
        verdict = await self._limiter.admit(requests.Request.of_asgi(request.scope, request))
        if verdict.refusal is not None:
            # The handlers of the running application. Otherwise the body would be FastAPI's.
            handlers, _ = request.scope.get("starlette.exception_handlers", ({}, {}))
            handlers.setdefault(Refused, _respond)
            raise Refused(verdict.refusal)
        request.state.tollgate = verdict.decision
        if verdict.decision is not None:
            for name, value in quota_fields(verdict.decision, response.headers.items()):
                response.headers.append(name, value)
        return verdict.decision


async def _respond(_: Request, error: Refused) -> Response:
    refusal = error.refusal
    return Response(refusal.body, refusal.status, headers=dict(refusal.headers))
