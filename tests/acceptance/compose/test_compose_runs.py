"""The stack of docker-compose.yml: it is healthy, serves, and survives crashes, restores and restarts.

The shipped Dockerfile and docker-compose.yml are run as they are; what they are made from is stood in
for (`stand_ins`). The tests are steps of one story, in the order of this file.
"""

from __future__ import annotations

import re
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.acceptance.compose import stand_ins
from tests.acceptance.compose.stack import SECRETS, Stack, until
from tests.architecture.tree import ROOT
from tests.docker_engine import DockerEngine

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]

#: Ended by itself, or by the SIGTERM that it was asked to end with.
IN_ORDER = {"0", "143"}
ACTIONS = 24


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    if missing := stand_ins.missing_programs():
        pytest.skip(f"not installed: {', '.join(missing)}")
    engine = DockerEngine(networks=True)
    try:
        stand_ins.load(engine.start())
        stack = Stack(engine, tmp_path_factory.mktemp("compose"))
        stack.up()
        yield stack
    finally:
        engine.stop()


def action(command: str, trajectory: str = "story") -> dict[str, Any]:
    return {
        "task": "compose", "trajectory": trajectory, "kind": "exec", "cost": {"cpu": 1},
        "exec": {"command": ["sh", "-c", command]},
    }  # fmt: skip


def finished(stack: Stack, action_id: str) -> dict[str, Any]:
    """Return an action once it is finished, however often web goes away meanwhile."""
    found: dict[str, Any] = {}

    def is_finished() -> bool:
        status, body = stack.ask("GET", f"/api/v1/actions/{action_id}?wait=20")
        found.update(body if status == 200 else {})
        return found.get("state") == "finished"

    until(is_finished)
    return found


def submit(stack: Stack, command: str, trajectory: str = "story") -> str:
    status, body = stack.ask("POST", "/api/v1/actions", action(command, trajectory))
    assert status == 202, body
    return str(body["id"])


def test_every_part_is_healthy_and_none_runs_as_root(stack: Stack) -> None:
    names = {name.rpartition("-")[0] for name in stack.containers()}

    assert names == {
        "redis", "postgres", "setup", "web", "scheduler", "projector", "node", "jobs", "rollout"
    }  # fmt: skip
    assert stack.containers()["setup-1"]["State"]["ExitCode"] == 0
    until(lambda: stack.health() == {"healthy": 8})
    assert {name: uids for name, uids in stack.users().items() if 0 in uids} == {}
    until(lambda: stack.ask("GET", "/readyz").status == 200)


def test_an_action_runs_in_a_sandbox(stack: Stack) -> None:
    done = finished(stack, submit(stack, "echo hello; cat /proc/1/comm", "sandboxed"))

    assert done["outcome"] == "completed"
    assert done["result"]["stdout"] == "hello\nbwrap\n"
    [node] = stack.ask("GET", "/api/v1/nodes").body["results"]
    assert (node["name"], node["isolation"]) == ("node-1", "bwrap")


def test_killed_parts_restart_and_nothing_is_lost_or_run_twice(stack: Stack) -> None:
    batch = [action(f"echo {number} >> done; sleep 0.2") for number in range(ACTIONS)]
    status, body = stack.ask("POST", "/api/v1/actions/batch", {"actions": batch})
    assert status == 202, body
    ids = [each["id"] for each in body["items"]]
    finished(stack, ids[1])

    stack.crash("scheduler-1")
    stack.crash("web-1")
    stack.crash("projector-1")
    stack.crash("jobs-1")

    assert Counter(finished(stack, each)["outcome"] for each in ids) == {"completed": ACTIONS}
    ran = finished(stack, submit(stack, "sort -n done"))["result"]["stdout"].split()
    assert ran == [str(number) for number in range(ACTIONS)]
    until(lambda: stack.health() == {"healthy": 8})
    restarted = {name for name, facts in stack.containers().items() if facts["RestartCount"]}
    assert restarted == {"scheduler-1", "web-1", "projector-1", "jobs-1"}


