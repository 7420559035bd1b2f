"""`describe`: the history of one action, as lines of text."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime

from tangram_client.cli.output import seconds_text, units_text
from tangram_client.models import ActionView

#: Lines shown of each output stream; all of it is in ``-o json``.
OUTPUT_LINES = 20
#: Characters shown of its command; all of it is in ``-o json``.
COMMAND_CHARACTERS = 200


def described(action: ActionView) -> Iterator[str]:
    """Yield the lines of a description."""
    yield from _head(action)
    yield ""
    yield from _timeline(action)
    if action.waiting is not None:
        yield ""
        yield f"waits: {action.waiting.reason}"
        if action.waiting.position is not None:
            yield f"       {action.waiting.position} before it on {action.waiting.resource or 'it'}"
        if action.waiting.blocked_by:
            yield f"       behind {action.waiting.blocked_by}"
    for name, text in (("stdout", action.stdout), ("stderr", action.stderr)):
        if text:
            yield ""
            yield from output_lines(name, text)
    if action.truncated and action.stdout_bytes + action.stderr_bytes:
        yield ""
        yield f"truncated: it wrote {action.stdout_bytes} bytes to stdout, {action.stderr_bytes} to stderr"


def _head(action: ActionView) -> Iterator[str]:
    yield action.id
    outcome = f", {action.outcome}" if action.outcome else ""
    request = action.request or {}
    facts = {
        "command": " ".join(str(request.get("command", "")).split())[:COMMAND_CHARACTERS],
        "state": f"{action.state}{outcome}",
        "detail": action.detail,
        "exit code": action.exit_code,
        "reward": action.reward,
        "kind": action.kind,
        "door": action.door,
        "submitter": request.get("submitted_by"),
        "project": action.project,
        "task": action.task,
        "trajectory": action.trajectory,
        "units": units_text(action.units) if action.units else None,
        "node": _place(action),
        "attempt": action.attempt if action.attempt > 1 else None,
    }
    for name, value in facts.items():
        if value not in {None, ""}:
            yield f"  {name:<11} {value}"


def _place(action: ActionView) -> str | None:
    placement = action.placement or {}
    if not placement.get("node"):
        return None
    cores = ",".join(str(core) for core in placement.get("cpus") or ())
    shared = ", shared" if placement.get("shared") else ""
    return f"{placement['node']}{f' (cores {cores}{shared})' if cores else ''}"


def _timeline(action: ActionView) -> Iterator[str]:
    moments = [
        ("submitted", action.submitted_at),
        ("granted", action.granted_at),
        ("started", action.started_at),
        ("finished", action.finished_at),
    ]
    before: datetime | None = None
    for name, text in moments:
        if text is None:
            continue
        at = datetime.fromisoformat(text.replace("Z", "+00:00"))
        after = "" if before is None else f"  + {seconds_text((at - before).total_seconds())}"
        yield f"{at:%Y-%m-%d %H:%M:%S}.{at.microsecond // 1000:03d}Z  {name:<10}{after}".rstrip()
        before = at
    if action.timing is not None:
        timing = action.timing
        yield (
            f"ACT {seconds_text(timing.act_seconds)} = queue {seconds_text(timing.queue_seconds)}"
            f" + overhead {seconds_text(timing.overhead_seconds)}"
            f" + execution {seconds_text(timing.execution_seconds)}"
        )


def output_lines(name: str, text: str) -> Iterator[str]:
    """Yield the end of an output stream, below its name."""
    lines = text.splitlines()
    hidden = len(lines) - OUTPUT_LINES
    yield f"{name}:" if hidden <= 0 else f"{name} (last {OUTPUT_LINES} of {len(lines)} lines):"
    yield from (f"  {line}" for line in lines[-OUTPUT_LINES:])
