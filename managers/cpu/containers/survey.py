"""Survey of a node with containers: what its machine and its engine permit, found once when the driver opens.

Actions run directly where the control groups of containers can be written; a trial container shows it, and that the
engine sees the disks of environments. Everything else is a reason to run actions through the engine, unless the node's
settings demand the direct way.
"""

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
from managers.cpu.containers import layer_disks
from managers.cpu.containers.cgroups import CgroupMounts
from managers.cpu.containers.docker_engine import DockerEngine, DockerNotFound, DockerUnavailable
from managers.cpu.containers.environment import CpuShare
from managers.cpu.containers.environment_store import EnvironmentStore, Site
from managers.cpu.containers.layer_disks import LayerDisks
from managers.cpu.containers.settings import ContainerSettings
from managers.cpu.disk_watch import DiskWatch
from managers.cpu.tree.loop_disks import LoopDisks
from managers.cpu.workspaces import FLAT, Workspaces

#: Thousandths of a core of an idle container, to answer and to reap zombies.
_PARKED_MILLI: Final = 10

_log = logging.getLogger(__name__)


async def survey(
    engine: DockerEngine,
    settings: ContainerSettings,
    directory: Path,
    parking: frozenset[int],
    disk: DiskWatch,
    *,
    wants_disks: bool,
) -> Site:
    """Return the site of this driver. Raises Unavailable, DockerUnavailable.

    ``wants_disks``: environments have disks of their own where possible.
    """
    owner = await asyncio.to_thread(_owner, directory / "owner")
    systemd = engine.info.get("CgroupDriver") == "systemd"
    parent = f"tangram-{owner}.slice" if systemd else f"/tangram-{owner}"
    why = layer_disks.hindrance(engine.info, is_local=engine.is_local, wanted=wants_disks)
    workspaces = Workspaces(directory, flat=True)
    workspaces.disks = disks = LoopDisks(directory, disk.quotas.files, FLAT, why)
    site = Site(
        engine, settings, owner, await asyncio.to_thread(_boot_id), directory / "environments",
        workspaces, CpuShare(parking, _PARKED_MILLI), disk, None, parent,
        layers=LayerDisks(disks, str(engine.info.get("Driver"))),
    )  # fmt: skip
    await asyncio.to_thread(disks.open)
    await asyncio.to_thread(_open_directories, site)
    if settings.way == "api":
        return site
    try:
        trees = _delegated(engine, parent, parking, systemd=systemd)
        site = replace(site, trees=trees)
        await _try(site)
    except (OSError, TangramError) as error:
        if settings.way == "direct" or isinstance(error, DockerUnavailable):
            raise Unavailable(f"actions cannot run directly: {error}") from error
        _log.warning("actions run through the engine, which is slow: %s", error)
        return replace(site, trees=None)
    return site


def _delegated(
    engine: DockerEngine, parent: str, parking: frozenset[int], *, systemd: bool
) -> CgroupMounts:
    """Make our parent in the control groups. Raises OSError when they are not delegated to us."""
    if not engine.is_local:
        raise OSError(f"{engine.host} is not on this machine")
    trees = CgroupMounts.find()
    version = int(engine.info.get("CgroupVersion") or 1)
    if trees.version != version:
        raise OSError(f"control groups here are version {trees.version}, the engine's {version}")
    if not systemd:  # systemd makes the slice itself
        trees.make_parent(parent)
        if not parking <= trees.parent_cpus(parent):
            raise OSError(f"containers may not use cores {sorted(parking)}")
    return trees


async def _try(site: Site) -> None:
    """Try a container with its shell, if the node has a default image."""
    try:
        await site.engine.image(site.settings.image or "none")
    except DockerNotFound:
        return
    environments = EnvironmentStore(replace(site, settings=replace(site.settings, warm=0)))
    trial = await environments.alone(ActionId("trial"), EnvironmentSpec(ttl_seconds=60.0))
    await environments.delete(trial)


def _boot_id() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def _open_directories(site: Site) -> None:
    site.directory.mkdir(mode=0o711, parents=True, exist_ok=True)
    site.workspaces.open()


def _owner(path: Path) -> str:
    """Return the owner label of this state directory, stored at the first call."""
    if not path.exists():
        draft = path.with_suffix(".new")
        draft.write_text(secrets.token_hex(6))
        draft.replace(path)
    owner = path.read_text().strip()
    if not owner.isalnum():
        raise InvalidRequest(f"{path} does not hold a name")
    return owner
