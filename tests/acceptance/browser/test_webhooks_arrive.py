"""A webhook, from the page that creates it to its receiver: the event is a quota that runs out."""

from __future__ import annotations

import base64
import hmac
import json
from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import sha256
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from queue import Queue
from threading import Thread
from typing import Any

import pytest
from playwright.sync_api import expect

from tests.acceptance.browser.conftest import Open
from tests.acceptance.browser.pages import apply, until
from tests.acceptance.up.conftest import Tangram

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

QUOTA = """apiVersion: tangram/v1
kind: Resource
metadata: {name: "api:notified"}
spec: {limit_units: 4, quotas: [{units: 1, window_seconds: 3600}]}
"""


@contextmanager
def receiver() -> Iterator[tuple[str, Queue[Any]]]:
    """A server that says yes; its address, and what it was sent: headers and body."""
    received: Queue[Any] = Queue()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            received.put((dict(self.headers), body))
            self.send_response(204)
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            """Say nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/hook", received
    finally:
        server.shutdown()
        server.server_close()


def test_a_quota_that_runs_out_reaches_its_receiver_signed(
    open_page: Open, tangram: Tangram
) -> None:
    page = open_page("/configuration/edit/")
    apply(page, QUOTA)
    with receiver() as (url, received):
        page.goto(tangram.access["url"] + "/webhooks/")
        page.get_by_label("Address").fill(url)
        page.get_by_label("a quota has nothing left").check()
        page.get_by_role("button", name="Add").click()
        secret = page.locator("#secret").inner_text()

        body = {"task": "notified", "kind": "noop", "cost": {"api:notified": 1}}
        tangram.post("/api/v1/actions?wait=60", body)

        headers, said = received.get(timeout=120)
        signed = f"{headers['webhook-id']}.{headers['webhook-timestamp']}.".encode() + said
        key = base64.b64decode(secret.removeprefix("whsec_"))
        expected = base64.b64encode(hmac.new(key, signed, sha256).digest()).decode()
        assert headers["webhook-signature"] == f"v1,{expected}"
        message = json.loads(said)
        assert message["type"] == "quota.exhausted"
        assert message["data"]["resource"] == "api:notified"

        # Its page lists the delivery, and shows the secret no more.
        page.goto(tangram.access["url"] + "/webhooks/")
        page.get_by_role("link", name=url).click()
        expect(page.get_by_role("heading", name=url)).to_be_visible()
        here = page.url.removeprefix(tangram.access["url"])
        until(page, here, lambda p: p.locator("#rows .chip", has_text="delivered").count() == 1)
        assert secret not in page.content()
        page.get_by_label("Type the address").fill(url)
        page.get_by_role("button", name="Delete").click()
        expect(page.get_by_role("link", name=url)).to_have_count(0)
