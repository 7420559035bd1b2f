"""Rules that every launcher keeps (`managers.launch`). A test module of an engine imports these and provides ``harness``."""

from __future__ import annotations

import itertools
import json
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from managers.launch.launcher import Instance, InstanceState, LaunchError, LaunchOrder, NodeLauncher
from tests.conformance.launchers.harness import Harness

#: Starting a process takes an engine some seconds.
WITHIN_SECONDS = 90.0
_numbers = itertools.count(1)

#: Stands in for a node worker: it writes what it was given, has a child, and waits.
WORKER = """
import json, os, subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
path = os.environ["FACTS"]
with open(path + ".part", "w") as file:
    data = os.environ.get("TANGRAM_HOME") or os.path.expanduser("~/.local/share/tangram")
    json.dump({"pids": [os.getpid(), child.pid], "node": os.environ["TANGRAM_NODE"], "argv": sys.argv[1:], "data": data}, file)
os.rename(path + ".part", path)
time.sleep(600)
"""


class Group:
    """A group of one test."""

    def __init__(self, harness: Harness, directory: Path) -> None:
        self.harness = harness
        self.name = f"g{next(_numbers)}"
        self.installation = "tangram-tests"
        self.launcher = harness.launcher()
        self.directory = directory

    def facts(self, number: int) -> Path:
        return self.directory / f"{self.name}-{number}.json"

    def launch(
        self,
        number: int = 1,
        launcher: NodeLauncher | None = None,
        fingerprint: str = "57bd04027245",
    ) -> str:
        name = f"{self.name}-{number}"
        environment = {"FACTS": str(self.facts(number)), "TANGRAM_NODE": name}
        command = [sys.executable, "-c", WORKER, "an argument"]
        order = LaunchOrder(
            self.installation, self.name, name, self.harness.spec, command, environment, fingerprint
        )
        (launcher or self.launcher).launch(order)
        return name

    def listed(self) -> dict[str, Instance]:
        found = self.launcher.instances(self.installation, self.name)
        return {each.name: each for each in found}

    def running(self, *numbers: int) -> dict[str, Instance]:
        """Wait until instances run and their workers have written their facts; return all of the group."""

        def run() -> bool:
            listed = self.listed()
            states = [listed.get(f"{self.name}-{number}") for number in numbers]
            return all(s is not None and s.state is InstanceState.RUNNING for s in states) and all(
                self.facts(number).exists() for number in numbers
            )

        until(run)
        return self.listed()

    def close(self) -> None:
        for name in self.listed():
            self.launcher.end(self.installation, self.name, name)
        until(lambda: not self.listed())
        self.launcher.close()


def until(holds: Callable[[], bool]) -> None:
    """Wait for an engine, which tells nothing by itself."""
    ends = time.monotonic() + WITHIN_SECONDS
    while not holds():
        assert time.monotonic() < ends, "the engine did not do it in time"
        time.sleep(0.1)


def lives(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"


@pytest.fixture
def group(harness: Harness, tmp_path: Path) -> Iterator[Group]:
    tmp_path.chmod(0o777)  # an engine may run workers as another user
    group = Group(harness, tmp_path)
    yield group
    group.close()


def test_an_instance_runs_with_its_arguments_and_variables(group: Group) -> None:
    name = group.launch()
    instance = group.running(1)[name]
    facts = json.loads(group.facts(1).read_text())
    assert (facts["node"], facts["argv"]) == (name, ["an argument"])
    assert instance.handle
    assert instance.machine


def test_a_name_is_launched_once(group: Group) -> None:
    group.launch()
    group.running(1)
    first = group.facts(1).read_text()
    group.launch()
    # As after a change of the group: what runs keeps the fingerprint with which it was launched.
    group.launch(launcher=group.harness.launcher(), fingerprint="a0a0a0a0a0a0")
    group.launch(2, fingerprint="")
    listed = group.running(1, 2)
    found = {name: each.fingerprint for name, each in listed.items()}
    assert found == {f"{group.name}-1": "57bd04027245", f"{group.name}-2": ""}
    assert group.facts(1).read_text() == first


def test_another_keeper_finds_and_ends_what_the_first_one_launched(group: Group) -> None:
    name = group.launch()
    group.running(1)
    other = group.harness.launcher()
    assert [each.name for each in other.instances(group.installation, group.name)] == [name]
    other.end(group.installation, group.name, name)
    until(lambda: not group.listed())
    other.close()


def test_groups_and_installations_do_not_see_each_other(group: Group) -> None:
    group.launch()
    group.running(1)
    assert group.launcher.instances(group.installation, f"{group.name}0") == []
    assert group.launcher.instances("another", group.name) == []


def test_nothing_is_left_of_an_instance_that_is_not_listed_any_more(group: Group) -> None:
    name = group.launch()
    group.running(1)
    pids = json.loads(group.facts(1).read_text())["pids"]
    assert all(lives(pid) for pid in pids)
    group.launcher.end(group.installation, group.name, name)
    group.launcher.end(group.installation, group.name, name)
    until(lambda: not group.listed())
    assert [pid for pid in pids if lives(pid)] == []
    group.launcher.end(group.installation, group.name, name)


def test_an_instance_that_died_runs_again_on_the_data_that_it_left_or_is_not_running(
    group: Group,
) -> None:
    name = group.launch()
    instance = group.running(1)[name]
    before = json.loads(group.facts(1).read_text())
    group.facts(1).unlink()
    group.harness.kill(instance)
    if group.harness.restarts:
        again = group.running(1)[name]
        after = json.loads(group.facts(1).read_text())
        # Identity, record of starts and workspaces of the node are there.
        assert (again.machine, after["data"]) == (instance.machine, before["data"])
        return
    until(lambda: name not in group.listed() or group.listed()[name].state is InstanceState.FAILED)


def test_an_engine_that_does_not_answer_is_named_with_a_cure(harness: Harness) -> None:
    launcher = harness.unreachable()
    with pytest.raises(LaunchError) as raised:
        launcher.instances("i", "g")
    assert len(str(raised.value)) > 20
    launcher.close()


def test_an_engine_that_can_place_node_workers_has_no_problems(harness: Harness) -> None:
    launcher = harness.launcher()
    assert launcher.problems() == []
    launcher.close()
