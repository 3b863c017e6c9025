"""litellm's proxy with the hook, before a node, a Redis and a small model."""

import http.client
import json
import os
import sys
import urllib.error
import urllib.request
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT / "examples/llm/tests"))

from conftest import Platform, is_ready, running  # noqa: E402
from model import PROMPT_TOKENS, Model, serve  # noqa: E402
from support import free_port, wait_until  # noqa: E402

EXAMPLE = ROOT / "examples/litellm"
KEY = "sk-a-master-key-of-some-length-2f9c"
USER = "default_user_id"
HEADERS = {"authorization": f"Bearer {KEY}", "content-type": "application/json"}
START = """
redis-server --port {redis} --save '' &
TOLLGATE_STORE=redis://127.0.0.1:{redis} tollgate serve policies.yaml --listen 127.0.0.1:{node} &
litellm --config config.yaml --port {proxy}
"""


@pytest.fixture(scope="module")
def proxy(tmp_path_factory):
    folder = tmp_path_factory.mktemp("litellm")
    for name in ("config.yaml", "policies.yaml", "tollgate_hook.py"):
        text = (EXAMPLE / name).read_text()
        # A busy machine needs more time for a decision.
        (folder / name).write_text(text.replace("timeout: 1s", "timeout: 5s"))
    redis, node, port, model_port = (free_port() for _ in range(4))
    os.environ |= {
        "LITELLM_LOCAL_MODEL_COST_MAP": "True",
        "LITELLM_MASTER_KEY": KEY,
        "MODEL_URL": f"http://127.0.0.1:{model_port}/v1",
        "TOLLGATE_NODES": f"http://127.0.0.1:{node}",
    }
    model = Model()
    start = START.format(redis=redis, node=node, proxy=port)
    with serve(model.app, model_port), running(start, folder):
        url = f"http://127.0.0.1:{port}"
        wait_until(lambda: is_ready(f"{url}/health/liveliness"), "the proxy is ready", 400)
        yield Platform(folder, {7070: node, 8000: port}, model)


def ask(proxy, **members):
    body = {"model": "llama3", "messages": [{"role": "user", "content": "Why?"}]} | members
    request = urllib.request.Request(
        f"{proxy.url}/chat/completions", json.dumps(body).encode(), HEADERS
    )
    try:
        with urllib.request.urlopen(request, timeout=120) as response:
            return response.status, response.headers, response.read()
    except urllib.error.HTTPError as error:
        return error.code, error.headers, error.read()


def used_by(proxy, number):
    """Whether the user has so many tokens in use, and none reserved."""
    usage = proxy.usage("user-tokens", USER)
    return usage["in_flight"] == 0 and proxy.used("user-tokens", USER) == number


def test_calls_cost_their_true_tokens(proxy):
    assert ask(proxy, max_tokens=100)[0] == 200
    wait_until(lambda: used_by(proxy, PROMPT_TOKENS + 50), "an answer costs its usage")
    assert ask(proxy, max_tokens=20, stream=True)[0] == 200
    total = 2 * PROMPT_TOKENS + 60
    wait_until(lambda: used_by(proxy, total), "a stream costs its usage")
    status, _, body = ask(proxy, max_tokens=50_000)
    assert status == 400 and b"user-tokens (1m) of 40000" in body
    assert used_by(proxy, total)
    leave_a_stream(proxy)
    wait_until(lambda: proxy.in_flight("user-tokens", USER) == 0, "the place is free")
    assert total < proxy.used("user-tokens", USER) < 1000
    assert ask(proxy, max_tokens=38_000)[0] == 200
    status, headers, _ = ask(proxy, max_tokens=38_000)
    assert status == 429 and int(headers["retry-after"]) > 1


def leave_a_stream(proxy):
    connection = http.client.HTTPConnection("127.0.0.1", proxy.ports[8000], timeout=120)
    body = {"model": "llama3", "messages": [], "max_tokens": 4000, "stream": True}
    body["seconds_each"] = 0.05
    connection.request("POST", "/v1/chat/completions", json.dumps(body), HEADERS)
    response = connection.getresponse()
    assert response.status == 200 and response.read(100)
    assert proxy.used("user-tokens", USER) > 4000
    response.close()
    connection.close()
