"""The first page of a fresh process finds everything loaded.

Asked in a process of its own: in this one, other tests have loaded the views already.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tangram_web.lib import preloading
from tangram_web.lib.preloading import PagePreloader
from tests.architecture.tree import ROOT

#: Packages that views and their templates pull in.
VIEWS = (
    "tangram_web",
    "rest_framework",
    "drf_spectacular",
    "django_filters",
    "django.contrib.admin",
)

PROBE = """
import asyncio, json, sys
from tangram_web.asgi import application

async def get(path):
    status = []
    body = [{"type": "http.request", "body": b"", "more_body": False}]
    async def receive():
        return body.pop() if body else await asyncio.Event().wait()
    async def send(message):
        status.append(message.get("status"))
    await application({
        "type": "http", "method": "GET", "path": path, "raw_path": path.encode(),
        "query_string": b"", "headers": [(b"host", b"localhost")], "http_version": "1.1",
        "scheme": "http", "server": ("localhost", 80), "client": ("127.0.0.1", 1),
    }, receive, send)
    return status[0]

async def serve():
    asked = [{"type": "lifespan.startup"}, {"type": "lifespan.shutdown"}]
    early = []
    async def receive():
        return asked.pop(0)
    async def send(message):
        early.append("tangram_web.urls" in sys.modules)
    await application({"type": "lifespan"}, receive, send)  # its end waits for what is being loaded
    before = set(sys.modules)
    statuses = [await get(path) for path in ("/login/", "/actions/", "/api/v1/trajectories")]
    return {"early": early[0], "statuses": statuses, "late": sorted(set(sys.modules) - before)}

print(json.dumps(asyncio.run(serve())))
"""


@pytest.mark.slow
def test_a_process_loads_its_views_before_anybody_asks_and_after_it_serves(tmp_path: Path) -> None:
    settings = {"DJANGO_SETTINGS_MODULE": "tangram_web.settings", "TANGRAM_HOME": str(tmp_path)}
    asked = subprocess.run(
        [sys.executable, "-c", PROBE], cwd=ROOT, check=True, capture_output=True, text=True,
        env={**os.environ, **settings, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    reported = json.loads(asked.stdout.splitlines()[-1])

    assert not reported["early"]  # the start does not wait for them
    assert reported["statuses"] == [200, 302, 401]
    assert [name for name in reported["late"] if name.startswith(VIEWS)] == []


def test_a_process_is_not_ready_before_its_pages_are_loaded() -> None:
    pages = PagePreloader()

    assert pages.check() == {"pages": "the pages are being loaded"}
    pages.load()
    assert pages.check() == {"pages": ""}


def test_pages_that_cannot_be_loaded_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken() -> None:
        raise ImportError("no such view")

    monkeypatch.setattr(preloading, "load_views", broken)
    pages = PagePreloader()

    pages.load()

    assert "no such view" in pages.check()["pages"]
