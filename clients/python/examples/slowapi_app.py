"""slowapi on Tollgate. Run: uvicorn slowapi_app:app"""

from fastapi import FastAPI, Request, Response
from slowapi import Limiter, _rate_limit_exceeded_handler
from slowapi.errors import RateLimitExceeded
from slowapi.util import get_remote_address

import tollgate_limiter.limits  # noqa: F401  It registers tollgate://

limiter = Limiter(
    key_func=get_remote_address,
    storage_uri="tollgate://127.0.0.1:7070",
    strategy="moving-window",
    headers_enabled=True,
)
app = FastAPI()
app.state.limiter = limiter
app.add_exception_handler(RateLimitExceeded, _rate_limit_exceeded_handler)


@app.get("/")
@limiter.limit("5 per minute")
async def hello(request: Request, response: Response) -> str:
    return "hello"
