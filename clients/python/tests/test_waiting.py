"""The worker of docs/waiting.md runs as it is printed, before a partner with a limit."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fastapi
import pytest
from fastapi.responses import JSONResponse

from tollgate_limiter import Denied

from apps import serve_asgi
from support import CLIENTS, Node

PAGE = (CLIENTS.parent / "docs/waiting.md").read_text()
# A start is as late as that, since an answer may take the whole deadline of the client.
LATE = 0.3


def block(language: str) -> str:
    found = re.search(rf"```{language}\n(.*?)```", PAGE, re.DOTALL)
    assert found
    return found[1]


class Partner:
    """Answers each order, and refuses the one of that number."""

    def __init__(self, refuses: int | None = None) -> None:
        self.calls: list[float] = []
        self.app = fastapi.FastAPI()

        @self.app.post("/orders")
        async def order() -> JSONResponse:
            self.calls.append(time.monotonic())
            is_refused = len(self.calls) == refuses
            return JSONResponse({}, 429 if is_refused else 200, {"retry-after": "2"})


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    # A busy machine needs more than the default of 100 ms.
    policies = tmp_path / "policies.yaml"
    policies.write_text(block("yaml") + "    timeout: 5s\n")
    with Node(policies) as node:
        yield node


def worker(monkeypatch: pytest.MonkeyPatch, node: Node, partner: str) -> Any:
    monkeypatch.setenv("TOLLGATE_NODES", node.url)
    monkeypatch.setenv("PARTNER_URL", partner)
    names: dict[str, Any] = {"__name__": "worker"}
    exec(compile(block("python"), "worker.py", "exec"), names)
    return names["send"]


async def beat(pauses: list[float]) -> None:
    """Measures how late the loop is."""
    while True:
        began = time.monotonic()
        await asyncio.sleep(0.02)
        pauses.append(time.monotonic() - began - 0.02)


def test_workers_stay_below_the_limit_and_obey_a_429(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    partner = Partner(refuses=8)
    with serve_asgi(partner.app) as url:
        send = worker(monkeypatch, node, url)

        async def work() -> list[Any]:
            heart = asyncio.create_task(beat(pauses))
            responses = await asyncio.gather(*(send({"number": one}) for one in range(30)))
            heart.cancel()
            return responses

        pauses: list[float] = []
        responses = asyncio.run(work())
    assert [response.status_code for response in responses] == [200] * 30
    # The loops of the workers and of the partner are late on a busy machine.
    late = LATE + 2 * max(pauses)
    calls = partner.calls
    assert len(calls) == 31
    for first, begin in enumerate(calls):
        for more, end in enumerate(calls[first:]):
            assert more <= 10 * (end - begin + late), f"{more + 1} calls in {end - begin} s"
    refused_at = calls[7]
    during = [at for at in calls if refused_at + late < at < refused_at + 1.9]
    assert not during, [at - refused_at for at in during]


def test_job_above_the_burst_ends_its_worker(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    partner = Partner()
    with serve_asgi(partner.app) as url:
        send = worker(monkeypatch, node, url)
        with pytest.raises(Denied) as denied:
            asyncio.run(asyncio.wait_for(send({}, cost=2), 30))
    assert denied.value.decision.reason == "cost_exceeds_limit"
    assert not partner.calls


def test_restart_of_the_node_ends_no_worker(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    partner = Partner(refuses=3)
    with serve_asgi(partner.app) as url:
        send = worker(monkeypatch, node, url)

        async def work() -> list[Any]:
            jobs = [asyncio.create_task(send({"number": one})) for one in range(20)]
            await asyncio.sleep(0.2)
            node.kill()
            more = [asyncio.create_task(send({"number": one})) for one in range(20, 25)]
            await asyncio.sleep(0.5)
            await asyncio.to_thread(node.start)
            return await asyncio.wait_for(asyncio.gather(*jobs, *more), 60)

        responses = asyncio.run(work())
    assert [response.status_code for response in responses] == [200] * 25
