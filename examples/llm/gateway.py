"""A gateway for a server with OpenAI's API. It limits what users, teams and models use."""

import json
import logging
import os
from pathlib import Path

import httpx
from starlette.applications import Starlette
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from tollgate_limiter import AsyncClient, Denied, TollgateError

SETTINGS = json.loads(Path(os.environ.get("SETTINGS", "settings.json")).read_text())
DEFAULT_MAX_TOKENS = 1000
LARGEST_NUMBER = 1_000_000
# The SDKs wait for a longer `Retry-After` differently, so the gateway tells them not to.
LONGEST_RETRY_MS = 60_000
KEPT_HEADERS = ("content-type", "retry-after", "retry-after-ms", "x-should-retry", "x-request-id")

tollgate = AsyncClient(os.environ.get("TOLLGATE_NODES", "http://127.0.0.1:7070"), deadline=2)
model_key = os.environ.get("MODEL_KEY")
model = httpx.AsyncClient(
    base_url=os.environ["MODEL_URL"],
    headers={"authorization": f"Bearer {model_key}"} if model_key else {},
    timeout=httpx.Timeout(600, connect=5),
    limits=httpx.Limits(max_connections=None),  # the places of the policies bound them
)


class Refused(Exception):
    """The gateway answers a request itself."""

    def __init__(self, status, message, kind="invalid_request_error", headers=None, **members):
        error = {"message": message, "type": kind, "param": None, "code": None} | members
        self.response = JSONResponse({"error": error}, status, headers)


async def chat(request):
    caller = caller_of(request)
    body, prompt = await body_of(request)
    price = Price(body["model"])
    most = price.of(prompt, largest_output(body))
    hold = await reserve(checks(caller, body["model"], most), price)
    answer = pass_on(hold, body, prompt, price)
    head = await head_of(answer)
    return StreamingResponse(answer, head.status_code, kept(head) | fields(hold.decisions, price))


def checks(caller, name, most):
    """A request, its tokens and its place: for the user, the team and the model."""
    keys = {"user": caller["user"], "team": caller["team"], "model": name}
    requests = [{"policy": f"{scope}-requests", "key": key} for scope, key in keys.items()]
    tokens = [
        {"policy": f"{scope}-tokens", "key": key, "cost": most, "meta": caller["user"]}
        for scope, key in keys.items()
    ]
    return requests + tokens


async def reserve(checks, price):
    hold = tollgate.hold_all(checks)
    try:
        return await hold.open()
    except Denied as denied:
        raise refusal(denied.decision, fields(hold.decisions, price)) from denied
    except TollgateError as failure:
        logging.warning("no decision: %s", failure)
        raise Refused(503, "the limiter gives no decision", "server_error") from failure


async def head_of(answer):
    try:
        return await anext(answer)
    except (httpx.HTTPError, TollgateError) as failure:
        logging.warning("no answer of the model: %r", failure)
        raise Refused(502, "there is no answer of the model", "server_error") from failure


async def pass_on(hold, body, prompt, price):
    """Yields the model's response first, and then its body. It settles the hold at the end."""
    options = body.get("stream_options") or {}
    if body.get("stream"):
        body["stream_options"] = options | {"include_usage": True}
    hold.cost = 0  # unless the model answers
    # `json=` of httpx rejects texts that the caller's JSON may have, such as half a surrogate pair.
    call = {"content": json.dumps(body), "headers": {"content-type": "application/json"}}
    async with hold, model.stream("POST", "chat/completions", **call) as response:
        if "text/event-stream" not in response.headers.get("content-type", ""):
            content = await response.aread()
            if response.is_success:
                usage = members_of(content).get("usage")
                # Without a usage the caller pays what it reserved.
                hold.cost = price.of_usage(usage) if usage else None
            yield response
            yield content
            return
        yield response
        output = 0
        hold.cost = price.of(prompt, 0)
        async for line in lines_of(response):
            event = members_of(line.removeprefix(b"data:"))
            if usage := event.get("usage"):
                hold.cost = price.of_usage(usage)
            elif event.get("choices"):
                output += tokens_of(event["choices"])
                hold.cost = price.of(prompt, output)
            if "usage" in event and not options.get("include_usage"):
                if not event["choices"]:
                    continue
                del event["usage"]
                line = f"data: {json.dumps(event)}\n".encode()
            yield line


