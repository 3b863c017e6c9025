"""The servers of docs/llm.md, started by its printed lines."""

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import urllib.parse
import urllib.request
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT / "clients/python/tests"))

from model import Model, serve  # noqa: E402
from support import BINARY, free_port, wait_until  # noqa: E402

EXAMPLE = ROOT / "examples/llm"
PAGE = (ROOT / "docs/llm.md").read_text()


def printed(language):
    return re.findall(rf"^```{language}\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)


class Platform:
    """A running gateway with its limiter and its model."""

    def __init__(self, folder, ports, model):
        self.folder, self.ports, self.model = folder, ports, model
        self.node = f"http://127.0.0.1:{ports[7070]}"
        self.url = f"http://127.0.0.1:{ports[8000]}/v1"

    def usage(self, policy, key):
        query = urllib.parse.urlencode({"policy": policy, "key": key})
        with urllib.request.urlopen(f"{self.node}/v1/usage?{query}", timeout=10) as answer:
            return json.load(answer)

    def used(self, policy, key):
        usage = self.usage(policy, key)
        return max(quota["limit"] - quota["remaining"] for quota in usage["quotas"])

    def in_flight(self, policy, key):
        return self.usage(policy, key)["in_flight"]


class Caller:
    """A user with an API key of its own, in a team of its own."""

    def __init__(self, number):
        self.key, self.user, self.team = f"sk-{number}", f"user-{number}", f"team-{number}"


EVERY_CALLER = [Caller(number) for number in range(100)]
CALLERS = iter(EVERY_CALLER)


@pytest.fixture(scope="session")
def platform(tmp_path_factory):
    folder = tmp_path_factory.mktemp("llm")
    settings = json.loads((EXAMPLE / "settings.json").read_text())
    settings["keys"] |= {one.key: {"user": one.user, "team": one.team} for one in EVERY_CALLER}
    (folder / "settings.json").write_text(json.dumps(settings))
    (folder / "gateway.py").write_text((EXAMPLE / "gateway.py").read_text())
    # A busy machine needs more time for a decision.
    policies = (EXAMPLE / "policies.yaml").read_text().replace("timeout: 1s", "timeout: 5s")
    (folder / "policies.yaml").write_text(policies)
    ports = {port: free_port() for port in (6379, 7070, 8000, 11434)}
    model = Model()
    with serve(model.app, ports[11434]), running(start_of_the_page(ports), folder):
        platform = Platform(folder, ports, model)
        wait_until(lambda: is_ready(f"{platform.node}/health/ready"), "the node is ready", 60)
        # Without a key it is 401.
        wait_until(lambda: is_ready(f"{platform.url}/models"), "the gateway is ready", 60)
        yield platform


@pytest.fixture
def caller():
    return next(CALLERS)


def start_of_the_page(ports):
    """The block that starts Redis, a node and the gateway, at free ports."""
    [start] = [block for block in printed("sh") if "redis-server" in block]
    for port, free in ports.items():
        start = re.sub(rf"\b{port}\b", str(free), start)
    return start.replace("cd examples/llm\n", "")


@contextlib.contextmanager
def running(script, folder):
    """Runs a pasted block, and ends all that it starts."""
    programs = [str(Path(BINARY).parent), str(Path(sys.executable).parent)]
    environment = os.environ | {"PATH": os.pathsep.join([*programs, os.environ["PATH"]])}
    with open(folder / "log", "wb") as log:
        shell = subprocess.Popen(
            ["bash", "-c", script],
            cwd=folder,
            env=environment,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    try:
        yield
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(shell.pid, signal.SIGKILL)
        shell.wait()


def is_ready(url):
    try:
        urllib.request.urlopen(url, timeout=5).close()
    except urllib.error.HTTPError as error:
        return error.code == 401
    except OSError:
        return False
    return True
