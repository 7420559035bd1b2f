"""Assembly of a node worker from the installed managers."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import redis.asyncio

from domain.inventory import ResourceInventory
from domain.ports import Driver, DriverContext
from domain.redis_keys import Keys
from managers.registry import Registry
from scheduler.runtime.node.worker import NodeOptions, NodeWorker
from scheduler.runtime.redis.response_streams import RedisResponseStreams

log = logging.getLogger(__name__)


def node_worker(
    client: redis.asyncio.Redis,
    keys: Keys,
    registry: Registry,
    *,
    name: str,
    pool: str,
    state_directory: Path,
    settings: Mapping[str, str],
    version: str = "",
) -> NodeWorker:
    """Return a worker that offers the resources that the managers find on this machine.

    Raises InvalidRequest when a declared setting (``cpus``, ``gpus``) cannot be read.
    """
    for problem in registry.problems:
        log.warning("a manager was left out: %s", problem)
    resources: dict[str, ResourceInventory] = {}
    drivers: list[Driver] = []
    passages = RedisResponseStreams(client, keys)
    for kind, manager in registry.managers.items():
        context = DriverContext(
            name, state_directory / kind, dict(resources), dict(settings), passages
        )
        if manager.probe is not None:
            have = manager.probe(context)
            if have.capacity:
                resources[kind] = have
                context = replace(context, resources=dict(resources))
        if manager.make_driver is not None:
            drivers.append(manager.make_driver(context))
    options = NodeOptions(name, pool, state_directory, resources, version)
    return NodeWorker(client, keys, options, drivers, [passages.close])
