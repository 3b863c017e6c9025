"""A hook of litellm's proxy. It holds requests, tokens and places until the answer ends."""

import contextlib
import json
import os

from fastapi import HTTPException
from litellm.integrations.custom_logger import CustomLogger

from tollgate_limiter import AsyncClient, Denied, TollgateError

DEFAULT_MAX_TOKENS = 1000
CHATS = ("completion", "acompletion")


class TollgateHook(CustomLogger):
    def __init__(self):
        super().__init__()
        nodes = os.environ.get("TOLLGATE_NODES", "http://127.0.0.1:7070")
        self.tollgate = AsyncClient(nodes, deadline=2)
        self.holds = {}  # by litellm's id of the call

    async def async_pre_call_hook(self, user_api_key_dict, cache, data, call_type):
        if call_type not in CHATS:
            return data
        prompt = len(json.dumps(data["messages"])) // 3 + 1
        if data.get("max_completion_tokens") is None and data.get("max_tokens") is None:
            data["max_tokens"] = DEFAULT_MAX_TOKENS
        output = max(data.get("max_completion_tokens") or 0, data.get("max_tokens") or 0)
        most = prompt + output * (data.get("n") or 1)
        hold = self.tollgate.hold_all(checks(user_api_key_dict, data["model"], most))
        try:
            await hold.open()
        except Denied as denied:
            raise refusal(denied.decision) from denied
        except TollgateError as failure:
            raise HTTPException(503, "the limiter gives no decision") from failure
        self.holds[data["litellm_call_id"]] = hold
        return data

    async def async_log_success_event(self, kwargs, response_obj, start_time, end_time):
        """Also after a stream, and after a caller has left one."""
        usage = getattr(response_obj, "usage", None)
        # Without a usage the call pays what it reserved.
        await self.settle(kwargs, getattr(usage, "total_tokens", None))

    async def async_post_call_failure_hook(self, request_data, *_, **__):
        await self.settle(request_data, 0)

    async def settle(self, call, cost):
        hold = self.holds.pop(call.get("litellm_call_id"), None)
        if hold is not None:
            # The client repeats a settle without an answer for a minute.
            with contextlib.suppress(TollgateError):
                await hold.settle(cost)


def checks(caller, model, most):
    keys = {"user": caller.user_id, "team": caller.team_id, "model": model}
    known = {scope: key for scope, key in keys.items() if key}
    requests = [{"policy": f"{scope}-requests", "key": key} for scope, key in known.items()]
    tokens = [
        {"policy": f"{scope}-tokens", "key": key, "cost": most} for scope, key in known.items()
    ]
    return requests + tokens


def refusal(decision):
    limit = f"the limit {decision.policy} ({decision.quota})"
    if decision.reason == "cost_exceeds_limit":
        return HTTPException(400, f"this request may cost more than {limit} of {decision.limit}")
    wait = decision.retry_after_ms
    headers = {} if wait is None else {"retry-after": str(-(-wait // 1000))}
    return HTTPException(429, f"{limit} is reached", headers)


hook = TollgateHook()
