"""Denials that the client repeats without a call, and ids that serve retries only."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from tollgate_limiter import AsyncClient, CheckAnswer, Client, ProblemError, Unavailable, denials
from tollgate_limiter.denials import Denials
from tollgate_limiter.types import Check

from support import Node, Proxy, unique, wait_until


@contextmanager
def proxied(node: Node, lost: int = 0, **options: Any) -> Iterator[tuple[Client, Proxy]]:
    with Proxy(node.port, lost) as proxy, Client(proxy.url, deadline=10, **options) as client:
        yield client, proxy


def exhaust(client: Client, key: str, policy: str = "ten", **check: Any) -> CheckAnswer:
    """Checks until the client denies by itself."""
    return wait_until(
        lambda: denied_here(client.check(key, policy, **check)), "a denial of the client"
    )


def denied_here(answer: CheckAnswer) -> CheckAnswer | None:
    return answer if answer.source == "client" else None


# ---- through a node ---------------------------------------------------------------------------


def test_exhausted_key_is_denied_without_calls(node: Node) -> None:
    with proxied(node) as (client, proxy):
        key = unique()
        denial = exhaust(client, key)
        assert (denial.allowed, denial.reason, denial.charged) == (False, "over_limit", 0)
        assert (denial.policy, denial.key, denial.limit, denial.remaining) == ("ten", key, 10, 0)
        calls = len(proxy.calls)
        answers = [client.check(key, "ten", look=number % 2 == 0) for number in range(1000)]
        assert {answer.source for answer in answers} <= {"client", "prefilter"}
        assert sum(answer.source == "client" for answer in answers) >= 990
        assert len(proxy.calls) - calls <= 10
        assert 3_500_000 < (answers[-1].retry_after_ms or 0) < 3_700_000


@pytest.mark.parametrize(
    "check",
    [{"cost": 0}, {"over": "drain"}, {"id": "own"}],
    ids=["cost 0", "drain", "id"],
)
def test_check_that_a_denial_does_not_cover_asks_the_node(check: Any, node: Node) -> None:
    with proxied(node) as (client, proxy):
        key = unique()
        exhaust(client, key)
        calls = len(proxy.calls)
        assert client.check(key, "ten", **check).source != "client"
        assert len(proxy.calls) == calls + 1


def test_batch_sends_no_known_denials(node: Node) -> None:
    with proxied(node) as (client, proxy):
        key, other = unique(), unique()
        exhaust(client, key)
        calls = len(proxy.calls)
        known: Check = {"key": key, "policy": "ten"}
        answers = client.check_batch([known, {"key": other, "policy": "ten"}, known])
        assert [getattr(answer, "source", None) for answer in answers] == [
            "client",
            "store",
            "client",
        ]
        assert len(proxy.calls) == calls + 1
        assert len(client.check_batch([known, known])) == 2
        assert len(proxy.calls) == calls + 1


@pytest.mark.parametrize("call", ["refund", "reset"])
def test_refund_and_reset_of_this_client_end_its_denials(call: str, node: Node) -> None:
    with Client(node.url, deadline=10) as client:
        key = unique()
        exhaust(client, key)
        if call == "refund":
            assert client.refund(key, "ten", cost=1).refunded == 1
        else:
            client.reset(key, "ten")
        assert client.check(key, "ten").allowed


def test_limit_that_rises_elsewhere_is_seen_within_the_time_of_the_cache(node: Node) -> None:
    with Client(node.url, deadline=10, denial_cache=0.2) as client, Client(node.url) as other:
        key = unique()
        exhaust(client, key)
        other.refund(key, "ten", cost=5)
        wait_until(lambda: client.check(key, "ten").allowed, "a check passes", 5)


def test_denial_cache_of_zero_asks_for_each_check(node: Node) -> None:
    with proxied(node, denial_cache=0) as (client, proxy):
        key = unique()
        answers = [client.check(key, "default") for _ in range(20)]
        assert len(proxy.calls) == 20
        assert {answer.source for answer in answers[4:]} <= {"prefilter", "store"}


@pytest.mark.parametrize("kind", [Client, AsyncClient])
def test_offender_stays_denied_while_every_node_is_away(kind: type, node: Node) -> None:
    with Proxy(node.port) as proxy:
        client, key = kind(proxy.url, deadline=5, denial_cache=0.05), unique()

        async def run() -> None:
            async def check(key: str) -> CheckAnswer:
                answer = client.check(key, "ten")
                return await answer if kind is AsyncClient else answer  # type: ignore[no-any-return]

            while (await check(key)).source != "client":
                pass
            proxy.stop()
            await asyncio.sleep(0.1)
            assert not (await check(key)).allowed
            with pytest.raises(Unavailable):
                await check(unique())

        asyncio.run(run())


def test_coalesced_checks_learn_and_send_no_known_denials(node: Node) -> None:
    async def run() -> None:
        with Proxy(node.port) as proxy:
            async with AsyncClient(proxy.url, deadline=10) as client:
                key = unique()
                for _ in range(20):
                    await asyncio.gather(*(client.check(key, "ten") for _ in range(100)))
                assert len(proxy.calls) <= 10

    asyncio.run(run())


# ---- alone, with a chosen time ------------------------------------------------------------------


def answer(**members: Any) -> CheckAnswer:
    known: dict[str, Any] = {"allowed": False, "policy": "p", "key": "k", "cost": 1, "charged": 0}
    known |= {"limit": 2, "remaining": 0, "retry_after_ms": 5000, "reset_after_ms": 9000}
    known |= {"quota": "1m", "source": "prefilter", "reason": "over_limit"}
    return CheckAnswer(**(known | members))


def learned(**members: Any) -> tuple[Denials, denials.Place | None]:
    known = Denials(1.0)
    place = known.place({"key": "k", "policy": "p"})
    known.learn(place, answer(**members), 100.0)
    return known, place


def test_denial_ends_with_the_cache_or_with_its_wait() -> None:
    known, place = learned()
    found = known.find(place, {"key": "k"}, 100.9995)
    assert found is not None and (found.retry_after_ms, found.reset_after_ms) == (4001, 8001)
    assert known.find(place, {"key": "k"}, 101.0) is None
    assert known.find(place, {"key": "k"}, 104.9, stale=True) is not None
    assert known.find(place, {"key": "k"}, 105.0, stale=True) is None
    known, place = learned(retry_after_ms=300)
    assert known.find(place, {"key": "k"}, 100.29) is not None
    assert known.find(place, {"key": "k"}, 100.3, stale=True) is None


@pytest.mark.parametrize(
    "members",
    [{"source": "store"}, {"source": "list"}, {"retry_after_ms": None}, {"retry_after_ms": 0}],
)
def test_only_a_final_denial_is_learned(members: Any) -> None:
    known, place = learned(**members)
    assert known.find(place, {"key": "k"}, 100.1, stale=True) is None


def test_cheaper_check_is_not_denied() -> None:
    known, place = learned(cost=5)
    assert known.find(place, {"key": "k", "cost": 4}, 100.1) is None
    found = known.find(place, {"key": "k", "cost": 6}, 100.1)
    assert found is not None and found.cost == 6


def test_checks_with_other_quotas_count_apart() -> None:
    known, _ = learned()
    inline: Check = {"key": "k", "policy": "p", "quotas": ["1 per 1s"]}
    assert known.find(known.place(inline), inline, 100.1) is None


def test_checks_of_another_plan_count_apart() -> None:
    known, place = learned()
    assert known.find(place, {"key": "k", "plan": "pro"}, 100.1, stale=True) is None
    known.learn(place, answer(), 100.0, "pro")
    assert known.find(place, {"key": "k", "plan": "pro"}, 100.1) is not None
    assert known.find(place, {"key": "k"}, 100.1, stale=True) is None


def test_allowed_check_ends_the_denial() -> None:
    known, place = learned()
    known.learn(place, answer(allowed=True, source="store", retry_after_ms=0), 101.5)
    assert known.find(place, {"key": "k"}, 101.6, stale=True) is None


def test_denial_from_before_a_refund_is_not_learned() -> None:
    known, place = learned()
    sent = time.monotonic()
    known.forget("p", "k")
    known.learn(place, answer(), sent)
    assert known.find(place, {"key": "k"}, sent, stale=True) is None


def test_cache_keeps_the_newest_entries(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(denials, "MAX_ENTRIES", 3)
    known = Denials(1.0)
    places = [known.place({"key": str(number)}) for number in range(5)]
    for place in places:
        known.learn(place, answer(), 100.0)
    found = [known.find(place, {"key": "k"}, 100.1) is not None for place in places]
    assert found == [False, False, True, True, True]


# ---- ids ----------------------------------------------------------------------------------------


def test_check_has_an_id_only_if_asked(node: Node) -> None:
    with proxied(node) as (client, proxy):
        client.check(unique(), "ten")
        client.check(unique(), "ten", id="own")
        client.check(unique(), "ten", once=True)
    plain, own, once = proxy.bodies
    assert {"id", "id_ttl_ms", "repeated"}.isdisjoint(plain)
    assert own["id"] == "own" and {"id_ttl_ms", "repeated"}.isdisjoint(own)
    assert len(once["id"]) == 32 and once["id_ttl_ms"] == 20_000 and "repeated" not in once


@pytest.mark.parametrize("kind", [Client, AsyncClient])
def test_check_with_once_is_charged_once_through_a_lost_answer(kind: type, node: Node) -> None:
    with Proxy(node.port, lost=1) as proxy:
        client, key = kind(proxy.url, deadline=10), unique()

        async def run() -> CheckAnswer:
            answer = client.check(key, "ten", once=True)
            return await answer if kind is AsyncClient else answer  # type: ignore[no-any-return]

        assert asyncio.run(run()).allowed
    first, second = proxy.bodies
    assert second == {**first, "repeated": True}
    with Client(node.url, deadline=10) as client:
        assert client.usage(key, "ten").remaining == 9


def test_batch_repeats_only_the_mark_of_once(node: Node) -> None:
    with proxied(node, lost=1) as (client, proxy):
        keys = unique(), unique()
        client.check_batch(
            [{"key": keys[0], "policy": "ten", "once": True}, {"key": keys[1], "policy": "ten"}]
        )
        assert [check.get("repeated") for check in proxy.bodies[1]["checks"]] == [True, None]
        assert client.usage(keys[0], "ten").remaining == 9


def test_check_without_id_may_be_charged_twice_but_never_passes_more(node: Node) -> None:
    with proxied(node, lost=1) as (client, _):
        key = unique()
        answers = [client.check(key, "ten") for _ in range(12)]
        assert sum(answer.allowed for answer in answers) == 9


def test_look_denies_without_a_charge(node: Node) -> None:
    with Client(node.url, deadline=10) as client:
        key = unique()
        for _ in range(3):
            assert client.check(key, "ten", 10, look=True).allowed
        assert client.check(key, "ten", 4).allowed
        denial = client.check(key, "ten", 7, look=True)
        assert (denial.allowed, denial.charged) == (False, 0) and denial.retry_after_ms
        assert client.usage(key, "ten").remaining == 6


def test_refunded_id_is_denied(node: Node) -> None:
    with Client(node.url, deadline=10) as client:
        key = unique()
        assert client.check(key, "ten", id="one").allowed
        assert client.refund(key, "ten", id="one").refunded == 1
        again = client.check(key, "ten", id="one")
        assert (again.allowed, again.reason) == (False, "refunded")


def test_id_without_a_check_is_rejected(node: Node) -> None:
    with Client(node.url, deadline=10) as client, pytest.raises(ProblemError):
        client.check(unique(), id_ttl_ms=2000)
