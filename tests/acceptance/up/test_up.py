"""One command starts everything, and Ctrl-C ends everything."""

from __future__ import annotations

import pytest

from tests.acceptance.up.conftest import page

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

HELLO = {
    "task": "hello",
    "kind": "exec",
    "cost": {"cpu": 1},
    "exec": {"command": ["echo", "hello"]},
}


def test_newcomer_runs_an_action_and_leaves_nothing_behind(start):
    """1. First start. 2. A real command. 3. Ctrl-C. 4. Second start, from the same data."""
    first = start("--no-demo")
    first.wait_until_ready()

    done = first.post("/api/v1/actions?wait=60", HELLO)
    token = first.access["token"]

    assert done["outcome"] == "completed"
    assert done["result"]["stdout"] == "hello\n"
    requires_a_sandbox_that_works(first)
    refuses_a_second_one(start, first)
    assert first.end() == 0
    assert first.descendants() == set()

    second = start("--no-demo")
    second.wait_until_ready()

    assert "database prepared" not in "".join(second.said), (
        "nothing to migrate, nothing to wait for"
    )
    assert second.access["token"] == token
    assert second.end() == 0


def requires_a_sandbox_that_works(tangram):
    """Look at the local pool of a machine on which bubblewrap works."""
    (node,) = tangram.get("/api/v1/status")["nodes"]
    assert node["isolation"] == "bwrap"
    assert node["hindrance"] is None
    assert tangram.get("/api/v1/pools")["results"][0]["sandbox"] == "required"
    assert "run without a sandbox" not in page(tangram, "/queues/")


def refuses_a_second_one(start, first):
    """Start another from the same folder, which must say who has it."""
    second = start("--no-demo")
    said, _ = second.process.communicate(timeout=180)

    assert second.process.returncode == 1
    assert f"already runs from {first.home} (process {first.process.pid})" in said


def test_killed_supervisor_leaves_nothing_behind(start):
    """1. Start with the demo load, so that real commands run. 2. kill -9. 3. All of it is gone."""
    tangram = start()
    tangram.wait_until_ready()
    done = tangram.post("/api/v1/actions?wait=60", HELLO)
    assert done["outcome"] == "completed", "the demo leaves room for others"
    assert len(tangram.descendants()) >= len(["redis", "web", "loop", "node", "projector", "demo"])

    tangram.process.kill()
    tangram.process.wait()

    tangram.wait_until_alone()


def test_a_start_without_nodes_accepts_actions_for_those_that_join(start):
    """1. All parts but a node worker, in one process. 2. An action waits, and says for what. 3. Ctrl-C."""
    tangram = start("--no-demo", "--nodes", "0", "--together")
    tangram.wait_until_ready()

    assert "none on this machine (--nodes 0)" in "".join(tangram.said)
    assert tangram.get("/api/v1/status")["nodes"] == []
    waiting = tangram.post("/api/v1/actions", HELLO)
    shown = tangram.get(f"/api/v1/actions/{waiting['id']}")
    assert (shown["state"], shown["waiting"]["code"]) == ("queued", "no_node")
    assert tangram.end() == 0
    assert tangram.descendants() == set()
