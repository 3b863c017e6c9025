"""Flask: each API key may send 1000 requests a second. Run: flask --app flask_app run"""

from flask import Flask

from tollgate.wsgi import TollgateMiddleware

app = Flask(__name__)
app.wsgi_app = TollgateMiddleware(  # type: ignore[method-assign]
    app.wsgi_app,
    key=lambda request: request.headers.get("x-api-key"),
    body=lambda request, decision: f"Retry after {decision.retry_after_ms} ms.\n",
)


@app.get("/")
def hello() -> str:
    return "hello"
