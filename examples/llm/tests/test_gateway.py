"""The gateway, called by OpenAI's SDK for Python, before a small model."""

import concurrent.futures
import json
import os
import subprocess
import sys
import urllib.request
from pathlib import Path

import openai
import pytest

from conftest import EXAMPLE, printed, running
from model import PROMPT_TOKENS, WORD
from support import free_port, wait_until

ASK = {"model": "llama3", "messages": [{"role": "user", "content": "Why is the sky blue?"}]}


@pytest.fixture
def sdk(platform, caller):
    # Patient on a busy machine, and without retries, so that the first answer shows.
    client = openai.OpenAI(api_key=caller.key, base_url=platform.url, max_retries=0, timeout=60)
    with client:
        yield client


def ask(sdk, **members):
    return sdk.chat.completions.create(**ASK | members)


def test_page_prints_the_example():
    _, core = printed("python")
    assert core in (EXAMPLE / "gateway.py").read_text()
    assert printed("yaml") == [(EXAMPLE / "policies.yaml").read_text()]


def test_printed_call_streams_an_answer(platform):
    call, _ = printed("python")
    call = call.replace("8000", str(platform.ports[8000]))
    output = subprocess.run([sys.executable, "-c", call], check=True, capture_output=True)
    assert output.stdout.decode() == WORD * 500


def test_answer_costs_its_true_tokens(platform, caller, sdk):
    answer = ask(sdk, max_tokens=100)
    assert answer.choices[0].message.content == WORD * 50
    assert answer.usage.total_tokens == PROMPT_TOKENS + 50
    for scope, key in (("user", caller.user), ("team", caller.team)):
        assert platform.used(f"{scope}-tokens", key) == PROMPT_TOKENS + 50
        assert platform.used(f"{scope}-requests", key) == 1
        assert platform.in_flight(f"{scope}-tokens", key) == 0
    assert platform.used("model-requests", "llama3") >= 1


def test_stream_is_passed_on_and_costs_its_true_tokens(platform, caller, sdk):
    events = list(ask(sdk, max_tokens=20, stream=True))
    # Each event has a choice, so `event.choices[0]` never fails.
    assert [event.choices[0].delta.content for event in events] == [WORD] * 10
    assert not any(event.usage for event in events)
    wait_until(lambda: platform.in_flight("user-tokens", caller.user) == 0, "the stream settles")
    assert platform.used("user-tokens", caller.user) == PROMPT_TOKENS + 10


def test_usage_event_is_for_those_who_ask(platform, caller, sdk):
    events = list(ask(sdk, max_tokens=20, stream=True, stream_options={"include_usage": True}))
    assert events[-1].usage.total_tokens == PROMPT_TOKENS + 10 and not events[-1].choices
    body = json.dumps(ASK | {"max_tokens": 4, "stream": True}).encode()
    status, content = post(platform, caller, body)
    assert status == 200 and content.count(b"data: ") == 3 and b"usage" not in content


@pytest.mark.parametrize("name", ["max_tokens", "max_completion_tokens"])
def test_both_names_of_the_largest_output_count(platform, caller, sdk, name):
    with ask(sdk, stream=True, extra_body={"seconds_each": 0.2}, **{name: 30_000}):
        assert platform.used("user-tokens", caller.user) > 30_000
    assert platform.model.calls[-1][name] == 30_000


def test_output_without_a_bound_gets_one(platform, sdk):
    ask(sdk)
    assert platform.model.calls[-1]["max_tokens"] == 1000


def test_several_answers_reserve_the_tokens_of_each(platform, caller, sdk):
    with ask(sdk, n=3, max_tokens=10_000, stream=True, extra_body={"seconds_each": 0.2}):
        assert platform.used("user-tokens", caller.user) > 30_000


