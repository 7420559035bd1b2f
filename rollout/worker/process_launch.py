"""Launch of a handler process: its program, its descriptors, its environment, and how it ends.

Rules
1. A process is ended by its own handle, never by a name (I7); it ends by itself when its worker is gone.
2. It inherits neither settings nor secrets of Tangram, and no descriptor but its socket and its pipe. What the operator
   sets for it is an argument (`rollout.handlers.process_options`).
3. It has a lower priority than Tangram's own parts: a thousand rollouts that begin at once delay no control request.
"""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final, Protocol

from managers.cpu.process.priority import lower
from rollout.handlers.base import BLOCKED_SECONDS
from rollout.handlers.process_options import ProcessOptions
from rollout.worker.handler_process import BLOCKED_STATUS

#: Prefixes of variables that a handler does not see.
_SECRET: Final = ("TANGRAM_", "DJANGO_", "CELERY_", "REDIS_", "DATABASE_")
_PROGRAM: Final = "rollout.worker.handler_process"
_ROOT: Final = Path(__file__).resolve().parents[2]
#: Beyond the value of its worker: a third of the weight of the parts that answer requests meanwhile.
NICE: Final = 5


class HandlerProgram(Protocol):
    """A running handler process."""

    #: The worker's end of its socket.
    socket: socket.socket

    def kill(self) -> None:
        """End it now; may be repeated."""

    async def end(self) -> tuple[str, int | None]:
        """Wait for its end. Return the reason, and the job that blocked it, if one did."""


class HandlerProcess:
    """A child process."""

    def __init__(
        self, blocked_seconds: float = BLOCKED_SECONDS, options: ProcessOptions | None = None
    ) -> None:
        """``blocked_seconds``: a handler that blocks its process for so long has failed."""
        self.socket, theirs = socket.socketpair()
        self._verdict, verdict = os.pipe()
        given = (options or ProcessOptions()).argument()
        arguments = ["-m", _PROGRAM, str(verdict), str(blocked_seconds), given]
        try:
            self.process = subprocess.Popen(
                [sys.executable, *arguments],
                stdin=theirs.fileno(), stdout=2, pass_fds=(verdict,),
                env=environment_of(os.environ), start_new_session=True,
            )  # fmt: skip
        except BaseException:
            self.socket.close()
            os.close(self._verdict)
            raise
        finally:
            theirs.close()
            os.close(verdict)
        lower(self.process.pid, os.getpriority(os.PRIO_PROCESS, 0) + NICE)

    def kill(self) -> None:
        """End it now; may be repeated."""
        if self.process.returncode is None:
            self.process.kill()

    async def end(self) -> tuple[str, int | None]:
        """Wait for its end. Return the reason, and the job that blocked it, if one did."""
        # Its socket has closed: it has ended, or is about to.
        self.kill()
        status = await asyncio.to_thread(self.process.wait)
        said = os.read(self._verdict, 32).decode()
        os.close(self._verdict)
        job = int(said) if said.isdecimal() else None
        if status == BLOCKED_STATUS:
            return "a handler blocked its event loop", job
        if status < 0:
            return f"it was ended by signal {-status}", None
        return f"it ended with status {status}", None


def environment_of(present: Mapping[str, str]) -> dict[str, str]:
    """Return the variables of a handler process."""
    kept = {name: value for name, value in present.items() if not name.startswith(_SECRET)}
    path = [str(_ROOT), *filter(None, [present.get("PYTHONPATH")])]
    return {**kept, "PYTHONPATH": os.pathsep.join(path)}


async def launch(options: ProcessOptions | None = None) -> HandlerProgram:
    """Start a handler process."""
    return HandlerProcess(options=options)
