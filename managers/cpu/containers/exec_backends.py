"""What the two ways of running an action in a container have in common."""

from __future__ import annotations

import asyncio
import codecs
from dataclasses import dataclass, field
from typing import Protocol

from managers.cpu.containers.cgroups import Usage
from managers.cpu.containers.command import Invocation
from managers.cpu.containers.environment import Environment, Share


class WayLost(Exception):
    """Contact with a running action was lost; its exit status will never be known."""


@dataclass(frozen=True)
class Ending:
    """What it took to end an action's processes."""

    #: Processes that were running and are no more; None: some, not counted.
    ended: int | None = 0
    #: What would not go, in words.
    remaining: str = ""

    def then(self, later: Ending) -> Ending:
        """Return both looks as one."""
        counted = self.ended is not None and later.ended is not None
        ended = (self.ended or 0) + (later.ended or 0)
        return Ending(ended if counted else None, later.remaining)


@dataclass
class Execution:
    """A command that runs in a container."""

    #: Its exit status; fails with WayLost.
    status: asyncio.Future[int]
    stdout: Output
    stderr: Output
    #: What only this execution needs: files, readers.
    cleanups: list[Cleanup] = field(default_factory=list)

    def close(self) -> None:
        """Let everything go."""
        for each in (self.stdout, self.stderr):
            each.close()
        while self.cleanups:
            self.cleanups.pop()()


class Cleanup(Protocol):
    """Something to do at the end."""

    def __call__(self) -> object: ...


class Output(Protocol):
    """One output stream of a command, kept up to a limit."""

    truncated: bool

    def finish(self) -> str:
        """Take what has arrived and return the text that was kept."""

    def close(self) -> None:
        """Let it go; safe to repeat."""


class Way(Protocol):
    """How actions run in containers of one sort."""

    name: str

    async def grow(self, environment: Environment, share: Share) -> None:
        """Give it the cores of an action. Raises OSError or EngineAway; nothing runs then."""

    async def begin(self, environment: Environment, invocation: Invocation) -> Execution:
        """Start the command. Raises WayLost when nobody knows whether it did."""

    async def ask_to_end(self, environment: Environment) -> None:
        """Send SIGTERM to all its processes but the first."""

    async def end(self, environment: Environment, patience_seconds: float) -> Ending:
        """Kill all its processes but the first, until none is left or patience runs out."""

    async def shrink(self, environment: Environment, share: Share) -> None:
        """Take the cores of an action back."""

    def resize(self, environment: Environment, share: Share) -> None:
        """Let what runs go on with other cores, soon."""

    def usage(self, environment: Environment) -> Usage | None:
        """Return what it has used so far, where that can be known."""


class Kept:
    """An output stream that arrives in pieces."""

    def __init__(self, limit_bytes: int) -> None:
        self._limit = max(0, limit_bytes)
        self._kept = bytearray()
        self.truncated = False

    def add(self, content: bytes) -> None:
        """Take a piece."""
        room = self._limit - len(self._kept)
        self._kept += content[:room]
        self.truncated = self.truncated or room < len(content)

    def finish(self) -> str:
        """Return the text that was kept."""
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        return decoder.decode(bytes(self._kept), final=not self.truncated)

    def close(self) -> None:
        """Nothing is held."""
