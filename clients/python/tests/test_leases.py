"""Checks that the client pays for by leases, without a call."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tollgate_limiter import AsyncClient, CheckAnswer, Client, QuotaState, Unavailable, leases
from tollgate_limiter.leases import Lease, Leases
from tollgate_limiter.types import Check, LeaseAnswer

from apps import FRAMEWORKS
from support import CLIENTS, Node, Proxy, unique, wait_until

CASES = json.loads((CLIENTS / "lease-cases.json").read_text())["cases"]
CONFIG = Path(__file__).with_name("leases.yaml")


@pytest.fixture(scope="module")
def node() -> Iterator[Node]:
    with Node(CONFIG) as node:
        yield node


# ---- alone, with a chosen time ------------------------------------------------------------------


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["name"])
def test_case(case: Any) -> None:
    state, purchases = Leases(), list[Lease]()
    for step in case["steps"]:
        now = step["at"] * 1000, step.get("wall", step["at"]) * 1000
        if check := step.get("check"):
            paid, bought = state.check(("p", check["key"]), check["cost"], now)
            if bought:
                purchases.append(bought)
            assert (paid.remaining if paid else False) == step["paid"], step
            assert (bought.wanted if bought else None) == step["buy"], step
        elif seen := step.get("answered"):
            state.answered(("p", seen["key"]), seen["cost"], seen["allowed"], seen["span"], now)
        elif sold := step.get("bought"):
            state.bought(purchases[sold["purchase"] - 1], sale(**sold), now)
        elif failed := step.get("failed"):
            state.failed(purchases[failed["purchase"] - 1], failed["unknown"], now)
        elif number := step.get("settled"):
            state.settled([purchases[number - 1]])
        elif "tick" in step:
            state.tick(now)
        elif "close" in step:
            state.close()
        else:
            assert step["fork"]
            state.fork()
        due = [[purchases.index(one) + 1, one.granted - one.left] for one in state.take_due(1000)]
        assert due == step.get("due", []), step


def sale(granted: int, within: int, remaining: int, retry: int, **_: Any) -> LeaseAnswer:
    return LeaseAnswer(granted, within, False, 100, remaining, retry, 5000, "1m", "store")


def test_keys_without_demand_make_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leases, "MAX_KEYS", 3)
    state = Leases()

    def is_known(name: str, at: int) -> bool:
        state.answered(("p", name), 50, True, 1000, (at, at))
        bought = state.check(("p", name), 1, (at, at))[1]
        if bought:
            state.failed(bought, False, (at, at))
        return bought is not None

    begin = 10_000_000
    assert [is_known(name, begin) for name in "abcd"] == [True, True, True, False]
    assert is_known("a", begin + 1_900_000)
    assert is_known("d", begin + 3_000_000)
    assert is_known("a", begin + 3_000_001)


@pytest.mark.parametrize(
    "members",
    [
        {"id": "own"},
        {"id": "own", "once": True},
        {"meta": "cause"},
        {"plan": "pro"},
        {"quotas": ["1 per 1s"]},
        {"look": True},
        {"over": "drain"},
        {"wait_ms": 1},
        {"cost": 0},
        {"cost": True},
        {"cost": 1.0},
    ],
    ids=str,
)
def test_only_a_node_answers_other_checks(members: Any) -> None:
    plain: Check = {"key": "k", "policy": None, "cost": 2, "id": None, "look": None}
    assert leases.place_of(plain) == ("default", "k")
    assert leases.place_of({**plain, "once": True}) == ("default", "k")
    assert leases.place_of({**plain, **members}) is None


def test_decision_has_the_counts_of_the_sale() -> None:
    state, place = Leases(), ("p", "k")
    state.answered(place, 10, True, 1000, (0, 0))
    _, bought = state.check(place, 1, (0, 0))
    assert bought
    quota: dict[str, Any] = {"name": "1m", "limit": 100, "window_ms": 60_000, "remaining": 60}
    known = sale(11, 1000, 60, 0)
    known.quotas = [QuotaState(**quota, reset_after_ms=5000)]
    state.bought(bought, known, (1000, 1000))
    paid, _ = state.check(place, 3, (250_900, 250_900))
    assert paid == CheckAnswer(
        allowed=True,
        policy="p",
        key="k",
        cost=3,
        charged=3,
        limit=100,
        remaining=68,
        retry_after_ms=0,
        reset_after_ms=4750,
        quota="1m",
        source="lease",
        reason="ok",
        quotas=[QuotaState(**(quota | {"remaining": 68}), reset_after_ms=4750)],
    )


# ---- through a node -----------------------------------------------------------------------------


Ask = Callable[..., CheckAnswer]


@contextlib.contextmanager
def asking(kind: type, url: str, **options: Any) -> Iterator[tuple[Any, Ask, Callable[..., Any]]]:
    """A client, its check, and how to wait for its other calls."""
    client = kind(url, **{"deadline": 10, **options})
    if kind is Client:
        with client:
            yield client, client.check, lambda result: result
        return
    with asyncio.Runner() if sys.version_info >= (3, 11) else _Runner() as runner:

        async def once(*arguments: Any, **members: Any) -> Any:
            answer = await client.check(*arguments, **members)
            # The other tasks of the loop get their turns.
            await asyncio.sleep(0)
            return answer

        def wait(result: Any) -> Any:
            return runner.run(_of(result))

        yield client, lambda *arguments, **members: wait(once(*arguments, **members)), wait
        wait(client.close())


async def _of(result: Any) -> Any:
    return await result


class _Runner:
    """As that of asyncio since 3.11."""

    def __enter__(self) -> _Runner:
        self._loop = asyncio.new_event_loop()
        return self

    def run(self, coroutine: Any) -> Any:
        return self._loop.run_until_complete(coroutine)

    def __exit__(self, *_: object) -> None:
        self._loop.close()


both = pytest.mark.parametrize("kind", [Client, AsyncClient])


def in_hand(ask: Ask, key: str, policy: str = "hot") -> CheckAnswer:
    """Checks until a lease pays."""

    def paid() -> CheckAnswer | None:
        answer = ask(key, policy)
        return answer if answer.source == "lease" else None

    return wait_until(paid, "a check paid by a lease")


def remaining(node: Node, key: str, policy: str) -> int:
    with Client(node.url, deadline=10) as client:
        return client.usage(key, policy).remaining or 0


@both
def test_most_checks_of_a_hot_key_need_no_call(kind: type, node: Node) -> None:
    with Proxy(node.port) as proxy, asking(kind, proxy.url) as (_, ask, _):
        key, sources = unique(), list[str]()
        end = time.monotonic() + 3
        while time.monotonic() < end:
            sources.append(ask(key, "hot").source)
        assert sources.count("lease") >= 0.9 * len(sources) > 1000
        checks = sum(path.startswith("/v1/check") for path, _ in proxy.calls)
        assert checks == len(sources) - sources.count("lease")


@both
def test_close_settles_what_was_spent(kind: type, node: Node) -> None:
    key, count = unique(), 0
    with asking(kind, node.url) as (_, ask, _):
        end = time.monotonic() + 1.5
        while time.monotonic() < end:
            count += 1
            ask(key, "hot")
    assert remaining(node, key, "hot") == 600_000 - count


@both
def test_two_clients_share_exactly_one_limit(kind: type, node: Node) -> None:
    key, allowed, by_lease = unique(), [0, 0], [0, 0]

    def load(number: int) -> None:
        with asking(kind, node.url) as (_, ask, _):
            end = time.monotonic() + 30
            while time.monotonic() < end:
                answer = ask(key, "tight")
                allowed[number] += answer.allowed
                by_lease[number] += answer.source == "lease"
                if not answer.allowed and not ask(key, "tight").allowed:
                    break

    threads = [threading.Thread(target=load, args=(number,)) for number in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert min(by_lease) > 0
    left = remaining(node, key, "tight")
    assert sum(allowed) + left == 2000


def test_threads_share_the_leases_of_a_client(node: Node) -> None:
    key, counts = unique(), list[int]()
    with Client(node.url, deadline=10) as client:

        def load() -> None:
            end, count = time.monotonic() + 1.5, 0
            while time.monotonic() < end:
                count += client.check(key, "hot").allowed
            counts.append(count)

        threads = [threading.Thread(target=load) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert remaining(node, key, "hot") == 600_000 - sum(counts)


@both
@pytest.mark.parametrize("options", [{}, {"lease": False}], ids=["no callers", "turned off"])
def test_other_keys_are_not_leased(kind: type, options: Any, node: Node) -> None:
    policy = "hot" if options else "none"
    with Proxy(node.port) as proxy, asking(kind, proxy.url, **options) as (_, ask, _):
        key = unique()
        for _ in range(50):
            ask(key, policy)
        assert len(proxy.calls) == 50
        assert {path for path, _ in proxy.calls} == {"/v1/check"}


@both
def test_unspent_lease_is_returned_by_a_timer(kind: type, node: Node) -> None:
    with Proxy(node.port) as proxy, asking(kind, proxy.url) as (client, ask, wait):
        key, count = unique(), 0
        while not client._leases._keys or not any(
            one.hands for one in client._leases._keys.values()
        ):
            count += 1
            ask(key, "hot")
        if kind is AsyncClient:
            wait(asyncio.sleep(2))
        wait_until(lambda: remaining(node, key, "hot") == 600_000 - count, "the rest is back", 5)


@both
def test_units_in_hand_pay_while_no_node_answers(kind: type, node: Node) -> None:
    with Proxy(node.port) as proxy, asking(kind, proxy.url, deadline=0.3) as (_, ask, _):
        key = unique()
        in_hand(ask, key)
        proxy.stop()
        assert ask(key, "hot").source == "lease"
        with pytest.raises(Unavailable):
            ask(unique(), "hot")

        def is_unavailable() -> bool:
            try:
                return not ask(key, "hot")
            except Unavailable:
                return True

        wait_until(is_unavailable, "the end of the lease", 5)


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_middleware_leases_and_settles_without_a_setting(framework: str, node: Node) -> None:
    make_app, serve, kind = FRAMEWORKS[framework]
    key, count = unique(), 300
    with Proxy(node.port) as proxy:
        client = kind(proxy.url, deadline=10)
        app = make_app(client=client, policy="hot", key=lambda _: key, on_failure="closed")
        with serve(app) as url, httpx.Client(timeout=30) as http:
            fields = [http.get(url).headers["ratelimit"] for _ in range(count)]
        assert all(field.startswith('"1m";r=5') for field in fields[1:])
        assert sum(path.startswith("/v1/check") for path, _ in proxy.calls) < count / 2
        if framework in ("starlette", "fastapi"):
            # The end of the server ends their leases.
            assert remaining(node, key, "hot") == 600_000 - count


def test_batch_is_paid_by_a_lease(node: Node) -> None:
    with Client(node.url, deadline=10) as client:
        key = unique()
        in_hand(client.check, key)
        check: Check = {"key": key, "policy": "hot"}
        answers = client.check_batch([check, {**check, "id": unique()}])
        assert [getattr(answer, "source", None) for answer in answers] == ["lease", "store"]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_forked_child_holds_and_settles_nothing(node: Node) -> None:
    with Proxy(node.port) as proxy, Client(proxy.url, deadline=10) as client:
        key = unique()
        in_hand(client.check, key)
        read, write = os.pipe()
        if not (child := os.fork()):
            try:
                source = client.check(key, "hot").source
                client.close()
                os.write(write, source.encode())
            finally:
                os._exit(0)
        os.waitpid(child, 0)
        assert os.read(read, 100) != b"lease"
        assert "/v1/settle" not in {path for path, _ in proxy.calls}
        assert client.check(key, "hot").source == "lease"


def test_suspension_ends_a_lease(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    read, slept = time.clock_gettime_ns, 0
    clock = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)

    def clock_of(kind: int) -> int:
        return read(kind) + (slept if kind == clock else 0)

    monkeypatch.setattr(time, "clock_gettime_ns", clock_of)
    with Client(node.url, deadline=10) as client:
        key = unique()
        in_hand(client.check, key)
        slept = 3_600 * 10**9
        assert client.check(key, "hot").source != "lease"


@both
def test_end_of_the_process_settles(kind: type, node: Node) -> None:
    """Applications of WSGI close no client."""
    call = "check" if kind is Client else "lambda *check: loop.run_until_complete(turn(*check))"
    program = f"""
