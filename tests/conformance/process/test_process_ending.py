"""The end of an action: all its processes end, and no others."""

from __future__ import annotations

import asyncio
import os
import subprocess
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from domain.action import Outcome
from domain.ids import ActionId
from domain.ports import RunReport
from managers.cpu.process import ProcessDriver
from tests.conformance.conftest import Shell
from tests.conformance.driver import Performance, an_order
from tests.conformance.isolations import a_driver

#: Ways to leave a process behind, each starting ``$0`` as the name of a long sleep.
ESCAPES = {
    "in the background": "{sleep} &",
    "with a new session": "setsid {sleep} &",
    "forked twice": "(setsid sh -c '{sleep} & {sleep}' &) ",
    "with an emptied environment": "env -i setsid {sleep} &",
    "deaf to polite signals": "(trap '' TERM HUP INT; {sleep}) &",
    "without our pipes": "setsid {sleep} >/dev/null 2>&1 </dev/null &",
}


#: Sheds the tag of its process and of all below: a limit may be lowered without privileges.
SHED = "import os, resource; resource.setrlimit(10, (7, 7)); "
SHEDDING = {
    "forked twice": SHED
    + "os.fork() and os._exit(0); os.setsid(); os.fork() and os._exit(0); {run}",
    "with children": SHED + "os.fork() and os._exit(0); os.setsid(); os.fork(); os.fork(); {run}",
    "as another owner": SHED.replace("7, 7", "2**61 + 5, 2**61 + 5")
    + "os.fork() and os._exit(0); os.setsid(); {run}",
    "while its parent lives": SHED + "os.fork() or {run}",
}


@pytest.fixture
def sleep(tmp_path: Path) -> Iterator[str]:
    """A sleep with a duration of its own; none may run when the test is over."""
    seconds = f"600.{uuid.uuid4().int % 10**12:012d}"
    yield f"sleep {seconds}"
    assert processes_with(seconds) == []


def processes_with(text: str) -> list[int]:
    """Return the processes that have ``text`` on their command line."""
    found = []
    for name in os.listdir("/proc"):
        try:
            if name.isdigit() and text in Path(f"/proc/{name}/cmdline").read_text():
                found.append(int(name))
        except OSError:
            continue
    return found


async def until_asleep(sleep: str) -> None:
    """Wait until a process of that sleep is there: what starts an action first makes its sandbox."""
    wanted = sleep.encode().replace(b" ", b"\0")
    async with asyncio.timeout(120):
        while not any(wanted in command_line(pid) for pid in processes_with(sleep.split()[1])):
            await asyncio.sleep(0.01)


