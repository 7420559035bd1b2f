"""A set of children that are started in order and ended in the reverse order."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

from tangram_web.supervisor.children import Announce, Child, Pause, Program
from tangram_web.supervisor.errors import StartFailed
from tangram_web.supervisor.home import Home
from tangram_web.supervisor.rotation import rotate

#: So many deaths in a row while starting mean that waiting longer will not help.
HOPELESS_DEATHS = 3
_TAIL_BYTES = 2000


class Supervisor:
    """Starts programs, watches them, and ends all of them."""

    def __init__(
        self, home: Home, cwd: Path, announce: Announce, pause: Pause = asyncio.sleep
    ) -> None:
        self.children: list[Child] = []
        self._home = home
        self._cwd = cwd
        self._announce = announce
        self._pause = pause

    async def start(self, programs: Sequence[Program]) -> None:
        """Start ``programs`` side by side. Raises StartFailed when one cannot be started at all."""
        children = [self._child(program) for program in programs]
        # Entered first: what a cancelled start has begun is still ended by `stop`.
        self.children.extend(children)
        for child in children:
            try:
                await child.start()
            except OSError as error:
                raise StartFailed(f"cannot start {child.program.name}: {error}") from error

    def _child(self, program: Program) -> Child:
        return Child(
            program,
            cwd=self._cwd,
            log=self._home.log(program.name),
            announce=self._announce,
            pause=self._pause,
        )

    async def watch(self) -> None:
        """Return never. Raises StartFailed with the end of its log when a child keeps dying."""
        while True:
            for child in self.children:
                if child.deaths >= HOPELESS_DEATHS:
                    raise StartFailed(f"{child.program.name} does not stay up:\n{tail(child.log)}")
            await asyncio.sleep(0.1)

    async def keep_logs_small(self, every_seconds: float = 5.0) -> None:
        """Return never: put logs aside that have become large. A full disk is told once for each log."""
        told: set[Path] = set()
        while True:
            for log in {child.log for child in self.children}:
                try:
                    await asyncio.to_thread(rotate, log)
                except OSError as error:
                    if log not in told:
                        self._announce(f"{log} cannot be put aside: {error}")
                    told.add(log)
                else:
                    told.discard(log)
            await self._pause(every_seconds)

    async def stop(self) -> None:
        """End all children, the youngest first."""
        for child in reversed(self.children):
            await child.stop()

    def kill(self) -> None:
        """Kill all children now."""
        for child in self.children:
            child.kill()


def tail(log: Path) -> str:
    """Return the last lines of a log."""
    try:
        text = log.read_bytes()[-_TAIL_BYTES:].decode(errors="replace")
    except OSError as error:
        return f"({error})"
    return "\n".join(f"    {line}" for line in text.splitlines()[-15:])
