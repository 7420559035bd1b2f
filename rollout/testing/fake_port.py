"""Fake port: scheduler, log, leases and trajectories in memory, with the rules of `rollout.ports`.

It passes the conformance suite of ports (`tests/conformance/rollout_port.py`), as the port of the runtime does.

    port = FakePort()
    port.submit_rollout(rollout, instance={"problem": "2 + 2"})
    async with running(RolloutWorker(port, handlers(), slots=8)): ...
    result = await port.result(rollout.id)

Actions end at once, as ``program`` says; tests replace it, gate leases (`hold_leases`), lose environments and workers.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from domain.errors import Conflict, InvalidRequest, NotFound
from domain.rollouts import Rollout, RolloutOutcome, RolloutProgress, RolloutResult, Stage
from rollout.core.records import REQUEST
from rollout.ports import (
    ActionEnd,
    Assigned,
    Channel,
    FleetAnswer,
    GenerationBegun,
    GenerationRequest,
    LostEnvironment,
    Record,
    Seat,
    SeatMoved,
    StageLease,
    Superseded,
    Withdrawn,
)

#: What a fleet answers to a generation in a trajectory.
Generate = Callable[[str, GenerationRequest], Awaitable[FleetAnswer]]
#: What an action does: its members → outcome and result. Members ``reward`` and ``detail`` of the result are those of the action.
Program = Callable[[Mapping[str, Any]], Awaitable["tuple[str, dict[str, Any]]"]]


async def succeeds(members: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """Complete at once, with exit code 0."""
    return "completed", {"exit_code": 0, "stdout": "", "stderr": ""}


@dataclass
class FakeAction:
    """One submitted action."""

    id: str
    key: str
    members: Mapping[str, Any]
    end: asyncio.Future[ActionEnd]
    task: asyncio.Task[None] | None = None


@dataclass
class _FakeRollout:
    """A rollout in the scheduler."""

    rollout: Rollout
    attempt: int = 0
    records: list[Record] = field(default_factory=list)
    result: asyncio.Future[RolloutResult] = field(
        default_factory=lambda: asyncio.get_running_loop().create_future()
    )
    #: Lease key → waiting time; leases that were not released.
    leases: dict[str, StageLease] = field(default_factory=dict)
    moved: dict[str, SeatMoved] = field(default_factory=dict)
    #: Trajectory → its files.
    trajectories: dict[str, dict[str, bytes]] = field(default_factory=dict)
    actions: dict[str, FakeAction] = field(default_factory=dict)


class FakePort:
    """A scheduler of rollouts with one worker at a time."""

    def __init__(self, program: Program = succeeds, leases: int | None = None) -> None:
        self.program = program
        #: Leases of each stage at once; None: any number.
        self._most = leases
        self.seats: list[Seat] = []
        #: Fleet → its engine.
        self.engines: dict[str, str] = {}
        self.generates: Generate | None = None
        #: Of each action.
        self.execution_seconds = 0.0
        self._leases_open = True
        self.counts: Counter[str] = Counter()
        self.progress: dict[str, RolloutProgress] = {}
        self.finished_trajectories: list[str] = []
        #: Trajectory → its sessions; a test ends one by removing it.
        self.sessions: dict[str, set[str]] = {}
        self._held: dict[str, _FakeRollout] = {}
        self._lost: set[str] = set()
        self._changes: asyncio.Queue[Assigned | Withdrawn] = asyncio.Queue()
        self._noting = asyncio.Event()
        self._actions: dict[str, FakeAction] = {}

    # The scheduler's side

    def submit_rollout(self, rollout: Rollout, **request: Any) -> None:
        """Accept a rollout, with the request that is record 0 of its log, and assign it."""
        self._held[rollout.id] = held = _FakeRollout(rollout)
        held.records.append(Record(REQUEST, dict(request)))
        self.assign(rollout.id)

    def assign(self, rollout: str) -> None:
        """Assign a rollout to the worker, in its next attempt."""
        held = self._held[rollout]
        held.attempt += 1
        self._changes.put_nowait(Assigned(held.rollout, held.attempt))

    def lose_worker(self) -> None:
        """Assign everything again that has not ended: its worker is gone, its leases, and all messages to it."""
        self._changes = asyncio.Queue()
        for rollout, held in self._held.items():
            if not held.result.done():
                held.leases.clear()
                self.assign(rollout)

    def cancel_rollout(self, rollout: str) -> None:
        """Finish a rollout as cancelled, and withdraw it."""
        held = self._held[rollout]
        if not held.result.done():
            self._changes.put_nowait(Withdrawn(rollout, held.attempt, "cancelled"))
            self._finish(held, RolloutResult(RolloutOutcome.CANCELLED, reason="cancelled"))

    def park_rollout(self, rollout: str) -> None:
        """Withdraw a rollout that is resumed later by `assign`."""
        held = self._held[rollout]
        withdrawn = Withdrawn(rollout, held.attempt, "parked", parked=True)
        held.attempt += 1
        held.leases.clear()
        self._changes.put_nowait(withdrawn)

    def move_seat(self, rollout: str, seat: Seat) -> None:
        """Replace the held leases of a rollout by others with ``seat``, as after an outage."""
        for moved in self._held[rollout].moved.values():
            moved(seat)

    def hold_leases(self) -> None:
        """Grant no lease until `grant_leases`."""
        self._leases_open = False

    def grant_leases(self) -> None:
        """Grant leases again."""
        self._leases_open = True
        self._note("grants")

    def limit_leases(self, most: int) -> None:
        """Grant at most so many leases of each stage at once from now on."""
        self._most = most

    def withdraw(self, rollout: str, attempt: int) -> None:
        """Withdraw a rollout, which the worker may not know."""
        self._changes.put_nowait(Withdrawn(rollout, attempt, "withdrawn"))

    def lose_environments(self, rollout: str) -> None:
        """Lose the node of a rollout's environments."""
        held = self._held[rollout]
        self._lost |= set(held.trajectories)
        held.trajectories.clear()
        for action in held.actions.values():
            self._end(action, "unknown", {}, lost=True)

    async def waits_for_lease(self, rollout: str) -> None:
        """Return once a rollout has asked for a lease."""
        await self._noted(f"{rollout} lease", 1)

    async def has_action(self, rollout: str, count: int = 1) -> None:
        """Return once a rollout has submitted so many actions."""
        await self._noted(f"{rollout} action", count)

    async def reads(self, rollout: str, count: int) -> None:
        """Return once the log of a rollout was read so many times."""
        await self._noted(f"{rollout} read", count)

    async def result(self, rollout: str) -> RolloutResult:
        """Return the end of a rollout."""
        return await asyncio.shield(self._held[rollout].result)

    def log(self, rollout: str) -> list[Record]:
        """Return the records of a rollout."""
        return list(self._held[rollout].records)

    def leases(self, rollout: str) -> list[StageLease]:
        """Return the leases that are held."""
        return list(self._held[rollout].leases.values())

    def trajectories(self, rollout: str) -> list[str]:
        """Return the trajectories that are open."""
        return sorted(self._held[rollout].trajectories)

    def actions(self, rollout: str) -> list[FakeAction]:
        """Return the actions in the order of submission."""
        return list(self._held[rollout].actions.values())

    # The worker's side

    async def assignments(self) -> AsyncIterator[Assigned | Withdrawn]:
        """Yield assignments and withdrawals."""
        while True:
            yield await self._changes.get()

    async def append(self, rollout: Rollout, attempt: int, number: int, record: Record) -> None:
        """Append a record."""
        held = self._of(rollout, attempt)
        stored = held.records
        # As a real log does: arrays and headers are bytes afterwards.
        record = msgspec.msgpack.decode(msgspec.msgpack.encode(record), type=Record)
        if number < len(stored):
            if stored[number] != record:
                raise Conflict(f"record {number} is stored, with another content")
        elif number > len(stored):
            raise Conflict(f"record {len(stored)} is next, not {number}")
        else:
            self.counts["appends"] += 1
            stored.append(record)

    async def read(self, rollout: Rollout) -> Sequence[Record]:
        """Return the records."""
        self._note(f"{rollout.id} read")
        return list(self._of(rollout).records)

    async def lease(
        self,
        rollout: Rollout,
        attempt: int,
        stage: Stage,
        number: int,
        moved: SeatMoved | None = None,
    ) -> StageLease:
        """Wait for a lease."""
        self._of(rollout, attempt)
        self._note(f"{rollout.id} lease")
        key = f"{rollout.id}/{stage}/{number}"
        while not self._may_lease(stage, key):
            await self._noting.wait()
            self._of(rollout, attempt)
        held = self._of(rollout, attempt)
        if key not in held.leases:
            self.counts[f"leases of {stage}"] += 1
            seat = self.seats[0] if self.seats and stage is Stage.RUN and rollout.pool else None
            held.leases[key] = StageLease(key, stage, 0.0, seat)
            if moved is not None:
                held.moved[key] = moved
        return held.leases[key]

    async def release(self, lease: StageLease) -> None:
        """Release a lease."""
        held = self._held[lease.id.partition("/")[0]]
        held.leases.pop(lease.id, None)
        held.moved.pop(lease.id, None)
        self._note("releases")

    async def open(
        self, rollout: Rollout, name: str, environment: Mapping[str, Any] | None
    ) -> None:
        """Open a trajectory."""
        self._of(rollout).trajectories.setdefault(name, {})

    async def fork(self, rollout: Rollout, source: str, names: Sequence[str]) -> None:
        """Fork a trajectory."""
        files = self._files(rollout, source)
        for name in names:
            self._of(rollout).trajectories.setdefault(name, dict(files))

    async def finish(self, rollout: Rollout, name: str) -> None:
        """End a trajectory."""
        self._close(self._held[rollout.id], name)

    async def submit(
        self, rollout: Rollout, attempt: int, key: str, members: Mapping[str, Any]
    ) -> str:
        """Submit an action."""
        held = self._of(rollout, attempt)
        if (known := held.actions.get(key)) is not None:
            if known.members != members:
                raise Conflict(f"key {key} was used for another action")
            return known.id
        trajectory = members["trajectory"]
        if trajectory in self._lost:
            raise LostEnvironment(trajectory)
        if not members.get("exec") and not members.get("call"):
            raise InvalidRequest("give exec or call", pointer="/kind")
        self.counts["actions"] += 1
        action = FakeAction(
            f"act_{self.counts['actions']}", key, dict(members),
            asyncio.get_running_loop().create_future(),
        )  # fmt: skip
        held.actions[key] = self._actions[action.id] = action
        action.task = asyncio.ensure_future(self._perform(action))
        self._note(f"{rollout.id} action")
        return action.id

    async def wait(self, rollout: Rollout, action_id: str) -> ActionEnd:
        """Return an action at its end."""
        return await asyncio.shield(self._actions[action_id].end)

    async def cancel(self, rollout: Rollout, action_id: str, reason: str) -> None:
        """Cancel an action."""
        action = self._actions.get(action_id)
        if action is not None:
            self._end(action, "cancelled", {})

    async def put(self, rollout: Rollout, name: str, path: str, content: bytes) -> None:
        """Write a file."""
        self._files(rollout, name)[path] = content

    async def get(self, rollout: Rollout, name: str, path: str) -> bytes:
        """Read a file."""
        files = self._files(rollout, name)
        if path not in files:
            raise NotFound(f"{path} is no file of {name}")
        return files[path]

    async def open_session(
        self, rollout: Rollout, name: str, session: str, members: Mapping[str, Any]
    ) -> None:
        """Open a session."""
        self._files(rollout, name)
        self.sessions.setdefault(name, set()).add(session)

    async def agent_token(self, rollout: Rollout, name: str) -> str:
        """Return a token."""
        return f"tgc_{name}"

    async def connect(self, rollout: Rollout, name: str, port: int) -> Channel:
        """Connect to a server that repeats what it gets."""
        self._files(rollout, name)
        return EchoChannel()

    async def backends(self, pool: str) -> Sequence[Seat]:
        """Return the backends."""
        return [seat for seat in self.seats if seat.pool == pool]

    async def engine(self, fleet: str) -> str:
        """Return the engine of a fleet."""
        return self.engines.get(fleet, "")

    async def generate(
        self,
        rollout: Rollout,
        attempt: int,
        name: str,
        asked: GenerationRequest,
        begun: GenerationBegun,
    ) -> FleetAnswer:
        """Make a generation, as ``generates`` says."""
        self._of(rollout, attempt)
        self.counts["generations"] += 1
        await begun(f"act_g{self.counts['generations']}")
        if self.generates is None:
            return FleetAnswer(failed="the fleet has no worker")
        return await self.generates(name, asked)

    async def report(self, rollout: Rollout, attempt: int, progress: RolloutProgress) -> None:
        """Take progress."""
        self.progress[rollout.id] = progress

    async def finished(self, rollout: Rollout, attempt: int, result: RolloutResult) -> None:
        """Take the end."""
        held = self._of(rollout, attempt)
        self._finish(held, result)

    def _finish(self, held: _FakeRollout, result: RolloutResult) -> None:
        """End a rollout, and what it has."""
        held.result.set_result(result)
        held.leases.clear()
        self._note("ends")
        for name in list(held.trajectories):
            self._close(held, name)
        for action in held.actions.values():
            self._end(action, "cancelled", {})

    def _close(self, held: _FakeRollout, name: str) -> None:
        if held.trajectories.pop(name, None) is not None:
            self.finished_trajectories.append(name)
        for action in held.actions.values():
            if action.members["trajectory"] == name:
                self._end(action, "cancelled", {})

    def _may_lease(self, stage: Stage, key: str) -> bool:
        if not self._leases_open or self._most is None:
            return self._leases_open
        held = [lease for each in self._held.values() for lease in each.leases.values()]
        others = [lease for lease in held if lease.stage is stage and lease.id != key]
        return len(others) < self._most

    def _note(self, what: str) -> None:
        self.counts[what] += 1
        noted, self._noting = self._noting, asyncio.Event()
        noted.set()

    async def _noted(self, what: str, count: int) -> None:
        while self.counts[what] < count:
            await self._noting.wait()

    def _of(self, rollout: Rollout, attempt: int | None = None) -> _FakeRollout:
        held = self._held[rollout.id]
        if held.result.done() or attempt not in (None, held.attempt):
            raise Superseded(rollout.id)
        return held

    def _files(self, rollout: Rollout, name: str) -> dict[str, bytes]:
        if name in self._lost:
            raise LostEnvironment(name)
        held = self._of(rollout)
        if name not in held.trajectories:
            raise NotFound(f"{name} is not open")
        return held.trajectories[name]

    async def _perform(self, action: FakeAction) -> None:
        session = (action.members.get("exec") or {}).get("session")
        if session and session not in self.sessions.get(action.members["trajectory"], ()):
            why = f"tangram: there is no session {session!r}; open it first\n"
            self._end(action, "completed", {"exit_code": 127, "stdout": "", "stderr": why})
            return
        outcome, result = await self.program(action.members)
        self._end(action, outcome, {"session": "idle", **result} if session else result)

    def _end(
        self, action: FakeAction, outcome: str, result: dict[str, Any], *, lost: bool = False
    ) -> None:
        """End an action that has not ended."""
        if action.end.done():
            return
        if action.task is not None and action.task is not asyncio.current_task():
            action.task.cancel()
        result = dict(result)
        reward, detail = result.pop("reward", None), result.pop("detail", "")
        ran = self.execution_seconds
        end = ActionEnd(action.id, outcome, result, reward, detail, 0.0, ran, environment_lost=lost)
        action.end.set_result(end)


class EchoChannel:
    """A stream whose server repeats what it gets."""

    def __init__(self) -> None:
        self._pending: asyncio.Queue[bytes] = asyncio.Queue()

    async def send(self, data: bytes) -> None:
        """Send all of ``data``."""
        self._pending.put_nowait(data)

    async def receive(self) -> bytes:
        """Return the next bytes; empty at the end."""
        return await self._pending.get()

    async def close(self) -> None:
        """Close it; may be repeated."""
        self._pending.put_nowait(b"")
