"""Middleware for WSGI: Flask, Django and others."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from http.client import responses
from typing import Any

from typing_extensions import Unpack

from .base import DEFAULT_NODE
from .blocking import Client, run
from .fields import Fields, quota_fields
from .limiter import Limiter, Options, client_of
from .request import NO_RESPONSE, Request, Response

Environ = dict[str, Any]
StartResponse = Callable[..., Any]
App = Callable[[Environ, StartResponse], Iterable[bytes]]


class TollgateMiddleware:
    """Checks each request before `app` gets it.

    `Options` describes the options. Without `client` the middleware makes one for `nodes`.
    Handlers find the decision in `environ["tollgate"]`. It is None without one. The hold of `hold`
    is `environ["tollgate_hold"]`.
    """

    def __init__(
        self,
        app: App,
        *,
        nodes: str | Iterable[str] = DEFAULT_NODE,
        client: Client | None = None,
        **options: Unpack[Options],
    ) -> None:
        self._app = app
        self._limiter = Limiter(client_of(Client, client, nodes), options)

    def __call__(self, environ: Environ, start_response: StartResponse) -> Iterable[bytes]:
        request = Request.of_wsgi(environ)
        verdict = run(self._limiter.admit(request))
        if (refusal := verdict.refusal) is not None:
            start_response(
                f"{refusal.status} {responses.get(refusal.status, 'Denied')}", refusal.headers
            )
            return [refusal.body]
        environ["tollgate"] = verdict.decision
        # Another middleware may have a hold, too.
        environ["tollgate_hold"] = verdict.hold or environ.get("tollgate_hold")
        response = NO_RESPONSE

        def start(status: str, headers: Fields, *exc_info: Any) -> Any:
            nonlocal response
            response = Response(int(status[:3]), headers)
            if verdict.decision is not None:
                headers = headers + quota_fields(verdict.decision, headers)
            return start_response(status, headers, *exc_info)

        if not self._limiter.finishes:
            return self._app(environ, start)
        try:
            body = self._app(environ, start)
        except BaseException:
            run(self._limiter.finish(request, verdict, NO_RESPONSE))
            raise

        def finish() -> None:
            run(self._limiter.finish(request, verdict, response))

        return _Finished(body, finish, verdict.hold)


class _Finished:
    """The body of a response. The server closes it after it has sent it."""

    def __init__(self, body: Iterable[bytes], finish: Callable[[], None], hold: Any) -> None:
        self._body = body
        self._finish = finish
        self._hold = hold

    def __iter__(self) -> Iterator[bytes]:
        if not self._hold:
            return iter(self._body)
        return self._held()

    def _held(self) -> Iterator[bytes]:
        for part in self._body:
            self._hold.raise_if_ended()
            yield part

    def close(self) -> None:
        try:
            close = getattr(self._body, "close", None)
            if close is not None:
                close()
        finally:
            self._finish()
