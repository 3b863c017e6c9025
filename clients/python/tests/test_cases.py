"""The cases that all languages share. `clients/README.md` describes them."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, is_dataclass
from functools import partial
from typing import Any

import httpx
import pytest

from tollgate_limiter import AsyncClient, Client, Denied, ProblemError, TollgateError, Unavailable

from apps import FRAMEWORKS
from support import CLIENTS, Node, Proxy, Silent, closed, unique, wait_until

CASES = json.loads((CLIENTS / "cases.json").read_text())
CLIENT_OPTIONS = ("deadline", "retry", "coalesce", "token", "ca_file", "denial_cache")


@pytest.mark.parametrize("kind", [Client, AsyncClient])
@pytest.mark.parametrize("case", CASES["client"], ids=lambda case: case["name"])
def test_client(case: dict[str, Any], kind: Any, node: Node, secure_node: Node) -> None:
    case = with_key(case)
    reset(case, node)
    with contextlib.ExitStack() as stack:
        urls, proxy = make_nodes(case, node, secure_node, stack)
        make = make_client(kind, urls, case)
        if kind is Client:
            run_threads(make, case["steps"], node, proxy)
        else:
            asyncio.run(run_tasks(make, case["steps"], node, proxy))
        check_seen(case, proxy)


@pytest.mark.parametrize("framework", FRAMEWORKS)
@pytest.mark.parametrize("case", CASES["middleware"], ids=lambda case: case["name"])
def test_middleware(case: dict[str, Any], framework: str, node: Node, secure_node: Node) -> None:
    case = with_key(case)
    reset(case, node)
    make_app, serve, kind = FRAMEWORKS[framework]
    if (
        framework == "fastapi depends"
        and {"drain", "refund", "hold"} & case.get("options", {}).keys()
    ):
        pytest.skip("a dependency does not see the response")
    with contextlib.ExitStack() as stack:
        urls, proxy = make_nodes(case, node, secure_node, stack)
        app = make_app(client=make_client(kind, urls, case), **middleware_options(case))
        url = stack.enter_context(serve(app))
        with httpx.Client() as http:
            for request in case["requests"]:
                run_request(request, url, http, node)
        check_seen(case, proxy)


# ---- what a case configures -------------------------------------------------------------------


def with_key(value: Any, key: str | None = None) -> Any:
    key = key or unique()
    if isinstance(value, dict):
        return {name: with_key(item, key) for name, item in value.items()}
    if isinstance(value, list):
        return [with_key(item, key) for item in value]
    if isinstance(value, str):
        return value.replace("{key}", key).replace("{long}", "k" * 2000)
    return value


def reset(case: dict[str, Any], node: Node) -> None:
    for counter in case.get("reset", []):
        httpx.delete(f"{node.url}/v1/usage", params=counter).raise_for_status()


def make_nodes(
    case: dict[str, Any], node: Node, secure: Node, stack: contextlib.ExitStack
) -> tuple[list[str], Proxy | None]:
    urls: list[str] = []
    proxy: Proxy | None = None
    for kind in case.get("nodes", ["node"]):
        if kind in ("proxy", "lossy"):
            proxy = stack.enter_context(Proxy(node.port, lost=int(kind == "lossy")))
            urls.append(proxy.url)
        elif kind == "down":
            urls.append(closed())
        elif kind == "silent":
            urls.append(stack.enter_context(Silent()))
        else:
            urls.append({"node": node, "secure": secure}[kind].url)
    return urls, proxy


def make_client(kind: Any, urls: list[str], case: dict[str, Any]) -> Any:
    options = dict(case.get("options", {}))
    options["deadline"] = options.pop("deadline_ms", 5000) / 1000
    if "denial_cache_ms" in options:
        options["denial_cache"] = options["denial_cache_ms"] / 1000
    options = {name: options[name] for name in CLIENT_OPTIONS if name in options}
    if "ca_file" in options:
        options["ca_file"] = str(CLIENTS / options["ca_file"])
    return kind(urls, **options)


def middleware_options(case: dict[str, Any]) -> dict[str, Any]:
    options = {
        name: value
        for name, value in case.get("options", {}).items()
        if name not in (*CLIENT_OPTIONS, "deadline_ms", "denial_cache_ms")
    }
    convert: dict[str, Callable[[str], Callable[..., Any]]] = {
        "policy": lambda name: lambda request: request.headers.get(name),
        "plan": lambda name: lambda request: request.headers.get(name),
        "key": lambda name: lambda request: request.headers.get(name),
        "cost": lambda name: lambda request: int(request.headers[name]),
        "skip": lambda name: lambda request: name in request.headers,
        "drain": lambda name: lambda request, response: int(request.headers.get(name, 0)),
        "refund": lambda name: lambda request, response: name in request.headers,
    }
    for name, make in convert.items():
        if isinstance(options.get(name), dict):
            options[name] = make(options[name]["header"])
    return options


# ---- steps of a client ------------------------------------------------------------------------

NAMES = {"checkBatch": "check_batch", "checkAll": "check_all"}


def call(client: Any, step: dict[str, Any]) -> Any:
    arguments = dict(step["with"])
    if "traceparent" in step:
        arguments["traceparent"] = step["traceparent"]
    if step["call"] == "hold" and "checks" in arguments:
        return client.hold_all(**arguments)
    if step["call"] == "acquire":
        arguments["wait"] = arguments.pop("wait_ms") / 1000
    return getattr(client, NAMES.get(step["call"], step["call"]))(**arguments)


class FromTheWork(Exception):
    """The work of a hold fails."""


def run_threads(client: Client, steps: list[Any], node: Node, proxy: Proxy | None) -> None:
    for step in steps:
        if "stop" in step:
            assert proxy is not None
            proxy.stop()
        elif "until" in step:
            wait_for_usage(step["until"], node)
        elif "pause_ms" in step:
            time.sleep(step["pause_ms"] / 1000)
        elif "together" in step:
            with ThreadPoolExecutor(16) as pool:
                list(
                    pool.map(lambda one: run_threads(client, [one], node, proxy), step["together"])
                )
        elif "concurrently" in step:
            with ThreadPoolExecutor(64) as pool:
                answers = list(pool.map(partial(call, client), [step] * step["concurrently"]))
            assert sum(answer.allowed for answer in answers) == step["allowed"]
        elif step["call"] == "hold":
            with (
                judged(step) as judge,
                contextlib.suppress(FromTheWork),
                call(client, step) as hold,
            ):
                judge(hold.decision)
                run_threads(client, step["while"], node, proxy)
                hold.raise_if_ended()
                hold.cost = step.get("cost")
                if step.get("throws"):
                    raise FromTheWork
        else:
            with judged(step) as judge:
                judge(call(client, step))


async def run_tasks(client: AsyncClient, steps: list[Any], node: Node, proxy: Proxy | None) -> None:
    for step in steps:
        if "stop" in step:
            assert proxy is not None
            proxy.stop()
        elif "until" in step:
            await asyncio.to_thread(wait_for_usage, step["until"], node)
        elif "pause_ms" in step:
            await asyncio.sleep(step["pause_ms"] / 1000)
        elif "together" in step:
            tasks = [run_tasks(client, [one], node, proxy) for one in step["together"]]
            await asyncio.gather(*tasks)
        elif "concurrently" in step:
            tasks = [call(client, step) for _ in range(step["concurrently"])]
            answers = await asyncio.gather(*tasks)
            assert sum(answer.allowed for answer in answers) == step["allowed"]
        elif step["call"] == "hold":
            with judged(step) as judge, contextlib.suppress(FromTheWork):
                async with call(client, step) as hold:
                    judge(hold.decision)
                    await run_tasks(client, step["while"], node, proxy)
                    hold.cost = step.get("cost")
                    if step.get("throws"):
                        raise FromTheWork
        else:
            with judged(step) as judge:
                judge(await call(client, step))
    await asyncio.sleep(0)


@contextlib.contextmanager
def judged(step: dict[str, Any]) -> Iterator[Callable[[Any], None]]:
    answers: list[Any] = []
    began = time.monotonic()
    try:
        yield answers.append
    except TollgateError as error:
        assert "fails" in step, error
        matches_failure(error, step["fails"])
    else:
        assert "fails" not in step, answers
        matches(plain(answers[0]), step.get("expect", {}))
    assert (time.monotonic() - began) * 1000 < step.get("within_ms", 20_000)


def plain(answer: Any) -> Any:
    if isinstance(answer, list):
        return {"results": [plain(item) for item in answer]}
    if isinstance(answer, ProblemError):
        return {"error": asdict(answer.problem)}
    assert is_dataclass(answer) and not isinstance(answer, type)
    return asdict(answer)


def matches_failure(error: TollgateError, expected: dict[str, Any]) -> None:
    if denied := expected.get("denied"):
        assert isinstance(error, Denied), error
        hold = error.decision.hold
        assert ((hold and hold.ended) or error.decision.reason) == denied
        return
    if expected.get("unavailable"):
        assert isinstance(error, Unavailable), error
        return
    assert isinstance(error, ProblemError), error
    assert (error.problem.status, error.name) == (expected["status"], expected["problem"])
    if "pointer" in expected:
        assert error.problem.violations[0].pointer == expected["pointer"]


# ---- requests to a middleware -----------------------------------------------------------------


def wait_for_usage(wanted: dict[str, Any], node: Node) -> None:
    of = {name: wanted[name] for name in ("policy", "key")}

    def is_so() -> bool:
        usage = httpx.get(f"{node.url}/v1/usage", params=of).json() | of
        return all(usage[name] == value for name, value in wanted.items())

    wait_until(is_so, str(wanted), 5)


def run_request(request: dict[str, Any], url: str, http: httpx.Client, node: Node) -> None:
    if "until" in request:
        wait_for_usage(request["until"], node)
        return
    headers = {name: value.encode() for name, value in request.get("headers", {}).items()}
    if "concurrently" in request:
        with ThreadPoolExecutor(64) as pool, httpx.Client(timeout=30) as many:
            answers = pool.map(
                lambda _: many.get(url, headers=headers).status_code, range(request["concurrently"])
            )
            statuses = Counter(str(status) for status in answers)
        assert statuses == request["statuses"]
        return
    for _ in range(request.get("times", 1)):
        began = time.monotonic()
        response = http.get(url, headers=headers)
        assert (time.monotonic() - began) * 1000 < request.get("within_ms", 20_000)
        matches_response(response, request["expect"])


def matches_response(response: httpx.Response, expected: dict[str, Any]) -> None:
    assert response.status_code == expected["status"], response.text
    for name, value in expected.get("headers", {}).items():
        matches(response.headers.get(name), value, name)
    if "body" in expected:
        assert response.text == expected["body"]
    if "json" in expected:
        matches(response.json(), expected["json"])


def check_seen(case: dict[str, Any], proxy: Proxy | None) -> None:
    if (seen := case.get("seen")) is None:
        return
    assert proxy is not None
    paths = [path for path, _ in proxy.calls]
    matches(len(paths), seen.get("calls", len(paths)), "calls")
    matches(proxy.connections, seen.get("connections", proxy.connections), "connections")
    for name, value in seen.get("headers", {}).items():
        for _, headers in proxy.calls:
            matches(headers.get(name), value, name)
    if "checks" in seen:
        bodies = [check for body in proxy.bodies if body for check in body.get("checks", [body])]
        assert len(bodies) == len(seen["checks"]), bodies
        for body, expected in zip(bodies, seen["checks"], strict=True):
            matches({name: body.get(name) for name in expected}, expected, "check")
    assert seen.get("some_path", paths[0]) in paths
    assert "every_path" not in seen or set(paths) == {seen["every_path"]}


def matches(value: Any, expected: Any, at: str = "") -> None:
    if isinstance(expected, dict) and "$between" in expected:
        low, high = expected["$between"]
        assert value is not None and low <= float(value) <= high, f"{at}: {value}, not {expected}"
    elif isinstance(expected, dict) and "$starts" in expected:
        assert str(value).startswith(expected["$starts"]), f"{at}: {value}, not {expected}"
    elif isinstance(expected, dict):
        for name, item in expected.items():
            matches(value[name], item, f"{at}/{name}")
    elif isinstance(expected, list):
        assert len(value) == len(expected), f"{at}: {value}, not {expected}"
        for place, item in enumerate(expected):
            matches(value[place], item, f"{at}/{place}")
    else:
        assert value == expected, f"{at}: {value!r}, not {expected!r}"
