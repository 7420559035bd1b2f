"""Commands of handlers: actions of kind ``exec`` in the rollout's environment, and what is read of their ends."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from rollout.core.records import ARTEFACT, CALL
from rollout.handlers.base import Job
from rollout.ports import ActionEnd

#: Characters of output that an error shows, from its end.
_SHOWN: Final = 600
COMPLETED: Final = "completed"


class CommandFailed(Exception):
    """A command that has to succeed did not; the text has the end of its output."""


def command(*words: str, family: str = "setup", **exec_members: Any) -> dict[str, Any]:
    """Return the members of an action that runs a command on one core; ``exec_members``: ``env``, ``cwd``, ``stdin``."""
    return {
        "kind": "exec",
        "family": family,
        "cost": {"cpu": 1},
        "exec": {"command": list(words), **exec_members},
    }


def script(
    text: str, *arguments: str, family: str = "setup", **exec_members: Any
) -> dict[str, Any]:
    """Return the members of an action that runs a script of the POSIX shell with arguments ``$1``, ``$2`` …"""
    return command("sh", "-c", text, "sh", *arguments, family=family, **exec_members)


async def execute(job: Job, members: Mapping[str, Any], name: str, what: str) -> str:
    """Run a command that has to succeed, and return its output. Raises CommandFailed, which says ``what`` failed."""
    end = await job.execute(members, name=name)
    if exit_code(end) != 0:
        raise CommandFailed(f"{what}: {failure_of(end)}")
    return output_of(end)


def exit_code(end: ActionEnd) -> int | None:
    """Return the exit code of a command; None: it did not run to its end."""
    if end.outcome != COMPLETED:
        return None
    code = (end.result or {}).get("exit_code")
    return code if isinstance(code, int) else None


def output_of(end: ActionEnd, stream: str = "stdout") -> str:
    """Return what a command wrote."""
    return str((end.result or {}).get(stream) or "")


def failure_of(end: ActionEnd) -> str:
    """Return how a command failed, with the end of its output."""
    if end.outcome != COMPLETED:
        return f"it ended as {end.outcome}{f': {end.detail}' if end.detail else ''}"
    said = (output_of(end, "stderr").strip() or output_of(end).strip())[-_SHOWN:]
    return f"exit code {exit_code(end)}{f': {said}' if said else ''}"


def has_called(job: Job, name: str) -> bool:
    """Return whether the present stage has begun a call, also before a crash."""
    end = f"/{job.stage.value}/{name}"
    return any(
        record.kind == CALL and str(record.header.get("key", "")).endswith(end)
        for record in job.history
    )


def stored_artefact(job: Job, name: str) -> bytes | None:
    """Return an artefact that a stage of this rollout has stored; None: it has not."""
    for record in reversed(job.history):
        if record.kind == ARTEFACT and record.header.get("name") == name:
            return record.arrays.get("content", b"")
    return None


async def store_artefact(
    job: Job, name: str, content: bytes, facts: Mapping[str, Any] | None = None
) -> None:
    """Store an artefact once, also in a stage that continues after a crash."""
    if stored_artefact(job, name) is None:
        await job.artefact(name, content, facts)
