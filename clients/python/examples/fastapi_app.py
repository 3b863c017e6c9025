"""FastAPI: each address may send 20 requests a second. Run: uvicorn fastapi_app:app"""

from fastapi import FastAPI

from tollgate_limiter.asgi import TollgateMiddleware

app = FastAPI()
app.add_middleware(TollgateMiddleware, policy="per-ip")


@app.get("/")
async def hello() -> str:
    return "hello"
