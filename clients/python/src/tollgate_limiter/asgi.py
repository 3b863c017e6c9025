"""Middleware for ASGI: FastAPI, Starlette and others."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from typing import Any

from typing_extensions import Unpack

from .aio import AsyncClient
from .base import DEFAULT_NODE
from .fields import quota_fields
from .limiter import Limiter, Options, client_of
from .request import Request, Response, decoded

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Message, Receive, Send], Awaitable[None]]


class TollgateMiddleware:
    """Checks each HTTP request before `app` gets it.

    `Options` describes the options. Without `client` the middleware makes one for `nodes`.
    Handlers find the decision in `scope["tollgate"]` and in `request.state.tollgate`. It is None
    without one. The hold of `hold` is `tollgate_hold`. Websockets pass unchecked.
    """

    def __init__(
        self,
        app: App,
        *,
        nodes: str | Iterable[str] = DEFAULT_NODE,
        client: AsyncClient | None = None,
        **options: Unpack[Options],
    ) -> None:
        self._app = app
        self._client = client_of(AsyncClient, client, nodes)
        self._limiter = Limiter(self._client, options)

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, self._waiting(send))
            return
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request = Request.of_asgi(scope)
        verdict = await self._limiter.admit(request)
        if verdict.refusal is not None:
            headers = [(name.encode(), value.encode()) for name, value in verdict.refusal.headers]
            status = verdict.refusal.status
            await send({"type": "http.response.start", "status": status, "headers": headers})
            await send({"type": "http.response.body", "body": verdict.refusal.body})
            return
        state = scope.setdefault("state", {})
        scope["tollgate"] = state["tollgate"] = verdict.decision
        # Another middleware may have a hold, too.
        hold = verdict.hold or scope.get("tollgate_hold")
        scope["tollgate_hold"] = state["tollgate_hold"] = hold
        # A server answers so for an application that sends nothing.
        head: Message = {"status": 500, "headers": []}

        async def answer(message: Message) -> None:
            nonlocal head
            if message["type"] == "http.response.start":
                head, headers = message, list(message.get("headers", ()))
                if verdict.decision is not None:
                    taken = [field for field in headers if field[0][:9].lower() == b"ratelimit"]
                    fields = quota_fields(verdict.decision, decoded(taken))
                    headers += [(name.encode(), value.encode()) for name, value in fields]
                message = {**message, "headers": headers}
            await send(message)

        try:
            held: Any = verdict.hold
            if held is None:
                await self._app(scope, receive, answer)
            else:
                async with held:
                    await self._app(scope, receive, answer)
        finally:
            if self._limiter.finishes:
                response = Response(head["status"], decoded(head.get("headers", ())))
                # The task outlives the request, which the server may cancel.
                self._client._later(self._limiter.finish(request, verdict, response))

    def _waiting(self, send: Send) -> Send:
        """The server ends the loop after the shutdown. Charges and settles come first."""

        async def send_later(message: Message) -> None:
            if message["type"].startswith("lifespan.shutdown."):
                await self._client._end_leases()
                await self._client.wait()
            await send(message)

        return send_later
