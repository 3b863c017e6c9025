"""Two backends that decode the whole path first, as WSGI does: one keeps dot segments, one removes them."""

import os
import posixpath
import sys
import threading
from wsgiref.simple_server import WSGIRequestHandler, make_server


class Silent(WSGIRequestHandler):
    def log_message(self, *_):
        pass


def application(clean):
    def answer(environ, start_response):
        path = clean(environ["PATH_INFO"]).rstrip("/")
        method = environ["REQUEST_METHOD"]
        if method == "POST" and path == "/login":
            name = b"login"
        elif path == "/account" or path.startswith("/account/"):
            name = b"account"
        else:
            name = b"health" if method == "GET" and path == "/health" else b"rest"
        start_response("200 OK", [("Content-Length", str(len(name)))])
        return [name]

    return answer


def cleaned(path):
    return "/" + posixpath.normpath("/" + path).lstrip("/")


ports = []
for clean in (lambda path: path, cleaned):
    server = make_server("127.0.0.1", 0, application(clean), handler_class=Silent)
    ports.append(server.server_port)
    threading.Thread(target=server.serve_forever, daemon=True).start()
print(*ports, flush=True)
sys.stdin.read()
os._exit(0)
