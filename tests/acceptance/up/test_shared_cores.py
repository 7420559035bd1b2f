"""Tangram's own processes and light actions leave granted cores to the actions that hold them."""

from __future__ import annotations

import os
import time
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from managers.common.affinity import usable_cores
from tests.ports import free_port

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

CORES = usable_cores()
SHOWS_CORES = ["python3", "-c", "import os; print(sorted(os.sched_getaffinity(0)))"]


def exec_on(cpu: float) -> dict[str, object]:
    return {"task": "t", "kind": "exec", "cost": {"cpu": cpu}, "exec": {"command": SHOWS_CORES}}


@pytest.mark.skipif(len(CORES) < 2, reason="one core cannot be divided")
def test_own_processes_and_light_actions_stay_off_granted_cores(start, monkeypatch):
    """1. Core A is shared. 2. All threads are on it. 3. A light action too; a core is another one.
    4. The web process is killed: the next one is there, too. 5. So is a node worker's successor."""
    shared, *granted = CORES
    monkeypatch.setenv("TANGRAM_NODE_RESERVED_CPUS", str(shared))
    tangram = start("--no-demo", "--port", str(free_port()))
    tangram.wait_until_ready()

    assert cores_of_own_threads(tangram) == {(shared,)}
    assert shown(tangram, 0.1) == [shared]
    assert shown(tangram, 1) == [granted[0]]
    (node,) = tangram.get("/api/v1/status")["nodes"]
    assert (node["resources"]["cpu"]["kept"], node["resources"]["cpu"]["capacity"]) == (
        1,
        len(granted),
    )

    for part in ("uvicorn", "-n node@"):
        (before,) = processes_of(tangram, part)
        before.kill()
        before.wait(60)
        successor = wait_for_another(tangram, part, before.pid)
        wait_until(lambda pid=successor.pid: cores_of(pid) == {(shared,)})
    wait_until(lambda: answers(tangram))
    assert shown(tangram, 1) == [granted[0]], "a successor grants what its predecessor granted"
    assert tangram.end() == 0


@pytest.mark.skipif(not os.access("/sys/fs/cgroup/cpu/cpu.shares", os.W_OK), reason="no groups")
@pytest.mark.long
def test_without_a_shared_core_own_processes_have_half_the_weight_of_an_action(start, monkeypatch):
    """1. No core is shared. 2. All parts but the node worker are in one group. 3. It is removed."""
    monkeypatch.setenv("TANGRAM_NODE_RESERVED_CPUS", "none")
    tangram = start("--no-demo", "--port", str(free_port()))
    tangram.wait_until_ready()

    groups = {}
    for process in processes_of(tangram, ""):
        pid, name = process.pid, " ".join(process.cmdline())
        groups["node" if "-n node@" in name else name] = group_of(pid)
    node = groups.pop("node")
    (group,) = set(groups.values())
    assert group != node
    assert (group / "cpu.shares").read_text() == "512\n"
    assert tangram.end() == 0
    assert not group.exists()


def answers(tangram):
    try:
        return tangram.get("/readyz")["status"] == "ready"
    except OSError:  # the web process does not listen yet
        return False


def shown(tangram, cpu):
    done = tangram.post("/api/v1/actions?wait=60", exec_on(cpu))
    assert done["outcome"] == "completed"
    return [int(core) for core in done["result"]["stdout"].strip("[]\n").split(",")]


def cores_of_own_threads(tangram):
    found = set()
    for pid in (tangram.process.pid, *tangram.descendants()):
        found |= cores_of(pid, but=("tangram-launcher",))
    return found


def cores_of(pid, but=()):
    """Return the affinities of the threads of a process; a launcher follows its commands."""
    found = set()
    with suppress(FileNotFoundError, ProcessLookupError):  # it has ended
        for thread in list(Path(f"/proc/{pid}/task").iterdir()):
            with suppress(FileNotFoundError, ProcessLookupError):
                if (thread / "comm").read_text().strip() not in but:
                    found.add(tuple(sorted(os.sched_getaffinity(int(thread.name)))))
    return found


def group_of(pid):
    for line in Path(f"/proc/{pid}/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        if "cpu" in controllers.split(","):
            return Path("/sys/fs/cgroup/cpu") / path.strip("/")
    raise AssertionError("no group")


def processes_of(tangram, part):
    found = []
    for pid in tangram.descendants():
        with suppress(psutil.Error):
            process = psutil.Process(pid)
            if part in " ".join(process.cmdline()):
                found.append(process)
    return found


def wait_for_another(tangram, part, before):
    wait_until(lambda: any(each.pid != before for each in processes_of(tangram, part)))
    return next(each for each in processes_of(tangram, part) if each.pid != before)


def wait_until(true):
    deadline = time.monotonic() + 120
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.02)
