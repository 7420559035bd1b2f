"""The worker itself: joins, reads commands, runs them through drivers, shows life."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import socket
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from time import time
from typing import Any, cast

import msgspec
import redis
import redis.asyncio

from domain.action import Kind, Outcome
from domain.allocation import Allocation, Home
from domain.codec import COMMANDS_FIELD, NodeCommand, decode_node_commands, encode
from domain.decisions import Abort, RemoveEnvironment, Resize
from domain.events import (
    NO_RESULT,
    ActionFinished,
    ActionStarted,
    EnvironmentRemoved,
    NodeJoined,
)
from domain.inventory import NodeInventory, ResourceInventory
from domain.keys import Keys
from domain.ports import Driver, Evicting, Leftover, Repairing, RunOrder, RunReport
from managers.reward import reward_of
from scheduler.runtime.connection import going_on
from scheduler.runtime.lane import AsyncLane, read_stream_async
from scheduler.runtime.node.identity import Identity, next_incarnation
from scheduler.runtime.node.progress import Progress
from scheduler.runtime.node.reporter import Reporter
from scheduler.runtime.node.routing import Routing
from scheduler.runtime.node.transfers import Transfers

log = logging.getLogger(__name__)

HEARTBEAT_SECONDS = 1.5
#: A node that shows no life for this long is lost.
ALIVE_SECONDS = 5.0
RETRY_SECONDS = 0.2
READ_ENTRIES = 64
BLOCK_SECONDS = 1.0


@dataclass(frozen=True)
class NodeOptions:
    """What an operator decides about a node."""

    name: str
    pool: str
    state_directory: Path
    resources: Mapping[str, ResourceInventory]
    version: str = ""


class NodeWorker:
    """One node. `run` returns when cancelled, after its drivers have ended what they run."""

    def __init__(
        self,
        client: redis.asyncio.Redis,
        keys: Keys,
        options: NodeOptions,
        drivers: list[Driver],
        closing: Sequence[Callable[[], None]] = (),
    ) -> None:
        self._client = client
        self._commands = AsyncLane(client)
        self._keys = keys
        self._options = options
        self._drivers = drivers
        #: Called when the drivers have ended.
        self._closing = closing
        self._routing = Routing(drivers)
        self._reporter = Reporter(client, keys)
        self._transfers = Transfers(client, keys, self._routing.by_kind.get(Kind.EXEC))
        self._running: dict[str, asyncio.Task[None]] = {}
        self._background: set[asyncio.Task[None]] = set()
        #: What runs go on with, by mark.
        self._resized: dict[str, Allocation] = {}
        self._epoch = 0
        self._known_marks: set[str] = set()
        self.joined = asyncio.Event()

    async def run(self) -> None:
        """Work until cancelled."""
        self.identity = next_incarnation(self._options.state_directory)
        self._stream = self._keys.commands(self._options.name, self.identity.identity)
        position = await self._persistently(self._saved_position)
        self._progress = Progress(position)
        ordered = await self._persistently(partial(self._ordered_behind, position))
        leftovers = [left for driver in self._drivers for left in await driver.open()]
        await self._persistently(self._show_life)
        self._join(leftovers, ordered)
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._reporter.run())
                group.create_task(self._heartbeat())
                group.create_task(self._read())
        finally:
            self._commands.close()
            for driver in self._drivers:
                await driver.close()
            for close in self._closing:
                close()

    async def _ordered_behind(self, position: str) -> set[str]:
        """Return the marks of runs whose commands will be read again."""
        entries = cast("list[Any]", await self._client.xrange(self._stream, f"({position}"))
        commands = [
            c for _, fields in entries for c in decode_node_commands(fields[COMMANDS_FIELD])
        ]
        return {command.run.mark for command in commands if command.run is not None}

    def _join(self, leftovers: list[Leftover], ordered: set[str]) -> None:
        options, identity = self._options, self.identity
        executor = self._routing.by_kind.get(Kind.EXEC)
        inventory = NodeInventory(
            name=options.name,
            identity=identity.identity,
            incarnation=identity.incarnation,
            pool=options.pool,
            resources=self._routing.resources(options.resources),
            isolation=executor.isolation if executor is not None else "none",
            hostname=socket.gethostname(),
            version=options.version,
        )
        self._known_marks = {left.mark for left in leftovers}
        self._progress.passed(self._known_marks - ordered)
        self._reporter.report(NodeJoined(node=inventory), self.joined.set)
        for left in leftovers:
            outcome = Outcome.INFRA_FAILED if left.ended else Outcome.UNKNOWN
            self._reporter.report(
                ActionFinished(
                    action_id=left.action_id,
                    node=options.name,
                    outcome=outcome,
                    attempt=left.attempt,
                    detail=left.detail or "the node worker died while it ran",
                ),
                partial(self._progress.ended, left.mark),
            )

    async def _read(self) -> None:
        await self.joined.wait()
        after = self._progress.position
        while going_on():
            try:
                entries = await read_stream_async(
                    self._commands, self._stream, after, READ_ENTRIES, BLOCK_SECONDS
                )
            except redis.RedisError as error:
                log.warning("commands wait, redis does not answer: %s", error)
                await asyncio.sleep(RETRY_SECONDS)
                continue
            for stream_id, fields in entries:
                self._take(stream_id, decode_node_commands(fields[COMMANDS_FIELD]))
                after = stream_id
            await asyncio.sleep(0)  # reports made by now go out first

    def _take(self, stream_id: str, commands: list[NodeCommand]) -> None:
        marks = [c.run.mark for c in commands if c.run and c.run.action.kind is not Kind.NOOP]
        self._progress.began(stream_id, len(commands), marks)
        for command in commands:
            settled = partial(self._progress.settled, stream_id)
            if command.epoch < self._epoch:
                log.warning("refused a command of epoch %d, now %d", command.epoch, self._epoch)
                if command.run is not None:
                    self._progress.ended(command.run.mark)
                settled()
                continue
            self._epoch = command.epoch
            self._execute(command, settled)

    def _execute(self, command: NodeCommand, settled: Callable[[], None]) -> None:
        if command.run is not None:
            self._run(command.run, settled)
        elif command.abort is not None:
            self._abort(command.abort)
            settled()
        elif command.resize is not None:
            self._resize(command.resize)
            settled()
        elif command.remove is not None:
            self._spawn(self._remove(command.remove, settled))
        elif command.evict is not None:
            self._spawn(self._evict(command.evict.home))
            settled()
        elif command.transfer is not None:
            self._spawn(self._transfers.handle(command.transfer))
            settled()

    def _spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work)
        self._background.add(task)
        task.add_done_callback(self._background.discard)
        return task

    def _run(self, order: RunOrder, settled: Callable[[], None]) -> None:
        if order.mark in self._known_marks:
            settled()  # its predecessor started it; that was reported when joining
        elif order.action.kind is Kind.NOOP:
            self._finished(order, RunReport(Outcome.COMPLETED, 0.0), settled)
        else:
            task = self._spawn(self._drive(order, _once(settled), self._running.get(order.id)))
            self._running[order.id] = task

    async def _drive(
        self, order: RunOrder, settled: Callable[[], None], before: asyncio.Task[None] | None
    ) -> None:
        if before is not None:
            await asyncio.wait({before})  # an earlier attempt is still being ended

        def started() -> None:
            self._reporter.report(
                ActionStarted(action_id=order.id, node=self._options.name, attempt=order.attempt)
            )
            settled()

        driver = self._routing.of(order)
        if driver is None:
            detail = f"this node has no driver for {order.action.kind}"
            report = RunReport(Outcome.INFRA_FAILED, 0.0, detail=detail)
        elif (failure := await self._routing.prepare(order, driver)) is not None:
            report = failure
        else:
            changed = self._resized.get(order.mark)
            report = await driver.run(order.resized(changed) if changed else order, started)
        self._resized.pop(order.mark, None)
        self._finished(order, report, settled)
        if self._running.get(order.id) is asyncio.current_task():
            del self._running[order.id]

    def _finished(self, order: RunOrder, report: RunReport, settled: Callable[[], None]) -> None:
        left = report.result or report.answer
        result = NO_RESULT if left is None else msgspec.Raw(encode(left))
        event = ActionFinished(
            action_id=order.id,
            node=self._options.name,
            outcome=report.outcome,
            attempt=order.attempt,
            execution_seconds=report.execution_seconds,
            result=result,
            reward=reward_of(order.action.reward, report),
            detail=report.detail,
            never_started=report.never_started,
            feedback=report.feedback,
            used=report.result.used if report.result is not None else None,
            chunk=report.chunk,
        )

        def sent() -> None:
            settled()
            if order.action.kind is not Kind.NOOP:
                self._progress.ended(order.mark)

        self._reporter.report(event, sent)

    def _resize(self, wanted: Resize) -> None:
        """Let a run go on with other units; one that no driver has yet will start with them."""
        if wanted.action_id not in self._running:
            return
        self._resized[f"{wanted.action_id}#{wanted.attempt}"] = wanted.allocation
        for driver in self._drivers:
            driver.resize(wanted.action_id, wanted.attempt, wanted.allocation)

    def _abort(self, wanted: Abort) -> None:
        if wanted.action_id in self._running:
            for driver in self._drivers:
                driver.stop(wanted.action_id, wanted.outcome, wanted.reason)
            self._routing.stop(wanted.action_id, wanted.outcome, wanted.reason)
            return
        self._reporter.report(
            ActionFinished(
                action_id=wanted.action_id,
                node=self._options.name,
                outcome=wanted.outcome,
                attempt=wanted.attempt,
                detail=f"{wanted.reason} (it was not running any more)",
            )
        )

    async def _remove(self, wanted: RemoveEnvironment, settled: Callable[[], None]) -> None:
        for driver in self._drivers:
            await driver.remove_environment(wanted.trajectory)
        self._reporter.report(
            EnvironmentRemoved(trajectory=wanted.trajectory, node=self._options.name), settled
        )

    async def _evict(self, home: Home) -> None:
        for driver in self._drivers:
            if isinstance(driver, Evicting):
                await driver.evict(home)

    async def _heartbeat(self) -> None:
        saved = self._progress.position
        while going_on():
            await asyncio.sleep(HEARTBEAT_SECONDS)
            try:
                await self._show_life()
                if self._progress.position != saved or self._progress.has_spent():
                    saved = await self._save_position()
            except redis.RedisError as error:
                log.warning("no sign of life, redis does not answer: %s", error)

    async def _show_life(self) -> None:
        milliseconds = int(ALIVE_SECONDS * 1000)
        name, facts = self._options.name, {"role": "node", "pid": os.getpid(), "at": time()}
        repairs = [each.repairs for each in self._drivers if isinstance(each, Repairing)]
        if repairs:
            facts["repairs"] = sum(repairs)
        async with self._client.pipeline(transaction=False) as pipeline:
            pipeline.set(self._keys.alive(name), self.identity.incarnation, px=milliseconds)
            pipeline.hset(self._keys.workers, f"node@{name}", json.dumps(facts))
            await pipeline.execute()

    async def _saved_position(self) -> str:
        saved = cast("bytes | None", await self._client.get(f"{self._stream}:position"))
        return saved.decode() if saved else "0-0"

    async def _save_position(self) -> str:
        position, marks = self._progress.position, self._progress.spent_marks()
        try:
            await self._client.set(f"{self._stream}:position", position)
            await self._client.xtrim(self._stream, minid=position)
        except redis.RedisError:
            self._progress.not_yet(marks)
            raise
        for driver in self._drivers:
            driver.forget(marks)
        return position

    async def _persistently(self, ask: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
        while going_on():
            try:
                return await ask()
            except redis.RedisError as error:
                log.warning("waiting for redis: %s", error)
                await asyncio.sleep(RETRY_SECONDS)
        raise asyncio.CancelledError


def _once(call: Callable[[], None]) -> Callable[[], None]:
    """Return a function that passes on its first call only."""
    calls = iter((call,))
    return lambda: next(calls, lambda: None)()


__all__ = ["Identity", "NodeOptions", "NodeWorker"]
