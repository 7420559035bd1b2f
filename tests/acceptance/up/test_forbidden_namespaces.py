"""A machine that forbids user namespaces: the local pool has no sandbox, and everything says so."""

from __future__ import annotations

import subprocess

import pytest

from tests.acceptance.up.conftest import page

pytestmark = [pytest.mark.slow, pytest.mark.long, pytest.mark.timeout(600)]

#: Runs a command as a user who may make no namespace: the kernel's limit is 0, and every capability
#: is gone before the command starts.
FORBIDDEN = (
    "unshare", "--user", "--map-root-user", "--", "/bin/sh", "-c",
    'echo 0 >/proc/sys/user/max_user_namespaces && exec setpriv --bounding-set=-all --inh-caps=-all "$@"',
    "sh",
)  # fmt: skip
HELLO = {
    "task": "hello",
    "kind": "exec",
    "cost": {"cpu": 1},
    "exec": {"command": ["echo", "hello"]},
}


@pytest.fixture(autouse=True)
def forbidden() -> None:
    refused = subprocess.run(
        [*FORBIDDEN, "unshare", "--user", "true"], capture_output=True, text=True, check=False
    )
    assert refused.returncode != 0
    assert "unshare" in refused.stderr


def until_refused(tangram) -> dict:
    """Return the node once the leader gives it no actions."""
    while True:
        (node,) = tangram.get("/api/v1/status")["nodes"]
        if node["hindrance"]:
            return node


def test_without_user_namespaces_commands_run_unconfined_and_a_pool_may_refuse_that(start) -> None:
    """1. Every place says that commands are not confined. 2. The pool requires a sandbox. 3. Again, after a restart."""
    tangram = start("--no-demo", within=FORBIDDEN)
    tangram.wait_until_ready()

    assert tangram.get("/api/v1/pools")["results"][0]["sandbox"] == "off"
    done = tangram.post("/api/v1/actions?wait=60", HELLO)
    assert done["outcome"] == "completed"
    setup = (tangram.home / "logs" / "setup.log").read_text()
    assert "no sandbox works on this machine, so its pool has sandbox: off" in setup
    node = (tangram.home / "logs" / "node.log").read_text()
    assert "commands run without a sandbox: plain processes" in node
    assert "Commands of pool default run without a sandbox" in page(tangram, "/queues/")

    # An admin insists: nothing runs from now on, and the action says why.
    tangram.request("PATCH", "/api/v1/pools/default", {"sandbox": "required"})
    node = until_refused(tangram)
    assert "pool default requires a sandbox" in node["hindrance"]
    waiting = tangram.post("/api/v1/actions?wait=1", HELLO)
    while waiting.get("waiting", {}).get("code", "arriving") == "arriving":
        waiting = tangram.get(f"/api/v1/actions/{waiting['id']}")
    assert waiting["state"] == "queued"
    assert waiting["waiting"]["code"] == "pool_unconfined"
    assert "allow user namespaces" in waiting["waiting"]["reason"]
    assert tangram.end() == 0

    again = start("--no-demo", within=FORBIDDEN)
    again.wait_until_ready()
    assert again.get("/api/v1/pools")["results"][0]["sandbox"] == "required"
    again.end()
