"""The storages of `limits`, alone and under Flask-Limiter and slowapi."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import fastapi
import flask
import flask_limiter
import httpx
import limits
import pytest
import slowapi
import slowapi.errors
from limits.errors import ConfigurationError, StorageError
from limits.storage import storage_from_string

import tollgate_limiter.limits
from tollgate_limiter import TollgateError

from apps import serve_asgi, serve_wsgi
from support import Node, free_port, unique, wait_until

CONFIG = Path(__file__).with_name("tollgate.yaml")
MOVING = limits.strategies.MovingWindowRateLimiter
FIXED = limits.strategies.FixedWindowRateLimiter


@pytest.fixture(scope="module")
def node() -> Iterator[Node]:
    with Node(CONFIG) as node:
        yield node


@pytest.fixture
def uri(node: Node) -> str:
    return f"tollgate://127.0.0.1:{node.port}?deadline=5"


def down() -> str:
    return f"tollgate://127.0.0.1:{free_port()}"


def test_moving_window_passes_the_limit_and_counts_no_denial(uri: str) -> None:
    limiter, item, key = MOVING(storage_from_string(uri)), limits.parse("3 per minute"), unique()
    assert [limiter.hit(item, key) for _ in range(5)] == [True, True, True, False, False]
    assert not limiter.test(item, key)
    assert limiter.get_window_stats(item, key).remaining == 0
    assert not limiter.hit(item, key, cost=4)


def test_reset_time_after_a_denial_is_when_the_next_hit_passes(uri: str) -> None:
    limiter, item, key = MOVING(storage_from_string(uri)), limits.parse("2 per 2 second"), unique()
    assert limiter.hit(item, key)
    time.sleep(0.5)
    assert limiter.hit(item, key)
    assert not limiter.hit(item, key)
    time.sleep(max(0.0, limiter.get_window_stats(item, key).reset_time - time.time()) + 0.01)
    assert limiter.hit(item, key)


def test_statistics_of_another_context_ask_the_node(uri: str) -> None:
    storage, item, key = storage_from_string(uri), limits.parse("3 per minute"), unique()
    assert MOVING(storage).hit(item, key)
    assert MOVING(storage_from_string(uri)).hit(item, key)
    with ThreadPoolExecutor(1) as pool:
        stats = pool.submit(MOVING(storage).get_window_stats, item, key).result()
    assert stats.remaining == 1
    assert stats.reset_time == pytest.approx(time.time() + 60, abs=5)


def test_fixed_window_counts_denials_as_limits_does(uri: str) -> None:
    storage = storage_from_string(uri)
    limiter, item, key = FIXED(storage), limits.parse("2 per minute"), unique()
    assert [limiter.hit(item, key) for _ in range(3)] == [True, True, False]
    time.sleep(tollgate_limiter.limits.REMEMBER_SECONDS)
    assert storage.get(item.key_for(key)) == 3
    stats = limiter.get_window_stats(item, key)
    assert stats.remaining == 0
    assert stats.reset_time == pytest.approx(time.time() + 60, abs=5)


def test_equal_limits_share_counts_between_processes_and_kinds(node: Node, uri: str) -> None:
    item, key = limits.parse("2 per hour"), unique()
    assert MOVING(storage_from_string(uri)).hit(item, key)

    async def hits() -> list[bool]:
        storage = storage_from_string(f"async+{uri}")
        limiter = limits.aio.strategies.MovingWindowRateLimiter(storage)
        return [await limiter.hit(item, key), await limiter.hit(item, key)]

    assert asyncio.run(hits()) == [True, False]


def test_async_storage_serves_both_strategies(uri: str) -> None:
    async def run() -> None:
        storage = storage_from_string(f"async+{uri}")
        item, key = limits.parse("10 per minute"), unique()
        for kind in (
            limits.aio.strategies.MovingWindowRateLimiter,
            limits.aio.strategies.FixedWindowRateLimiter,
        ):
            limiter = kind(storage)
            hits = await asyncio.gather(*(limiter.hit(item, key) for _ in range(64)))
            assert sum(hits) == 10
            assert not await limiter.test(item, key)
            assert (await limiter.get_window_stats(item, key)).remaining == 0
        assert await storage.check()

    asyncio.run(run())


def test_long_key_and_limit_of_zero_and_longest_windows(uri: str) -> None:
    storage = storage_from_string(uri)
    assert MOVING(storage).hit(limits.parse("1 per minute"), unique() * 100)
    assert not MOVING(storage).hit(limits.parse("0 per minute"), unique())
    assert MOVING(storage).hit(limits.parse("5 per year"), unique())
    assert FIXED(storage).hit(limits.parse("5 per year"), unique())


def test_unsupported_calls_say_why(uri: str) -> None:
    storage: Any = storage_from_string(uri)
    with pytest.raises(NotImplementedError, match="cannot clear"):
        storage.clear("key")
    with pytest.raises(NotImplementedError, match="cannot clear"):
        storage.reset()
    with pytest.raises(NotImplementedError):
        limits.strategies.SlidingWindowCounterRateLimiter(storage)
    with pytest.raises(ValueError, match="RateLimitItem"):
        storage.get("key")


@pytest.mark.parametrize("prefix", ["", "async+"])
@pytest.mark.parametrize(
    ("uri", "fault"),
    [
        ("tollgate://h:1?on_failure=maybe", "on_failure must be"),
        ("tollgate://", "`nodes` is empty"),
        ("tollgate://h:port", "no URL of a node"),
        ("tollgate://:%C3%BC@h:1", "`token` must be"),
        ("tollgate://h:1?deadline=soon", "deadline must be a number of seconds: soon"),
        ("tollgate://h:1?deadline=inf", "`deadline` must be"),
        ("tollgate+https://h:1?ca_file=/absent.pem", "ca_file /absent.pem: .*No such file"),
        (f"tollgate+https://h:1?ca_file={__file__}", f"ca_file {__file__}: "),
    ],
)
def test_wrong_options_are_configuration_errors(uri: str, fault: str, prefix: str) -> None:
    with pytest.raises(ConfigurationError, match=fault):
        storage_from_string(prefix + uri)


@pytest.mark.parametrize("option", ["nonsense", "nodes"])
def test_unknown_option_is_named_beside_the_known_ones(option: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        storage_from_string("tollgate://h:1?policy=p", **{option: "1"})
    assert str(caught.value) == (
        f"tollgate has no option {option}; it has "
        "policy, fixed_policy, token, ca_file, deadline and on_failure"
    )


def test_uri_has_nodes_policy_and_token() -> None:
    options = tollgate_limiter.limits._options(
        "tollgate+https://:a%40b@one:1,two:2/mine", {"deadline": "1"}
    )
    assert options.nodes == ["https://one:1", "https://two:2"]
    assert (options.policy, options.token, options.deadline) == ("mine", "a@b", 1.0)


def test_hits_count_by_the_fallback_of_a_node_without_its_store(tmp_path: Path) -> None:
    """Its answers have this node's share of each limit."""
    config = tmp_path / "tollgate.yaml"
    store = f"store: {{redis: ['redis://127.0.0.1:{free_port()}']}}\n"
    fallback = "fallback: {expected_nodes: 2}\n"
    config.write_text(store + fallback + CONFIG.read_text())
    with Node(config) as node:
        storage, key = (
            storage_from_string(f"tollgate://127.0.0.1:{node.port}?deadline=30"),
            unique(),
        )
        item = limits.parse("4 per minute")
        assert [FIXED(storage).hit(item, key) for _ in range(5)] == [True] * 4 + [False]
        assert [MOVING(storage).hit(item, key) for _ in range(3)] == [True, True, False]


