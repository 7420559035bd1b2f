"""Finding out, once, who we are and which way of running actions works here."""

from __future__ import annotations

import asyncio
import logging
import secrets
from dataclasses import replace
from pathlib import Path
from typing import Final

from domain.action import EnvironmentSpec
from domain.errors import InvalidRequest, TangramError, Unavailable
from domain.ids import ActionId
from managers.cpu.containers.engine import Engine, EngineAway, Gone
from managers.cpu.containers.environment import Share
from managers.cpu.containers.environments import Environments, Site
from managers.cpu.containers.settings import Settings
from managers.cpu.containers.trees import Trees
from managers.cpu.process.workspace import Workspaces

#: An idle container gets so many thousandths of a core, to answer and to reap its dead.
_PARKED_MILLI: Final = 10

_log = logging.getLogger(__name__)


async def survey(
    engine: Engine, settings: Settings, directory: Path, parking: frozenset[int]
) -> Site:
    """Return where containers are made, and how. Raises Unavailable, EngineAway."""
    owner = await asyncio.to_thread(_owner, directory / "owner")
    systemd = engine.info.get("CgroupDriver") == "systemd"
    parent = f"tangram-{owner}.slice" if systemd else f"/tangram-{owner}"
    site = Site(
        engine, settings, owner, await asyncio.to_thread(_boot_id), directory / "environments",
        Workspaces(directory), Share(parking, _PARKED_MILLI), None, parent,
    )  # fmt: skip
    await asyncio.to_thread(_open_directories, site)
    if settings.way == "api":
        return site
    try:
        trees = _delegated(engine, parent, parking, systemd=systemd)
        site = replace(site, trees=trees)
        await _try(site)
    except (OSError, TangramError) as error:
        if settings.way == "direct" or isinstance(error, EngineAway):
            raise Unavailable(f"actions cannot run directly: {error}") from error
        _log.warning("actions run through the engine, which is slow: %s", error)
        return replace(site, trees=None)
    return site


def _delegated(engine: Engine, parent: str, parking: frozenset[int], *, systemd: bool) -> Trees:
    """Make our parent in the control groups. Raises OSError when they are not ours to write."""
    if not engine.is_local:
        raise OSError(f"{engine.host} is not on this machine")
    trees = Trees.find()
    version = int(engine.info.get("CgroupVersion") or 1)
    if trees.version != version:
        raise OSError(f"control groups here are version {trees.version}, the engine's {version}")
    if not systemd:  # which makes the slice itself
        trees.make_parent(parent)
        if not parking <= trees.parent_cpus(parent):
            raise OSError(f"containers may not use cores {sorted(parking)}")
    return trees


async def _try(site: Site) -> None:
    """Make a container, talk to its shell, park it. Without the node's image nothing is tried."""
    try:
        await site.engine.image(site.settings.image or "none")
    except Gone:
        return
    environments = Environments(replace(site, settings=replace(site.settings, warm=0)))
    trial = await environments.alone(ActionId("trial"), EnvironmentSpec(ttl_seconds=60.0))
    await environments.delete(trial)


def _boot_id() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def _open_directories(site: Site) -> None:
    site.directory.mkdir(mode=0o711, parents=True, exist_ok=True)
    site.workspaces.open()


def _owner(path: Path) -> str:
    """Return the name by which containers of this state directory are known; it lasts."""
    if not path.exists():
        draft = path.with_suffix(".new")
        draft.write_text(secrets.token_hex(6))
        draft.replace(path)
    owner = path.read_text().strip()
    if not owner.isalnum():
        raise InvalidRequest(f"{path} does not hold a name")
    return owner