class Price:
    """The units of cost of a model's tokens."""

    def __init__(self, name):
        prices = SETTINGS["prices"]
        price = prices.get(name, prices["default"])
        self.input, self.cached, self.output = price["input"], price["cached"], price["output"]

    def of(self, prompt, output):
        return max(1, self.input * prompt + self.output * output)

    def of_usage(self, usage):
        cached = (usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0
        prompt = (usage.get("prompt_tokens") or 0) - cached
        return self.cached * cached + self.of(prompt, usage.get("completion_tokens") or 0)

    @property
    def highest(self):
        return max(1, self.input, self.cached, self.output)


def caller_of(request):
    key = request.headers.get("authorization", "").removeprefix("Bearer ")
    if caller := SETTINGS["keys"].get(key):
        return caller
    raise Refused(401, "this API key is unknown", code="invalid_api_key")


async def body_of(request):
    """The body, and about how many tokens its prompt has."""
    content = await request.body()
    body = members_of(content)
    name = body.get("model")
    if not isinstance(name, str) or not name.isprintable() or not 0 < len(name) <= 256:
        message = "the body must be a JSON object, and `model` the name of a model"
        raise Refused(400, message, param="model")
    if not isinstance(body.get("stream_options") or {}, dict):
        raise Refused(400, "`stream_options` must be an object", param="stream_options")
    return body, len(content) // 3 + 1


def largest_output(body):
    """The most tokens that the model may generate."""
    given = [
        whole_number(body, name)
        for name in ("max_completion_tokens", "max_tokens")
        if body.get(name) is not None
    ]
    if not given:
        given = [body.setdefault("max_tokens", DEFAULT_MAX_TOKENS)]
    answers = whole_number(body, "n") if body.get("n") is not None else 1
    return max(given) * answers


def whole_number(body, name):
    number = body[name]
    if type(number) is int and 1 <= number <= LARGEST_NUMBER:
        return number
    message = f"`{name}` must be an integer from 1 to {LARGEST_NUMBER}"
    raise Refused(400, message, param=name)


def refusal(decision, headers):
    limit = f"the limit {decision.policy} ({decision.quota})"
    if decision.reason == "cost_exceeds_limit":
        message = f"the request may cost {decision.cost}, above {limit} of {decision.limit}"
        return Refused(400, message, param="max_tokens", code=decision.reason)
    if decision.reason == "deny_listed":
        return Refused(403, f"{decision.key} is blocked", code=decision.reason)
    wait = decision.retry_after_ms or 0
    headers |= {"retry-after-ms": str(wait), "retry-after": str(-(-wait // 1000))}
    if wait > LONGEST_RETRY_MS:
        headers["x-should-retry"] = "false"
    kind = "requests" if decision.policy.endswith("-requests") else "tokens"
    return Refused(429, f"{limit} is reached", kind, headers, code="rate_limit_exceeded")


def fields(decisions, price):
    """What is left of the scarcest quota, in fields that OpenAI names. Prices count in tokens."""
    headers = {}
    for kind, unit in (("requests", 1), ("tokens", price.highest)):
        of_kind = [one for one in decisions if one.policy.endswith(f"-{kind}")]
        quotas = [quota for one in of_kind for quota in one.quotas]
        if quotas:
            least = min(quotas, key=lambda quota: quota.remaining)
            headers[f"x-ratelimit-limit-{kind}"] = str(least.limit // unit)
            headers[f"x-ratelimit-remaining-{kind}"] = str(max(0, least.remaining) // unit)
            headers[f"x-ratelimit-reset-{kind}"] = f"{least.reset_after_ms / 1000:.3f}s"
    return headers


def kept(response):
    return {name: response.headers[name] for name in KEPT_HEADERS if name in response.headers}


async def lines_of(response):
    """The lines as the model sent them. `aiter_lines` also splits at line ends inside of texts."""
    rest = b""
    async for part in response.aiter_bytes():
        *lines, rest = (rest + part).split(b"\n")
        for line in lines:
            yield line + b"\n"
    if rest:
        yield rest


def members_of(content):
    try:
        members = json.loads(content)
    except (ValueError, RecursionError):
        return {}
    return members if isinstance(members, dict) else {}


def tokens_of(choices):
    """About how many tokens an event has."""
    texts = [(choice.get("delta") or {}).get("content") or "" for choice in choices]
    return sum(max(1, len(text.encode()) // 4) for text in texts)


async def models(request):
    caller_of(request)
    response = await model.get("models")
    return Response(response.content, response.status_code, kept(response))


async def on_refused(_, refused):
    return refused.response


app = Starlette(
    routes=[
        Route("/v1/chat/completions", chat, methods=["POST"]),
        Route("/v1/models", models),
    ],
    exception_handlers={Refused: on_refused},
)
