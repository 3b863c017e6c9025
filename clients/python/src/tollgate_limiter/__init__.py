"""Client of the rate limiter Tollgate.

`Client` blocks, `AsyncClient` runs on asyncio. `tollgate_limiter.asgi`, `.fastapi`, `.wsgi`,
`.flask` and `.django` limit requests. `tollgate_limiter.limits` has the storages of `limits`.
"""

from .aio import AsyncClient as AsyncClient
from .blocking import Client as Client
from .errors import (
    Denied as Denied,
    HoldEnded as HoldEnded,
    ProblemError as ProblemError,
    TollgateError as TollgateError,
    Unavailable as Unavailable,
)
from .fake import FakeAsyncClient as FakeAsyncClient, FakeClient as FakeClient
from .hold import AsyncHold as AsyncHold, Hold as Hold
from .monitor import Stats as Stats
from .types import (
    Check as Check,
    CheckAnswer as CheckAnswer,
    Decision as Decision,
    Fallback as Fallback,
    HoldState as HoldState,
    Problem as Problem,
    QuotaState as QuotaState,
    RefundAnswer as RefundAnswer,
    RenewAnswer as RenewAnswer,
    SettleAnswer as SettleAnswer,
    Tick as Tick,
    TogetherAnswer as TogetherAnswer,
    TopMeta as TopMeta,
    Usage as Usage,
    UsageEntry as UsageEntry,
    UsageHold as UsageHold,
    Violation as Violation,
)
