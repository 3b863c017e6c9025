"""The same application in each framework, behind its middleware, on a real server."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from collections.abc import Callable, Iterator
from typing import Any

import django
import fastapi
import flask
import uvicorn
from django.conf import settings
from django.core.asgi import get_asgi_application
from django.core.wsgi import get_wsgi_application
from django.http import HttpResponse
from django.test import override_settings
from django.urls import path
from starlette.applications import Starlette
from starlette.responses import PlainTextResponse
from starlette.routing import Route
from werkzeug.serving import make_server

from tollgate_limiter import AsyncClient, Client, asgi, wsgi
from tollgate_limiter.fastapi import RateLimit
from tollgate_limiter.flask import rate_limit

from support import wait_until

logging.getLogger("werkzeug").setLevel(logging.ERROR)
settings.configure(ALLOWED_HOSTS=["*"], ROOT_URLCONF=__name__, MIDDLEWARE=[], SECRET_KEY="x")
django.setup()


def django_view(request: Any) -> HttpResponse:
    hold = getattr(request, "tollgate_hold", None) or request.META.get("tollgate_hold")
    set_cost(hold, request.headers)
    return HttpResponse("hello", content_type="text/plain")


urlpatterns = [path("", django_view)]


def set_cost(hold: Any, headers: Any) -> None:
    """The true cost of a request is that of its header."""
    if hold and "x-used" in headers:
        hold.cost = int(headers["x-used"])


def starlette_app(**options: Any) -> Any:
    async def hello(request: Any) -> PlainTextResponse:
        set_cost(request.scope.get("tollgate_hold"), request.headers)
        return PlainTextResponse("hello")

    app = Starlette(routes=[Route("/", hello)])
    app.add_middleware(asgi.TollgateMiddleware, **options)
    return app


def fastapi_app(**options: Any) -> Any:
    app = fastapi.FastAPI()
    app.add_middleware(asgi.TollgateMiddleware, **options)

    @app.get("/", response_class=PlainTextResponse)
    async def hello(request: fastapi.Request) -> str:
        set_cost(getattr(request.state, "tollgate_hold", None), request.headers)
        return "hello"

    return app


def depends_app(**options: Any) -> Any:
    app = fastapi.FastAPI()
    limit = fastapi.Depends(RateLimit(**options))

    @app.get("/", response_class=PlainTextResponse, dependencies=[limit])
    async def hello() -> str:
        return "hello"

    return app


def flask_app(**options: Any) -> Any:
    app = flask.Flask(__name__)

    @app.get("/")
    def hello() -> flask.Response:
        set_cost(flask.request.environ.get("tollgate_hold"), flask.request.headers)
        return flask.Response("hello", content_type="text/plain")

    app.wsgi_app = wsgi.TollgateMiddleware(app.wsgi_app, **options)
    return app


def flask_view(**options: Any) -> Any:
    app = flask.Flask(__name__)

    @app.get("/")
    @rate_limit(**options)
    def hello() -> flask.Response:
        set_cost(flask.g.get("tollgate_hold"), flask.request.headers)
        return flask.Response("hello", content_type="text/plain")

    return app


def django_app(**options: Any) -> Any:
    return wsgi.TollgateMiddleware(get_wsgi_application(), **options)


def django_middleware(make: Callable[[], Any], **options: Any) -> Any:
    middleware = ["tollgate_limiter.django.TollgateMiddleware"]
    with override_settings(MIDDLEWARE=middleware, TOLLGATE=options):
        return make()


def django_wsgi(**options: Any) -> Any:
    return django_middleware(get_wsgi_application, **options)


def django_asgi(**options: Any) -> Any:
    return django_middleware(get_asgi_application, **options)


@contextlib.contextmanager
def serve_asgi(app: Any, loop_factory: Any = asyncio.new_event_loop) -> Iterator[str]:
    # By default uvicorn takes the address of a loopback peer from X-Forwarded-For.
    config = uvicorn.Config(app, port=0, log_level="critical", proxy_headers=False, backlog=2048)
    server = uvicorn.Server(config)
    loop = loop_factory()
    thread = threading.Thread(target=lambda: loop.run_until_complete(server.serve()), daemon=True)
    thread.start()
    wait_until(lambda: server.started, "uvicorn starts")
    try:
        yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join(20)
        loop.close()


@contextlib.contextmanager
def serve_wsgi(app: Any) -> Iterator[str]:
    server = make_server("127.0.0.1", 0, app, threaded=True)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join(20)


Make = Callable[..., Any]
Serve = Callable[[Any], contextlib.AbstractContextManager[str]]
FRAMEWORKS: dict[str, tuple[Make, Serve, type[Client] | type[AsyncClient]]] = {
    "starlette": (starlette_app, serve_asgi, AsyncClient),
    "fastapi": (fastapi_app, serve_asgi, AsyncClient),
    "flask": (flask_app, serve_wsgi, Client),
    "django": (django_app, serve_wsgi, Client),
    "fastapi depends": (depends_app, serve_asgi, AsyncClient),
    "flask view": (flask_view, serve_wsgi, Client),
    "django middleware": (django_wsgi, serve_wsgi, Client),
    "django middleware on asgi": (django_asgi, serve_asgi, AsyncClient),
}
