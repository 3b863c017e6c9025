"""Hello world in FastAPI and in Flask, alone and behind each limiter. `VARIANT` chooses."""

from __future__ import annotations

import os
from typing import Any

import limits
from fastapi import FastAPI, Request, Response
from flask import Flask, request
from limits.storage import storage_from_string

import tollgate_limiter.limits
from tollgate_limiter import AsyncClient, Client, asgi, wsgi

VARIANT = os.environ["VARIANT"]
REDIS = os.environ["REDIS_URL"]
NODE = os.environ["NODE_URL"]
STRATEGY = os.environ.get("STRATEGY", "moving-window")
LIMIT = "1000000 per minute"
# A busy machine must not turn decisions into failures.
DEADLINE = 5.0
STORAGE = REDIS
if VARIANT.endswith("-tollgate"):
    STORAGE = f"{NODE.replace('http:', 'tollgate:')}?deadline={DEADLINE}"


def fastapi_app() -> Any:
    app = FastAPI()

    async def hello() -> dict[str, str]:
        return {"message": "hello"}

    if VARIANT == "tollgate":
        client = AsyncClient(NODE, deadline=DEADLINE)
        app.add_middleware(asgi.TollgateMiddleware, client=client, on_failure="closed")
    elif VARIANT == "limits-redis":
        return bare_limits(with_route(app, hello))
    elif VARIANT.startswith("extension"):
        return with_slowapi(app)
    return with_route(app, hello)


def with_route(app: FastAPI, hello: Any) -> FastAPI:
    app.get("/")(hello)
    return app


def bare_limits(app: Any) -> Any:
    uri = f"async+{REDIS}"
    storage = storage_from_string(uri, implementation="redispy")
    limiter = limits.aio.strategies.STRATEGIES[STRATEGY](storage)  # type: ignore[attr-defined]
    item = limits.parse(LIMIT)

    async def limited(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http" and not await limiter.hit(item, scope["client"][0]):
            await Response(status_code=429)(scope, receive, send)
            return
        await app(scope, receive, send)

    return limited


def with_slowapi(app: FastAPI) -> FastAPI:
    import slowapi
    from slowapi.util import get_remote_address

    limiter = slowapi.Limiter(get_remote_address, storage_uri=STORAGE, strategy=STRATEGY)
    app.state.limiter = limiter

    @app.get("/")
    @limiter.limit(LIMIT)
    async def hello(request: Request) -> dict[str, str]:
        return {"message": "hello"}

    return app


def flask_app() -> Flask:
    app = Flask(__name__)
    decorate: Any = lambda view: view  # noqa: E731
    if VARIANT == "tollgate":
        client = Client(NODE, deadline=DEADLINE, coalesce=not os.environ.get("DIRECT"))
        middleware = wsgi.TollgateMiddleware(app.wsgi_app, client=client, on_failure="closed")
        app.wsgi_app = middleware  # type: ignore[method-assign]
    elif VARIANT == "limits-redis":
        limiter = limits.strategies.STRATEGIES[STRATEGY](storage_from_string(REDIS))
        item = limits.parse(LIMIT)

        @app.before_request
        def limited() -> Any:
            return None if limiter.hit(item, request.remote_addr or "") else ("", 429)

    elif VARIANT.startswith("extension"):
        from flask_limiter import Limiter
        from flask_limiter.util import get_remote_address

        extension = Limiter(get_remote_address, app=app, storage_uri=STORAGE, strategy=STRATEGY)
        decorate = extension.limit(LIMIT)

    @app.get("/")
    @decorate
    def hello() -> dict[str, str]:
        return {"message": "hello"}

    return app


assert tollgate_limiter.limits
