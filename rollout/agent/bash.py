"""Bash of an agent: one shell in the environment for the whole run, whose directory, variables and jobs last.

Each command is an action, with granted cores while it runs. The exit status comes from the shell beside its output, so no
output can pass for it.

Rules
1. A command that is not done in its time is interrupted, then ended; the shell goes on. So is a program that waits for input
   when the next call is another command.
2. A program that waits for input ends the call at once; ``input`` types a line into it, or a key (``C-c``, ``C-d``, ``C-z``).
3. A shell that ended is followed by a new one, and the observation says so.
4. Of long output the beginning and the end are kept on the node; its note says how much is missing.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from domain.action import Outcome
from rollout.agent.observations import terminal_text
from rollout.agent.tool_session import SessionEnd, ToolSession
from rollout.agent.tools import (
    ToolRefused,
    function_schema,
    optional_text,
    seconds_argument,
)
from rollout.job import Job

#: Kept of the output of one command.
OUTPUT_BYTES: Final = 30_000
#: A program has so long to end by itself before it is interrupted.
_GRACE_SECONDS: Final = 0.1
_KEYS: Final[Mapping[str, str]] = {"C-c": "\x03", "C-d": "\x04", "C-z": "\x1a"}
#: No colours, no pager: neither has a use without a person before the terminal.
_VARIABLES: Final[Mapping[str, str]] = {
    "TERM": "dumb", "PAGER": "cat", "GIT_PAGER": "cat", "NO_COLOR": "1",
}  # fmt: skip
_DESCRIPTION: Final = (
    "Run a command in a bash shell. The shell stays open: its directory, variables and background jobs last between calls."
    " A command that takes longer than `timeout` seconds is interrupted; run servers and other long programs in the"
    " background, with their output in a file. When a program waits for input, answer it with `input`."
)


class BashTool:
    """Runs commands in a shell that lasts."""

    finishing = False

    def __init__(
        self,
        name: str = "bash",
        *,
        cost: Mapping[str, Any] | None = None,
        timeout_seconds: float = 120.0,
        most_seconds: float = 1800.0,
        output_bytes: int = OUTPUT_BYTES,
        shell: str = "bash",
        cwd: str = "/workspace",
        env: Mapping[str, str] | None = None,
    ) -> None:
        """``cost`` of a command (default: one core); ``timeout_seconds`` of one that states none, and the most it may state.

        ``shell``: ``sh`` for environments without bash.
        """
        self.name = name
        self.schema = function_schema(
            name,
            _DESCRIPTION,
            {
                "command": {"type": "string", "description": "The command, as bash reads it."},
                "input": {
                    "type": "string",
                    "description": "Instead of a command: a line for the program that waits for input, or C-c, C-d, C-z.",
                },
                "timeout": {
                    "type": "number",
                    "description": f"Seconds, by default {timeout_seconds:g}, at most {most_seconds:g}.",
                },
            },
        )
        self._seconds = timeout_seconds
        self._most = most_seconds
        self._output = {"limit_bytes": output_bytes, "keep": "head_tail"}
        members = {
            "shell": shell,
            "cwd": cwd,
            "env": {**_VARIABLES, **(env or {})},
            "size": {"rows": 50, "columns": 200},
        }
        self._session = ToolSession(name, members, cost or {"cpu": 1})
        #: A program in the foreground waits for input.
        self._waits = False

    async def call(self, job: Job, arguments: Mapping[str, Any], key: str) -> str:
        """Run a command, or type input. Raises ToolRefused, CallRefused."""
        command, typed = optional_text(arguments, "command"), optional_text(arguments, "input")
        seconds = seconds_argument(arguments, "timeout", self._seconds, self._most)
        notes: list[str] = []
        opened_after = ""
        if typed is not None and command is None:
            if not self._waits:
                raise ToolRefused("No program waits for input. Give a command.")
            work: dict[str, Any] = {"command": [], "stdin": _KEYS.get(typed, f"{typed}\n")}
        elif command and typed is None:
            if self._waits:
                opened_after = (await self._interrupt(job, f"{key}.before")).opened_after
                notes.append("The program that waited for input was ended.")
            work = {"command": [command]}
        else:
            raise ToolRefused("Give either command, or input for the program that waits for it.")
        work |= {"output": self._output, "expect": {"input": True}}
        end = await self._session.run(job, key, work, seconds)
        output = end.stdout
        if end.outcome == Outcome.TIMEOUT:
            output += (await self._interrupt(job, f"{key}.after")).stdout
            notes.append(f"Not done after {seconds:g} s: it was interrupted.")
        self._waits = end.outcome == Outcome.COMPLETED and end.state == "busy"
        notes += _notes(end, end.opened_after or opened_after)
        return _observation(terminal_text(output), notes)

    async def _interrupt(self, job: Job, key: str) -> SessionEnd:
        """End the program in the foreground: by the time limit of an action that waits for it."""
        self._waits = False
        work = {"command": [], "stdin": "", "output": self._output}
        return await self._session.run(job, key, work, _GRACE_SECONDS)


def _notes(end: SessionEnd, opened_after: str) -> list[str]:
    """Return what is to be said about the end of a command."""
    notes = []
    if opened_after:
        notes.append(
            f"This is a new shell, since the one before was gone: {opened_after}. Its directory and variables are"
            " those of the beginning."
        )
    completed = end.outcome == Outcome.COMPLETED
    if not completed and end.outcome != Outcome.TIMEOUT:
        notes.append(f"It ended {end.outcome}{f': {end.detail}' if end.detail else ''}.")
    if end.state == "ended":
        notes.append(
            f"The shell ended with exit status {end.status}. The next command has a new one."
        )
    elif end.state == "replaced":
        notes.append("The shell was replaced by another program. The next command has a new one.")
    elif completed and not end.state:
        notes.append(f"It was not run: {end.stderr.strip()}")
    elif completed and end.state == "busy":
        notes.append("The program waits for input: give it with `input`.")
    elif completed:
        notes.append(f"exit status {end.status}")
    return notes


def _observation(output: str, notes: list[str]) -> str:
    text = output.rstrip("\n")
    return "\n".join([*([text] if text else []), *(f"[{note}]" for note in notes)])
