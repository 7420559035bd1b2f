"""Instances on several machines: each goes where few are, and a silent machine stops the others' decisions on itself alone."""

from __future__ import annotations

import json
from ast import literal_eval
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from time import monotonic

import pytest

from domain.node_groups import NodeGroupSpec
from managers.launch.launcher import LaunchError, LaunchOrder, MachinesSilent
from managers.launch.machines import SILENT_SECONDS, MachinesLauncher


class FakeMachine:
    """Answers what the program would, without processes."""

    python = "python3"

    def __init__(self, name: str, room: int = 9) -> None:
        self.name, self.room = name, room
        self.names: list[str] = []
        self.is_silent = False
        self.calls = 0
        #: Threads that launch meet here.
        self.others = Barrier(1)

    def run(self, source: str) -> str:
        self.calls += 1
        if self.is_silent:
            raise LaunchError(f"{self.name} does not answer")
        request = json.loads(literal_eval(source[source.rindex("main(json.loads(") + 16 : -3]))
        answer: dict[str, object] = {}
        if request["verb"] == "list":
            facts = {
                "handle": "1",
                "state": "running",
                "reason": "",
                "restarts": 0,
                "fingerprint": "",
            }
            answer = {"instances": [{"name": name, **facts} for name in self.names]}
        elif request["verb"] == "launch" and len(self.names) >= self.room:
            answer = {"error": "no core is free"}
        elif request["verb"] == "launch":
            self.others.wait(10)
            self.names.append(request["name"])
        else:
            answer = {"found": request["name"] in self.names}
            self.names = [name for name in self.names if name != request["name"]]
        return f"a line of the login shell\n{json.dumps(answer)}\n"


def order(number: int) -> LaunchOrder:
    return LaunchOrder("i", "g", f"g-{number}", NodeGroupSpec("ssh", count=3), ["worker"])


def launcher(*machines: FakeMachine) -> MachinesLauncher:
    return MachinesLauncher(machines, "~/folder")


def test_instances_go_to_the_machine_with_the_fewest() -> None:
    machines = [FakeMachine("a"), FakeMachine("b"), FakeMachine("c")]
    for number in range(1, 8):
        launcher(*machines).launch(order(number))
    assert [len(each.names) for each in machines] == [3, 2, 2]


def test_a_name_is_on_one_machine() -> None:
    first, second = FakeMachine("a"), FakeMachine("b")
    for _ in range(3):
        launcher(first, second).launch(order(1))
    assert (first.names, second.names) == (["g-1"], [])


def test_a_machine_without_room_is_passed_over() -> None:
    full, free = FakeMachine("a", room=0), FakeMachine("b")
    launcher(full, free).launch(order(1))
    assert free.names == ["g-1"]


def test_a_launch_that_no_machine_takes_says_why_of_each() -> None:
    with pytest.raises(LaunchError, match="a: no core is free; b: no core is free"):
        launcher(FakeMachine("a", room=0), FakeMachine("b", room=0)).launch(order(1))


@pytest.fixture
def half_silent() -> tuple[FakeMachine, FakeMachine, MachinesLauncher]:
    """Two machines with an instance each, of which the first is silent; and a launcher."""
    silent, other = FakeMachine("a"), FakeMachine("b")
    for number in (1, 2):
        launcher(silent, other).launch(order(number))
    silent.is_silent = True
    return silent, other, launcher(silent, other)


def test_a_silent_machine_is_named_with_what_the_others_have(half_silent) -> None:
    _, other, both = half_silent
    with pytest.raises(MachinesSilent) as raised:
        both.instances("i", "g")
    assert [each.name for each in raised.value.found] == ["g-2"]
    assert raised.value.silent == {"a": "a does not answer"}
    assert [each.name for each in launcher(other).instances("i", "g")] == ["g-2"]


def test_the_others_launch_and_end_while_a_machine_is_silent(half_silent) -> None:
    _, other, both = half_silent
    both.launch(order(3))
    assert other.names == ["g-2", "g-3"]
    both.end("i", "g", "g-2")
    assert other.names == ["g-3"]
    with pytest.raises(LaunchError, match="a does not answer"):
        both.end("i", "g", "g-1")


def test_a_silent_machine_is_asked_again_after_a_while(half_silent, monkeypatch) -> None:
    silent, other, both = half_silent
    before = silent.calls
    for _ in range(3):
        with pytest.raises(MachinesSilent):
            both.instances("i", "g")
    assert (silent.calls - before, other.calls) == (1, before + 3)
    silent.is_silent = False
    now = monotonic()
    monkeypatch.setattr("managers.launch.machines.time.monotonic", lambda: now + SILENT_SECONDS)
    assert [each.name for each in both.instances("i", "g")] == ["g-1", "g-2"]


def test_machines_that_are_all_silent_are_an_engine_that_does_not_answer(half_silent) -> None:
    _, other, both = half_silent
    other.is_silent = True
    with pytest.raises(LaunchError, match="a does not answer; b does not answer") as raised:
        both.instances("i", "g")
    assert not isinstance(raised.value, MachinesSilent)


def test_a_machine_that_did_not_answer_a_launch_may_have_it_so_no_other_is_asked() -> None:
    first, second = FakeMachine("a"), FakeMachine("b")
    both = launcher(first, second)
    both.instances("i", "g")

    def lost(source: str) -> str:
        if '"verb": "launch"' in source:
            raise LaunchError("a does not answer")
        return type(first).run(first, source)

    first.run = lost  # type: ignore[method-assign]
    with pytest.raises(LaunchError, match="a does not answer"):
        both.launch(order(1))
    assert second.names == []


def test_launches_at_once_are_spread_over_machines() -> None:
    machines = [FakeMachine(name) for name in "abcd"]
    at_once = Barrier(4)
    for each in machines:
        each.others = at_once
    one = launcher(*machines)
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda number: one.launch(order(number)), range(1, 5)))
    assert [len(each.names) for each in machines] == [1, 1, 1, 1]


def test_an_instance_ends_wherever_it_is() -> None:
    first, second = FakeMachine("a"), FakeMachine("b")
    for number in (1, 2):
        launcher(first, second).launch(order(number))
    launcher(first, second).end("i", "g", "g-2")
    assert (first.names, second.names) == (["g-1"], [])


def test_a_machine_that_does_not_answer_with_json_is_named() -> None:
    machine = FakeMachine("a")
    machine.run = lambda source: "welcome"  # type: ignore[method-assign]
    with pytest.raises(LaunchError, match=r"a answered 'welcome'.*Python 3\.9"):
        launcher(machine).instances("i", "g")
