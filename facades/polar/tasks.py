"""Tasks of Polar's clients: submit, show, cancel.

A task is a record in Redis (`facades.polar.records`); its rollouts are the system's. What happens at their ends is the work of a watch
(`facades.polar.watches`).

Rules
1. One task of an id runs at a time: a second one is a Conflict. An id whose task has ended may be used again.
2. A submission whose web process was killed, or whose answer was lost, is continued by the repetition of its body: its rollouts are
   submitted once. Cancels find them too.
3. A cancel of an unknown id is remembered for `TOMBSTONE_SECONDS` where the client asks for it: a submission that comes late is a
   Conflict. One that is on its way when the cancel comes ends its rollouts itself.
4. A cancel is stored before it is carried out; its repetition cancels what still lives.
5. A record is forgotten `KEEP_SECONDS` after its last use; the tokens may be deleted before (``TANGRAM_ROLLOUT_LOG_SECONDS``).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import suppress
from typing import Any, Final

from msgspec.structs import replace

from domain.errors import Conflict, TangramError, Unavailable
from facades.polar.messages import PolarTask
from facades.polar.records import (
    PolarRecord,
    PolarRecords,
    claim_of,
    key_of,
    packed_metadata,
)
from facades.polar.sessions import KeptResults, live_of, results
from scheduler.runtime.gateway.http import encode_json
from scheduler.runtime.gateway.native_calls import NativeCalls
from scheduler.runtime.gateway.native_rollouts import NativeRollouts

_ATTEMPTS: Final = 8
_CANCELLED: Final = "its task was cancelled"


class PolarTasks:
    """The tasks of all projects."""

    def __init__(self, records: PolarRecords) -> None:
        self._records = records
        self._kept = KeptResults()

    async def submit(
        self, native: NativeCalls, task: PolarTask, members: Mapping[str, Any]
    ) -> None:
        """Submit the rollouts of a task. Raises Conflict, and what a native submission raises."""
        project, task_id = await native.project(), task.task_id
        metadata = await asyncio.to_thread(packed_metadata, task.metadata)
        claim = await self._claim(native, project, task)
        held = await self._records.hold(project, task_id, claim.nonce)
        if held is None:
            raise _running(task_id)
        try:
            await self._records.put_metadata(project, task_id, claim, metadata)
            rollouts = await self._submitted(native, project, task_id, claim, members)
            await self._run(native, project, task_id, claim, rollouts)
        finally:
            with suppress(TangramError):  # it expires
                await asyncio.shield(self._records.let_go(project, task_id, claim.nonce, held))

    async def pieces(
        self, native: NativeCalls, task_id: str, record: PolarRecord, *, counts: bool = True
    ) -> AsyncIterator[bytes]:
        """Yield a task in Polar's form as JSON, one session at a time; ``counts``: with the numbers of its sessions."""
        rollouts = await self._rollouts(native, task_id, record)
        live = await live_of(native, task_id, rollouts)
        metadata = await self._records.metadata(await native.project(), task_id, record)
        yield encode_json({"task_id": task_id, "result_paths": []})[:-1] + b',"results":['
        number, ended = 0, [each for each in rollouts if each not in live]
        found = results(native, task_id, ended, metadata, record.stopped, self._kept, record.nonce)
        async for result in found:
            yield b"," + result if number else result
            number += 1
        facts: dict[str, Any] = {"status": _status(record, rollouts, live)}
        if counts:
            facts |= {"total_sessions": record.samples, "completed_sessions": number}
        yield b"]," + encode_json(facts)[1:]

    async def cancel(
        self, native: NativeCalls, task_id: str, *, register: bool
    ) -> dict[str, Any] | None:
        """Cancel a task and return it without results; None for an unknown one that is not to be remembered."""
        project, records = await native.project(), self._records
        for _ in range(_ATTEMPTS):
            before = await records.get(project, task_id)
            if before is None:
                if not register:
                    return None
                tombstone = PolarRecord("tombstone", "")
                if await records.add(project, task_id, tombstone):
                    return _cancelled(task_id)
                continue
            rollouts = await self._rollouts(native, task_id, before)
            live = await live_of(native, task_id, rollouts)
            if before.state == "tombstone":
                await NativeRollouts(native).cancel_all(live, _CANCELLED)
                return _cancelled(task_id) if register or rollouts else None
            if before.state != "cancelled" and (live or not rollouts):
                # Without rollouts its submission finds the tombstone, and ends what it has submitted.
                state = "cancelled" if rollouts else "tombstone"
                after = replace(before, state=state, rollouts=rollouts)
                if not await records.replace(project, task_id, before, after):
                    continue
                before = after
            await NativeRollouts(native).cancel_all(live, _CANCELLED)
            return {
                **_cancelled(task_id),
                "status": _status(before, rollouts, live),
                "total_sessions": before.samples,
                "completed_sessions": len(rollouts) - len(live),
            }
        raise Conflict(f"task {task_id} changes all the time: try again")

    # Submission

    async def _claim(self, native: NativeCalls, project: str, task: PolarTask) -> PolarRecord:
        """Return the claim of a submission: a new one, or that of an earlier request with this body. Raises Conflict."""
        claim, task_id = claim_of(task), task.task_id
        if await self._records.add(project, task_id, claim):
            return claim
        before = await self._records.get(project, task_id)
        if before is None:
            raise _running(task_id)
        if before.state == "submitting" and before.digest == claim.digest:
            return before
        await self._check_ended(native, project, task_id, before)
        if not await self._records.replace(project, task_id, before, claim):
            raise _running(task_id)
        return claim

    async def _check_ended(
        self, native: NativeCalls, project: str, task_id: str, record: PolarRecord
    ) -> None:
        """Raise Conflict for a task that runs, or was cancelled before it came."""
        if record.state == "tombstone":
            raise Conflict(f"task {task_id} was cancelled before submission")
        if record.state == "submitting":  # with another body
            held = await self._records.hold(project, task_id, record.nonce)
            if held is None:
                raise _running(task_id)
            await self._records.let_go(project, task_id, record.nonce, held)
        rollouts = await self._rollouts(native, task_id, record)
        if record.state != "cancelled" and await live_of(native, task_id, rollouts):
            raise _running(task_id)

    async def _submitted(
        self,
        native: NativeCalls,
        project: str,
        task_id: str,
        claim: PolarRecord,
        members: Mapping[str, Any],
    ) -> list[str]:
        """Return the rollouts of a claim, submitted by this request or an earlier one."""
        rollouts, key = NativeRollouts(native), key_of(task_id, claim)
        try:
            made = await rollouts.remembered(key)
            if not made:
                digest = bytes.fromhex(claim.digest)
                made = await rollouts.submit(
                    {**members, "project": project}, key=key, digest=digest
                )
        except Unavailable:  # they may be submitted all the same: a repetition continues
            raise
        except TangramError:
            await self._records.remove(project, task_id, claim)
            raise
        return [each.id for each in made]

    async def _run(
        self,
        native: NativeCalls,
        project: str,
        task_id: str,
        claim: PolarRecord,
        rollouts: list[str],
    ) -> None:
        """Store that a task runs. Raises Conflict when it was cancelled meanwhile, and cancels its rollouts."""
        after = replace(claim, state="running", rollouts=rollouts)
        if await self._records.replace(project, task_id, claim, after):
            return
        found = await self._records.get(project, task_id)
        if found is not None and found.nonce == claim.nonce and found.state == "running":
            raise _running(task_id)  # another request with this body has stored it
        await NativeRollouts(native).cancel_all(
            rollouts, "its task was cancelled while it was submitted"
        )
        raise Conflict(f"task {task_id} was cancelled before submission")

    async def _rollouts(self, native: NativeCalls, task_id: str, record: PolarRecord) -> list[str]:
        """Return the rollouts of a task, also those of a submission that has not ended."""
        if record.rollouts or not record.nonce:
            return record.rollouts
        made = await NativeRollouts(native).remembered(key_of(task_id, record))
        return [each.id for each in made]


def _status(record: PolarRecord, rollouts: list[str], live: set[str]) -> str:
    if record.state in ("cancelled", "tombstone"):
        return "cancelled"
    return "completed" if rollouts and not live else "running"


def _cancelled(task_id: str) -> dict[str, Any]:
    return {
        "task_id": task_id, "status": "cancelled", "total_sessions": 0, "completed_sessions": 0,
        "results": [], "result_paths": [],
    }  # fmt: skip


def _running(task_id: str) -> Conflict:
    return Conflict(f"task {task_id} is already running")
