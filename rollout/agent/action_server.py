"""Action server of an agent's environment: one program there that executes cells of Python and edits files.

It is a session of `rollout.agent.programs.server_program`, so its variables and its history of edits last between actions. Each
request is an action in that session: the server, its kernel and what a cell starts have granted cores while it runs. The status
of a request is a member of the server's answer, apart from everything that was printed.

`IPythonTool` and `EditorTool` made with one `ActionServer` share its bookkeeping; made without, they share the server all the
same, since sessions are opened by name.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any, Final, NamedTuple

from domain.action import Outcome
from rollout.agent import programs
from rollout.agent.tool_session import SessionEnd, ToolSession
from rollout.agent.tools import ToolRefused
from rollout.job import Job

#: Of one answer: what the server keeps of an output, escaped.
ANSWER_BYTES: Final = 512 * 1024
#: Of one request: a session takes little more as input that is not read yet.
MAX_REQUEST_BYTES: Final = 512 * 1024
#: The server ends a cell itself; the time limit of its action is for a server that does not.
_GRACE_SECONDS: Final = 10.0


class ServerAnswer(NamedTuple):
    """Answer to one request."""

    #: ``ok``, ``error`` (the code raised, or the edit was refused), ``timeout``, ``died`` (the kernel or the server ended).
    status: str
    output: str
    #: What ended, and why, for the model.
    detail: str = ""
    #: Why the request went to another server than the one before it; empty: it did not.
    opened_after: str = ""


class ActionServer:
    """The action server of one run of an agent."""

    def __init__(
        self,
        *,
        python: str = "python3",
        cost: Mapping[str, Any] | None = None,
        cwd: str = "/workspace",
        env: Mapping[str, str] | None = None,
        name: str = "actions",
    ) -> None:
        """``python``: of the environment, 3.7 or later; ``cost`` of a request (default: one core)."""
        members = {
            "shell": [python, "-u", "-c", *programs_of_server()],
            "pty": False,
            "cwd": cwd,
            "env": dict(env or {}),
        }
        self._session = ToolSession(name, members, cost or {"cpu": 1})

    async def ask(
        self, job: Job, key: str, tool: str, arguments: Mapping[str, Any], seconds: float
    ) -> ServerAnswer:
        """Send a request and return its answer. Raises ToolRefused, CallRefused, Unavailable."""
        request = {"id": key, "tool": tool, "arguments": dict(arguments), "seconds": seconds}
        line = json.dumps(request) + "\n"
        if len(line) > MAX_REQUEST_BYTES:
            raise ToolRefused(
                f"The arguments are too long: {len(line)} bytes, at most {MAX_REQUEST_BYTES}."
            )
        work = {
            "command": [],
            "stdin": line,
            "output": {"limit_bytes": ANSWER_BYTES, "keep": "tail"},
            "expect": {"pattern": re.escape(f'"end": "{key}"}}')},
        }
        end = await self._session.run(job, key, work, seconds + _GRACE_SECONDS)
        return _answer_of(end, key)


@cache
def programs_of_server() -> tuple[str, str, str]:
    """Return the texts of the server and of its two parts: words behind ``python -c``."""
    folder = Path(programs.__file__).parent
    server, editor, kernel = (
        (folder / f"{name}_program.py").read_text() for name in ("server", "editor", "kernel")
    )
    return server, editor, kernel


def _answer_of(end: SessionEnd, key: str) -> ServerAnswer:
    for line in reversed(end.stdout.split("\n")):
        try:
            # Not msgspec's: it refuses halves of surrogate pairs, which programs print.
            found = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if isinstance(found, dict) and found.get("end") == key:
            died = found.get("died")
            return ServerAnswer(
                str(found.get("status")),
                str(found.get("output")),
                "" if died is None else _end_of_kernel(died),
                end.opened_after,
            )
    if end.outcome == Outcome.TIMEOUT:
        return ServerAnswer("timeout", "", "the server did not answer", end.opened_after)
    why = end.stderr.strip() or end.detail or f"its action ended {end.outcome}"
    return ServerAnswer("died", "", why, end.opened_after)


def _end_of_kernel(status: Any) -> str:
    """Return why a kernel ended: its exit status, or below 0 its signal."""
    if isinstance(status, int) and status < 0:
        return f"the kernel was ended by signal {-status}"
    return f"the kernel ended with exit status {status}"
