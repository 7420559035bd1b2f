"""Remote job: one rollout inside a handler process. Its calls are frames to the worker, which has the port."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

import msgspec

from domain.rollouts import Rollout, Stage
from rollout.core.records import ARTEFACT, CALL, OBSERVATION, PREPARED, STAGE, TURN, RolloutRequest
from rollout.job import Answering, CallRefused
from rollout.ports import ActionEnd, Channel, FleetAnswer, Record, Seat

#: Sends a call to the worker and returns its value. Raises CallRefused.
Ask = Callable[..., Awaitable[Any]]


class RemoteJob:
    """The `Job` that handlers get."""

    def __init__(
        self,
        ask: Ask,
        rollout: Rollout,
        attempt: int,
        request: RolloutRequest,
        history: Sequence[Record],
    ) -> None:
        self.rollout = rollout
        self.attempt = attempt
        self.request = request
        self.stage = Stage.INIT
        self.history: list[Record] = list(history)
        self._ask = ask
        self._seat: Seat | None = None
        #: Answers questions from outside, while a method runs.
        self.serving: Answering | None = None
        #: Calls without a name that the present stage has made.
        self._unnamed = 0

    def begin(self, stage: Stage, seat: Seat | None) -> None:
        """Enter a stage."""
        self.stage, self._seat, self._unnamed = stage, seat, 0
        self.serving = None

    def move_seat(self, seat: Seat | None) -> None:
        """Take the seat that the lease of the stage has now."""
        self._seat = seat

    def returned(self, stage: Stage, value: Mapping[str, Any]) -> None:
        """Keep what a stage returned."""
        kind = PREPARED if stage is Stage.INIT else STAGE
        self.history.append(Record(kind, {"stage": stage, "value": value}))

    def value(self, stage: Stage) -> Mapping[str, Any]:
        """Return what INIT or RUN returned; empty before its end."""
        kind = {Stage.INIT: PREPARED, Stage.RUN: STAGE}.get(stage)
        for record in reversed(self.history):
            if record.kind == kind:
                value: Mapping[str, Any] = record.header.get("value") or {}
                return value
        return {}

    async def execute(self, members: Mapping[str, Any], *, name: str = "") -> ActionEnd:
        """Run an action in the stage's trajectory. Raises CallRefused."""
        if not name:
            name = str(self._unnamed)
            self._unnamed += 1
        answer = await self._ask("execute", name, dict(members))
        end = msgspec.convert(answer["end"], ActionEnd)
        if answer["new"]:
            self.history.append(Record(CALL, {"key": answer["key"], "members": dict(members)}))
            self.history.append(Record(OBSERVATION, {"key": answer["key"], "end": answer["end"]}))
        return end

    async def put(self, path: str, content: bytes) -> None:
        """Write a file into the stage's environment. Raises CallRefused."""
        await self._ask("put", path, content)

    async def get(self, path: str) -> bytes:
        """Read a file of the stage's environment. Raises CallRefused."""
        content: bytes = await self._ask("get", path)
        return content

    async def open_session(self, name: str, members: Mapping[str, Any] | None = None) -> None:
        """Open a session of the stage's environment; one that is open is used. Raises CallRefused."""
        await self._ask("open_session", name, dict(members or {}))

    async def connect(self, port: int) -> Channel:
        """Connect to a server in the stage's environment. Raises CallRefused."""
        return RemoteChannel(self._ask, await self._ask("connect", port))

    def serve(self, answer: Answering) -> None:
        """Answer questions from outside until the present method ends."""
        self.serving = answer

    async def agent_access(self) -> Mapping[str, str]:
        """Return ``trajectory`` and ``token`` for calls over HTTP."""
        access: dict[str, str] = await self._ask("agent_access")
        return access

    def seat(self) -> Seat | None:
        """Return the seat of the language model that the lease of RUN took."""
        return self._seat

    async def backends(self, *, wait: bool = True) -> Sequence[Seat]:
        """Return the healthy backends of the rollout's pool."""
        return msgspec.convert(await self._ask("backends", wait), list[Seat])

    async def engine(self) -> str:
        """Return the engine of the rollout's fleet; empty: it is not declared any more. Raises CallRefused."""
        engine: str = await self._ask("engine")
        return engine

    async def generate(self, path: str, body: Mapping[str, Any]) -> FleetAnswer:
        """Make a generation of the rollout's fleet, and return how it ended. Raises CallRefused."""
        return msgspec.convert(await self._ask("generate", path, dict(body)), FleetAnswer)

    async def turn(self, record: Record) -> None:
        """Store a turn; returns when it is on disk."""
        if record.kind != TURN:
            raise CallRefused(f"a record of kind {record.kind!r} is no turn")
        await self._ask("turn", record.header, record.arrays)
        self.history.append(record)

    async def artefact(
        self, name: str, content: bytes, facts: Mapping[str, Any] | None = None
    ) -> None:
        """Store a file or patch with the rollout; returns when it is on disk."""
        header = {"name": name, "facts": dict(facts or {})}
        await self._ask("artefact", header, content)
        self.history.append(Record(ARTEFACT, header, {"content": content}))


class RemoteChannel:
    """A byte stream to a server inside an environment, through the worker."""

    def __init__(self, ask: Ask, number: int) -> None:
        self._ask = ask
        self._number = number

    async def send(self, data: bytes) -> None:
        """Send all of ``data``."""
        await self._ask("channel_send", self._number, data)

    async def receive(self) -> bytes:
        """Return the next bytes; empty at the end."""
        data: bytes = await self._ask("channel_receive", self._number)
        return data

    async def close(self) -> None:
        """Close it; may be repeated."""
        await self._ask("channel_close", self._number)
