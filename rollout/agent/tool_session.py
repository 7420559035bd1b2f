"""Session of a tool in the environment: opened before its first command, and again when it has ended.

Each command is an action ``exec`` with ``session``, so it has granted cores while it runs, and its status comes beside its
output. The names of the sessions are numbered, ``bash-1``, ``bash-2``, so that a command that was for a dead shell is never
taken by a new one.

Rules
1. What it does depends on the log alone: a session that the log has a call in is used as it is, and is followed by the next
   number once an action says that it is gone.
2. An action that the session refused ran nothing; the command is submitted again under a name of its own. Only the words of
   a refusal say so: a result that is missing is an error, since the command may have run.
3. A session that ended is replaced with the next command, and `SessionEnd.opened_after` says why.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from domain.action import Outcome
from domain.errors import Unavailable
from rollout.core.records import CALL, stage_of
from rollout.job import Job
from rollout.ports import ActionEnd

#: Sessions that one command may open: a program that ends at once is not opened for ever.
_TRIES: Final = 3
_ENDED: Final = frozenset({"ended", "replaced"})
_REFUSAL: Final = "tangram: "


class SessionEnd(NamedTuple):
    """How a command ended."""

    outcome: str
    #: None: it has not ended, or its status is not known.
    status: int | None
    stdout: str
    stderr: str
    #: ``idle``, ``busy``, ``running``, ``ended``, ``replaced``; empty: the session did not take it.
    state: str
    detail: str
    matched: str
    #: Why the command ran in another session than the one before it; empty: it did not.
    opened_after: str = ""


class ToolSession:
    """Sessions of one tool, one after the other."""

    def __init__(self, name: str, members: Mapping[str, Any], cost: Mapping[str, Any]) -> None:
        """``members`` as in ``POST /trajectories/{id}/sessions``; ``cost`` of each command."""
        self._name = name
        self._members = dict(members)
        self._cost = dict(cost)
        #: Of the present session; 0: none.
        self._number = 0
        #: Why the next command needs another one.
        self._gone = ""

    async def run(self, job: Job, key: str, work: Mapping[str, Any], seconds: float) -> SessionEnd:
        """Run ``work``, members of ``exec``, for at most ``seconds``. Raises CallRefused, Unavailable."""
        if not self._number:
            await self._open(job)
        opened_after = ""
        for attempt in range(_TRIES):
            if self._gone:
                opened_after, self._gone = self._gone, ""
                await self._open(job)
            name = key if not attempt else f"{key}.again{attempt}"
            end = await job.execute(self._action(work, seconds), name=name)
            found = _session_end(end, opened_after)
            if found.state or end.outcome != Outcome.COMPLETED:
                break
            if not found.stderr.startswith(_REFUSAL):
                # It may have run: to submit it again could do its work twice.
                raise Unavailable(f"action {end.id} is completed, and its result cannot be read")
            self._gone = found.stderr.removeprefix(_REFUSAL).strip()
        if found.state in _ENDED:
            self._gone = "it has ended"
        return found

    async def _open(self, job: Job) -> None:
        """Open the next session, unless the log has calls in it already."""
        self._number += 1
        if not _has_call(job, self._session):
            await job.open_session(self._session, self._members)

    @property
    def _session(self) -> str:
        return f"{self._name}-{self._number}"

    def _action(self, work: Mapping[str, Any], seconds: float) -> dict[str, Any]:
        return {
            "kind": "exec",
            "cost": self._cost,
            "timeout_seconds": seconds,
            "exec": {"session": self._session, **work},
        }


def _has_call(job: Job, session: str) -> bool:
    """Whether an action of this stage in this session is in the log."""
    calls = (
        each.header["members"]
        for each in job.history
        if each.kind == CALL and stage_of(each.header["key"]) == job.stage
    )
    return any((call.get("exec") or {}).get("session") == session for call in calls)


def _session_end(end: ActionEnd, opened_after: str) -> SessionEnd:
    result = end.result or {}
    status = result.get("exit_code")
    return SessionEnd(
        end.outcome,
        status if isinstance(status, int) else None,
        str(result.get("stdout") or ""),
        str(result.get("stderr") or ""),
        str(result.get("session") or ""),
        end.detail,
        str(result.get("matched") or ""),
        opened_after,
    )
