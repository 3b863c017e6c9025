"""One server process: uvicorn with uvloop for FastAPI, gunicorn's threads for Flask."""

import logging
import os
import sys

framework, port = sys.argv[1:]
if framework == "fastapi":
    import uvicorn

    import apps

    uvicorn.run(apps.fastapi_app(), port=int(port), log_level="critical", access_log=False)
else:
    # The worker is a thread pool in this process, so that its CPU time is that of the process.
    from waitress import serve

    import apps

    logging.getLogger("waitress").setLevel(logging.ERROR)
    serve(apps.flask_app(), host="127.0.0.1", port=int(port), threads=int(os.environ.get("T", 16)))