@pytest.mark.parametrize(
    "model, error, code",
    [
        ("missing", openai.NotFoundError, "model_not_found"),
        ("broken", openai.InternalServerError, "internal"),
        ("busy", openai.RateLimitError, "busy"),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_status_and_error_of_the_model_are_kept(platform, caller, sdk, model, error, code, stream):
    with pytest.raises(error) as raised:
        ask(sdk, model=model, stream=stream)
    assert raised.value.code == code and raised.value.type == "of_the_model"
    assert raised.value.response.headers.get("retry-after") == ("33" if model == "busy" else None)
    # A failed call costs no tokens, and is a request.
    assert platform.used("user-tokens", caller.user) == 0
    assert platform.used("user-requests", caller.user) == 1
    assert platform.in_flight("user-tokens", caller.user) == 0


@pytest.mark.parametrize(
    "members, param",
    [
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": "many"}, "max_tokens"),
        ({"max_tokens": True}, "max_tokens"),
        ({"max_tokens": 1.5}, "max_tokens"),
        ({"max_tokens": 10**30}, "max_tokens"),
        ({"max_completion_tokens": -1}, "max_completion_tokens"),
        ({"n": 0}, "n"),
        ({"model": ""}, "model"),
        ({"model": 3}, "model"),
        ({"stream_options": 3}, "stream_options"),
    ],
)
def test_bad_member_is_400(platform, caller, sdk, members, param):
    with pytest.raises(openai.BadRequestError) as raised:
        ask(sdk, **members)
    assert raised.value.param == param
    assert platform.used("user-requests", caller.user) == 0


@pytest.mark.parametrize("body", [b"", b"[]", b"{", b"\xff", b"[" * 100_000])
def test_bad_body_is_400(platform, caller, body):
    assert post(platform, caller, body)[0] == 400


def test_text_with_half_a_surrogate_pair_reaches_the_model(platform, caller):
    body = json.dumps(ASK | {"messages": [{"role": "user", "content": "\ud800"}]}).encode()
    assert post(platform, caller, body)[0] == 200


def post(platform, caller, body):
    headers = {"authorization": f"Bearer {caller.key}", "content-type": "application/json"}
    request = urllib.request.Request(f"{platform.url}/chat/completions", body, headers)
    try:
        with urllib.request.urlopen(request, timeout=60) as response:
            return response.status, response.read()
    except urllib.error.HTTPError as error:
        return error.code, error.read()


def test_unknown_key_is_401(platform):
    with openai.OpenAI(api_key="sk-nobody", base_url=platform.url) as client:
        with pytest.raises(openai.AuthenticationError):
            ask(client)
        with pytest.raises(openai.AuthenticationError):
            client.models.list()


def test_models_are_listed(sdk):
    assert [one.id for one in sdk.models.list()] == ["llama3"]


def test_request_that_never_fits_is_400_and_not_repeated(platform, caller):
    calls = len(platform.model.calls)
    client = openai.OpenAI(api_key=caller.key, base_url=platform.url)
    with client, pytest.raises(openai.BadRequestError) as raised:
        ask(client, max_tokens=50_000)
    assert raised.value.code == "cost_exceeds_limit"
    assert "the limit user-tokens (1m) of 40000" in raised.value.message
    assert len(platform.model.calls) == calls
    assert platform.used("user-requests", caller.user) == 0


def test_header_fields_have_what_is_left(platform, caller, sdk):
    response = sdk.chat.completions.with_raw_response.create(**ASK, max_tokens=1000)
    headers = response.headers
    assert headers["x-ratelimit-limit-requests"] == "60"
    assert headers["x-ratelimit-remaining-requests"] == "59"
    assert headers["x-ratelimit-limit-tokens"] == "40000"
    assert 38_000 < int(headers["x-ratelimit-remaining-tokens"]) < 39_000
    assert 0 < float(headers["x-ratelimit-reset-tokens"].removesuffix("s")) <= 70


def test_prices_make_one_unit_of_all_tokens(platform, caller, sdk):
    answer = sdk.chat.completions.with_raw_response.create(
        **ASK | {"model": "large"}, max_tokens=100, extra_body={"cached": 6}
    )
    # 2 tokens at 4, 6 cached ones at 1, and 50 tokens of the answer at 16.
    assert platform.used("user-tokens", caller.user) == 2 * 4 + 6 + 50 * 16
    # The fields count tokens at the highest price.
    assert answer.headers["x-ratelimit-limit-tokens"] == str(40_000 // 16)


def test_fifth_answer_at_once_is_denied_and_costs_nothing(platform, caller, sdk):
    streams = [
        ask(sdk, max_tokens=2000, stream=True, extra_body={"seconds_each": 0.05}) for _ in range(4)
    ]
    with pytest.raises(openai.RateLimitError) as denied:
        ask(sdk)
    assert denied.value.code == "rate_limit_exceeded" and "in_flight" in denied.value.message
    assert int(denied.value.response.headers["retry-after"]) >= 1
    assert float(denied.value.response.headers["retry-after-ms"]) >= 1
    assert platform.used("user-requests", caller.user) == 4
    # A caller that leaves pays for what it got, and the model stops.
    for stream in streams:
        stream.close()
    wait_until(lambda: platform.in_flight("user-tokens", caller.user) == 0, "the places are free")
    wait_until(lambda: platform.model.streams == 0, "the model stops")
    assert 0 < platform.used("user-tokens", caller.user) < 4000
    ask(sdk)


def test_caller_waits_as_long_as_it_is_told(platform, caller, sdk):
    ask(sdk, max_tokens=39_000)
    with pytest.raises(openai.RateLimitError) as denied:
        ask(sdk, max_tokens=39_000)
    assert 1000 < float(denied.value.response.headers["retry-after-ms"]) <= 62_000
    assert denied.value.type == "tokens"
    assert int(denied.value.response.headers["x-ratelimit-remaining-tokens"]) < 39_000


def test_parallel_requests_never_exceed_the_tokens(platform, caller, sdk):
    def status(_):
        try:
            ask(sdk, max_tokens=15_000)
        except openai.RateLimitError:
            return 429
        return 200

    with concurrent.futures.ThreadPoolExecutor(12) as pool:
        statuses = list(pool.map(status, range(12)))
    assert 2 <= statuses.count(200) <= 5
    used = platform.used("user-tokens", caller.user)
    assert used == statuses.count(200) * (PROMPT_TOKENS + 7500) <= 40_000


def test_broken_stream_breaks_off_and_costs_what_came(platform, caller, sdk):
    with pytest.raises(Exception, match=r"(?i)peer closed|incomplete|connection"):
        list(ask(sdk, model="breaks", max_tokens=20, stream=True))
    wait_until(lambda: platform.in_flight("user-tokens", caller.user) == 0, "the hold settles")
    assert 10 <= platform.used("user-tokens", caller.user) < 1000


def test_operator_who_ends_a_hold_ends_its_stream(platform, caller, sdk):
    stream = ask(sdk, max_tokens=2000, stream=True, extra_body={"seconds_each": 0.05})
    next(iter(stream))
    [hold] = platform.usage("user-tokens", caller.user)["holds"]
    body = json.dumps({"policy": "user-tokens", "key": caller.user, "id": hold["id"]}).encode()
    headers = {"content-type": "application/json"}
    settle = urllib.request.Request(f"{platform.node}/v1/settle", body, headers)
    urllib.request.urlopen(settle).close()
    with pytest.raises(Exception, match=r"(?i)peer closed|incomplete|connection"):
        list(stream)
    wait_until(lambda: platform.in_flight("team-tokens", caller.team) == 0, "the team's hold ends")


def test_blocked_user_is_403(platform, caller, sdk):
    entry = {"match": {"key": caller.user}, "deny": True, "reason": "a leaked key"}
    request = urllib.request.Request(
        f"{platform.node}/v1/overrides/user-tokens",
        json.dumps(entry).encode(),
        {"content-type": "application/json"},
        method="PUT",
    )
    urllib.request.urlopen(request).close()
    with pytest.raises(openai.PermissionDeniedError):
        ask(sdk)


def test_killed_gateway_pays_what_it_reserved_and_frees_its_place(platform, caller, tmp_path):
    """A second gateway, before a node whose holds last for 2 s. Both nodes have the same Redis."""
    policies = (platform.folder / "policies.yaml").read_text().replace("ttl: 30s", "ttl: 2s")
    (tmp_path / "policies.yaml").write_text(policies)
    node, port = free_port(), free_port()
    serve = f"exec tollgate serve policies.yaml --listen 127.0.0.1:{node}"
    gateway = f"exec uvicorn gateway:app --port {port} --app-dir {platform.folder}"
    os.environ["TOLLGATE_STORE"] = f"redis://127.0.0.1:{platform.ports[6379]}"
    os.environ["TOLLGATE_NODES"] = f"http://127.0.0.1:{node}"
    os.environ["MODEL_URL"] = f"http://127.0.0.1:{platform.ports[11434]}/v1"
    os.environ["SETTINGS"] = str(platform.folder / "settings.json")
    client = openai.OpenAI(
        api_key=caller.key, base_url=f"http://127.0.0.1:{port}/v1", max_retries=8, timeout=60
    )
    with running(serve, tmp_path), client:
        with running(gateway, tmp_path):
            stream = ask(client, max_tokens=2000, stream=True, extra_body={"seconds_each": 0.05})
            next(iter(stream))
            assert platform.in_flight("user-tokens", caller.user) == 1
        wait_until(lambda: platform.in_flight("user-tokens", caller.user) == 0, "the place is free")
        assert platform.used("user-tokens", caller.user) > 2000
        stream.close()


def test_sdk_for_node(platform, caller):
    node = Path(os.environ["NODE_SDK"])
    environment = os.environ | {"OPENAI_API_KEY": caller.key, "OPENAI_BASE_URL": platform.url}
    script = node / "sdk.test.mjs"
    command = ["node", "--test", str(script)]
    subprocess.run(command, env=environment, check=True, timeout=120, stdout=sys.stderr)
