"""The gateway of docs/llm.md runs as it is printed, before a model that streams."""

from __future__ import annotations

import asyncio
import json
import os
import re
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import fastapi
import httpx
import pytest
from starlette.responses import StreamingResponse

from apps import serve_asgi
from support import CLIENTS, Node, unique, wait_until

PAGE = (CLIENTS.parent / "docs/llm.md").read_text()
PROMPT = {"role": "user", "content": "Why is the sky blue?"}


def block(language: str) -> str:
    found = re.search(rf"```{language}\n(.*?)```", PAGE, re.DOTALL)
    assert found
    return found[1]


class Model:
    """A server with the API of OpenAI. Each event has one token, and an answer as many as asked."""

    def __init__(self) -> None:
        self.app = fastapi.FastAPI()
        self.streams = 0
        self.app.post("/v1/chat/completions")(self.complete)

    async def complete(self, request: fastapi.Request) -> StreamingResponse:
        return StreamingResponse(self.events(await request.json()), media_type="text/event-stream")

    async def events(self, body: Any) -> AsyncIterator[str]:
        self.streams += 1
        try:
            number = body["max_tokens"] // 2
            for _ in range(number):
                yield event(choices=[{"delta": {"content": "blue "}}])
                await asyncio.sleep(body.get("seconds_each", 0))
            usage = {"prompt_tokens": 8, "completion_tokens": number, "total_tokens": 8 + number}
            yield event(choices=[], usage=usage)
            yield "data: [DONE]\n\n"
        finally:
            self.streams -= 1


def event(**members: Any) -> str:
    return f"data: {json.dumps(members)}\n\n"


class Platform:
    def __init__(self, node: Node, model: Model, url: str) -> None:
        self.node, self.model, self.user, self.team = node, model, unique(), unique()
        self.http = httpx.Client(base_url=url, timeout=30)
        self.headers = {"x-user": self.user, "x-team": self.team}

    def ask(self, max_tokens: int) -> httpx.Response:
        return self.http.post(
            "/v1/chat/completions", json=self.body(max_tokens), headers=self.headers
        )

    def stream(self) -> Any:
        body = self.body(2000) | {"seconds_each": 0.01}
        return self.http.stream("POST", "/v1/chat/completions", json=body, headers=self.headers)

    def body(self, max_tokens: int) -> dict[str, Any]:
        return {"model": "llama3", "messages": [PROMPT], "max_tokens": max_tokens}

    def usage(self, policy: str, key: str) -> Any:
        answer = httpx.get(f"{self.node.url}/v1/usage", params={"policy": policy, "key": key})
        return answer.json()

    def in_flight(self) -> int:
        return int(self.usage("team-tokens", self.team)["in_flight"])

    def used(self, policy: str, key: str) -> int:
        usage = self.usage(policy, key)
        return int(usage["limit"] - usage["remaining"])


@pytest.fixture(scope="module")
def platform_of(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    folder = tmp_path_factory.mktemp("llm")
    # A busy machine needs more than the default of 100 ms.
    policies = block("yaml").replace("in_flight: 4}", "in_flight: 4}\n    timeout: 5s")
    (folder / "policies.yaml").write_text(policies)
    model = Model()
    with Node(Path(folder / "policies.yaml")) as node, serve_asgi(model.app) as model_url:
        os.environ |= {"TOLLGATE_NODES": node.url, "MODEL_URL": model_url}
        names: dict[str, Any] = {"__name__": "gateway"}
        exec(compile(block("python"), "gateway.py", "exec"), names)
        with serve_asgi(names["app"]) as url:
            yield lambda: Platform(node, model, url)


def test_answer_costs_its_true_tokens(platform_of: Any) -> None:
    platform = platform_of()
    response = platform.ask(100)
    assert response.status_code == 200 and response.text.endswith("data: [DONE]\n\n")
    # 50 tokens and a prompt of 8, in place of the 100 and more that were reserved.
    assert platform.used("user-tokens", platform.user) == 58
    assert platform.used("team-tokens", platform.team) == 58
    assert platform.used("user-requests", platform.user) == 1
    assert platform.in_flight() == 0


def test_fifth_answer_at_once_is_denied_and_costs_nothing(platform_of: Any) -> None:
    platform = platform_of()
    streams = [platform.stream() for _ in range(4)]
    for stream in streams:
        assert stream.__enter__().status_code == 200
    try:
        denied = platform.ask(100)
        assert denied.status_code == 429
        assert denied.json()["error"]["message"] == "the limit user-tokens (in_flight) is used up"
        assert 1 <= int(denied.headers["retry-after"]) <= 30
        assert platform.in_flight() == 4
        assert platform.used("user-requests", platform.user) == 4
    finally:
        for stream in streams:
            stream.__exit__(None, None, None)
    # A caller that leaves pays for what it got, and the model stops.
    wait_until(
        lambda: platform.usage("user-tokens", platform.user)["in_flight"] == 0,
        "the places are free",
    )
    wait_until(lambda: platform.model.streams == 0, "the model stops")
    assert 0 < platform.used("user-tokens", platform.user) < 4000
    assert platform.ask(100).status_code == 200


def test_parallel_requests_never_exceed_the_tokens(platform_of: Any) -> None:
    platform = platform_of()
    with ThreadPoolExecutor(12) as pool:
        responses = list(pool.map(lambda _: platform.ask(15_000), range(12)))
    statuses = [response.status_code for response in responses]
    assert 2 <= statuses.count(200) <= 5 and statuses.count(429) == 12 - statuses.count(200)
    used = platform.used("user-tokens", platform.user)
    assert used == statuses.count(200) * 7508 <= 40_000
    too_large = platform.ask(50_000)
    assert too_large.status_code == 429 and "retry-after" not in too_large.headers
