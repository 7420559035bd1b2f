"""Sessions of ProRL's clients: what is between ``/start`` and ``/stop`` of a task, and the client of one request.

A session is a record in Redis, which no restart loses. Its id is part of the keys of its jobs, so jobs of two sessions are different,
whatever their ids.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass

import msgspec

from domain.fleets import fleet_name
from facades.door_settings import DoorSettings
from facades.prorl.messages import pool_of
from scheduler.runtime.gateway.facade import FacadePort
from scheduler.runtime.gateway.http import HttpError
from scheduler.runtime.gateway.native_rollouts import NativeRollouts


def not_running() -> HttpError:
    """Return the refusal of what needs a session."""
    return HttpError(503, "not_running", "Server is not running. Please start the server first.")


class ProrlSession(msgspec.Struct, frozen=True):
    """What is between ``/start`` and ``/stop`` of a task."""

    id: str


class ProrlSessions:
    """The sessions of all projects. All methods raise Unavailable when Redis does not answer."""

    def __init__(self, port: FacadePort) -> None:
        self._records = port.records

    async def start(self, project: str, task: str) -> ProrlSession | None:
        """Start the session of a task; None when it runs already. Raises CapacityError for one too many."""
        session = ProrlSession(secrets.token_hex(8))
        made = await self._records.add(project, f"session/{task}", msgspec.to_builtins(session))
        return session if made else None

    async def running(self, project: str, task: str) -> ProrlSession | None:
        """Return the session of a task; None when it does not run."""
        record = await self._records.get(project, f"session/{task}")
        return None if record is None else msgspec.convert(record, ProrlSession)

    async def pools(self, project: str) -> list[str]:
        """Return the pools of all tasks whose sessions run."""
        names = await self._records.all(project)
        return [pool_of(project, name.removeprefix("session/")) for name in names]

    async def stop(self, project: str, task: str) -> bool:
        """End the session of a task; return whether it ran."""
        return await self._records.remove(project, f"session/{task}")


@dataclass(frozen=True)
class ProrlClient:
    """The client of one request: its task, its pool and its calls."""

    project: str
    task: str
    settings: DoorSettings
    rollouts: NativeRollouts
    session: ProrlSession | None

    @property
    def fleet(self) -> str:
        """The fleet that its rollouts sample from, by the settings; empty: a pool of LLM servers."""
        return fleet_name(self.settings.llm) or ""

    @property
    def pool(self) -> str:
        """The pool of its LLM servers: that of the task, or the one of the settings; ``fleet:NAME`` where they name a fleet."""
        return self.settings.llm or pool_of(self.project, self.task)

    @property
    def started(self) -> ProrlSession:
        """Its session. Raises HttpError 503."""
        if self.session is None:
            raise not_running()
        return self.session
