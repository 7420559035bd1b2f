"""The in-memory twin of a driver that runs commands.

It obeys the rules of `domain.ports.Driver` and passes the same conformance suite as the real ones,
but starts no process: a *script* says how long each order takes and how it ends. Time is the event
loop's, so under a virtual clock an hour passes at once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from domain.action import Kind, Outcome
from domain.allocation import Allocation, UsedResources
from domain.errors import InvalidRequest, NotFound
from domain.ids import ActionId, TrajectoryKey
from domain.ports import ExecResult, Leftover, RunOrder, RunReport
from managers.common.order_runs import SHUTTING_DOWN, Runs, StoppableRun
from managers.cpu.process.workspace import split_path


@dataclass(frozen=True)
class Play:
    """How one order goes."""

    #: None: it runs until it is stopped.
    seconds: float | None = 0.0
    exit_code: int = 0
    stdout: str = ""
    #: Waiting before it starts, as for a slow environment.
    preparing_seconds: float = 0.0
    #: Another end than its own, as when memory runs out.
    outcome: Outcome = Outcome.COMPLETED
    detail: str | None = None
    #: What it used, as a driver that counts says.
    used: UsedResources | None = None
    #: It ends without ever having started.
    never_started: bool = False


Script = Callable[[RunOrder], Play]


@dataclass
class FakeStorage:
    """What survives a driver: give it to the next one to play a restart."""

    marks: dict[str, RunOrder] = field(default_factory=dict)
    #: Marks of orders whose processes outlived their driver.
    running: set[str] = field(default_factory=set)
    files: dict[TrajectoryKey, dict[tuple[str, ...], bytes]] = field(default_factory=dict)


def read_command(order: RunOrder) -> Play:
    """Play the few commands whose meaning is plain: true, false, echo, sleep."""
    program, *arguments = order.action.exec.command if order.action.exec else ("",)
    match program:
        case "true":
            return Play()
        case "false":
            return Play(exit_code=1)
        case "echo":
            return Play(stdout=" ".join(arguments) + "\n")
        case "sleep":
            return Play(seconds=float(arguments[0]))
    return Play(exit_code=127)


class _Performance(StoppableRun):
    """One order that is played."""

    def __init__(self, order: RunOrder, started: Callable[[], None], driver: FakeDriver) -> None:
        super().__init__(order)
        self._started = started
        self._driver = driver

    def resize(self, allocation: Allocation) -> None:
        """Note with what it goes on; how long it takes is the script's, not the units'."""
        self.order = self.order.resized(allocation)

    async def live(self) -> RunReport:
        """Play the order to its end."""
        order, stopped = self.order, self.stopped
        play = self._driver.script(order)
        if await _passes(play.preparing_seconds, stopped):
            outcome, reason = stopped.result()
            return RunReport(outcome, 0.0, detail=reason, never_started=True)
        if play.never_started:
            return RunReport(play.outcome, 0.0, detail=play.detail, never_started=True)
        self._driver.storage.marks[order.mark] = order
        loop = asyncio.get_running_loop()
        began = loop.time()
        self._started()
        limit = order.action.timeout_seconds
        late = limit is not None and (play.seconds is None or play.seconds > limit)
        was_stopped = await _passes(limit if late else play.seconds, stopped)
        seconds = loop.time() - began
        if was_stopped or late:
            outcome, reason = stopped.result() if was_stopped else (Outcome.TIMEOUT, "too slow")
            return RunReport(outcome, seconds, ExecResult(143, play.stdout, ""), reason)
        result = ExecResult(play.exit_code, play.stdout, "", used=play.used)
        return RunReport(play.outcome, seconds, result, play.detail)


class FakeDriver:
    """Plays orders."""

    kinds = frozenset({Kind.EXEC})
    isolation = "fake"

    def __init__(self, script: Script = read_command, storage: FakeStorage | None = None) -> None:
        self.storage = storage or FakeStorage()
        self.script = script
        self._runs: Runs[_Performance] = Runs(self._take_back)
        self._crashed = False

    async def open(self) -> list[Leftover]:
        """Return what a predecessor on the same storage had started."""
        ended, self.storage.running = self.storage.running, set()
        return [
            Leftover(order.id, order.attempt, mark in ended)
            for mark, order in self.storage.marks.items()
        ]

    async def run(self, order: RunOrder, started: Callable[[], None]) -> RunReport:
        """Play one order to its end. An order that runs already is not run twice."""
        return await self._runs.run(order, lambda: _Performance(order, started, self))

    def stop(self, action_id: ActionId, outcome: Outcome, reason: str) -> None:
        """End a run; its report carries ``outcome`` unless it ended by itself before."""
        self._runs.stop(action_id, outcome, reason)

    def resize(self, action_id: ActionId, attempt: int, allocation: Allocation) -> None:
        """Note with what a run goes on."""
        self._runs.resize(action_id, attempt, allocation)

    def holds(self, action_id: ActionId) -> tuple[Allocation, ...]:
        """Return what a run works with now; nothing when it does not run."""
        run = self._runs.get(action_id)
        return run.order.allocations if run is not None else ()

    def crash(self) -> FakeStorage:
        """Die without a word; what runs goes on. Returns what a successor finds."""
        self.storage.running.update(run.order.mark for run in self._runs)
        self._crashed = True
        for task in self._runs.tasks():
            task.cancel()
        return self.storage

    def forget(self, marks: Sequence[str]) -> None:
        """These attempts will not be ordered again: their marks go, once they have ended."""
        self._runs.forget(marks)

    def _take_back(self, marks: Sequence[str]) -> None:
        for mark in () if self._crashed else marks:
            self.storage.marks.pop(mark, None)

    async def remove_environment(self, trajectory: TrajectoryKey) -> None:
        """End what runs in it and delete it."""
        await self._runs.end_of(trajectory, Outcome.CANCELLED, "its environment is removed")
        self.storage.files.pop(trajectory, None)

    async def put_file(self, trajectory: TrajectoryKey, path: str, content: bytes) -> None:
        """Keep a file."""
        self.storage.files.setdefault(trajectory, {})[_place(path)] = content

    async def get_file(self, trajectory: TrajectoryKey, path: str, limit_bytes: int) -> bytes:
        """Return a file that was put."""
        content = self.storage.files.get(trajectory, {}).get(_place(path))
        if content is None:
            raise NotFound(f"{path!r} is not in the workspace")
        if len(content) > limit_bytes:
            raise InvalidRequest(f"{path!r} is larger than {limit_bytes} bytes", pointer="/path")
        return content

    async def close(self) -> None:
        """End everything."""
        await self._runs.end_all(SHUTTING_DOWN)


async def _passes(seconds: float | None, stopped: asyncio.Future[tuple[Outcome, str]]) -> bool:
    """Let time pass; return True as soon as the run is stopped."""
    await asyncio.wait([stopped], timeout=seconds)
    return stopped.done()


def _place(path: str) -> tuple[str, ...]:
    parts = tuple(split_path(path))
    if not parts or path.endswith("/"):
        raise InvalidRequest(f"{path!r} does not name a file", pointer="/path")
    return parts
