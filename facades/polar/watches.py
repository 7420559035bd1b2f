"""Watches of Polar's tasks: the early stop and the callback, at the ends of the rollouts.

A *watch* ends the other rollouts once enough of them are usable, and sends the result to the callback URL. It works in one web process at a
time: in the one that accepted the task, and after its end in any other, which looks for such tasks at its start and every
`ADOPT_SECONDS`. The client need not ask for the task.

Rules
1. A watch belongs to one task, not to its id: a task that has the id of a cancelled one has a watch of its own at once.
2. The number of an early stop is stored after all cancels, which may be repeated: a watch that fails between them begins again.
3. A part of Tangram that does not answer is asked again, every `RETRY_SECONDS`, by the same watch.
4. A cancelled task calls nothing back.
5. A watch that another process goes on with acts for the name of the token that submitted the task, with the right to read and to
   cancel in the task's project, and nothing else.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import MutableMapping
from contextlib import suppress
from typing import Any, Final

from msgspec.structs import replace

from domain.errors import CapacityError, TangramError
from domain.principals import Principal, Scope
from facades.polar.records import KEEP_SECONDS, PolarRecord, PolarRecords
from facades.polar.results import EARLY_STOP
from facades.polar.sessions import end_of
from facades.polar.tasks import PolarTasks
from scheduler.runtime.gateway.facade import FacadePort
from scheduler.runtime.gateway.http import HttpRequest
from scheduler.runtime.gateway.native_calls import NativeCalls
from scheduler.runtime.gateway.native_rollouts import NativeRollouts

log = logging.getLogger(__name__)

#: Another web process may watch a task when its watch was not renewed for so long.
WATCH_SECONDS: Final = 30
RETRY_SECONDS: Final = 1.0
#: Between two looks for watches of processes that ended.
ADOPT_SECONDS: Final = 15.0
#: Watches are noted for so long, as the records of their tasks.
_NOTED_SECONDS: Final = 2 * KEEP_SECONDS
#: Pauses between attempts of a callback.
PAUSES: Final = (1.0, 5.0, 25.0)


class PolarWatches:
    """The watches of this process."""

    def __init__(self, port: FacadePort, records: PolarRecords, tasks: PolarTasks) -> None:
        self._port = port
        self._records = records
        self._tasks = tasks
        #: By the names of their keys in Redis, with the project.
        self._watches: dict[tuple[str, str], asyncio.Task[None]] = {}
        self._adopting: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Look for watches of processes that ended, from now on."""
        self._adopting = asyncio.create_task(self._adopt())

    async def watch(self, native: NativeCalls, task_id: str, by: str) -> str:
        """See to the early stop and the callback of a task, unless a process does; return its nonce, empty: nothing is left to do.

        ``native`` outlives its request; ``by``: the name of its token.
        """
        project = await native.project()
        record = await self._records.get(project, task_id)
        if record is None or not record.is_watched:
            return ""
        name = f"watch/{task_id}/{record.nonce}"
        key, held = (project, name), {"watch": secrets.token_hex(8)}
        if key in self._watches:
            return record.nonce
        if not await self._port.timed.add(project, name, held, WATCH_SECONDS):
            return record.nonce
        await self._port.timed.note((project, task_id, by, record.nonce), _NOTED_SECONDS)
        watching = asyncio.create_task(
            self._watching(native, project, task_id, record.nonce, name, held)
        )
        self._watches[key] = watching
        watching.add_done_callback(lambda _: self._watches.pop(key, None))
        return record.nonce

    async def _adopt(self) -> None:
        """Go on with the watches of processes that ended, until cancelled."""
        await self._port.repeat(self._adopt_all, ADOPT_SECONDS)

    async def _adopt_all(self) -> None:
        for work in await self._port.timed.noted():
            await self._adopt_one(work)

    async def _adopt_one(self, work: list[str]) -> None:
        project, task_id, by, nonce = work
        principal = Principal(by, project, frozenset({Scope.READ, Scope.SUBMIT}))
        scope = {"type": "http", "method": "GET", "path": "/polar", "headers": []}
        native = self._port.native(detached(HttpRequest(scope, _nothing)), principal)
        try:
            watched = await self.watch(native, task_id, by)
        except CapacityError:  # a part of Tangram does not answer now
            raise
        except TangramError as error:  # its project is gone
            log.warning("task %s of project %s is not watched: %s", task_id, project, error)
            watched = ""
        if watched != nonce:
            await self._port.timed.done(work)

    async def _watching(
        self,
        native: NativeCalls,
        project: str,
        task_id: str,
        nonce: str,
        name: str,
        held: dict[str, Any],
    ) -> None:
        renewal = asyncio.create_task(self._renewed(project, name, held))
        try:
            while True:
                if await self._tried(native, project, task_id, nonce) or renewal.done():
                    return
                await asyncio.sleep(RETRY_SECONDS)
        finally:
            renewal.cancel()
            with suppress(TangramError):
                await self._port.timed.remove(project, name, held)

    async def _renewed(self, project: str, name: str, held: dict[str, Any]) -> None:
        renewed = True
        while renewed:
            await asyncio.sleep(WATCH_SECONDS / 3)
            with suppress(TangramError):
                renewed = await self._port.timed.replace(project, name, held, held, WATCH_SECONDS)

    async def _tried(self, native: NativeCalls, project: str, task_id: str, nonce: str) -> bool:
        """Follow a task to its end; return False where a part of Tangram did not answer."""
        try:
            await self._watched(native, project, task_id, nonce)
        except CapacityError as error:
            log.warning(
                "the watch of task %s of project %s begins again: %s", task_id, project, error
            )
            return False
        except TangramError as error:  # the next request for the task begins again
            log.warning("task %s of project %s is not watched: %s", task_id, project, error)
        return True

    async def _watched(self, native: NativeCalls, project: str, task_id: str, nonce: str) -> None:
        record = await self._of(project, task_id, nonce)
        if record is None:
            return
        tokens, usable = record.early_stop is not None and record.stopped is None, 0
        waits = {
            asyncio.ensure_future(end_of(native, each, tokens=tokens)) for each in record.rollouts
        }
        try:
            while waits:
                done, waits = await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
                usable += sum(each.result() for each in done)
                record = await self._of(project, task_id, nonce)
                if record is None:
                    return
                least = record.early_stop
                if least is not None and record.stopped is None and usable >= least and waits:
                    reason = f"{EARLY_STOP}: {usable} of {least} usable sessions have ended"
                    await NativeRollouts(native).cancel_all(record.rollouts, reason)
                    record = await self._change(project, task_id, record, stopped=usable)
        finally:
            for wait in waits:
                wait.cancel()
        await self._end(native, project, task_id, record)

    async def _end(
        self, native: NativeCalls, project: str, task_id: str, record: PolarRecord
    ) -> None:
        """Call back where it is asked for, and store that all is done."""
        called = record.called
        if record.callback and not called:
            pieces = self._tasks.pieces(native, task_id, record, counts=False)
            called = await self._call_back(
                record.callback, b"".join([each async for each in pieces])
            )
        while True:  # else the callback would be sent again
            try:
                await self._change(project, task_id, record, called=called, watched=True)
                return
            except CapacityError as error:
                log.warning(
                    "the end of task %s of project %s is not stored yet: %s",
                    task_id,
                    project,
                    error,
                )
                await asyncio.sleep(RETRY_SECONDS)

    async def _call_back(self, url: str, body: bytes) -> str:
        """Send a result; return ``sent``, or why the receiver does not have it."""
        problem: str = await self._port.callbacks.post(url, body)
        for pause in PAUSES:
            if not problem:
                break
            await asyncio.sleep(pause)
            problem = await self._port.callbacks.post(url, body)
        if problem:
            log.warning("a callback of the door polar failed: %s", problem)
        return problem or "sent"

    async def _of(self, project: str, task_id: str, nonce: str) -> PolarRecord | None:
        """Return the record of a task; None when it does not run any more."""
        found = await self._records.get(project, task_id)
        runs = found is not None and found.state == "running" and found.nonce == nonce
        return found if runs else None

    async def _change(
        self, project: str, task_id: str, record: PolarRecord, **changes: Any
    ) -> PolarRecord:
        after = replace(record, **changes)
        await self._records.replace(project, task_id, record, after)
        return after


def detached(request: HttpRequest) -> HttpRequest:
    """Return a request whose client never disconnects: the watch goes on after its answer."""

    found = HttpRequest(request.scope, _nothing)
    found.id = request.id
    return found


async def _nothing() -> MutableMapping[str, Any]:
    """Receive no message of a client."""
    await asyncio.Event().wait()
    raise AssertionError("this event is never set")
