"""Layer disks: everything that a container can write to is on the disk of its environment.

An engine with the storage driver overlay2 keeps what a container writes in two directories, ``diff`` and ``work``. After
a container is created and before it starts, both become links to directories of the environment's disk
(`managers.cpu.tree.loop_disks`). The disk also holds the workspace, the volumes that the image declares, and
the files that the engine would mount at /etc from a folder of its own. So a write that would pass the quota fails with
ENOSPC, in this container alone.

    workspaces/NAME          mount point of the disk
      workspace              /workspace
      layer, work            upper directory and scratch of the container's overlay
      volumes/0, …           volumes of the image
      seed                   layer of the source, of a fork whose container has not started
      etc/hosts, …           /etc/hosts, /etc/hostname, /etc/resolv.conf

The engine follows the links when it mounts the container, and deletes them, not what they lead to, with the container. A
link whose disk is not mounted leads nowhere: such a container does not start, and none runs without its bound.

Nothing is taken for granted: once a container has started, the file systems that it sees are compared with its disk
(`check`). An engine in a mount namespace of its own does not see the disk. Where the first container shows that, this
node gives none (`LayerDisks.hindrance`): the engine limits the layer if it can, and the disk watch does the rest.
"""

from __future__ import annotations

import os
import shutil
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from domain.confinement import NETWORK_HOST
from managers.cpu.tree.copying import copy_tree
from managers.cpu.tree.layers import UPPER, WORK, WORKSPACE
from managers.cpu.tree.loop_disks import NOT_WANTED, LoopDisks
from managers.cpu.workspaces import MOUNT

STORAGE: Final = "overlay2"
#: Storage drivers that may limit the size of a layer; others ignore the option, or refuse it.
_LIMITING: Final = frozenset({"overlay2", "btrfs", "zfs"})
VOLUMES: Final = "volumes"
#: Layer that the container of a fork begins with, until it has started.
SEED: Final = "seed"
ETC: Final = "etc"
#: What an engine mounts from its own folder.
ETC_FILES: Final = ("hosts", "hostname", "resolv.conf")
_HOSTS: Final = """\
127.0.0.1\tlocalhost
::1\tlocalhost ip6-localhost ip6-loopback
fe00::0\tip6-localnet
ff00::0\tip6-mcastprefix
ff02::1\tip6-allnodes
ff02::2\tip6-allrouters
"""
HOSTNAME: Final = "tangram"


class LayerDisks:
    """How the layers of a node's containers are bounded."""

    def __init__(self, disks: LoopDisks | None, storage: str = "") -> None:
        """``storage``: storage driver of the engine."""
        self.disks = disks
        #: A container has run on its disk.
        self.proven = False
        #: Whether the engine limits layers; None: it was not asked yet.
        self.engine_limits: bool | None = None if storage in _LIMITING else False

    @property
    def hindrance(self) -> str:
        """Why environments get no disk; empty while they do."""
        return "containers have none" if self.disks is None else self.disks.hindrance

    def give_up(self, reason: str) -> None:
        """Give no environment a disk from now on."""
        if self.disks is not None:
            self.disks.hindrance = reason

    @property
    def text(self) -> str:
        """How disk is bounded, for a node's line of protection."""
        if not self.hindrance:
            return "limited by a file system for each environment"
        if self.engine_limits:
            return f"watched, the layer limited by the engine ({self.hindrance})"
        return f"watched ({self.hindrance})"


def hindrance(info: Mapping[str, Any], *, is_local: bool, wanted: bool) -> str:
    """Return why containers of an engine with this ``docker info`` get no disk; empty: they may."""
    if not wanted:
        return NOT_WANTED
    if not is_local:
        return "the engine is not on this machine"
    storage = info.get("Driver")
    return "" if storage == STORAGE else f"the engine keeps layers with {storage}, not {STORAGE}"


def volumes_of(image: Mapping[str, Any]) -> tuple[str, ...]:
    """Return where an image declares volumes, but for the workspace, which is one anyway."""
    declared = (image.get("Config") or {}).get("Volumes") or {}
    return tuple(sorted(path for path in declared if path.rstrip("/") != MOUNT))


def is_refused_limit(message: str) -> bool:
    """Say whether an engine refuses a container because it cannot limit the size of layers."""
    return "storage-opt" in message.lower() or "quota" in message.lower()


