"""Client of the rate limiter Tollgate.

`Client` blocks, `AsyncClient` runs on asyncio. `tollgate.asgi` and `tollgate.wsgi` have the
middleware, `tollgate.limits` the storage of the library `limits`.
"""

from .aio import AsyncClient
from .client import Client
from .errors import ProblemError, TollgateError, Unavailable
from .types import (
    Check,
    CheckAnswer,
    Decision,
    Fallback,
    Problem,
    QuotaState,
    RefundAnswer,
    Tick,
    TogetherAnswer,
    TopMeta,
    Usage,
    UsageEntry,
    Violation,
)

__all__ = [
    "AsyncClient",
    "Check",
    "CheckAnswer",
    "Client",
    "Decision",
    "Fallback",
    "Problem",
    "ProblemError",
    "QuotaState",
    "RefundAnswer",
    "Tick",
    "TogetherAnswer",
    "TollgateError",
    "TopMeta",
    "Unavailable",
    "Usage",
    "UsageEntry",
    "Violation",
]