import asyncio, sys
from tollgate_limiter import {kind.__name__}
client, count, loop = {kind.__name__}({node.url!r}, deadline=10), 0, asyncio.new_event_loop()
async def turn(*check):
    answer = await client.check(*check)
    await asyncio.sleep(0)
    return answer
check = {"client." if kind is Client else ""}{call}
source = ""
while source != "lease":
    count += 1
    source = check(sys.argv[1], "hot").source
print(count)
"""
    key = unique()
    done = subprocess.run(
        [sys.executable, "-c", program, key],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(CLIENTS / "python/src")},
        timeout=60,
    )
    assert done.returncode == 0 and not done.stderr, done.stderr
    assert remaining(node, key, "hot") == 600_000 - int(done.stdout)


def test_decision_by_a_lease_is_cheap() -> None:
    """The middle one of many. A busy machine delays some."""
    client, place = Client("http://127.0.0.1:1"), ("hot", "k")
    client._leases.answered(place, 10**9, True, 3_600_000, leases.now())
    bought = client._leases.check(place, 1, leases.now())[1]
    assert bought
    client._leases.bought(bought, sale(10**9, 3_600_000, 10**9, 0), leases.now())
    client._leases.check(place, 1, leases.now())
    times = list[int]()
    for _ in range(20_000):
        began = time.perf_counter_ns()
        assert client.check("k", "hot").source == "lease"
        times.append(time.perf_counter_ns() - began)
    assert statistics.median(times) < 50_000
