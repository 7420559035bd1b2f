"""NodeGroupKeeper: keeps the node groups of an installation while this process has the lease."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from time import monotonic, time
from typing import Final, cast

import msgspec
import redis
import redis.asyncio

from contract.node_group_reports import NodeGroupReport
from contract.pool_demands import PoolDemand
from contract.responses import rfc3339
from domain.errors import Fenced, Unavailable
from domain.events import Event
from domain.inventory import Config
from domain.node_groups import NodeGroupSpec
from domain.redis_keys import Keys
from scheduler.runtime.fleets.keeper_lease import LEASE_SECONDS, KeeperLease
from scheduler.runtime.gateway.scheduler_queries import SchedulerQueries
from scheduler.runtime.gateway.submitter import Submitter
from scheduler.runtime.liveness import process_name
from scheduler.runtime.node_groups.elastic import ElasticPools
from scheduler.runtime.node_groups.group_pass import (
    GroupPass,
    KeeperPorts,
    Surroundings,
    first_report,
)
from scheduler.runtime.node_groups.pool_sight import ComingNodes
from scheduler.runtime.node_groups.ports import (
    FindLauncher,
    MakeWorkerCommand,
    NodeDrains,
    WantedNodes,
)
from scheduler.runtime.redis.clients import keep_running

log = logging.getLogger(__name__)

#: Between two passes, and two attempts to take the lease.
PASS_SECONDS: Final = 3.0

_configs = msgspec.msgpack.Decoder(Config)
_reports = msgspec.json.Decoder(NodeGroupReport)


@dataclass(frozen=True)
class GroupPorts:
    """What the composition root gives."""

    find_launcher: FindLauncher
    command: MakeWorkerCommand
    drains: NodeDrains
    #: Makes what decides on groups, for the time of one lease.
    wanted: Callable[[], WantedNodes] = lambda: ElasticPools().group
    #: By it engines tell the instances of several Tangrams apart; empty: the prefix of the keys.
    installation: str = ""


class NodeGroupKeeper:
    """Keeps the groups while it has the lease; stands by otherwise."""

    def __init__(
        self,
        client: redis.asyncio.Redis,
        keys: Keys,
        ports: GroupPorts,
        *,
        pass_seconds: float = PASS_SECONDS,
        lease_seconds: float = LEASE_SECONDS,
    ) -> None:
        self._client, self._keys, self._given = client, keys, ports
        self._pass_seconds = pass_seconds
        self.lease = KeeperLease(
            client, keys, process_name("node-groups"), lease_seconds,
            keys.node_group_keeper, "the node groups",
        )  # fmt: skip
        self._stored_config = b""
        self._declared: Mapping[str, NodeGroupSpec] = {}
        self._grace_of = Config().grace_of
        #: Group → its report as it was stored last.
        self._stored: dict[str, NodeGroupReport] = {}
        self._coming: dict[str, ComingNodes] = {}

    async def run(self) -> None:
        """Keep the groups until cancelled; an installation without a group costs two reads at a time."""
        try:
            while keep_running():
                try:
                    await self._read_declared()
                    if await self._is_needed() and await self.lease.take():
                        log.info("%s keeps %d node groups", self.lease.name, len(self._declared))
                        await self._keep()
                except redis.RedisError as error:
                    log.warning("the node groups are not kept: %s", error)
                await asyncio.sleep(self._pass_seconds)
        finally:
            self.lease.close()

    async def _is_needed(self) -> bool:
        """Whether there is a group, or one was deleted whose nodes have not ended."""
        return bool(self._declared or await self._client.exists(self._keys.node_group_reports))

    async def _read_declared(self) -> None:
        """Read the groups of the configuration. Raises RedisError."""
        stored = cast("bytes | None", await self._client.get(self._keys.config))
        if stored is None or stored == self._stored_config:
            return
        self._stored_config = stored
        try:
            config = _configs.decode(stored)
            self._declared, self._grace_of = config.node_groups, config.grace_of
        except msgspec.DecodeError as error:  # of another version
            log.error(
                "the node groups stay as they are, the configuration cannot be read: %s", error
            )

    async def _keep(self) -> None:
        """Make passes until the lease is lost, or nothing is left to keep."""
        submitter = Submitter(self._client, self._keys)
        queries = SchedulerQueries(self._client, self._keys, submitter, self.lease.name)
        try:
            async with asyncio.TaskGroup() as group:
                helpers = [
                    group.create_task(part)
                    for part in (self._renew(), submitter.run(), queries.run())
                ]
                await self._make_passes(queries)
                for each in helpers:
                    each.cancel()
        except* Fenced as error:
            log.warning("stepping down: %s", error.exceptions[0])
        except* redis.RedisError as error:
            log.warning("the node groups are not kept: %s", error.exceptions[0])
        finally:
            await self._give_back()

    async def _make_passes(self, queries: SchedulerQueries) -> None:
        ports = KeeperPorts(
            self._given.installation or self._keys.prefix, self._given.find_launcher, self._given.command,
            self._given.drains, self._store, self._append, self._given.wanted(),
        )  # fmt: skip
        found = await self.lease.values(self._keys.node_group_reports)
        self._stored = {name: _reports.decode(report) for name, report in found.items()}
        passes = {
            name: GroupPass(name, ports, _copy(report)) for name, report in self._stored.items()
        }
        try:
            while keep_running() and (passes or self._declared):
                for name, spec in self._declared.items():
                    passes.setdefault(name, GroupPass(name, ports, first_report(spec)))
                await self._pass(passes, queries)
                await asyncio.sleep(self._pass_seconds)
                await self._read_declared()
        finally:
            for each in passes.values():
                await each.close()

    async def _pass(self, passes: dict[str, GroupPass], queries: SchedulerQueries) -> None:
        """Make a pass over all groups at once. Raises Fenced, RedisError."""
        try:
            loads = await queries.node_loads()
            drains = await self._given.drains.reasons()
        except Unavailable as error:
            log.warning("the node groups are not kept for now: %s", error)
            return
        demands = await self._demands(queries)
        around = Surroundings(loads, drains, demands, self._coming, self._peers(), self._grace_of)
        now = monotonic()
        over = await asyncio.gather(
            *(each.run(self._declared.get(name), around, now) for name, each in passes.items())
        )
        for (name, each), is_over in zip(list(passes.items()), over, strict=True):
            if is_over:
                await passes.pop(name).close()
                self._stored.pop(name, None)
                self._coming.pop(name, None)
                await self.lease.forget(self._keys.node_group_reports, name)
            else:
                await self._store(name, each.report)

    def _peers(self) -> Mapping[str, frozenset[str]]:
        """Return the groups with bounds of each pool."""
        found: dict[str, set[str]] = {}
        for name, spec in self._declared.items():
            if spec.is_elastic:
                found.setdefault(spec.pool, set()).add(name)
        return {pool: frozenset(names) for pool, names in found.items()}

    async def _demands(self, queries: SchedulerQueries) -> Mapping[str, PoolDemand]:
        """Return what waits in the pools of groups with bounds; nothing if the scheduler does not say."""
        pools = sorted({each.pool for each in self._declared.values() if each.is_elastic})
        if not pools:
            return {}
        try:
            return await queries.pool_demands(tuple(pools))
        except Unavailable as error:  # a loop of an earlier version does not know the question
            log.warning("groups with bounds stay as they are for now: %s", error)
            return {}

    async def _store(self, group: str, report: NodeGroupReport) -> None:
        """Store a report that has changed. Raises Fenced, RedisError."""
        before = self._stored.get(group)
        if before is not None and report.error and report.error != before.error:
            log.warning("node group %s: %s", group, report.error)
        report.at = before.at if before is not None else ""
        if before == report:
            return
        report.at = rfc3339(time())
        self._stored[group] = _copy(report)
        await self.lease.put(self._keys.node_group_reports, group, msgspec.json.encode(report))

    async def _append(self, events: Sequence[Event]) -> None:
        await self.lease.append(events)

    async def _renew(self) -> None:
        """Renew the lease until cancelled. Raises Fenced."""
        while keep_running():
            await asyncio.sleep(self.lease.lease_seconds / 4)
            try:
                if not await self.lease.take():
                    raise Fenced("another process keeps the node groups")
            except redis.RedisError as error:
                log.warning("the lease of the node groups is not renewed: %s", error)

    async def _give_back(self) -> None:
        try:
            await self.lease.give_back()
        except redis.RedisError as error:
            log.warning("the lease of the node groups ends by itself: %s", error)


def _copy(report: NodeGroupReport) -> NodeGroupReport:
    return msgspec.structs.replace(
        report,
        instances=list(report.instances),
        launched=list(report.launched),
        problems=list(report.problems),
        silent=dict(report.silent),
    )
