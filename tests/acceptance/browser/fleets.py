"""A fleet of modelled engines on the running stack, and a trajectory that has sent a generation to it."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from subprocess import Popen
from typing import Any
from urllib.error import URLError
from urllib.request import Request, urlopen

from tangram_client import Client
from tangram_client._calls import apply_config
from tests.acceptance.up.conftest import Tangram
from tests.architecture.tree import ROOT
from tests.ports import free_port

#: For an engine to answer, and for a fleet to be a model.
PATIENCE_SECONDS = 120


@contextmanager
def modelled_engine() -> Iterator[tuple[Popen[bytes], str]]:
    """Run an engine that answers like vLLM; give its process and its address."""
    port = free_port()
    command = [sys.executable, "-m", "managers.llm.fake", "--port", str(port), "--model", "8B"]
    process = Popen([*command, "--slots", "4", "--speed", "20"], cwd=ROOT)
    try:
        _until_answered(f"http://127.0.0.1:{port}/health")
        yield process, f"http://127.0.0.1:{port}"
    finally:
        process.kill()
        process.wait()


@contextmanager
def modelled_fleet(
    tangram: Tangram, admin_token: str, name: str, engines: int = 2
) -> Iterator[list[Popen[bytes]]]:
    """Declare a fleet ``name`` with workers ``w1``, ``w2``, …; give the processes of its engines."""
    with ExitStack() as stack:
        served = [stack.enter_context(modelled_engine()) for _ in range(engines)]
        declare(tangram, admin_token, name, [url for _, url in served])
        yield [process for process, _ in served]


def declare(tangram: Tangram, admin_token: str, name: str, urls: Sequence[str]) -> None:
    """Put a fleet in force, and wait until it is a model."""
    workers = [{"name": f"w{at}", "url": url, "slots": 4} for at, url in enumerate(urls, 1)]
    document = {
        "apiVersion": "tangram/v1",
        "kind": "Fleet",
        "metadata": {"name": name},
        "spec": {"engine": "vllm", "workers": workers},
    }
    with Client(tangram.access["url"], admin_token) as client:
        client.send(apply_config(json.dumps(document)))
    token = {"Authorization": f"Bearer {tangram.access['token']}"}
    _until_answered(f"{tangram.access['url']}/v1/models/{name}", token)


def generate(tangram: Tangram, fleet: str, trajectory: str, tokens: int = 8) -> Any:
    """Return the answer to a generation of a trajectory."""
    headers = {
        "Authorization": f"Bearer {tangram.access['token']}",
        "Content-Type": "application/json",
        "X-Tangram-Trajectory": trajectory,
    }
    body = {"model": fleet, "prompt": [7] * 200, "max_tokens": tokens, "ignore_eos": True}
    url = f"{tangram.access['url']}/v1/completions"
    with urlopen(Request(url, json.dumps(body).encode(), headers), timeout=180) as answer:
        return json.load(answer)


def _until_answered(url: str, headers: dict[str, str] | None = None) -> None:
    until, failed = time.monotonic() + PATIENCE_SECONDS, ""
    while time.monotonic() < until:
        try:
            with urlopen(Request(url, headers=headers or {}), timeout=10):
                return
        except URLError as error:
            failed = str(error)
            time.sleep(0.1)
    raise AssertionError(f"{url}: {failed}")
