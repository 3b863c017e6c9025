"""A decorator for views of Flask."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from typing import Any

import flask
from typing_extensions import Unpack

from .base import DEFAULT_NODE
from .blocking import Client, run
from .fields import quota_fields
from .limiter import Limiter, Options, client_of
from .request import NO_RESPONSE, Request, Response


def rate_limit(
    *,
    nodes: str | Iterable[str] = DEFAULT_NODE,
    client: Client | None = None,
    **options: Unpack[Options],
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Checks each request before the view gets it.

    `Options` describes the options. Without `client` the decorator makes one for `nodes`. Functions
    get the request of Flask as `raw`. The decision is `flask.g.tollgate`, or None without one. The
    hold of `hold` is `flask.g.tollgate_hold`.
    """
    limiter = Limiter(client_of(Client, client, nodes), options)

    def decorate(view: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(view)
        def limited(*args: Any, **kwargs: Any) -> Any:
            raw = flask.request._get_current_object()  # type: ignore[attr-defined]
            request = Request.of_wsgi(raw.environ, raw)
            verdict = run(limiter.admit(request))
            if (refusal := verdict.refusal) is not None:
                return flask.Response(refusal.body, refusal.status, refusal.headers)
            flask.g.tollgate = verdict.decision
            # Another limit may have a hold, too.
            flask.g.tollgate_hold = verdict.hold or flask.g.get("tollgate_hold")

            @flask.after_this_request
            def add(response: flask.Response) -> flask.Response:
                if limiter.finishes:
                    head = Response(response.status_code, response.headers.items())
                    response.call_on_close(lambda: run(limiter.finish(request, verdict, head)))
                if verdict.decision is not None:
                    for name, value in quota_fields(verdict.decision, response.headers):
                        response.headers.add(name, value)
                return response

            try:
                return flask.current_app.ensure_sync(view)(*args, **kwargs)
            except BaseException:
                # The application may let it pass, without a response.
                if verdict.hold:
                    run(limiter.finish(request, verdict, NO_RESPONSE))
                raise

        return limited

    return decorate
