"""Looks at sessions: how a command in a session ended whose action ended unknown, as when its node worker was killed.

The shell goes on meanwhile, and the next worker takes it over. It counts its commands, so the number of the last one that it
took says whether that of the action was among them.

Rules
1. A look is an action in the same session without a command. It ends when the shell waits for its next one, or as the
   command itself would (a program waits for input, the time is over). It may be repeated.
2. The number is that of the command: it has ended, with the status that the look has. It is the one before: the shell never got the
   command, which is submitted again. Anything else says nothing: the end of the action stays unknown (I3).
3. What was printed before the next worker took the session over is lost, and the result says so.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

from domain.action import Outcome
from rollout.core.records import Facts, StoredCall
from rollout.ports import ActionEnd

#: Looks at one command; each follows a command that was submitted again.
MAX_LOOKS: Final = 3
LOST_OUTPUT: Final = (
    "[tangram: the node worker was restarted while this ran; earlier output is lost]\n"
)


class NeverTaken(Exception):
    """The shell never got the command."""


def look_at(call: StoredCall) -> dict[str, Any] | None:
    """Return the members of an action that looks at the session of a command; None where a look cannot tell its end."""
    work = call.members.get("exec") or {}
    expect = work.get("expect") or {}
    if not (work.get("session") and work.get("command")) or expect.get("pattern") is not None:
        return None
    kept = {name: work[name] for name in ("session", "output", "expect") if work.get(name)}
    return {**call.members, "exec": {**kept, "command": [], "stdin": ""}, "replay_safe": True}


def after_look(facts: Facts, call: StoredCall, end: ActionEnd, look: ActionEnd) -> ActionEnd:
    """Return how the command of a call ended: ``end`` where the look does not say. Raises NeverTaken."""
    if look.environment_lost:
        return msgspec.structs.replace(end, environment_lost=True)
    result = look.result or {}
    state, number = result.get("session"), result.get("command_number")
    if look.outcome not in (Outcome.COMPLETED, Outcome.TIMEOUT) or not state:
        return end
    expected = _taken_before(facts, call) + 1
    # The shell waited for a command before: what it runs now is the one of the call.
    if number == expected or (number is None and state == "busy"):
        shown = {
            **result,
            "stdout": LOST_OUTPUT + str(result.get("stdout") or ""),
            "truncated": True,
        }
        return msgspec.structs.replace(look, id=end.id, result=shown)
    if (number or 0) == expected - 1 and state == "idle":
        raise NeverTaken
    return end


def _taken_before(facts: Facts, call: StoredCall) -> int:
    """Return how many commands the session of a call had taken before it, by the log."""
    session = call.members["exec"]["session"]
    ends = (
        each.end
        for each in facts.calls.values()
        if each.trajectory == call.trajectory
        and (each.members.get("exec") or {}).get("session") == session
    )
    numbers = ((end.result or {}).get("command_number") for end in ends if end is not None)
    return max((number for number in numbers if isinstance(number, int)), default=0)