@pytest.mark.long  # without Compose: tests/faults/test_backup.py
def test_a_backup_is_put_back(stack: Stack) -> None:
    manage = ("run", "--rm", "--no-TTY", "setup", "python", "manage.py")
    before = submit(stack, "echo before")
    finished(stack, before)
    stack.compose(*manage, "backup", "/var/backups/tangram/one")
    after = submit(stack, "echo after")
    finished(stack, after)

    stack.compose("stop", "web", "scheduler", "projector", "jobs", "rollout", "node")
    stack.compose(*manage, "restore", "/var/backups/tangram/one", "--replace")
    stack.compose("up", "--detach", "--wait")

    assert finished(stack, before)["result"]["stdout"] == "before\n"
    assert stack.ask("GET", f"/api/v1/actions/{after}").status == 404


def test_down_ends_in_order_and_up_with_more_of_each_finds_everything(stack: Stack) -> None:
    kept = submit(stack, "echo kept")
    finished(stack, kept)
    token, since = stack.token, time.time()

    stack.compose("down")

    ends = stack.exit_codes(since)
    assert {name: code for name, code in ends.items() if code not in IN_ORDER} == {}
    parts = ("web", "scheduler", "projector", "node", "jobs", "rollout", "redis", "postgres")
    assert {f"{part}-1" for part in parts} <= set(ends)
    named = {"redis", "postgres", "setup", "backups", "node", "bodies"}
    assert stack.volumes() == {f"tangram_{name}" for name in named}

    stack.configure(TANGRAM_PORTS="8000-8001", TANGRAM_NODE_CPUS="0-0")
    stack.files += [addition(stack, "node-2"), addition(stack, "redis")]
    stack.up("--scale", "web=2", "--scale", "scheduler=2")

    assert stack.token == token
    until(lambda: stack.health() == {"healthy": 11})
    assert finished(stack, kept)["result"]["stdout"] == "kept\n"
    until(lambda: {stack.ask("GET", "/readyz", port=port).status for port in (8000, 8001)} == {200})
    wanted = {"loop": 1, "standby": 1, "node": 2, "projector": 1, "jobs": 1, "rollout": 1}

    def all_show_life() -> bool:
        status, body = stack.ask("GET", "/readyz?verbose")
        workers = body["facts"]["workers"] if status == 200 else {}
        return wanted.items() <= Counter(workers.values()).items()

    until(all_show_life)
    assert names_of_nodes(stack) == {"node-1", "node-2"}
    assert finished(stack, submit(stack, "echo again", "another"))["outcome"] == "completed"


def test_a_node_on_another_machine_joins_with_redis_alone(stack: Stack, tmp_path: Path) -> None:
    elsewhere = Stack(stack.engine, tmp_path, project="elsewhere")
    redis = f"redis://:{SECRETS['REDIS_PASSWORD']}@{stack.gateway()}:6379/0"
    elsewhere.configure(TANGRAM_NODE="node-3", TANGRAM_REDIS_URL=redis)

    elsewhere.compose("up", "--build", "--detach", "--wait", "--no-deps", "node")

    assert set(elsewhere.containers()) == {"node-1"}
    until(lambda: "node-3" in names_of_nodes(stack))
    elsewhere.compose("down")


def names_of_nodes(stack: Stack) -> set[str]:
    return {node["name"] for node in stack.ask("GET", "/api/v1/nodes").body["results"]}


def addition(stack: Stack, service: str) -> Path:
    """Write what the operators' page shows for ``service`` in docker-compose.override.yml."""
    page = (ROOT / "docs" / "operations.md").read_text()
    shown = re.findall(r"^    services:\n(?:    .+\n)+", page, re.MULTILINE)
    [text] = [text for text in shown if text.startswith(f"    services:\n      {service}:\n")]
    text = text.replace("10.0.0.1", stack.gateway())
    file = stack.folder / f"{service}.yml"
    file.write_text("".join(line[4:] for line in text.splitlines(keepends=True)))
    return file
