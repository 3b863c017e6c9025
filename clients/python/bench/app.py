"""Hello world in FastAPI (uvicorn) or Flask (waitress) behind a limiter, for clients/bench/run.

python app.py FRAMEWORK LIMITER SITUATION NODE_URL REDIS_URL CELL_URL PORT
"""

from __future__ import annotations

import logging
import sys
from typing import Any

import limits
from fastapi import FastAPI, Request, Response
from flask import Flask, request
from limits.storage import storage_from_string

from tollgate_limiter import AsyncClient, Client, asgi, wsgi

FRAMEWORK, LIMITER, SITUATION, NODE, REDIS, _, PORT = sys.argv[1:]
LIMIT = f"{1 if SITUATION == 'denied' else 1_000_000_000} per hour"
# The keys of a limiter in Redis, apart from those of others.
PREFIX = f"{FRAMEWORK}-{LIMITER}-{SITUATION}"
# A busy machine must not turn decisions into failures.
DEADLINE = 5.0
STRATEGY = "fixed-window"


def tollgate_options() -> Any:
    key = lambda request: request.headers["x-user"]  # noqa: E731
    return {"policy": SITUATION, "key": key, "on_failure": "closed"}


def fastapi_app() -> Any:
    app = FastAPI()
    if LIMITER == "slowapi":
        return with_slowapi(app)

    @app.get("/")
    async def hello() -> dict[str, str]:
        return {"message": "hello"}

    if LIMITER == "Tollgate":
        client = AsyncClient(NODE, deadline=DEADLINE)
        app.add_middleware(asgi.TollgateMiddleware, client=client, **tollgate_options())
    return with_limits(app) if LIMITER == "limits" else app


def with_limits(app: Any) -> Any:
    storage = storage_from_string(f"async+{REDIS}", implementation="redispy")
    limiter = limits.aio.strategies.STRATEGIES[STRATEGY](storage)  # type: ignore[attr-defined]
    item = limits.parse(LIMIT)

    async def limited(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http":
            user = next(value for name, value in scope["headers"] if name == b"x-user").decode()
            if not await limiter.hit(item, PREFIX, user):
                await Response(status_code=429)(scope, receive, send)
                return
        await app(scope, receive, send)

    return limited


def with_slowapi(app: FastAPI) -> FastAPI:
    import slowapi

    key = lambda request: PREFIX + request.headers["x-user"]  # noqa: E731
    limiter = slowapi.Limiter(key, storage_uri=REDIS, strategy=STRATEGY, headers_enabled=True)
    app.state.limiter = limiter
    app.add_exception_handler(
        slowapi.errors.RateLimitExceeded, slowapi._rate_limit_exceeded_handler
    )

    @app.get("/")
    @limiter.limit(LIMIT)
    async def hello(request: Request, response: Response) -> dict[str, str]:
        return {"message": "hello"}

    return app


def flask_app() -> Flask:
    app = Flask(__name__)
    decorate: Any = lambda view: view  # noqa: E731
    if LIMITER == "Tollgate":
        client = Client(NODE, deadline=DEADLINE)
        middleware = wsgi.TollgateMiddleware(app.wsgi_app, client=client, **tollgate_options())
        app.wsgi_app = middleware  # type: ignore[method-assign]
    elif LIMITER == "limits":
        limiter = limits.strategies.STRATEGIES[STRATEGY](storage_from_string(REDIS))
        item = limits.parse(LIMIT)

        @app.before_request
        def limited() -> Any:
            user = request.headers["x-user"]
            return None if limiter.hit(item, PREFIX, user) else ("", 429)

    elif LIMITER == "Flask-Limiter":
        from flask_limiter import Limiter

        key = lambda: PREFIX + request.headers["x-user"]  # noqa: E731
        extension = Limiter(
            key, app=app, storage_uri=REDIS, strategy=STRATEGY, headers_enabled=True
        )
        decorate = extension.limit(LIMIT)

    @app.get("/")
    @decorate
    def hello() -> dict[str, str]:
        return {"message": "hello"}

    return app


if FRAMEWORK == "fastapi":
    import uvicorn

    uvicorn.run(fastapi_app(), port=int(PORT), log_level="critical", access_log=False)
else:
    from waitress import serve

    logging.getLogger("waitress").setLevel(logging.ERROR)
    serve(flask_app(), host="127.0.0.1", port=int(PORT), threads=16)