def test_without_a_node_the_storage_does_as_its_option_says() -> None:
    item = limits.parse("2 per minute")
    with pytest.raises(TollgateError):
        MOVING(storage_from_string(down())).hit(item)
    with pytest.raises(StorageError):
        MOVING(storage_from_string(down(), wrap_exceptions=True)).hit(item)
    for strategy in (MOVING, FIXED):
        assert strategy(storage_from_string(down(), on_failure="open")).hit(item)
        assert not strategy(storage_from_string(down(), on_failure="closed")).hit(item)
    assert not storage_from_string(down()).check()


# ---- Flask-Limiter and slowapi ----------------------------------------------------------------


def flask_limiter_app(uri: str, limit: str = "10 per minute", **options: Any) -> Any:
    app = flask.Flask(__name__)
    limiter = flask_limiter.Limiter(
        lambda: flask.request.headers["x-user"],
        app=app,
        storage_uri=uri,
        headers_enabled=True,
        **options,
    )

    @app.get("/")
    @limiter.limit(limit)
    def hello() -> str:
        return "hello"

    return app


def slowapi_app(uri: str, limit: str = "10 per minute", **options: Any) -> Any:
    app = fastapi.FastAPI()
    limiter = slowapi.Limiter(
        key_func=lambda request: request.headers["x-user"],
        storage_uri=uri,
        headers_enabled=True,
        **options,
    )
    app.state.limiter = limiter
    app.add_exception_handler(
        slowapi.errors.RateLimitExceeded, slowapi._rate_limit_exceeded_handler
    )

    @app.get("/")
    @limiter.limit(limit)
    async def hello(request: fastapi.Request, response: fastapi.Response) -> str:
        return "hello"

    return app


EXTENSIONS = {
    "flask-limiter": (flask_limiter_app, serve_wsgi),
    "slowapi": (slowapi_app, serve_asgi),
}


@pytest.mark.parametrize("strategy", ["moving-window", "fixed-window"])
@pytest.mark.parametrize("extension", EXTENSIONS)
def test_extension_passes_exactly_the_limit_of_64_concurrent_requests(
    extension: str, strategy: str, uri: str
) -> None:
    make_app, serve = EXTENSIONS[extension]
    headers = {"x-user": unique()}
    with serve(make_app(uri, strategy=strategy)) as url, httpx.Client(timeout=30) as http:
        with ThreadPoolExecutor(64) as pool:
            statuses = pool.map(lambda _: http.get(url, headers=headers).status_code, range(64))
            assert Counter(statuses) == {200: 10, 429: 54}
        denied = http.get(url, headers=headers)
        assert denied.status_code == 429
        assert denied.headers["x-ratelimit-remaining"] == "0"
        assert 1 <= int(denied.headers["retry-after"]) <= 61


@pytest.mark.parametrize("extension", EXTENSIONS)
def test_extension_falls_back_to_memory_and_returns_to_the_node(extension: str) -> None:
    make_app, serve = EXTENSIONS[extension]
    with Node(CONFIG) as node:
        app = make_app(
            f"tollgate://127.0.0.1:{node.port}?deadline=5",
            strategy="moving-window",
            in_memory_fallback=["1 per minute"],
        )
        key = unique()

        def status() -> int:
            return http.get(url, headers={"x-user": key}).status_code

        with serve(app) as url, httpx.Client(timeout=30) as http:
            assert [status() for _ in range(3)] == [200, 200, 200]
            node.kill()
            wait_until(lambda: status() == 429, "the fallback of 1 per minute")
            node.start()
            key = unique()
            # The extensions look for a storage that failed after 1, 2, 4 ... seconds.
            wait_until(lambda: [status() for _ in range(2)] == [200, 200], "the node's limit", 60)