def written_of(container: Mapping[str, Any]) -> tuple[Path, ...]:
    """Return what a container without a disk writes to besides its workspace: layer, volumes, files at /etc.

    ``container``: the engine's data on it. Files that the engine keeps elsewhere are left out.
    """
    layer = ((container.get("GraphDriver") or {}).get("Data") or {}).get("UpperDir")
    volumes = (
        each.get("Source") for each in container.get("Mounts") or () if each.get("Type") == "volume"
    )
    etc = (container.get(name) for name in ("HostsPath", "HostnamePath", "ResolvConfPath"))
    return tuple(Path(each) for each in (layer, *volumes, *etc) if each and os.path.exists(each))


def furnish(folder: Path, network: str, volumes: int) -> None:
    """Make what a new container mounts from its disk. Raises OSError. Blocks."""
    for number in range(volumes):
        (folder / VOLUMES / str(number)).mkdir(parents=True, exist_ok=True)
    (folder / ETC).mkdir(exist_ok=True)
    texts = {"hosts": _HOSTS, "hostname": f"{HOSTNAME}\n", "resolv.conf": _text("resolv.conf")}
    if network == NETWORK_HOST:
        texts["hosts"] = _text("hosts") or _HOSTS
    for name, text in texts.items():
        (folder / ETC / name).write_text(text)
        (folder / ETC / name).chmod(0o644)


def _text(name: str) -> str:
    try:
        return Path("/etc", name).read_text()
    except OSError:
        return ""


def link_layer(created: Mapping[str, Any], folder: Path) -> None:
    """Put the layer of a created container on its disk. Raises OSError. Blocks.

    ``created``: the engine's data on it. Files at /etc get the owner of its root directory: the engine may map users.
    """
    places = (created.get("GraphDriver") or {}).get("Data") or {}
    if not places.get("UpperDir") or not places.get("WorkDir"):
        raise OSError("the engine names no directories of the container's layer")
    upper, work = Path(places["UpperDir"]), Path(places["WorkDir"])
    for name in (UPPER, WORK):  # of a container that could not be started
        shutil.rmtree(folder / name, ignore_errors=True)
    copy_tree(upper, folder / UPPER)
    if (folder / SEED).is_dir():
        copy_tree(folder / SEED, folder / UPPER)
    _make_like(folder / WORK, work)
    facts = upper.lstat()
    for name in ETC_FILES:
        os.chown(folder / ETC / name, facts.st_uid, facts.st_gid)
    _replace(upper, folder / UPPER)
    _replace(work, folder / WORK)


def drop_seed(folder: Path) -> None:
    """Delete the copy that the layer of a fork began with: its container has started. Blocks."""
    shutil.rmtree(folder / SEED, ignore_errors=True)


def _make_like(place: Path, pattern: Path) -> None:
    facts = pattern.lstat()
    place.mkdir()
    os.chown(place, facts.st_uid, facts.st_gid)
    os.chmod(place, stat.S_IMODE(facts.st_mode))


def _replace(directory: Path, target: Path) -> None:
    """Make a directory of the engine a link to ``target``."""
    former = directory.with_name(f"{directory.name}.before")
    directory.rename(former)
    directory.symlink_to(target)
    shutil.rmtree(former)


def check(pid: int, folder: Path, volumes: int = 0, proc: Path = Path("/proc")) -> None:
    """Raise OSError unless the container whose first process is ``pid`` runs on the disk of ``folder``."""
    root, own = proc / str(pid) / "root", os.statvfs(folder)
    # An overlay says what the file system of its upper directory says.
    seen = os.statvfs(root)
    if (seen.f_blocks, seen.f_files) != (own.f_blocks, own.f_files):
        raise OSError("the engine does not see the disk: its container has another layer")
    device = os.stat(folder).st_dev
    number = f"{os.major(device)}:{os.minor(device)}"
    shown = set()
    for line in (proc / str(pid) / "mountinfo").read_text().splitlines():
        _, _, of, inside, _ = line.split(" ", 4)
        if of == number:
            shown.add(inside)
    wanted = [f"/{WORKSPACE}", *(f"/{ETC}/{name}" for name in ETC_FILES)]
    wanted += [f"/{VOLUMES}/{each}" for each in range(volumes)]
    if missing := [each for each in wanted if each not in shown]:
        raise OSError(f"the engine does not see the disk: its container lacks {missing[0]} of it")
