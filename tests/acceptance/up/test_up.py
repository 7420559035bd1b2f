"""One command starts everything, and Ctrl-C ends everything."""

from __future__ import annotations

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

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

    done = first.post("/api/v1/actions?wait=30", HELLO)
    token = first.access["token"]

    assert done["outcome"] == "completed"
    assert done["result"]["stdout"] == "hello\n"
    assert first.end() == 0
    assert first.descendants() == set()

    second = start("--no-demo")
    second.wait_until_ready()

    assert "database prepared" not in "".join(second.said), (
        "nothing to migrate, nothing to wait for"
    )
    assert second.access["token"] == token
    assert second.end() == 0


def test_demo_load_runs_real_actions(start):
    tangram = start()
    tangram.wait_until_ready()

    done = tangram.post("/api/v1/actions?wait=30", HELLO)

    assert done["outcome"] == "completed", "the demo leaves room for others"
    assert tangram.end() == 0
    assert tangram.descendants() == set()


def test_killed_supervisor_leaves_nothing_behind(start):
    tangram = start("--no-demo")
    tangram.wait_until_ready()
    assert len(tangram.descendants()) >= 5

    tangram.process.kill()
    tangram.process.wait()

    tangram.wait_until_alone()


def test_second_start_from_the_same_folder_is_refused(start):
    first = start("--no-demo")
    first.wait_until_ready()

    second = start("--no-demo")
    said, _ = second.process.communicate(timeout=60)

    assert second.process.returncode == 1
    assert f"already runs from {first.home} (process {first.process.pid})" in said
    assert first.end() == 0
