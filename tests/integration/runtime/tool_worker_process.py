"""A rollout worker of the product in a process of its own, for tests that kill it: ``python -m … URL PREFIX FOLDER NAME``."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from domain.redis_keys import Keys
from rollout.worker.worker import RolloutWorker
from scheduler.runtime.body_store import BodyStore
from scheduler.runtime.gateway.context import GatewayContext
from scheduler.runtime.redis.clients import connect_async
from scheduler.runtime.rollouts.log_store import RolloutLogs
from scheduler.runtime.rollouts.role import RoleOptions, run_rollout_role
from tests.integration.runtime.rollout_worker_process import rows
from tests.integration.runtime.tool_handler import Tooled

HANDLERS = {"tooled": f"{Tooled.__module__}:{Tooled.__name__}"}


async def main(url: str, prefix: str, folder: str, name: str) -> None:
    """Run the worker until it is killed."""
    client, keys = connect_async(url), Keys(prefix)
    context = GatewayContext(client, keys, rows(client, keys), bodies=BodyStore(Path(folder)))
    logs, options = RolloutLogs(Path(folder) / "rollouts"), RoleOptions(name, handlers=("tooled",))
    await run_rollout_role(context, logs, options, lambda port, _: RolloutWorker(port, HANDLERS, 8))


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
