"""Role ``rollout``: one worker process for rollouts, with its port, its membership and the sweeper of logs.

    async def work() -> None:
        await run_rollout_role(context, logs, options, lambda port, slots: RolloutWorker(port, handlers, slots))

The worker joins once the journal is followed from before its join, so no assignment is missed. When one of the parts
fails, the role does: its process ends, its supervisor starts another one, and the rollouts are assigned again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from contract.rollout_status import BackendStatus
from domain.backends import BackendPool, LlmBackend
from rollout.llm.backend_monitor import INTERVAL_SECONDS, BackendMonitor
from rollout.llm.engine_client import EngineClient
from rollout.ports import RolloutPort
from scheduler.runtime.batches.batch_store import BatchStore
from scheduler.runtime.batches.row_addresses import RowAddresses
from scheduler.runtime.batches.row_door import RowDoor, RowDoorOptions
from scheduler.runtime.batches.row_streams import RowStreams
from scheduler.runtime.batches.row_tokens import RowTokens
from scheduler.runtime.gateway.app import native_handlers
from scheduler.runtime.gateway.context import GatewayContext
from scheduler.runtime.node.door.server import DoorOptions
from scheduler.runtime.redis.facade_records import FacadeRecords
from scheduler.runtime.rollouts.assignments import Assignments
from scheduler.runtime.rollouts.chat_tokens import SECRET_OF
from scheduler.runtime.rollouts.environments import RolloutEnvironments
from scheduler.runtime.rollouts.lease_grants import LeaseGrants
from scheduler.runtime.rollouts.log_store import RolloutLogs
from scheduler.runtime.rollouts.log_sweeper import LogSweeper
from scheduler.runtime.rollouts.membership import WorkerMembership, next_incarnation
from scheduler.runtime.rollouts.stage_leases import StageLeases
from scheduler.runtime.rollouts.worker_calls import WorkerCalls
from scheduler.runtime.rollouts.worker_door import Asked, rollout_door
from scheduler.runtime.rollouts.worker_port import WorkerPort

log = logging.getLogger(__name__)

#: Rollouts that a worker takes at once unless the operator says otherwise.
SLOTS: Final = 256
#: Logs of rollouts that are over are kept for so long.
RETENTION_SECONDS: Final = 86_400.0


class RunsRollouts(Protocol):
    """What the role hosts: `rollout.worker.worker.RolloutWorker`, or another worker."""

    async def run(self) -> None:
        """Run the rollouts that its port assigns, until cancelled."""


MakeWorker = Callable[[RolloutPort, int], RunsRollouts]


@dataclass(frozen=True)
class RoleOptions:
    """Options of a rollout worker that an operator sets."""

    worker: str
    slots: int = SLOTS
    #: Names of the handlers that it has.
    handlers: Sequence[str] = ()
    retention_seconds: float = RETENTION_SECONDS
    #: Between two checks of the health of backends.
    check_seconds: float = INTERVAL_SECONDS
    #: Where web processes ask its handlers; None: they cannot.
    door: DoorOptions | None = None
    #: Where ranks of trainers pull rows; None: they pull them elsewhere.
    rows: RowDoorOptions | None = None


async def run_rollout_role(
    context: GatewayContext, logs: RolloutLogs, options: RoleOptions, make_worker: MakeWorker
) -> None:
    """Run a rollout worker until cancelled; ``context`` is its own, and not started yet."""
    client, keys = context.client, context.keys
    incarnation = await next_incarnation(client, keys)
    assignments, grants = Assignments(options.worker, incarnation), LeaseGrants()
    context.tail.also += [assignments, grants]
    # Without a rollout the journal only brings the next assignment, which may come some milliseconds later.
    context.tail.expects_entries = lambda: bool(assignments.held) or not assignments.joined.is_set()
    await context.start()
    calls = WorkerCalls(context, native_handlers(context))
    leases, environments = StageLeases(calls, assignments, grants), RolloutEnvironments(calls)
    port = WorkerPort(calls, assignments, leases, environments, logs)
    worker = make_worker(port, options.slots)
    door = None
    if options.door is not None and isinstance(worker, Asked):
        door = rollout_door(client, keys, options.worker, options.door, worker)
    rows = await _row_door(calls, context, logs, options)
    doors = [each for each in (door, rows) if each is not None]
    membership = WorkerMembership(
        client, keys, calls, assignments,
        slots=options.slots, handlers=options.handlers, doors=doors,
    )  # fmt: skip
    sweeper = LogSweeper(logs, context.queries, options.retention_seconds)
    engines = EngineClient()
    monitor = BackendMonitor(
        engines, lambda: assignments.pools, port.judge, interval_seconds=options.check_seconds
    )
    try:
        await _read_backends(calls, context, assignments)
        for each in doors:
            await each.open(incarnation)
        async with asyncio.TaskGroup() as group:
            duties = (port.run(), membership.run(), sweeper.run(), monitor.run(), worker.run())
            for duty in duties:
                group.create_task(duty)
            group.create_task(_until_failed(assignments))
    finally:
        for each in doors:
            await each.close()
        await engines.close()
        await context.stop()


async def _row_door(
    calls: WorkerCalls, context: GatewayContext, logs: RolloutLogs, options: RoleOptions
) -> RowDoor | None:
    """Return the door of rows, which is not open yet; None where the operator wants none."""
    if options.rows is None:
        return None
    client, keys = context.client, context.keys
    secret = await calls.patiently(FacadeRecords(client, keys, SECRET_OF, context.confirmed).secret)
    streams = RowStreams(BatchStore(client, keys), RowTokens(secret), logs, options.worker)
    return RowDoor(RowAddresses(client, keys), options.worker, options.rows, streams)


async def _read_backends(
    calls: WorkerCalls, context: GatewayContext, assignments: Assignments
) -> None:
    """Read the backends of all pools; later changes are in the journal."""
    found = await calls.patiently(lambda: context.queries.rollouts(backends=("*",), limit=0))
    for name, version in found.pools.items():
        backends = tuple(_backend(each) for each in found.backends if each.pool == name)
        assignments.pools.setdefault(name, BackendPool(backends, weights_version=version))


def _backend(status: BackendStatus) -> LlmBackend:
    members = {name: getattr(status, name) for name in LlmBackend.__struct_fields__}
    return LlmBackend(**members)


async def _until_failed(assignments: Assignments) -> None:
    await asyncio.shield(assignments.failed)
