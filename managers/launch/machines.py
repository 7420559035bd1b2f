"""Launcher of machines that have no engine: a program on each of them keeps its node workers (`machine_program`).

1. An instance goes to the machine with the fewest instances of its group; one that refuses is passed over. One that does not answer may
   have started it: no other is asked for that name.
2. Machines are asked at once. One that does not answer is named (`MachinesSilent`), and not asked again for `SILENT_SECONDS`; the others
   go on. What it runs may still run, so it is not said to be gone. Once its operator takes it out of the group's options, its
   instances are not listed, and are replaced elsewhere.
"""

from __future__ import annotations

import json
import sys
import time
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Lock
from typing import Any, Final, Protocol

from domain.errors import InvalidRequest
from managers.launch import machine_program
from managers.launch.launcher import (
    Instance,
    InstanceState,
    LaunchError,
    LaunchOrder,
    LaunchRefused,
    MachinesSilent,
)

#: Of files of instances, on each machine.
FOLDER: Final = "~/.local/state/tangram/node-workers"
#: A machine that did not answer is not asked again for so long: each question takes seconds.
SILENT_SECONDS: Final = 30.0
_MOST_AT_ONCE: Final = 32
_PROGRAM: Final = Path(machine_program.__file__)

#: Machine → what it said.
_Answers = dict[str, dict[str, Any]]


class LaunchMachine(Protocol):
    """One machine that runs the program."""

    name: str
    #: The Python of Tangram's environment there.
    python: str

    def run(self, source: str) -> str:
        """Run a Python program there and return its output. Raises LaunchError within `launcher.CALL_SECONDS`."""


