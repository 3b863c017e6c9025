"""Flask: each token may send 20 requests in 60 seconds. Run: flask --app flask_app run"""

from flask import Flask

from tollgate_limiter.wsgi import TollgateMiddleware

app = Flask(__name__)
app.wsgi_app = TollgateMiddleware(  # type: ignore[method-assign]
    app.wsgi_app,
    policy="per-token",
    key=lambda request: request.headers.get("x-token"),
    status=403,
    body="Too many requests for this token.\n",
)


@app.get("/")
def hello() -> str:
    return "hello"
