"""Forks and snapshots of environments on a node: made by the driver, reported to the scheduler, then answered.

Rules
1. The requester is answered after the report is on disk: what it submits then is read after the report.
2. A command that is read again after a crash repeats the fork: the driver keeps children that are complete.
3. A reply is published until its requester receives it, for some seconds: else that would wait for a whole time limit.
4. An environment is removed after the forks that read or make it have ended, in the order of the commands.
"""

from __future__ import annotations

import asyncio
import errno
import logging
from collections.abc import Callable
from time import time
from typing import Final

import msgspec
import redis.asyncio

from domain.codec import Reply, encode
from domain.decisions import ForkEnvironment
from domain.errors import (
    CapacityError,
    Conflict,
    InvalidRequest,
    StorageFull,
    TangramError,
    Unavailable,
)
from domain.events import EnvironmentsForked
from domain.forks import STORAGE_FULL, ForkReport
from domain.ids import TrajectoryKey
from domain.moves import is_packed
from domain.ports import Driver, Forking, Snapshotting
from domain.redis_keys import Keys
from domain.snapshots import SnapshotFacts, SnapshotReport
from scheduler.runtime.node.reporter import Reporter
from scheduler.runtime.node.snapshot_copies import SnapshotCopies
from scheduler.runtime.object_store.objects import ObjectStore
from scheduler.runtime.redis.confirmation import unavailable
from scheduler.runtime.redis.snapshot_registry import SnapshotRegistry

log = logging.getLogger(__name__)
#: A reply that nothing receives is published so often: for some seconds.
ANSWER_TRIES: Final = 50
RETRY_SECONDS: Final = 0.2
_NO_FORKS: Final = "this node cannot fork environments: use one that runs commands under bubblewrap or in containers"
_NO_SNAPSHOTS: Final = (
    "this node cannot take snapshots: it runs commands in containers, which keep their own layers: use a node that"
    " runs them under bubblewrap"
)


class EnvironmentForks:
    """Makes the forks and snapshots that the scheduler orders on one node."""

    def __init__(
        self,
        client: redis.asyncio.Redis,
        keys: Keys,
        node: str,
        reporter: Reporter,
        driver: Driver | None,
        store: ObjectStore | None = None,
    ) -> None:
        self._client = client
        self._registry = SnapshotRegistry(client, keys)
        self.copies = SnapshotCopies(self._registry, store)
        self._node = node
        self._reporter = reporter
        self._driver = driver
        #: Forks in progress that read or make an environment.
        self._open: dict[TrajectoryKey, set[asyncio.Event]] = {}

    async def make(self, order: ForkEnvironment, settled: Callable[[], None]) -> None:
        """Make the forks of one order, report, and answer; an error is part of the answer."""
        over = asyncio.Event()
        concerned = (order.source, *order.children)
        for key in concerned:
            self._open.setdefault(key, set()).add(over)
        try:
            reply = await self._attempt(order)
        finally:
            over.set()
            for key in concerned:
                self._open[key].discard(over)
                if not self._open[key]:
                    del self._open[key]
        stored = asyncio.Event()

        def sent() -> None:
            settled()
            stored.set()

        failed = "" if reply.ok else reply.detail or reply.code
        event = EnvironmentsForked(
            source=order.source,
            node=self._node,
            request_id=order.request_id,
            children=order.children,
            failed=failed,
        )
        self._reporter.report(event, sent)
        await stored.wait()
        await self._answer(order, reply)

    async def _answer(self, order: ForkEnvironment, reply: Reply) -> None:
        """Publish a reply until the requester receives it: after a restart of Redis both connect again."""
        for _ in range(ANSWER_TRIES):
            try:
                if await self._client.publish(order.reply_to, encode(reply)):
                    return
            except redis.RedisError as error:
                log.warning("the reply of fork %s waits: %s", order.request_id, error)
            await asyncio.sleep(RETRY_SECONDS)
        log.warning("nothing receives the reply of fork %s", order.request_id)

    async def ended(self, trajectory: TrajectoryKey) -> None:
        """Wait for the forks in progress that read or make an environment."""
        for fork in list(self._open.get(trajectory, ())):
            await fork.wait()

    async def _attempt(self, order: ForkEnvironment) -> Reply:
        try:
            done = await (self._snapshot(order) if order.snapshot else self._fork(order))
        except Conflict as error:
            code = "busy_environment" if error.code == "conflict" else error.code
            return Reply(order.request_id, ok=False, code=code, detail=str(error))
        except InvalidRequest as error:
            return Reply(order.request_id, ok=False, code=error.code, detail=str(error))
        except StorageFull as error:
            return Reply(order.request_id, ok=False, code=STORAGE_FULL, detail=str(error))
        except CapacityError as error:
            code = "failed" if isinstance(error, Unavailable) else "busy"
            return Reply(order.request_id, ok=False, code=code, detail=str(error))
        except (TangramError, OSError) as error:
            log.warning("fork %s of %s failed: %s", order.request_id, order.source, error)
            full = isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT)
            code = STORAGE_FULL if full else "failed"
            return Reply(order.request_id, ok=False, code=code, detail=str(error))
        return Reply(order.request_id, body=msgspec.Raw(encode(done)))

    async def _fork(self, order: ForkEnvironment) -> ForkReport:
        if not isinstance(self._driver, Forking):
            raise InvalidRequest(_NO_FORKS, code="conflict")
        return await self._driver.fork_environment(order)

    async def _snapshot(self, order: ForkEnvironment) -> SnapshotReport:
        """Take a snapshot and register it. Raises Conflict for a name that is used, and Unavailable."""
        driver, project = self._driver, order.project
        if not isinstance(driver, Snapshotting):
            raise InvalidRequest(_NO_SNAPSHOTS, code="conflict")
        try:
            if await self._registry.was_removed(order.request_id):
                raise Conflict("the snapshot was removed meanwhile")
        except redis.RedisError as error:
            raise unavailable(error) from None
        report = await driver.take_snapshot(order)
        facts = SnapshotFacts(
            name=order.snapshot,
            project=project,
            node=self._node,
            trajectory=order.source.partition("/")[2],
            image=report.image,
            size_bytes=report.size_bytes,
            made_at=time(),
            request_id=order.request_id,
        )
        try:
            if await self._registry.add(facts):
                self.copies.keep(facts, driver.export_snapshot)
                return report
            known = await self._registry.find(project, order.snapshot)
        except redis.RedisError as error:
            await driver.drop_snapshot(project, order.snapshot)
            raise unavailable(error) from None
        if known is None or (known.node, known.trajectory) != (facts.node, facts.trajectory):
            await driver.drop_snapshot(project, order.snapshot)
            raise Conflict(f"there is a snapshot {order.snapshot!r} already", code="exists")
        return report

    async def drop_unregistered(self) -> None:
        """Delete the snapshots of this node that were removed while its worker was away, and copy the others."""
        driver = self._driver
        if not isinstance(driver, Snapshotting):
            return
        try:
            for project, name in await driver.snapshots():
                if is_packed(name):
                    continue  # its move knows it
                known = await self._registry.find(project, name)
                if known is None:
                    await driver.drop_snapshot(project, name)
                elif known.node == self._node:
                    self.copies.keep(known, driver.export_snapshot)
        except (TangramError, OSError) as error:
            log.warning("snapshots that were removed are still here: %s", error)