class MachinesLauncher:
    """A launcher over a list of machines. May be used by several threads."""

    launches_at_once: Final = 8

    def __init__(
        self,
        machines: Sequence[LaunchMachine],
        folder: str,
        prefix: Sequence[str] = (),
        *,
        own_cores: bool = True,
        declared_gpus: int = 0,
        reach: Collection[str] = (),
    ) -> None:
        """``prefix``: words before the node worker's command. ``own_cores``: instances of a machine share none.
        ``declared_gpus``: of each machine, for trials: none is looked for.
        ``reach``: options that change no instance."""
        self._machines, self.reach = machines, reach
        #: Machine → until when it is not asked (monotonic), and why.
        self._silent: dict[str, tuple[float, str]] = {}
        #: Of launches that go on: instance → machine. Forgotten when the last of them is over.
        self._placed: dict[str, str] = {}
        self._launching = 0
        self._lock = Lock()
        self._folder, self._prefix, self._own_cores = folder, list(prefix), own_cores
        self._declared_gpus = declared_gpus

    def instances(self, installation: str, group: str) -> list[Instance]:
        """Return all instances of a group, of all machines. Raises MachinesSilent, LaunchError."""
        answers, silent = self._ask_all(verb="list", installation=installation, group=group)
        found = [
            _instance(each, machine)
            for machine in self._machines
            for each in answers.get(machine.name, {"instances": ()})["instances"]
        ]
        if silent:
            raise MachinesSilent(found, silent)
        return found

    def launch(self, order: LaunchOrder) -> None:
        """Start an instance on a machine that has room. Raises LaunchError."""
        with self._lock:
            self._launching += 1
        try:
            self._launch(order)
        finally:
            with self._lock:
                self._launching -= 1
                if not self._launching:
                    self._placed.clear()

    def _launch(self, order: LaunchOrder) -> None:
        there, silent = self._there(order)
        if any(each.name == order.name for each in there):
            return
        left = [machine for machine in self._machines if machine.name not in silent]
        refusals = list(silent.values())
        while left:
            machine = self._nearest(order.name, left, there)
            left.remove(machine)
            try:
                self._ask(machine, **self._request(order, machine))
            except LaunchRefused as error:
                refusals.append(str(error))
            else:
                return
        raise LaunchRefused("; ".join(refusals))

    def _there(self, order: LaunchOrder) -> tuple[list[Instance], Mapping[str, str]]:
        """Return the group's instances, and the machines that are silent."""
        if len(self._machines) == 1:  # it refuses a second instance of a name by itself
            return [], {}
        try:
            return self.instances(order.installation, order.group), {}
        except MachinesSilent as error:
            return error.found, error.silent

    def _nearest(
        self, name: str, left: Sequence[LaunchMachine], there: Sequence[Instance]
    ) -> LaunchMachine:
        """Return the machine with the fewest instances, with those that other threads launch now."""
        with self._lock:
            of = {each.name: each.machine for each in there}
            number = Counter({**self._placed, **of}.values())
            chosen = min(left, key=lambda machine: number[machine.name])
            self._placed[name] = chosen.name
        return chosen

    def end(self, installation: str, group: str, name: str) -> None:
        """Ask an instance to end, wherever it is. Raises LaunchError where it may be on a machine that does not answer."""
        answers, silent = self._ask_all(
            verb="end", installation=installation, group=group, name=name
        )
        if silent and not any(answer["found"] for answer in answers.values()):
            raise MachinesSilent((), silent)

    def problems(self) -> list[str]:
        """Return what keeps machines from running node workers."""
        with ThreadPoolExecutor(min(_MOST_AT_ONCE, len(self._machines))) as pool:
            return [each for found in pool.map(self._problems_of, self._machines) for each in found]

    def _problems_of(self, machine: LaunchMachine) -> list[str]:
        try:
            answer = self._ask(machine, verb="check")
        except LaunchError as error:
            return [str(error)]
        return [f"{machine.name}: {problem}" for problem in answer["problems"]]

    def close(self) -> None:
        """There is no connection that stays open."""

    def _request(self, order: LaunchOrder, machine: LaunchMachine) -> dict[str, Any]:
        command = [machine.python if word == sys.executable else word for word in order.command]
        return {
            "verb": "launch",
            "installation": order.installation,
            "group": order.group,
            "name": order.name,
            "command": [*self._prefix, *command],
            "environment": dict(order.environment),
            "cpus": order.spec.cpus,
            "gpus": order.spec.gpus,
            "own_cores": self._own_cores,
            "declared_gpus": self._declared_gpus,
            "fingerprint": order.fingerprint,
            "program": _PROGRAM.read_text(),
        }

    def _ask_all(self, **request: Any) -> tuple[_Answers, dict[str, str]]:
        """Return the answers by machine, and why others do not answer. Raises LaunchError if none does."""
        if len(self._machines) == 1:
            return {self._machines[0].name: self._ask(self._machines[0], **request)}, {}
        answers: _Answers = {}
        silent: dict[str, str] = {}
        now = time.monotonic()
        asked = []
        for machine in self._machines:
            until, why = self._silent.get(machine.name, (0.0, ""))
            if now < until:
                silent[machine.name] = why
            else:
                asked.append(machine)

        def ask(machine: LaunchMachine) -> None:
            try:
                answers[machine.name] = self._ask(machine, **request)
                self._silent.pop(machine.name, None)
            except LaunchError as error:
                silent[machine.name] = str(error)
                self._silent[machine.name] = time.monotonic() + SILENT_SECONDS, str(error)

        if asked:
            with ThreadPoolExecutor(min(_MOST_AT_ONCE, len(asked))) as pool:
                list(pool.map(ask, asked))
        if not answers:
            raise LaunchError("; ".join(silent[machine.name] for machine in self._machines))
        return answers, silent

    def _ask(self, machine: LaunchMachine, **request: Any) -> dict[str, Any]:
        text = json.dumps({**request, "folder": self._folder})
        output = machine.run(f"{_PROGRAM.read_text()}\nmain(json.loads({text!r}))\n")
        try:
            answer: dict[str, Any] = json.loads(output.splitlines()[-1])
        except (IndexError, ValueError):
            raise LaunchError(
                f"{machine.name} answered {output[-200:]!r} instead of JSON: is {machine.python} Python 3.9 or later?"
            ) from None
        if "error" in answer:
            raise LaunchRefused(f"{machine.name}: {answer['error']}")
        return answer


def check_options(options: Mapping[str, str], known: Sequence[str]) -> None:
    """Raise InvalidRequest for an option that a launcher does not have."""
    for name in options:
        if name not in known:
            raise InvalidRequest(
                f"there is no option {name!r}: give {', '.join(known)}", pointer=f"/options/{name}"
            )


def yes_or_no(options: Mapping[str, str], name: str, *, default: bool) -> bool:
    """Return an option that is ``true`` or ``false``. Raises InvalidRequest."""
    text = options.get(name, str(default).lower())
    if text not in ("true", "false"):
        raise InvalidRequest(f"{name} is true or false, not {text!r}", pointer=f"/options/{name}")
    return text == "true"


def count_of(options: Mapping[str, str], name: str) -> int:
    """Return an option that is a count; 0: it is not given. Raises InvalidRequest."""
    text = options.get(name, "0")
    if not text.isdecimal():
        raise InvalidRequest(f"{name} is a count, not {text!r}", pointer=f"/options/{name}")
    return int(text)


def _instance(found: Mapping[str, Any], machine: LaunchMachine) -> Instance:
    return Instance(
        found["name"], InstanceState(found["state"]), f"pid {found['handle']}", machine.name,
        reason=found["reason"], restarts=found["restarts"], fingerprint=found["fingerprint"],
    )  # fmt: skip
