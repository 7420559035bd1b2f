"""Composition root of the role ``rollout``: a rollout worker with the handlers that are installed."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

from django.conf import settings

from rollout.handlers.process_options import ProcessOptions
from rollout.handlers.registry import handlers
from rollout.ports import RolloutPort
from rollout.worker.handler_pool import HandlerPool
from rollout.worker.process_launch import launch
from rollout.worker.worker import RolloutWorker, usual_processes
from scheduler.runtime.batches.row_door import RowDoorOptions
from scheduler.runtime.body_store import BodyStore
from scheduler.runtime.gateway.context import GatewayBackend, GatewayContext
from scheduler.runtime.node.door.server import DoorOptions
from scheduler.runtime.redis.clients import connect_async
from scheduler.runtime.rollouts.log_store import rollout_logs
from scheduler.runtime.rollouts.role import RoleOptions, run_rollout_role
from tangram_web.lib import bus
from tangram_web.lib.orm_calls import in_thread
from tangram_web.records.selectors import action_view, completions, task_exists


async def rollout_role() -> None:
    """Run a rollout worker until cancelled."""
    known, folder = handlers(), settings.TANGRAM_BODIES_DIRECTORY
    context = GatewayContext(
        connect_async(settings.TANGRAM_REDIS_URL),
        bus.keys(),
        _rows(),
        limits=settings.TANGRAM_PROJECT_LIMITS,
        node_requests=settings.TANGRAM_PROJECT_NODE_REQUESTS,
        bodies=BodyStore(Path(folder) if folder else None),
        confirmation=settings.TANGRAM_REDIS_WAIT,
    )
    options = RoleOptions(
        worker=settings.TANGRAM_ROLLOUT_WORKER,
        slots=settings.TANGRAM_ROLLOUT_SLOTS,
        handlers=sorted(known),
        retention_seconds=settings.TANGRAM_ROLLOUT_LOG_SECONDS,
        door=DoorOptions(
            settings.TANGRAM_HOME / "rollouts" / settings.TANGRAM_ROLLOUT_WORKER,
            settings.TANGRAM_ROLLOUT_DOOR,
            settings.TANGRAM_ROLLOUT_DOOR_ADDRESS,
        ),
        rows=RowDoorOptions.parse(
            settings.TANGRAM_ROLLOUT_ROWS, settings.TANGRAM_ROLLOUT_ROWS_ADDRESS
        ),
    )
    logs = rollout_logs(folder, settings.TANGRAM_ROLLOUT_LOG_BYTES)
    given = ProcessOptions(tokenizers=tuple(settings.TANGRAM_TOKENIZERS))

    def make(port: RolloutPort, slots: int) -> RolloutWorker:
        pool = HandlerPool(usual_processes(slots), partial(launch, given))
        return RolloutWorker(port, known, slots, pool=pool)

    await run_rollout_role(context, logs, options, make)


def _rows() -> GatewayBackend:
    """Return what a worker reads of rows: the ends of its actions. It has no callers to authenticate."""

    async def nothing(*_: object) -> None:
        return None

    async def no_facts() -> dict[str, Any]:
        return {}

    return GatewayBackend(
        authenticate=nothing,
        action_view=in_thread(action_view),
        completions=in_thread(completions),
        checks=no_facts,
        facts=no_facts,
        task_exists=in_thread(task_exists),
    )
