"""Comparing what is with what should be: at the start, and every half minute.

Removed are containers that carry our label and no record, and those of any Tangram beyond their
expiry (its worker may never come back). Everything else is not ours, whatever it is called (I7).
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass
from typing import Any, Final

from domain.action import EnvironmentSpec
from managers.cpu.containers.creation import EXPIRES, OWNER
from managers.cpu.containers.engine import EngineRefused
from managers.cpu.containers.environment import Environment
from managers.cpu.containers.environments import Environments, Site
from managers.cpu.containers.exec_backends import Way

#: How long a foreign container may pass its expiry: its own worker has the first word.
_FOREIGN_SLACK_SECONDS: Final = 600.0

#: Between two looks at what a predecessor left running.
_AGAIN_SECONDS: Final = 0.05
_NOTHING: Final = EnvironmentSpec()

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Found:
    """What a start found."""

    #: Attempts whose processes were found running, and were ended.
    ended: frozenset[str]


async def take_over(site: Site, environments: Environments, way: Way) -> Found:
    """Adopt the containers of a dead predecessor, ending what runs in them. Raises EngineAway."""
    ended: set[str] = set()
    for directory in sorted(site.directory.glob("tangram-*")):
        environment = Environment.load(directory)
        if environment is None:
            environment = Environment(
                directory.name, "", _NOTHING, directory, directory / "none", 0
            )
        if environment.trajectory and not environment.lost:
            await _adopt(site, environments, way, environment, ended)
        elif environment.lost:
            environments.adopt(environment)
        else:
            if environment.container:
                ended.add(environment.was_running())
            await environments.delete(environment)
    await remove_strays(site, environments)
    return Found(frozenset(ended))


async def _adopt(
    site: Site, environments: Environments, way: Way, environment: Environment, ended: set[str]
) -> None:
    if not environment.container:
        await environments.delete(environment)  # the predecessor died before it was made
        return
    try:
        await environments.find(environment)
        connecting = asyncio.ensure_future(environments.connect(environment))
        while not connecting.done():
            # Again and again: the shell answers only when nothing runs, and what was sent to it
            # before may begin to run at any moment.
            ending = await way.end(environment, site.settings.patience_seconds)
            if ending.ended != 0:
                ended.add(environment.was_running())
            await asyncio.wait({connecting}, timeout=_AGAIN_SECONDS)
        await connecting
    except EngineRefused as error:
        lose(environment, f"after a restart, {error}")
    environments.adopt(environment)


def lose(environment: Environment, why: str) -> None:
    """Note that an environment is of no use any more; its trajectory learns it."""
    environment.lost = why
    if environment.shell is not None:
        environment.shell.close()
    if environment.trajectory:
        environment.save()


async def remove_strays(site: Site, environments: Environments) -> list[str]:
    """Remove containers that nobody will; return their ids. Raises EngineAway."""
    listed = await site.engine.containers(OWNER)
    # Asked after: what was being made meanwhile is known by now.
    known = {each.name for each in environments.all()}
    now = site.clock()
    removed = []
    for facts in listed:
        if _is_stray(facts, site.owner, known, now):
            _log.warning("removing container %s, which belongs to nobody", facts["Id"][:12])
            await site.engine.remove(facts["Id"])
            removed.append(str(facts["Id"]))
    return removed


def _is_stray(facts: dict[str, Any], owner: str, known: set[str], now: float) -> bool:
    labels = facts["Labels"]
    if labels.get(OWNER) == owner:
        return not any(name.lstrip("/") in known for name in facts["Names"])
    expires = labels.get(EXPIRES, "")
    return expires.isdigit() and int(expires) + _FOREIGN_SLACK_SECONDS < now


async def look_after(site: Site, environments: Environments) -> list[Environment]:
    """Compare every environment with its container; return those that have to go.

    Raises EngineAway.
    """
    # Asked before: what was being made meanwhile is not missed.
    known = [each for each in environments.all() if each.pid and not each.lost]
    listed = await site.engine.containers(f"{OWNER}={site.owner}")
    running = {facts["Id"] for facts in listed if facts["State"] == "running"}
    for environment in known:
        if environment.container not in running and not environment.lost:
            lose(environment, "its container was ended by somebody else")
    present = {facts["Id"] for facts in listed}
    for environment in environments.all():
        if environment.lost and environment.container in present:
            await site.engine.remove(environment.container)  # what is left of it helps nobody
    await remove_strays(site, environments)
    now = site.clock()
    return [
        each for each in environments.all() if each.pid and not each.lost and each.expires_at < now
    ]
