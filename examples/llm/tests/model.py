"""A server with OpenAI's API. An answer has half of the tokens that its call allows."""

import asyncio
import contextlib
import json
import threading

import uvicorn
from starlette.applications import Starlette
from starlette.responses import JSONResponse, StreamingResponse
from starlette.routing import Route

PROMPT_TOKENS = 8
# A line end inside of a text, as Unicode has it.
WORD = "blue\u2028"


class Model:
    def __init__(self):
        self.calls = []
        self.streams = 0
        path = "/v1/chat/completions"
        self.app = Starlette(
            routes=[Route(path, self.complete, methods=["POST"]), Route("/v1/models", self.models)]
        )

    async def models(self, _):
        return JSONResponse({"object": "list", "data": [{"id": "llama3", "object": "model"}]})

    async def complete(self, request):
        body = await request.json()
        self.calls.append(body)
        if body["model"] == "missing":
            return failure(404, "there is no such model", "model_not_found")
        if body["model"] == "broken":
            return failure(500, "out of memory", "internal", {"x-should-retry": "false"})
        if body["model"] == "busy":
            return failure(429, "the engine is overloaded", "busy", {"retry-after": "33"})
        number = (body.get("max_completion_tokens") or body["max_tokens"]) // 2
        if body.get("stream"):
            return StreamingResponse(self.events(body, number), media_type="text/event-stream")
        message = {"role": "assistant", "content": WORD * number}
        choices = [{"index": 0, "message": message, "finish_reason": "stop"}]
        return JSONResponse(answer("chat.completion", body, choices, usage_of(body, number)))

    async def events(self, body, number):
        self.streams += 1
        try:
            for left in reversed(range(number)):
                finish = None if left else "stop"
                choices = [{"index": 0, "delta": {"content": WORD}, "finish_reason": finish}]
                yield event(body, choices)
                await asyncio.sleep(body.get("seconds_each", 0))
            if body["model"] == "breaks":
                raise ConnectionError("the model breaks off")
            if (body.get("stream_options") or {}).get("include_usage"):
                yield event(body, [], usage_of(body, number))
            yield "data: [DONE]\n\n"
        finally:
            self.streams -= 1


def usage_of(body, number):
    usage = {"prompt_tokens": PROMPT_TOKENS, "completion_tokens": number}
    usage["total_tokens"] = PROMPT_TOKENS + number
    return usage | {"prompt_tokens_details": {"cached_tokens": body.get("cached", 0)}}


def event(body, choices, usage=None):
    members = answer("chat.completion.chunk", body, choices, usage)
    return f"data: {json.dumps(members, ensure_ascii=False)}\n\n"


def answer(kind, body, choices, usage):
    head = {"id": "chat-1", "object": kind, "created": 1, "model": body["model"]}
    return head | {"choices": choices, "usage": usage}


def failure(status, message, code, headers=None):
    error = {"message": message, "type": "of_the_model", "param": None, "code": code}
    return JSONResponse({"error": error}, status, headers)


@contextlib.contextmanager
def serve(app, port):
    """Serves an application in a thread."""
    server = uvicorn.Server(uvicorn.Config(app, port=port, log_level="critical"))
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    try:
        yield
    finally:
        server.should_exit = True
        thread.join(20)
