"""Middleware for Django, on WSGI and on ASGI.

MIDDLEWARE = ["tollgate_limiter.django.TollgateMiddleware", ...]
TOLLGATE = {"nodes": "http://127.0.0.1:7070", "policy": "per-ip"}
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any

from asgiref.sync import iscoroutinefunction, markcoroutinefunction
from django.conf import settings
from django.http import HttpRequest, HttpResponse

from .aio import AsyncClient
from .base import DEFAULT_NODE, BaseClient
from .blocking import Client, run
from .fields import quota_fields
from .limiter import Limiter
from .request import Request, Response


class TollgateMiddleware:
    """Checks each request before the rest of the application gets it.

    The setting `TOLLGATE` has the options of `Options`, and `nodes` or `client`: an `AsyncClient`
    on ASGI, else a `Client`. Functions get the request of Django as `raw`. The decision is
    `request.tollgate`, or None without one.
    """

    sync_capable = True
    async_capable = True

    def __init__(self, get_response: Callable[[HttpRequest], Any]) -> None:
        self._get_response = get_response
        self._is_async = iscoroutinefunction(get_response)
        if self._is_async:
            markcoroutinefunction(self)
        options: Any = dict(getattr(settings, "TOLLGATE", {}))
        nodes = options.pop("nodes", DEFAULT_NODE)
        kind = AsyncClient if self._is_async else Client
        self._client: BaseClient = options.pop("client", None) or kind(nodes)
        self._limiter = Limiter(self._client, options)

    def __call__(self, request: HttpRequest) -> Any:
        answer = self._answer(request)
        return answer if self._is_async else run(answer)

    async def _answer(self, request: HttpRequest) -> HttpResponse:
        asked = Request.of_wsgi(request.META, request)
        verdict = await self._limiter.admit(asked)
        if (refusal := verdict.refusal) is not None:
            return HttpResponse(refusal.body, status=refusal.status, headers=dict(refusal.headers))
        request.tollgate = verdict.decision
        response = self._get_response(request)
        if self._is_async:
            response = await response
        if verdict.decision is not None:
            headers = response.headers
            for name, value in quota_fields(verdict.decision, headers.items()):
                headers[name] = f"{headers[name]}, {value}" if name in headers else value
        if self._limiter.finishes:
            head = Response(response.status_code, response.headers.items())
            self._finish_later(response, self._limiter.finish(asked, verdict, head))
        return response

    def _finish_later(self, response: HttpResponse, finish: Coroutine[Any, Any, None]) -> None:
        if self._is_async:
            self._client._later(finish)
            return
        close = response.close

        def close_and_finish() -> None:
            close()
            run(finish)

        response.close = close_and_finish
