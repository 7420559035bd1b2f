"""The campaign: hostile programs on one node, beside a neighbour, and what became of each.

A verdict is *refused* when the program printed that its attempts were refused, *contained* when it ran
and changed nothing outside, *not protected* when it succeeded and the mode does not claim to protect
from it. Everything else is a breach.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import secrets
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any, Final

from tests.docker_engine import unmount_below
from tests.hostile.host import Host, Watch
from tests.hostile.node import SECRET, Node, a_node, is_ordinary, ordinary_uid
from tests.hostile.program import DISK_BYTES, MEMORY_BYTES, OUTPUT_BYTES, Mode, Program

_NEIGHBOUR: Final = "neighbour"
#: Works in small pieces until its workspace holds the file ``stop``; prints how many.
_NEIGHBOUR_CODE: Final = """
import os, time
open("precious", "w").write("precious")
count = 0
while not os.path.exists("stop"):
    for _ in range(2000):
        count += 1
    time.sleep(0.02)
assert open("precious").read() == "precious"
print("counted" if count else "stood still")
"""
_ANSWER_SECONDS: Final = 60.0
_FETCH_SECONDS: Final = 15.0
_REMOVE_SECONDS: Final = 120.0
#: A node answers a trivial action within this time while hostile programs run; a bound on a hang.
_ALIVE_SECONDS: Final = 30.0


class Kind(StrEnum):
    """What became of a program."""

    CONTAINED = "contained"
    REFUSED = "refused"
    NOT_PROTECTED = "not protected"
    NOT_RUN = "not run"
    BREACH = "breach"


@dataclass(frozen=True)
class Verdict:
    """What became of one program in one mode."""

    program: Program
    mode: Mode
    kind: Kind
    breaches: tuple[str, ...] = ()
    report: dict[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        output = self.report.get("stdout", "")[-2000:] + self.report.get("stderr", "")[-2000:]
        facts = {k: v for k, v in self.report.items() if k not in ("stdout", "stderr")}
        return f"{self.mode}: {self.program.name}: {self.kind}: {self.breaches}\n{facts}\n{output}"


class Campaign:
    """Programs on one node."""

    def __init__(self, node: Node, host: Host, state: Path) -> None:
        self._node = node
        self._host = host
        self._state = state
        self._neighbour: asyncio.Future[dict[str, Any]] | None = None

    async def open(self) -> None:
        """Start the neighbour."""
        command = ("python3", "-c", _NEIGHBOUR_CODE)
        self._neighbour = self._run(_NEIGHBOUR, command, timeout_seconds=3600.0, cores=(0,))
        async with asyncio.timeout(_ANSWER_SECONDS):
            while "error" in await self._node.ask("get", _NEIGHBOUR, path="precious"):
                if self._neighbour.done():
                    raise AssertionError(f"the neighbour ended: {self._neighbour.result()}")
                await asyncio.sleep(0.05)

    async def close(self) -> dict[str, Any]:
        """End the neighbour; return its report."""
        assert self._neighbour is not None
        await self._node.ask("put", _NEIGHBOUR, path="stop", content="")
        async with asyncio.timeout(_ANSWER_SECONDS):
            report = await self._neighbour
        # A folder with a mount, its disk, cannot be deleted.
        for name in (_NEIGHBOUR, "pace"):
            await self._node.ask("remove", name)
        return report

    async def play(self, program: Program) -> Verdict:
        """Run one program and return its verdict."""
        if self._node.mode in program.spared:
            return Verdict(program, self._node.mode, Kind.NOT_RUN)
        name = f"hostile-{secrets.token_hex(4)}"
        mark = f"HOSTILE_MARK={name}"
        watch = Watch(self._node.pid, mark)
        running = self._run(name, program.command, program=program)
        breaches = await self._fetch_while(running, name, program)
        try:
            async with asyncio.timeout(program.timeout_seconds + _ANSWER_SECONDS):
                report = await running
        except TimeoutError:
            return Verdict(program, self._node.mode, Kind.BREACH, ("its report is missing",))
        breaches += await self._fetch(name, program)
        breaches += await asyncio.to_thread(watch.left) if self._is_ended_with_action else []
        breaches += await self._remove(name)
        breaches += await asyncio.to_thread(watch.left)
        breaches += self._host.breaches()
        breaches += await self._health()
        verdict = self._judge(program, report, breaches)
        if breaches:
            self._host.clean()
        return verdict

    async def run_beside(self, command: tuple[str, ...]) -> dict[str, Any]:
        """Run a command of a well-behaved neighbour on its core; return its report."""
        return await self._run("pace", command, cores=(0,))

    async def attack(self, program: Program, name: str) -> None:
        """Run a program without a look at what became of it."""
        running = self._run(name, program.command, program=program)
        try:
            await asyncio.shield(running)
        finally:
            # The next request waits for the end of what was stopped.
            self._node.ask("remove", name)

    @property
    def _is_ended_with_action(self) -> bool:
        """Whether no process stays once an action has ended: a living environment keeps them, and its init."""
        return self._node.mode is Mode.PROCESS

    def _judge(self, program: Program, report: dict[str, Any], breaches: list[str]) -> Verdict:
        printed = report.get("stdout", "")
        breaches += [line for line in printed.splitlines() if line.startswith("ESCAPED")]
        if SECRET in printed:
            breaches.append("it printed a secret")
        match report.get("outcome"):
            case "oom_killed":
                pass
            case "cancelled" if "quota" in report["detail"]:
                pass
            case "completed" | "timeout" if program.dies or "end\n" in printed:
                pass
            case "completed":
                breaches.append("it did not reach its end")
            case outcome:
                breaches.append(f"its outcome is {outcome or report.get('error')}")
        if breaches and self._node.mode in program.exposed:
            kind = Kind.NOT_PROTECTED
        elif breaches:
            kind = Kind.BREACH
        else:
            kind = Kind.REFUSED if "refused:" in printed else Kind.CONTAINED
        return Verdict(program, self._node.mode, kind, tuple(breaches), report)

    def _run(
        self,
        name: str,
        command: tuple[str, ...],
        *,
        timeout_seconds: float = 30.0,
        cores: tuple[int, ...] = (1,),
        program: Program | None = None,
    ) -> asyncio.Future[dict[str, Any]]:
        env = {
            "HOSTILE_MARK": name, "HOSTILE_HOST": str(self._host.folder),
            "HOSTILE_PORT": str(self._host.port), "HOSTILE_NAME": self._host.name,
            "HOSTILE_STATE": str(self._state), "HOSTILE_NEIGHBOUR": self._neighbour_path(),
        }  # fmt: skip
        return self._node.ask(
            "run", name, name=f"act_{name}", command=command, env=env,
            timeout_seconds=program.timeout_seconds if program else timeout_seconds,
            stdin=program.stdin if program else None, cores=cores, output_bytes=OUTPUT_BYTES,
            memory_bytes=MEMORY_BYTES, disk_bytes=DISK_BYTES,
        )  # fmt: skip

    def _neighbour_path(self) -> str:
        found = list((self._state / "environments").glob(f"*{_NEIGHBOUR}*"))
        return str(found[0]) if found else "/nonexistent"

    async def _fetch_while(
        self, running: asyncio.Future[dict[str, Any]], name: str, program: Program
    ) -> list[str]:
        breaches: list[str] = []
        until = time.monotonic() + program.timeout_seconds
        while program.fetched and not running.done() and time.monotonic() < until:
            breaches += await self._fetch(name, program)
            await asyncio.sleep(0)
        return breaches

    async def _fetch(self, name: str, program: Program) -> list[str]:
        breaches = []
        for path in program.fetched:
            for do, given in (("get", {}), ("put", {"content": "written from outside"})):
                try:
                    async with asyncio.timeout(_FETCH_SECONDS):
                        answer = await self._node.ask(do, name, path=path, **given)
                except TimeoutError:
                    breaches.append(f"to {do} {path!r} takes more than {_FETCH_SECONDS:g} s")
                    break
                if answer.get("error", "").startswith("NotFound"):
                    break
                if SECRET in answer.get("content", ""):
                    breaches.append(f"to get {path!r} returns a file of the host")
        return breaches

    async def _remove(self, name: str) -> list[str]:
        try:
            async with asyncio.timeout(_REMOVE_SECONDS):
                answer = await self._node.ask("remove", name)
        except TimeoutError:
            return [f"to remove it takes more than {_REMOVE_SECONDS:g} s"]
        left = [str(path) for path in (self._state / "environments").glob(f"*{name}*")]
        return [*([f"removing it failed: {answer['error']}"] if "error" in answer else []),
                *(f"{path} is left" for path in left)]  # fmt: skip

    async def _health(self) -> list[str]:
        breaches = []
        if self._neighbour is not None and self._neighbour.done():
            breaches.append(f"the neighbour has ended: {self._neighbour.result()}")
        if not self._node.alive:
            return [*breaches, "the worker has ended"]
        name = f"health-{secrets.token_hex(4)}"
        try:
            async with asyncio.timeout(_ALIVE_SECONDS):
                report = await self._run(name, ("sh", "-c", "echo alive"))
        except TimeoutError:
            return [*breaches, "the node answers no more"]
        if report.get("stdout") != "alive\n":
            breaches.append(f"a trivial action fails: {report}")
        await self._node.ask("remove", name)
        return breaches


@contextlib.contextmanager
def _alone() -> Iterator[None]:
    """Wait until no other campaign runs on this machine: programs of both would leave the same names."""
    with (Path(tempfile.gettempdir()) / "hostile-campaign.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


@contextlib.asynccontextmanager
async def a_campaign(mode: Mode, engine: str = "", image: str = "") -> AsyncIterator[Campaign]:
    """Start a node of this mode with a neighbour; end both and delete their files."""
    with _alone(), tempfile.TemporaryDirectory(prefix="hostile-campaign-") as text:
        directory = Path(text)
        directory.chmod(0o755)
        state = directory / "state"
        state.mkdir(mode=0o711)
        owner = ordinary_uid() if is_ordinary(mode) else os.geteuid()
        host = Host(directory / "host", owner)
        try:
            async with a_node(mode, state, engine, image) as node:
                campaign = Campaign(node, host, state)
                await campaign.open()
                try:
                    yield campaign
                finally:
                    report = await campaign.close()
                assert report.get("stdout") == "counted\n", f"the neighbour suffered: {report}"
        finally:
            host.close()
            unmount_below(directory)  # a campaign that was interrupted
