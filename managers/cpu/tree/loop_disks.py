"""Disks of environments: each a sparse file with a file system, mounted as the folder of one environment.

A folder on a disk of its own cannot hold more than its quota: the write that would pass it fails with ENOSPC,
in this environment alone. A disk takes 4 MB and some 20 ms when it is made; what is deleted in it is given
back to the disk of the node. Layers of other environments are elsewhere (`managers.cpu.tree.layers`), so
the upper layer of such an environment is copied, not moved, when it is forked.

    disks/NAME.img           the file, below a driver's state directory
    environments/NAME        the folder, as one mount; empty below it (workspaces/NAME with containers)

Only a root worker that may mount has them, where the machine has loop devices and mkfs.ext4 (`hindrance`); whether they
work, the first disk shows. Folders whose disk cannot be made have watched quotas (`managers.cpu.disk_watch`), as have those
that exist before an environment declares its disk.

With the first disk the state directory becomes a mount that passes later mounts on, so that the sandbox's
namespace sees a disk that is made after it. Disks stay mounted when a worker ends; after a start of the
machine the next one mounts them again. A file is never mounted through two loop devices.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
import shutil
import subprocess
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

from domain.errors import InvalidRequest
from managers.cpu.tree.layers import ENVIRONMENTS

_log = logging.getLogger(__name__)

DISKS: Final = "disks"
_MIB: Final = 2**20
_JOURNAL_BYTES: Final = 4 * _MIB
#: A smaller disk has no journal: it would be a large part of it.
_LEAST_WITH_JOURNAL: Final = 64 * _MIB
_INODE_BYTES: Final = 256
_BYTES_PER_FILE: Final = 8192
_LEAST_FILES: Final = 1024
#: What a file system and the parts of an environment's folder take of them.
_OWN_FILES: Final = 64
#: ``noinit_itable``: the kernel writes no zeros into the file; ``discard`` frees what is deleted.
_MOUNT: Final = "nosuid,nodev,noatime,discard,noinit_itable"
_SECONDS: Final = 60.0
_PATH: Final = "/usr/sbin:/usr/bin:/sbin:/bin"
_PROGRAMS: Final = ("mkfs.ext4", "losetup", "mount", "umount")
_AUTO, _WATCHED = "auto", "watched"
_OCTAL: Final = re.compile(r"\\([0-7]{3})")


class LoopDisks:
    """The disks of one driver; its methods block and may be called from any thread."""

    def __init__(
        self, state: Path, most_files: int, folders: str = ENVIRONMENTS, hindrance: str = ""
    ) -> None:
        """``folders``: directory of the folders. ``hindrance``: why none is made, whatever the machine permits."""
        self._state, self._most_files = state.resolve(), most_files
        self._folders = self._state / folders
        self._images = self._state / DISKS
        #: Called when the state directory has become a mount.
        self.shared: Callable[[], None] = _nothing
        self._sharing = threading.Lock()
        self._is_shared = False
        #: Whether a disk could be made.
        self._has_worked = False
        #: Why no disk is made here; empty while they are.
        self.hindrance = hindrance or _hindrance()

    def open(self) -> None:
        """Mount the disks of a predecessor, and delete those whose folder is gone."""
        images = list(self._images.glob("*.img"))
        if not images:
            return
        self._share()
        mounted = _mount_points()
        for image in images:
            folder = self._folders / image.stem
            if not folder.is_dir() and not (self._state / "alone" / image.stem).is_dir():
                image.unlink()
            elif folder.is_dir() and folder not in mounted:
                try:
                    self._mount(image, folder)
                except OSError as error:
                    _log.error("the files of %s cannot be read: %s", image.stem, error)

    def make(self, folder: Path, quota_bytes: int) -> bool:
        """Give a new and empty folder a disk with room for so many bytes; return whether it has one."""
        if self.hindrance:
            return False
        image = self._image(folder)
        try:
            self._images.mkdir(mode=0o700, exist_ok=True)
            self._format(image, quota_bytes)
            self._share()
            self._mount(image, folder)
        except (OSError, subprocess.TimeoutExpired) as error:
            image.unlink(missing_ok=True)
            if not self._has_worked:
                self.hindrance = str(error)
            _log.warning("the disk quota of %s is watched, it has no disk: %s", folder.name, error)
            return False
        self._has_worked = True
        return True

    def size(self, folder: Path) -> int:
        """Return the bytes that files in a folder can have; 0 for one without a disk."""
        if not os.path.exists(f"{self._images}/{folder.name}.img"):  # each action asks
            return 0
        space = os.statvfs(folder)
        return space.f_blocks * space.f_frsize

    def remove(self, folder: Path) -> None:
        """Delete the disk of a folder, if it has one. No process may use it any more. Raises OSError."""
        # A crash while it was moved may have left a mount without its file.
        if os.path.ismount(folder):
            _unmount(folder)
        self._image(folder).unlink(missing_ok=True)

    def move(self, folder: Path, place: Path) -> None:
        """Mount the disk of a folder at ``place``, which does not exist, and delete the folder. Raises OSError.

        A mount point cannot be renamed. After a crash within, the disk belongs to ``place`` or to the folder.
        """
        place.mkdir(mode=0o700)
        self._image(folder).rename(self._image(place))
        _run("mount", "--bind", str(folder), str(place))
        _unmount(folder)
        folder.rmdir()

    def close(self) -> None:
        """Make the state directory an ordinary one again, unless a disk is mounted below."""
        if not self._is_shared:
            return
        mounted = _mount_points()
        if not any(self._state in each.parents for each in mounted):
            with contextlib.suppress(OSError):
                _run("umount", "--lazy", str(self._state))

    def _image(self, folder: Path) -> Path:
        return self._images / f"{folder.name}.img"

    def _share(self) -> None:
        """Make the state directory a mount that passes later mounts on. Raises OSError."""
        with self._sharing:
            if self._is_shared:
                return
            state = str(self._state)
            if self._state not in _mount_points():
                _run("mount", "--bind", state, state)
            # Of its own: not of a mount of the machine, which would pass the disks on to everything there.
            _run("mount", "--make-private", state)
            _run("mount", "--make-shared", state)
            self.shared()
            self._is_shared = True

    def _format(self, image: Path, quota_bytes: int) -> None:
        """Make a file with an empty file system that has room for so many bytes. Raises OSError."""
        files = min(self._most_files, max(_LEAST_FILES, quota_bytes // _BYTES_PER_FILE))
        files += _OWN_FILES
        has_journal = quota_bytes >= _LEAST_WITH_JOURNAL
        overhead = files * _INODE_BYTES + quota_bytes // 64 + _MIB
        image.unlink(missing_ok=True)
        with image.open("xb") as file:
            os.fchmod(file.fileno(), 0o600)
            file.truncate(quota_bytes + overhead + (_JOURNAL_BYTES if has_journal else 0))
        journal = (
            ("-J", f"size={_JOURNAL_BYTES // _MIB}") if has_journal else ("-O", "^has_journal")
        )
        _run(
            "mkfs.ext4", "-q", "-F", "-m", "0", "-b", "4096", "-I", str(_INODE_BYTES),
            "-N", str(files), *journal, "-E", "lazy_itable_init=1,nodiscard", str(image),
        )  # fmt: skip

    def _mount(self, image: Path, folder: Path) -> None:
        """Mount a file as a folder, empty but for what was stored in it. Raises OSError."""
        # The loop device of a predecessor's mount: a second one would write past the first one's cache.
        device = _run("losetup", "--noheadings", "--output", "NAME", "--associated", str(image))
        source = [device.split()[0]] if device.strip() else ["-o", "loop", str(image)]
        _run("mount", "-t", "ext4", "-o", _MOUNT, *source, str(folder))
        with contextlib.suppress(FileNotFoundError):
            (folder / "lost+found").rmdir()
            os.chmod(folder, 0o700)


def wants_disks(given: Mapping[str, str]) -> bool:
    """Return whether a node's settings permit disks (``environment_disks``). Raises InvalidRequest."""
    wanted = given.get("environment_disks", _AUTO)
    if wanted not in (_AUTO, _WATCHED):
        raise InvalidRequest(f"environment_disks is one of {_AUTO}, {_WATCHED}")
    return wanted == _AUTO


