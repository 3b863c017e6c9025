"""Client of the rate limiter Tollgate.

`Client` blocks, `AsyncClient` runs on asyncio. `tollgate_limiter.asgi`, `.fastapi`, `.wsgi`,
`.flask` and `.django` limit requests. `tollgate_limiter.limits` has the storages of `limits`.
"""

from .aio import AsyncClient as AsyncClient
from .blocking import Client as Client
from .errors import (
    ProblemError as ProblemError,
    TollgateError as TollgateError,
    Unavailable as Unavailable,
)
from .types import (
    Check as Check,
    CheckAnswer as CheckAnswer,
    Decision as Decision,
    Fallback as Fallback,
    Problem as Problem,
    QuotaState as QuotaState,
    RefundAnswer as RefundAnswer,
    Tick as Tick,
    TogetherAnswer as TogetherAnswer,
    TopMeta as TopMeta,
    Usage as Usage,
    UsageEntry as UsageEntry,
    Violation as Violation,
)
