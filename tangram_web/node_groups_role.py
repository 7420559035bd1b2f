"""Composition root of the keeper of node groups: its drains are the configuration's, and its commands start our node worker."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final
from urllib.parse import quote, urlsplit, urlunsplit

from django.conf import settings

from domain.node_groups import NodeGroupSpec
from domain.redis_access import RedisRole, user_name
from managers.launch.launcher import LaunchError
from managers.launch.registry import make_launcher
from scheduler.runtime.node_groups.keeper import GroupPorts, NodeGroupKeeper
from scheduler.runtime.redis.clients import connect_async
from tangram_web.audit.services import SYSTEM
from tangram_web.lib import bus
from tangram_web.lib.orm_calls import in_thread
from tangram_web.pools import services
from tangram_web.pools.models import NodeDrain
from tangram_web.supervisor.stack import worker

#: Its instances run on this machine, with the same home.
_HERE: Final = "processes"
#: Of the keeper's environment, to node workers on other machines.
_PASSED_ON: Final = (
    "TANGRAM_BODIES_DIRECTORY", "TANGRAM_OBJECT_STORE", "TANGRAM_SECRETS_DIRECTORY", "TANGRAM_CPU_BACKEND", "TANGRAM_NODE_DOOR", "TANGRAM_LOG_FORMAT", "TANGRAM_LOG_LEVEL",
)  # fmt: skip
_PREFIXES: Final = (
    "TANGRAM_ENVIRONMENT_",
    "TANGRAM_DISK_",
    "TANGRAM_DOCKER_",
    "TANGRAM_APPTAINER_",
)


async def node_groups_role() -> None:
    """Keep node groups until cancelled."""
    client = connect_async(settings.TANGRAM_REDIS_URL)
    try:
        ports = GroupPorts(
            make_launcher,
            worker_command,
            ConfiguredDrains(),
            installation=settings.TANGRAM_INSTALLATION,
        )
        await NodeGroupKeeper(client, bus.keys(), ports).run()
    finally:
        await client.aclose()


class ConfiguredDrains:
    """Drains of nodes in the database."""

    async def reasons(self) -> Mapping[str, str]:
        """Return the reason of each drain, by node."""
        found: dict[str, str] = await in_thread(_reasons)()
        return found

    async def drain(self, node: str, reason: str) -> None:
        """Drain a node and let its trajectories finish."""
        await in_thread(_drain)(node, reason)

    async def resume(self, node: str) -> None:
        """End a drain."""
        await in_thread(_resume)(node)


def _reasons() -> dict[str, str]:
    return dict(NodeDrain.objects.values_list("node", "reason"))


def _drain(node: str, reason: str) -> None:
    services.node_drain(actor=SYSTEM, node=node, reason=reason[:500], finishing=True)


def _resume(node: str) -> None:
    services.node_resume(actor=SYSTEM, node=node)


def worker_command(node: str, spec: NodeGroupSpec) -> tuple[Sequence[str], Mapping[str, str]]:
    """Return command line and variables of a node worker.

    Raises LaunchError where its engine has other machines, and Redis is a socket of this one.
    """
    variables = {
        "TANGRAM_REDIS_URL": redis_url_of(node),
        "TANGRAM_REDIS_WAIT_REPLICAS": str(settings.TANGRAM_REDIS_WAIT.replicas),
        "TANGRAM_REDIS_WAIT_MS": str(settings.TANGRAM_REDIS_WAIT.milliseconds),
        "TANGRAM_KEY_PREFIX": settings.TANGRAM_KEY_PREFIX,
        "TANGRAM_NODE": node,
        "TANGRAM_NODE_POOL": spec.pool,
        "TANGRAM_NODE_ISOLATION": spec.isolation,
        "TANGRAM_NODE_CPUS": str(spec.cpus),
        # The keeper's machine may reserve cores of its own.
        "TANGRAM_NODE_RESERVED_CPUS": "",
        "TANGRAM_NODE_MEMORY_BYTES": str(spec.memory_bytes or ""),
        "TANGRAM_NODE_GPUS": "" if spec.gpus else "0",
    }
    if spec.engine == _HERE:
        # Each listens on a socket of its own in its folder.
        variables |= {"TANGRAM_HOME": str(settings.TANGRAM_HOME), "TANGRAM_NODE_DOOR": ""}
    else:
        variables |= _of_another_machine(spec.engine)
    program = worker("node", variables, node)
    return program.command, program.environment


def redis_url_of(node: str) -> str:
    """Return the address of Redis for a node: with the user of its name, where `TANGRAM_REDIS_USERS` has users.

    Raises LaunchError where it has none of that name: ours is that of a keeper.
    """
    url, folder = settings.TANGRAM_REDIS_URL, settings.TANGRAM_REDIS_USERS
    if not folder:
        return url
    user = user_name(bus.keys(), RedisRole.NODE, node)
    try:
        password = (Path(folder) / f"{user}.password").read_text().strip()
    except OSError as error:
        raise LaunchError(
            f"node {node} has no user of Redis ({error.strerror or error}: {user}.password in TANGRAM_REDIS_USERS):"
            f" run manage.py redis_users {folder} --node {node}, and ACL LOAD"
        ) from error
    parts = urlsplit(url)
    place = parts.netloc.rpartition("@")[2]
    return urlunsplit(parts._replace(netloc=f"{user}:{quote(password, safe='')}@{place}"))


def _of_another_machine(engine: str) -> dict[str, str]:
    if settings.TANGRAM_REDIS_URL.startswith("unix:"):
        raise LaunchError(
            f"node workers on engine {engine} cannot reach Redis, which is a socket of this machine here:"
            " set TANGRAM_REDIS_URL to redis:// or rediss:// with an address that they reach, for all parts"
        )
    passed = {
        name: value
        for name, value in os.environ.items()
        if name in _PASSED_ON or name.startswith(_PREFIXES)
    }
    # Web processes reach files and sessions there at a free port. The key opens variables of services and headers of APIs.
    return {
        "TANGRAM_NODE_DOOR": "0.0.0.0:0",
        **passed,
        "TANGRAM_SECRET_KEY": settings.SECRET_KEY,
    }
