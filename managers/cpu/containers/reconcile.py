"""Reconciliation of records with the engine's containers, at the start and every half minute.

Containers with our label and no record are removed, and those of any Tangram beyond their expiry (its
worker may never restart). All others are not ours, whatever their names (I7).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from dataclasses import dataclass
from typing import Any, Final

from domain.action import EnvironmentSpec
from managers.cpu.containers.container_config import EXPIRES, OWNER
from managers.cpu.containers.docker_engine import DockerRefused
from managers.cpu.containers.environment import Environment
from managers.cpu.containers.environment_store import EnvironmentStore, Site
from managers.cpu.containers.exec_backends import ExecBackend
from managers.cpu.containers.living_store import LivingContainers

#: Slack after the expiry of a foreign container: its own worker should remove it.
_FOREIGN_SLACK_SECONDS: Final = 600.0

#: Interval of ending processes that a predecessor left running.
_AGAIN_SECONDS: Final = 0.05
_NOTHING: Final = EnvironmentSpec()

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Found:
    """Result of a takeover."""

    #: Attempts whose processes were found running, and were ended.
    ended: frozenset[str]


async def take_over(
    site: Site, environments: EnvironmentStore, backend: ExecBackend, living: LivingContainers
) -> Found:
    """Adopt the containers of a dead predecessor, ending their actions. Raises DockerUnavailable.

    What an init runs beside actions goes on.
    """
    ended: set[str] = set()
    for directory in sorted(site.directory.glob("tangram-*")):
        environment = Environment.load(directory)
        if environment is None:
            environment = Environment(
                directory.name, "", _NOTHING, directory, directory / "none", 0
            )
        if environment.trajectory and not environment.lost:
            await _adopt(site, environments, backend, living, environment, ended)
        elif environment.lost:
            environments.adopt(environment)
        else:
            if environment.container:
                ended.add(environment.was_running())
            await environments.delete(environment)
    await remove_strays(site, environments)
    return Found(frozenset(ended))


async def _adopt(
    site: Site,
    environments: EnvironmentStore,
    backend: ExecBackend,
    living: LivingContainers,
    environment: Environment,
    ended: set[str],
) -> None:
    if not environment.container:
        await environments.delete(environment)  # the predecessor died before the creation
        return
    try:
        await environments.find(environment)
        await environment.release_held()  # the predecessor may have ended while a reward ran
        await _thaw(site, environment)
        record = living.recognise(environment)
        connecting = asyncio.ensure_future(environments.connect(environment))
        while not connecting.done():
            # Repeatedly: the shell answers only when no command runs, and one that was sent to it
            # before may start at any moment.
            ending = await backend.end(environment, site.settings.patience_seconds)
            if ending.ended != 0:
                ended.add(environment.was_running())
            await asyncio.wait({connecting}, timeout=_AGAIN_SECONDS)
        await connecting
        if record is not None:
            await living.adopt(environment, record)
    except DockerRefused as error:
        lose(environment, f"after a restart, {error}")
    environments.adopt(environment)


async def _thaw(site: Site, environment: Environment) -> None:
    """Continue a container that the predecessor has frozen, to fork or to move it, when it ended."""
    if environment.group is None:
        await site.engine.unpause(environment.container)
        return
    with contextlib.suppress(OSError):  # it has ended, which its shell shows
        await asyncio.to_thread(environment.group.freeze, False)


def lose(environment: Environment, why: str) -> None:
    """Mark an environment as lost; later actions of its trajectory fail with the first reason."""
    environment.lost = environment.lost or why
    if environment.shell is not None:
        environment.shell.close()
    if environment.trajectory:
        environment.save()


async def remove_strays(site: Site, environments: EnvironmentStore) -> list[str]:
    """Remove containers without an owner; return their ids. Raises DockerUnavailable."""
    listed = await site.engine.containers(OWNER)
    # Read after the list: containers created meanwhile are known by now.
    known = {each.name for each in environments.all()}
    now = site.clock()
    removed = []
    for facts in listed:
        if _is_stray(facts, site.owner, known, now):
            _log.warning("removing container %s, which has no owner", facts["Id"][:12])
            await site.engine.remove(facts["Id"])
            removed.append(str(facts["Id"]))
    return removed


def _is_stray(facts: dict[str, Any], owner: str, known: set[str], now: float) -> bool:
    labels = facts["Labels"]
    if labels.get(OWNER) == owner:
        return not any(name.lstrip("/") in known for name in facts["Names"])
    expires = labels.get(EXPIRES, "")
    return expires.isdigit() and int(expires) + _FOREIGN_SLACK_SECONDS < now


async def reconcile(site: Site, environments: EnvironmentStore) -> list[Environment]:
    """Compare every environment with its container; return the expired ones.

    Raises DockerUnavailable.
    """
    # Read before the list: environments created meanwhile do not seem lost.
    known = [each for each in environments.all() if each.pid and not each.lost]
    listed = await site.engine.containers(f"{OWNER}={site.owner}")
    running = {facts["Id"] for facts in listed if facts["State"] == "running"}
    for environment in known:
        if environment.container not in running and not environment.lost:
            lose(environment, "its container was ended from outside")
    present = {facts["Id"] for facts in listed}
    for environment in environments.all():
        if environment.lost and environment.container in present:
            await site.engine.remove(environment.container)
    await remove_strays(site, environments)
    now = site.clock()
    return [
        each for each in environments.all() if each.pid and not each.lost and each.expires_at < now
    ]
