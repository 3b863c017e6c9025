"""Middleware for ASGI: FastAPI, Starlette and others."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from typing import Any

from .aio import AsyncClient
from .errors import TollgateError
from .fields import Fields, Refusal, quota_fields
from .request import NO_RESPONSE, AsgiHeaders, Request, Response
from .rules import Body, BodyFor, Cost, Drain, Key, OnError, OnFailure, Rules, Skip
from .settings import DEFAULT_NODE

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]


class TollgateMiddleware:
    """Checks each HTTP request before `app` gets it.

    `Rules` describes the options. Without `client` the middleware makes one for `nodes`. It passes
    websockets on unchecked.
    """

    def __init__(
        self,
        app: App,
        *,
        nodes: str | Iterable[str] = DEFAULT_NODE,
        client: AsyncClient | None = None,
        policy: str | None = None,
        key: Key | None = None,
        cost: int | Cost = 1,
        skip: Skip | None = None,
        drain: Drain | None = None,
        on_failure: OnFailure = "open",
        status: int = 429,
        body: Body | BodyFor | None = None,
        on_error: OnError | None = None,
    ) -> None:
        self._app = app
        self._client = client or AsyncClient(nodes)
        self._rules = Rules(
            policy=policy,
            key=key,
            cost=cost,
            skip=skip,
            drain=drain,
            on_failure=on_failure,
            status=status,
            body=body,
            on_error=on_error,
        )
        self._drains: set[asyncio.Task[None]] = set()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request = Request.of_asgi(scope)
        if self._rules.is_skipped(request):
            await self._app(scope, receive, send)
            return
        fields: Fields = []
        try:
            decision = await self._client.check(**self._rules.check(request))
            fields = quota_fields(decision)
            refusal = None if decision.allowed else self._rules.refuse(request, decision)
        except TollgateError as error:
            refusal = self._rules.fail(error)
        if refusal is not None:
            await _respond(send, refusal)
            return
        answer = _Answer(send, fields)
        try:
            await self._app(scope, receive, answer.send)
        finally:
            if self._rules.drain is not None:
                self._drain_later(request, answer.head or NO_RESPONSE)

    def _drain_later(self, request: Request, response: Response) -> None:
        """The task outlives the request, which the server may cancel."""
        try:
            check = self._rules.drain_check(request, response)
        except Exception as error:
            self._rules.report(error)
            return
        if check is None:
            return
        task = asyncio.get_running_loop().create_task(self._drain(check))
        self._drains.add(task)
        task.add_done_callback(self._drains.discard)

    async def _drain(self, check: dict[str, Any]) -> None:
        try:
            await self._client.check(**check)
        except Exception as error:
            self._rules.report(error)


class _Answer:
    """Adds the fields of the decision, and keeps the head of the response."""

    __slots__ = ("_fields", "_send", "head")

    def __init__(self, send: Send, fields: Fields) -> None:
        self._send = send
        self._fields = [(name.encode(), value.encode()) for name, value in fields]
        self.head: Response | None = None

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = list(message.get("headers", ()))
            self.head = Response(message["status"], AsgiHeaders(headers))
            message = {**message, "headers": headers + self._fields}
        await self._send(message)


async def _respond(send: Send, refusal: Refusal) -> None:
    headers = [(name.encode(), value.encode()) for name, value in refusal.headers]
    await send({"type": "http.response.start", "status": refusal.status, "headers": headers})
    await send({"type": "http.response.body", "body": refusal.body})
