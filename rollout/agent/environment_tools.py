"""Tools at the action server of the environment: cells of IPython, and an editor that models know.

`IPythonTool` executes a cell in one interpreter, whose variables last; IPython where the environment's Python has it, else the plain
interpreter. `EditorTool` has the commands of SWE-agent's and OpenHands' ``str_replace_editor``: ``view``, ``create``, ``str_replace``,
``insert``, ``undo_edit``. Both run on granted cores, and never in the process of the agent.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from rollout.agent.action_server import ActionServer, ServerAnswer
from rollout.agent.observations import terminal_text
from rollout.agent.tools import function_schema, seconds_argument, text_argument
from rollout.job import Job

_EDIT_SECONDS: Final = 60.0
_CELL: Final = (
    "Execute a cell of Python code in an IPython environment. Variables, imports and functions last between calls. The"
    " value of an expression at the end of the cell is shown."
)
_EDITOR: Final = (
    "View, create and edit text files. `view` shows a file with line numbers, or what is in a directory; `create` makes a new"
    " file and does not overwrite one; `str_replace` replaces `old_str`, which must be in the file exactly once, by"
    " `new_str`; `insert` puts `new_str` after line `insert_line`; `undo_edit` takes back the last edit of the file."
)


class IPythonTool:
    """Executes cells of Python."""

    finishing = False

    def __init__(
        self,
        server: ActionServer | None = None,
        name: str = "ipython",
        *,
        timeout_seconds: float = 120.0,
        most_seconds: float = 1800.0,
    ) -> None:
        """``timeout_seconds`` of a cell that states none, and the most it may state."""
        self.name = name
        self.schema = function_schema(
            name,
            _CELL,
            {
                "code": {"type": "string", "description": "The code of the cell."},
                "timeout": {
                    "type": "number",
                    "description": f"Seconds, by default {timeout_seconds:g}, at most {most_seconds:g}.",
                },
            },
            ["code"],
        )
        self._server = server or ActionServer()
        self._seconds, self._most = timeout_seconds, most_seconds

    async def call(self, job: Job, arguments: Mapping[str, Any], key: str) -> str:
        """Execute a cell. Raises ToolRefused, CallRefused."""
        code = text_argument(arguments, "code")
        seconds = seconds_argument(arguments, "timeout", self._seconds, self._most)
        answer = await self._server.ask(job, key, "ipython", {"code": code}, seconds)
        notes = _notes(answer, "Its variables are gone.")
        if answer.status == "timeout":
            notes.append(f"Not done after {seconds:g} s: it was interrupted.")
        text = terminal_text(answer.output).rstrip("\n")
        if not text and not notes:
            return "[no output]"
        return "\n".join([*([text] if text else []), *(f"[{note}]" for note in notes)])


class EditorTool:
    """Views and edits files."""

    finishing = False

    def __init__(
        self, server: ActionServer | None = None, name: str = "str_replace_editor"
    ) -> None:
        self.name = name
        self.schema = function_schema(
            name,
            _EDITOR,
            {
                "command": {
                    "type": "string",
                    "enum": ["view", "create", "str_replace", "insert", "undo_edit"],
                },
                "path": {"type": "string", "description": "Absolute path of a file or directory."},
                "file_text": {"type": "string", "description": "For `create`: the content."},
                "old_str": {
                    "type": "string",
                    "description": "For `str_replace`: what is replaced.",
                },
                "new_str": {
                    "type": "string",
                    "description": "For `str_replace` and `insert`: the new text.",
                },
                "insert_line": {
                    "type": "integer",
                    "description": "For `insert`: the line after which it is inserted; 0: the beginning.",
                },
                "view_range": {
                    "type": "array",
                    "items": {"type": "integer"},
                    "description": "For `view`: the first and the last line, counted from 1; -1 is the last one.",
                },
            },
            ["command", "path"],
        )
        self._server = server or ActionServer()

    async def call(self, job: Job, arguments: Mapping[str, Any], key: str) -> str:
        """Do a command of the editor. Raises CallRefused."""
        answer = await self._server.ask(job, key, "editor", arguments, _EDIT_SECONDS)
        notes = _notes(answer, "Earlier edits cannot be undone.")
        if answer.status == "timeout":
            notes.append("The editor did not answer.")
        return "\n".join([answer.output.rstrip("\n"), *(f"[{note}]" for note in notes)]).lstrip(
            "\n"
        )


def _notes(answer: ServerAnswer, lost: str) -> list[str]:
    """Return what is to be said about ends of the server and its kernel; ``lost``: what is gone with them."""
    notes = []
    if answer.opened_after:
        notes.append(f"The server had ended ({answer.opened_after}) and is a new one. {lost}")
    if answer.detail:
        notes.append(f"It ended: {answer.detail}. {lost}")
    return notes