def command_line(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


async def stopped_asleep(driver: ProcessDriver, script: str, sleep: str, count: int) -> RunReport:
    """Run a script, and let its time be over when ``count`` of its sleeps run."""
    performance = Performance(driver, an_order("sh", "-c", script))
    async with asyncio.timeout(120):
        while len(processes_with(sleep.replace(" ", "\0"))) < count:
            await asyncio.sleep(0.01)
    driver.stop(ActionId("act_1"), Outcome.TIMEOUT, "time is over")
    report = await performance.task
    assert report.outcome is Outcome.TIMEOUT
    return report


@pytest.mark.parametrize("escape", ESCAPES.values(), ids=ESCAPES.keys())
async def test_leftover_processes_of_a_command_without_an_environment_are_ended_with_it(
    driver: ProcessDriver, sleep: str, escape: str, isolation: str
) -> None:
    """In a living environment they go on: `test_living_environments`."""
    trajectory = "trj-1" if isolation == "process" else None
    script = f"{escape.format(sleep=sleep)}\nexit 7"
    report = await driver.run(an_order("sh", "-c", script, trajectory=trajectory), lambda: None)
    assert report.outcome is Outcome.COMPLETED
    assert report.result is not None
    assert report.result.exit_code == 7
    if isolation == "process":
        assert "it left behind" in (report.detail or "")


@pytest.fixture
def no_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the driver find that it may not make control groups, as without root."""

    def refuse(*_: object) -> None:
        raise PermissionError("Permission denied")

    monkeypatch.setattr("managers.cpu.process.driver.open_process_groups", refuse)


@pytest.mark.usefixtures("no_groups")
@pytest.mark.parametrize("escape", SHEDDING.values(), ids=SHEDDING.keys())
async def test_processes_that_shed_their_tag_are_ended_with_the_action(
    driver: ProcessDriver,
    sleep: str,
    escape: str,
    isolation: str,
    foreign: subprocess.Popen[bytes],
) -> None:
    """Fixture ``sleep`` finds what is left; ``foreign`` is a child of this worker that is no action's."""
    run = f"os.execvp('sleep', {sleep.split()})"
    trajectory = "trj-1" if isolation == "process" else None
    script = f'python3 -c "{escape.format(run=run)}"\nexit 7'
    report = await driver.run(an_order("sh", "-c", script, trajectory=trajectory), lambda: None)
    assert report.result is not None
    assert report.result.exit_code == 7
    if isolation == "process":
        assert "it left behind" in (report.detail or "")
    assert foreign.poll() is None


@pytest.mark.usefixtures("no_groups")
async def test_processes_that_shed_their_tag_are_ended_when_the_action_is_stopped(
    driver: ProcessDriver, sleep: str, foreign: subprocess.Popen[bytes]
) -> None:
    escape = SHEDDING["with children"].format(run=f"os.execvp('sleep', {sleep.split()})")
    await stopped_asleep(driver, f'python3 -c "{escape}"; {sleep}; true', sleep, 5)
    assert foreign.poll() is None


@pytest.mark.parametrize("escape", ESCAPES.values(), ids=ESCAPES.keys())
async def test_ending_an_action_ends_all_of_it_and_says_so(
    driver: ProcessDriver, sleep: str, escape: str
) -> None:
    script = f"{escape.format(sleep=sleep)}\n{sleep}; true"
    report = await stopped_asleep(driver, script, sleep, 2)
    ended = int((report.detail or "").partition("ended ")[2].split()[0])
    assert ended >= 3


async def test_a_command_that_ignores_the_polite_signal_is_killed(
    driver: ProcessDriver, sleep: str
) -> None:
    script = f"trap '' TERM; echo ready; {sleep}; {sleep}"
    report = await stopped_asleep(driver, script, sleep, 1)
    assert report.result is not None
    assert (report.result.exit_code, report.result.stdout) == (128 + 9, "ready\n")


async def test_a_command_may_clean_up_within_its_grace(
    tmp_path: Path, isolation: str, sleep: str
) -> None:
    driver = a_driver(tmp_path, isolation, grace_seconds="30")
    await driver.open()
    script = f"trap 'echo cleaned; exit 4' TERM; while true; do {sleep} & wait; done"
    report = await stopped_asleep(driver, script, sleep, 1)
    await driver.close()
    assert report.result is not None
    assert (report.result.exit_code, report.result.stdout) == (4, "cleaned\n")


async def test_a_stopped_process_is_ended_as_well(shell: Shell, sleep: str) -> None:
    report = await shell(f"{sleep} & kill -STOP $!; kill -STOP $$", timeout_seconds=0.2)
    assert report.outcome is Outcome.TIMEOUT


async def test_execution_time_is_counted_from_the_spawn(shell: Shell) -> None:
    report = await shell("exec sleep 600", timeout_seconds=1.0)
    assert report.outcome is Outcome.TIMEOUT
    assert report.execution_seconds >= 1.0
    assert "timeout_seconds = 1; ended 1 process" in (report.detail or "")


async def test_the_exit_code_shows_a_signal(shell: Shell) -> None:
    report = await shell("kill -9 $$")
    assert report.outcome is Outcome.COMPLETED
    assert report.result is not None
    assert report.result.exit_code == 137


async def test_processes_of_others_survive_whatever_they_are_called(
    driver: ProcessDriver, foreign: subprocess.Popen[bytes], sleep: str
) -> None:
    performance = Performance(driver, an_order(*sleep.split()))
    await until_asleep(sleep)
    driver.stop(ActionId("act_1"), Outcome.CANCELLED, "enough")
    report = await performance.task
    assert "ended 1 process" in (report.detail or "")
    assert foreign.poll() is None


async def test_another_action_and_its_background_processes_survive(
    driver: ProcessDriver, sleep: str
) -> None:
    command = ("sh", "-c", f"setsid {sleep} & echo; {sleep}")
    other = Performance(driver, an_order(*command, name="act_other"))
    await until_asleep(sleep)
    await driver.run(an_order("sleep", "600", timeout_seconds=0.1), lambda: None)
    wanted = sleep.encode().replace(b" ", b"\0")
    assert any(wanted in command_line(pid) for pid in processes_with(sleep.split()[1]))
    driver.stop(ActionId("act_other"), Outcome.CANCELLED, "enough")
    assert (await other.task).outcome is Outcome.CANCELLED


#: Programs of the daemons of the next test.
DAEMONS = ("setsid", "true")


async def test_orphans_that_die_by_themselves_are_buried(shell: Shell) -> None:
    """Thirty daemons detach from one action and die while another runs; no zombie stays."""
    before = set(zombies())
    await shell("for n in $(seq 30); do (setsid true &) ; done; (setsid setsid true &)")
    async with asyncio.timeout(120):
        while set(zombies()) - before:
            await shell("true")


def zombies() -> list[int]:
    """Return the dead daemons among the children of this process; sandboxes of other tests may die late."""
    found = []
    for name in os.listdir("/proc"):
        try:
            head, _, tail = Path(f"/proc/{name}/stat").read_text().rpartition(")")
        except OSError:
            continue
        program, rest = head.partition("(")[2], tail.split()
        if program in DAEMONS and rest[0] == "Z" and int(rest[1]) == os.getpid():
            found.append(int(name))
    return found
