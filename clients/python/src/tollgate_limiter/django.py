"""Middleware for Django, on WSGI and on ASGI.

MIDDLEWARE = ["tollgate_limiter.django.TollgateMiddleware", ...]
TOLLGATE = {"nodes": "http://127.0.0.1:7070", "policy": "per-ip"}
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from functools import partial
from typing import Any

from asgiref.sync import iscoroutinefunction, markcoroutinefunction
from django.conf import settings
from django.http import HttpRequest, HttpResponse

from .aio import AsyncClient
from .base import DEFAULT_NODE, BaseClient
from .blocking import Client, run
from .fields import quota_fields
from .limiter import Limiter, client_of
from .request import NO_RESPONSE, Request, Response


class TollgateMiddleware:
    """Checks each request before the rest of the application gets it.

    The setting `TOLLGATE` has the options of `Options`, and `nodes` or `client`: an `AsyncClient`
    on ASGI, else a `Client`. Functions get the request of Django as `raw`. The decision is
    `request.tollgate`, or None without one, and the hold `request.tollgate_hold`.
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
        self._client: BaseClient[Any] = client_of(kind, options.pop("client", None), nodes)
        self._start: Callable[[Coroutine[Any, Any, None]], None]
        self._start = self._client._later if self._is_async else run
        self._limiter = Limiter(self._client, options)

    def __call__(self, request: HttpRequest) -> Any:
        answer = self._answer(request)
        return answer if self._is_async else run(answer)

    async def _answer(self, request: HttpRequest) -> HttpResponse:
        asked = Request.of_wsgi(request.META, request)
        verdict = await self._limiter.admit(asked)
        if (refusal := verdict.refusal) is not None:
            return HttpResponse(refusal.body, status=refusal.status, headers=dict(refusal.headers))
        request.tollgate, request.tollgate_hold = verdict.decision, verdict.hold
        try:
            response = self._get_response(request)
            if self._is_async:
                response = await response
        except BaseException:
            # The caller has left.
            if verdict.hold:
                self._start(self._limiter.finish(asked, verdict, NO_RESPONSE))
            raise
        if verdict.decision is not None:
            headers = response.headers
            for name, value in quota_fields(verdict.decision, headers.items()):
                headers[name] = f"{headers[name]}, {value}" if name in headers else value
        if self._limiter.finishes:
            head = Response(response.status_code, response.headers.items())
            finish = partial(self._limiter.finish, asked, verdict, head)
            if self._is_async and not verdict.hold:
                self._start(finish())
            else:
                self._finish_later(response, finish)
        return response

    def _finish_later(self, response: Any, finish: Callable[[], Coroutine[Any, Any, None]]) -> None:
        loop, close = asyncio.get_running_loop() if self._is_async else None, response.close

        def end() -> None:
            if loop:
                # Django closes in a thread.
                loop.call_soon_threadsafe(lambda: self._start(finish()))
            else:
                self._start(finish())

        def close_and_end() -> None:
            close()
            end()

        response.close = close_and_end
        if loop and response.streaming:
            # On ASGI, Django does not close a stream that failed.
            followed = _followed_async if response.is_async else _followed
            response.streaming_content = followed(response.streaming_content, end)


async def _followed_async(
    content: AsyncIterator[bytes], end: Callable[[], None]
) -> AsyncIterator[bytes]:
    try:
        async for part in content:
            yield part
    finally:
        end()


def _followed(content: Iterator[bytes], end: Callable[[], None]) -> Iterator[bytes]:
    try:
        yield from content
    finally:
        end()
