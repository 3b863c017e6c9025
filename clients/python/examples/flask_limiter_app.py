"""Flask-Limiter on Tollgate. Run: flask --app flask_limiter_app run"""

from flask import Flask
from flask_limiter import Limiter
from flask_limiter.util import get_remote_address

import tollgate_limiter.limits  # noqa: F401  It registers tollgate://

app = Flask(__name__)
limiter = Limiter(
    get_remote_address,
    app=app,
    storage_uri="tollgate://127.0.0.1:7070",
    strategy="moving-window",
    headers_enabled=True,
)


@app.get("/")
@limiter.limit("5 per minute")
def hello() -> str:
    return "hello"
