"""What one language does alone: threads, forks, event loops, and members of a request."""

from __future__ import annotations

import asyncio
import math
import os
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import uvloop

from tollgate_limiter import AsyncClient, Client, ProblemError, TollgateError, Unavailable
from tollgate_limiter.base import MAX_DEADLINE
from tollgate_limiter.limiter import Limiter

from support import CLIENTS, Node, Proxy, Silent, free_port, unique


def test_threads_share_a_client_and_pass_exactly_the_limit(node: Node) -> None:
    key = unique()
    with Client(node.url, deadline=10) as client, ThreadPoolExecutor(64) as pool:
        answers = pool.map(lambda _: client.check(key, "ten"), range(256))
        assert sum(answer.allowed for answer in answers) == 10


def test_forked_process_uses_connections_of_its_own(node: Node) -> None:
    with Proxy(node.port) as proxy, Client(proxy.url, deadline=10) as client:
        assert client.check(unique()).allowed
        child = os.fork()
        if child == 0:
            os._exit(0 if client.check(unique()).allowed else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert client.check(unique()).allowed
        assert proxy.connections == 2


@pytest.mark.parametrize("kind", [Client, AsyncClient])
def test_forked_processes_charge_each_for_itself(kind: type, node: Node) -> None:
    """Equal ids would make the check of one process a repetition of the other's."""
    client, key = kind(node.url, deadline=10), unique()

    def check() -> bool:
        answer = client.check(key, "ten")
        return bool((answer if kind is Client else asyncio.run(answer)).allowed)

    children = []
    for _ in range(3):
        child = os.fork()
        if child == 0:
            os._exit(0 if check() else 1)
        children.append(child)
    assert all(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0 for child in children)
    assert check()
    with Client(node.url, deadline=10) as other:
        assert other.usage(key, "ten").remaining == 6


def test_async_client_serves_one_event_loop_after_another(node: Node) -> None:
    client = AsyncClient(node.url, deadline=10)
    for _ in range(3):
        assert asyncio.run(client.check(unique())).allowed


def test_event_loops_of_several_threads_share_a_client(node: Node) -> None:
    client, key = AsyncClient(node.url, deadline=10), unique()

    async def check_often() -> int:
        allowed = 0
        for _ in range(50):
            answers = await asyncio.gather(*(client.check(key, "ten") for _ in range(4)))
            allowed += sum(answer.allowed for answer in answers)
        return allowed

    with ThreadPoolExecutor(4) as pool:
        loops = [pool.submit(asyncio.run, check_often()) for _ in range(4)]
        assert sum(loop.result(60) for loop in loops) == 10


def test_async_client_runs_on_uvloop(node: Node, secure_node: Node) -> None:
    async def run() -> None:
        async with AsyncClient(node.url, deadline=10) as client:
            key = unique()
            answers = await asyncio.gather(*(client.check(key, "ten") for _ in range(64)))
            assert sum(answer.allowed for answer in answers) == 10
        ca_file, token = str(CLIENTS / "testdata/ca.pem"), "tollgate-client-test-token"
        async with AsyncClient(
            secure_node.url, deadline=10, ca_file=ca_file, token=token
        ) as client:
            assert (await client.check(unique())).allowed
        with pytest.raises(Unavailable):
            await AsyncClient(f"http://127.0.0.1:{free_port()}").check("key")

    uvloop.run(run())


def test_cancelled_check_leaves_the_checks_beside_it(node: Node) -> None:
    async def run() -> None:
        async with AsyncClient(node.url, deadline=10) as client:
            tasks = [asyncio.create_task(client.check(unique())) for _ in range(3)]
            await asyncio.sleep(0)
            tasks[0].cancel()
            answers = await asyncio.gather(*tasks, return_exceptions=True)
            assert isinstance(answers[0], asyncio.CancelledError)
            assert [getattr(answer, "allowed", None) for answer in answers[1:]] == [True, True]

    asyncio.run(run())


@pytest.mark.parametrize("size", [100 << 10, 32 << 20])
def test_check_of_many_bytes_leaves_the_checks_beside_it(size: int, node: Node) -> None:
    async def run() -> None:
        async with AsyncClient(node.url, deadline=10) as client:
            keys = [unique(), "k" * size, unique()]
            answers = await asyncio.gather(*map(client.check, keys), return_exceptions=True)
            assert [getattr(answer, "allowed", None) for answer in answers] == [True, None, True]
            assert isinstance(answers[1], ProblemError) and answers[1].problem.status == 413

    asyncio.run(run())


@pytest.mark.parametrize("size", [100 << 10, 32 << 20])
def test_check_of_many_bytes_leaves_the_checks_of_other_threads(size: int, node: Node) -> None:
    large = "k" * size

    def check(key: str) -> object:
        try:
            return client.check(key, "thousand").allowed
        except ProblemError as error:
            return error.problem.status

    with Client(node.url, deadline=10) as client, ThreadPoolExecutor(16) as pool:
        assert list(pool.map(check, [unique(), large] * 16)) == [True, 413] * 16


def test_more_checks_than_one_call_takes_are_split(node: Node) -> None:
    async def run() -> None:
        with Proxy(node.port) as proxy:
            async with AsyncClient(proxy.url, deadline=10) as client:
                key = unique()
                answers = await asyncio.gather(*(client.check(key, "thousand") for _ in range(250)))
                assert all(answer.allowed for answer in answers)
                assert (await client.usage(key, "thousand")).remaining == 750
            assert len(proxy.calls) == 4

    asyncio.run(run())


def test_connection_that_the_node_closed_is_not_used_again() -> None:
    """A call without ids must not fail by an old connection."""
    with Node(CLIENTS / "cases.yaml") as node, Client(node.url, deadline=10) as client:
        assert client.check_all([{"key": unique()}]).allowed
        node.kill()
        node.start()
        assert client.check_all([{"key": unique()}]).allowed


def test_usage_of_a_cost_is_a_dry_run(node: Node) -> None:
    key = unique()
    with Client(node.url, deadline=10) as client:
        assert client.usage(key, "ten", cost=10).allowed
        assert not client.usage(key, "ten", cost=11).allowed
        assert client.usage(key, "ten").remaining == 10


def test_name_with_several_addresses_finds_the_node(node: Node) -> None:
    with Client(f"http://localhost:{node.port}", deadline=10) as client:
        assert client.check(unique()).allowed


def test_deadline_covers_all_nodes() -> None:
    with Silent() as one, Silent() as two:
        began = time.monotonic()
        with pytest.raises(Unavailable), Client([one, two], deadline=0.2) as client:
            client.check("key")
        assert 0.2 <= time.monotonic() - began < 2


def test_traceparent_that_is_none_is_left_out(node: Node) -> None:
    with Proxy(node.port) as proxy, Client(proxy.url, deadline=10) as client:
        assert client.check(unique(), traceparent="x\r\nauthorization: Bearer x").allowed
        assert {"traceparent", "authorization"}.isdisjoint(proxy.calls[0][1])


def test_key_with_half_a_surrogate_pair_is_a_bad_key(node: Node) -> None:
    with Client(node.url) as client, pytest.raises(ProblemError) as caught:
        client.check("\ud800")
    assert caught.value.problem.violations[0].pointer == "/key"


def test_another_server_is_unavailable(node: Node) -> None:
    with pytest.raises(ProblemError) as caught, Client(f"{node.url}/elsewhere") as client:
        client.check("key")
    assert caught.value.problem.status == 404


@pytest.mark.parametrize("kind", [Client, AsyncClient])
def test_call_that_no_node_reads_is_a_problem_and_no_failure_of_the_node(
    kind: type, node: Node
) -> None:
    """Without a bound the node closes the connection before it has read such a call."""
    client, huge = kind(node.url, deadline=10), "k" * (32 << 20)

    def ask(name: str, key: str) -> Any:
        answer = getattr(client, name)(key)
        return answer if kind is Client else asyncio.run(answer)

    for name in ("check", "usage"):
        with pytest.raises(ProblemError) as caught:
            ask(name, huge)
        assert caught.value.problem.status == 413
        assert ask("check", unique()).allowed


@pytest.mark.parametrize("deadline", [0, -1, math.nan, math.inf, 1e10, 10**30])
@pytest.mark.parametrize("kind", [Client, AsyncClient])
def test_deadline_that_no_timer_accepts_is_rejected(kind: type, deadline: float) -> None:
    with pytest.raises(TollgateError, match="`deadline` must be"):
        kind(f"http://127.0.0.1:{free_port()}", deadline=deadline)


@pytest.mark.parametrize("kind", [Client, AsyncClient])
def test_longest_deadline_is_accepted(kind: type, node: Node) -> None:
    answer = kind(node.url, deadline=MAX_DEADLINE).check(unique())
    assert (answer if kind is Client else asyncio.run(answer)).allowed


@pytest.mark.parametrize("token", ["a\r\nb", "a b", "ü", "\x7f"])
@pytest.mark.parametrize("kind", [Client, AsyncClient])
def test_token_has_visible_ascii_only(kind: type, token: str) -> None:
    with pytest.raises(TollgateError, match="`token` must be visible ASCII"):
        kind(f"http://127.0.0.1:{free_port()}", token=token)


@pytest.mark.parametrize("options", [{"deadline": 0}, {"nodes": []}])
@pytest.mark.parametrize("kind", [Client, AsyncClient])
def test_wrong_options_are_rejected(kind: type, options: dict[str, object]) -> None:
    with pytest.raises(TollgateError):
        kind(**{"nodes": f"http://127.0.0.1:{free_port()}", **options})


def test_log_gets_one_line_for_many_failures(caplog: pytest.LogCaptureFixture) -> None:
    limiter = Limiter(Client(), {})
    for _ in range(100):
        limiter.report("no decision", Unavailable("test"))
    assert len(caplog.records) == 1
