"""Two projects share the cores of a running Tangram, as a file says that an administrator applies."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import httpx
import pytest

from tangram_client import Client
from tangram_client._calls import apply_config
from tangram_client.payloads import exec_action, lease_action
from tests.acceptance.up.conftest import Tangram

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

PROJECTS = """\
apiVersion: tangram/v1
kind: Project
metadata: {name: left}
---
apiVersion: tangram/v1
kind: Project
metadata: {name: right}
"""
POOL = """\
---
apiVersion: tangram/v1
kind: Pool
metadata: {name: default}
spec:
  policy: malleable
"""
SHARES = """\
  shares:
    cpu:
      left: {nominal_units: 1, borrow_units: 0}
      right: {nominal_units: 1}
"""


@pytest.fixture
def of(tangram: Tangram, admin_token: str) -> Iterator[Callable[[str], Client]]:
    """Shares are in force; returns clients of projects."""
    url = tangram.access["url"]
    with ExitStack() as stack:
        admin = stack.enter_context(Client(url, admin_token))
        admin.send(apply_config(PROJECTS + POOL + SHARES))
        stack.callback(lambda: admin.send(apply_config(POOL)))

        def client_of(project: str) -> Client:
            made = httpx.post(
                f"{url}/api/v1/tokens",
                json={"name": project, "project": project, "scopes": ["read", "submit"]},
                headers={"Authorization": f"Bearer {admin_token}"},
                timeout=120,
            )
            return stack.enter_context(Client(url, made.raise_for_status().json()["token"]))

        yield client_of


def test_a_project_out_of_its_share_waits_alone_and_says_so(
    tangram: Tangram, of: Callable[[str], Client]
) -> None:
    left, right = of("left"), of("right")
    with left.lease("swe", {"cpu": 1}, ttl_seconds=600):
        second = left.submit(lease_action("swe", {"cpu": 1}))
        done = right.run(exec_action("swe", ["true"], cpu=1), patience_seconds=180)
        why = left.get(second.id).waiting
        reported = {each["project"]: each for each in tangram.get("/api/v1/status")["shares"]}

    assert done.outcome == "completed"
    assert why is not None
    assert (why.code, why.resource) == ("share", "cpu")
    assert "project left has 1 of cpu in pool default and may take 0 more" in why.reason
    expected: dict[str, Any] = {"pool": "default", "resource": "cpu", "nominal": 1, "used": 1}
    assert expected.items() <= reported["left"].items()
    assert (reported["left"]["waiting"], reported["right"]["waiting"]) == (1, 0)
    while left.get(second.id, wait_seconds=0.2).state == "queued":
        pass  # the first one was given back, which frees the share
    left.cancel(second.id)
