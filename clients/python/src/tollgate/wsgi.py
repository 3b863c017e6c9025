"""Middleware for WSGI: Flask, Django and others."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from http import HTTPStatus
from typing import Any

from .client import Client
from .errors import TollgateError
from .fields import Fields, Refusal, quota_fields
from .request import NO_RESPONSE, AsgiHeaders, Request, Response
from .rules import Body, BodyFor, Cost, Drain, Key, OnError, OnFailure, Rules, Skip
from .settings import DEFAULT_NODE

Environ = dict[str, Any]
StartResponse = Callable[..., Any]
App = Callable[[Environ, StartResponse], Iterable[bytes]]


class TollgateMiddleware:
    """Checks each request before `app` gets it.

    `Rules` describes the options. Without `client` the middleware makes one for `nodes`.
    """

    def __init__(
        self,
        app: App,
        *,
        nodes: str | Iterable[str] = DEFAULT_NODE,
        client: Client | None = None,
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
        self._client = client or Client(nodes)
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

    def __call__(self, environ: Environ, start_response: StartResponse) -> Iterable[bytes]:
        request = Request.of_wsgi(environ)
        if self._rules.is_skipped(request):
            return self._app(environ, start_response)
        fields: Fields = []
        try:
            decision = self._client.check(**self._rules.check(request))
            fields = quota_fields(decision)
            refusal = None if decision.allowed else self._rules.refuse(request, decision)
        except TollgateError as error:
            refusal = self._rules.fail(error)
        if refusal is not None:
            return _respond(start_response, refusal)
        start = _Start(start_response, fields)
        if self._rules.drain is None:
            return self._app(environ, start)
        try:
            body = self._app(environ, start)
        except BaseException:
            self._drain(request, lambda: NO_RESPONSE)
            raise
        return _Drained(body, lambda: self._drain(request, start.response))

    def _drain(self, request: Request, response: Callable[[], Response]) -> None:
        try:
            check = self._rules.drain_check(request, response())
            if check is not None:
                self._client.check(**check)
        except Exception as error:
            self._rules.report(error)


class _Start:
    """Adds the fields of the decision, and keeps the head of the response."""

    __slots__ = ("_fields", "_headers", "_start", "_status")

    def __init__(self, start: StartResponse, fields: Fields) -> None:
        self._start = start
        self._fields = fields
        self._status = ""
        self._headers: Fields = []

    def __call__(self, status: str, headers: Fields, *exc_info: Any) -> Any:
        self._status, self._headers = status, headers
        return self._start(status, headers + self._fields, *exc_info)

    def response(self) -> Response:
        if not self._status:
            return NO_RESPONSE
        fields = [
            (name.encode("latin-1"), value.encode("latin-1")) for name, value in self._headers
        ]
        return Response(int(self._status[:3]), AsgiHeaders(fields))


class _Drained:
    """The body of a response. The server closes it after it has sent it."""

    def __init__(self, body: Iterable[bytes], drain: Callable[[], None]) -> None:
        self._body = body
        self._drain = drain

    def __iter__(self) -> Iterator[bytes]:
        return iter(self._body)

    def close(self) -> None:
        try:
            close = getattr(self._body, "close", None)
            if close is not None:
                close()
        finally:
            self._drain()


def _respond(start_response: StartResponse, refusal: Refusal) -> Iterable[bytes]:
    start_response(f"{refusal.status} {_phrase(refusal.status)}", list(refusal.headers))
    return [refusal.body]


def _phrase(status: int) -> str:
    try:
        return HTTPStatus(status).phrase
    except ValueError:
        return "Denied"