#: Why a node whose setting refuses disks has none.
NOT_WANTED: Final = "the node's setting environment_disks is watched"


def describe(disks: LoopDisks | None) -> str:
    """Return how disk is limited where declared disks are made by ``disks``; None: there are none."""
    why = disks.hindrance if disks is not None else _hindrance() or NOT_WANTED
    return f"watched ({why})" if why else "limited by a file system where declared, else watched"


def _hindrance() -> str:
    """Return why this worker can make no disk; empty: it may be able to."""
    if os.geteuid() != 0:
        return "the worker is not root"
    if not any(Path("/dev", each).exists() for each in ("loop-control", "loop0")):
        return "the machine has no loop devices"
    missing = [each for each in _PROGRAMS if shutil.which(each, path=_PATH) is None]
    return f"not installed: {', '.join(missing)}" if missing else ""


def _unmount(folder: Path) -> None:
    """Unmount a folder. Raises OSError."""
    try:
        _run("umount", str(folder))
    except OSError:  # a descriptor is open: the space is free when it is closed
        _run("umount", "--lazy", str(folder))


def _nothing() -> None:
    """Do nothing."""


def _mount_points() -> set[Path]:
    """Return where something is mounted (proc(5))."""
    lines = Path("/proc/self/mountinfo").read_text().splitlines()
    return {Path(_OCTAL.sub(lambda c: chr(int(c[1], 8)), line.split()[4])) for line in lines}


def _run(program: str, *words: str) -> str:
    """Run a program of the system and return its output. Raises OSError."""
    command: Sequence[str] = (program, *words)
    done = subprocess.run(
        command, stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace",
        env={"PATH": _PATH}, timeout=_SECONDS, check=False,
    )  # fmt: skip
    if done.returncode:
        raise OSError(f"{program}: {done.stderr.strip() or done.returncode}")
    return done.stdout
