"""Workspaces of commands: one folder per trajectory, one for each action without a trajectory.

A folder holds the files of an environment: as the upper layer of its tree (`managers.cpu.tree.layers`), in
which the workspace is one directory, or, for containers, as the workspace itself, unless the folder is a disk of
its own: then the workspace is one directory of it. Folders of earlier
versions, ``workspaces/NAME``, become ``environments/NAME/layer/workspace`` by rename when the driver opens;
a crash between leaves each file in one of the two places, and the next start goes on.

The worker may see more of the disk than the commands in a sandbox, so it must never follow a link that
a command left: `managers.cpu.files` reads and writes what is inside.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import functools
import hashlib
import itertools
import logging
import os
import re
import stat
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Final, Protocol

from domain.errors import InvalidRequest, NotFound, Unavailable
from domain.ids import ActionId, TrajectoryKey
from managers.cpu.tree.copying import copy_tree, delete_of_others
from managers.cpu.tree.layers import ENVIRONMENTS, UPPER, WORKSPACE

#: Path of the workspace inside a sandbox; accepted as a prefix of paths everywhere.
MOUNT: Final = "/workspace"
_UNSAFE: Final = re.compile(r"[^A-Za-z0-9_+@-]+")
_READABLE_LENGTH: Final = 80
#: Folders of trajectories in earlier versions, and of containers.
FLAT: Final = "workspaces"
_log = logging.getLogger(__name__)


class LostWorkspaceError(Unavailable):
    """The files of a trajectory were deleted for a lack of space; the message says why."""


class WorkspaceOwners(Protocol):
    """The users that workspaces belong to, where that is not the user of the worker."""

    def own(self, workspace: Path) -> int:
        """Return the uid of a workspace, which belongs to it from now on. Blocks."""

    def new(self) -> int:
        """Return a uid for a new family, which has one workspace. Raises Unavailable."""

    def share(self, uid: int) -> None:
        """Count a further workspace of ``uid``; an unknown uid is ignored."""

    def disown(self, uid: int) -> None:
        """Record that a workspace of ``uid`` was removed; an unknown uid is ignored."""


class WorkspaceDisks(Protocol):
    """Disks of single folders, which bound what they hold."""

    def make(self, folder: Path, quota_bytes: int) -> bool:
        """Give a new and empty folder a disk; return whether it has one. Blocks."""

    def size(self, folder: Path) -> int:
        """Return the bytes that files in a folder can have; 0 for one without a disk."""

    def remove(self, folder: Path) -> None:
        """Delete the disk of a folder, if it has one. Raises OSError. Blocks."""

    def move(self, folder: Path, place: Path) -> None:
        """Make the disk of a folder that of ``place``, which does not exist. Raises OSError. Blocks."""


class PreparedFolders(Protocol):
    """Folders of images that wait for a trajectory."""

    def take(self, image: str, place: Path) -> bool:
        """Move one to ``place``, which does not exist; return whether there was one."""


class Workspaces:
    """The workspaces below one state directory.

    ``flat``: a folder without a disk of its own is the workspace itself, as containers have it.
    """

    def __init__(self, state_directory: Path, *, flat: bool = False) -> None:
        #: None: workspaces belong to the user of the worker.
        self.owners: WorkspaceOwners | None = None
        #: None: folders are on the disk of the state directory.
        self.disks: WorkspaceDisks | None = None
        #: Folder that gets a disk now → set when it has one: nothing may be written in it before.
        self._making: dict[str, threading.Event] = {}
        #: Folders that wait for a trajectory.
        self.prepared: PreparedFolders | None = None
        self._flat = flat
        self._earlier = state_directory / FLAT
        self._trajectories = self._earlier if flat else state_directory / ENVIRONMENTS
        self._alone = state_directory / "alone"
        self._yard = state_directory / "yard"
        self._lost_at = state_directory / "lost"
        #: Workspace name → why its files were deleted.
        self._lost: dict[str, str] = {}
        # A workspace is moved away once; a tree of a million directories delays no other removal.
        self._deleting = threading.Lock()

    def open(self) -> None:
        """Make the directories, delete temporary ones of a predecessor, and convert those of earlier versions."""
        for directory in (self._trajectories, self._alone, self._yard, self._lost_at):
            directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._lost = {each.name: each.read_text() for each in self._lost_at.iterdir()}
        for leftover in (*self._alone.iterdir(), *self._yard.iterdir()):
            try:
                self.remove(leftover)
            except OSError as error:  # of subordinate ids that this account may not map any more
                _log.warning("%s could not be deleted: %s", leftover, error)
        if not self._flat and self._earlier.is_dir():
            for folder in self._earlier.iterdir():
                _convert(folder, self._trajectories / folder.name)

    def of(self, trajectory: TrajectoryKey) -> Path:
        """Return the folder of a trajectory, which may not exist."""
        return self._trajectories / safe_name(trajectory)

    def all(self) -> list[Path]:
        """Return the folders of trajectories."""
        return [each for each in self._trajectories.iterdir() if self.files(each).is_dir()]

    def existing(self, trajectory: TrajectoryKey) -> Path:
        """Return a trajectory's folder. Raises NotFound with code ``not_here``, LostWorkspaceError."""
        path = self.of(trajectory)
        if path.name in self._lost:
            raise LostWorkspaceError(self._lost[path.name])
        if not self.files(path).is_dir():
            raise NotFound(f"{trajectory} has no environment on this node", code="not_here")
        return path

    def ensure(
        self, trajectory: TrajectoryKey, disk_bytes: int = 0, image: str | None = None
    ) -> Path:
        """Return a trajectory's folder, made when missing. Raises LostWorkspaceError.

        ``image``: a new folder is a `prepared` one of it, where there is any; ``""`` is no image, None: a new one.

        ``disk_bytes``: a new folder gets a disk of its own with so much room where the node has
        `disks`; then this blocks for some 20 ms.
        """
        path = self.of(trajectory)
        if path.name in self._lost:
            raise LostWorkspaceError(self._lost[path.name])
        has_disk = disk_bytes and self.disks is not None
        prepared = None if image is None or has_disk else self.prepared
        if prepared is not None and image is not None and not path.exists():
            prepared.take(image, path)
        made = threading.Event()
        if self.disks is not None:
            # One thread at a time makes it: a second one would fill the folder below the disk of the first.
            while (other := self._making.setdefault(path.name, made)) is not made:
                other.wait()
        try:
            with contextlib.suppress(FileExistsError):
                path.mkdir(mode=0o700)
                self._limit(path, disk_bytes)
        finally:
            if self.disks is not None:
                del self._making[path.name]
                made.set()
        return self._furnished(path)

    def alone(self, action_id: ActionId, disk_bytes: int = 0) -> Path:
        """Make a folder for one action without a trajectory, as `ensure` does."""
        prefix = f"{safe_name(action_id)}."
        path = Path(tempfile.mkdtemp(prefix=prefix, dir=self._alone))
        self._limit(path, disk_bytes)
        return self._furnished(path)

    def disk_bytes(self, path: Path) -> int:
        """Return the size of a folder's own disk; 0 for a folder without one."""
        return 0 if self.disks is None else self.disks.size(path)

    def _limit(self, path: Path, disk_bytes: int) -> None:
        if disk_bytes and self.disks is not None:
            self.disks.make(path, disk_bytes)

    def _furnished(self, folder: Path) -> Path:
        if self._flat:
            if self.disk_bytes(folder):
                (folder / WORKSPACE).mkdir(mode=0o755, exist_ok=True)
        else:
            with contextlib.suppress(FileExistsError):
                (folder / UPPER).mkdir(mode=0o755)
            with contextlib.suppress(FileExistsError):
                (folder / UPPER / WORKSPACE).mkdir(mode=0o755)
        return folder

    def remove_empty(self, path: Path) -> None:
        """Delete a folder whose workspace is empty. Raises OSError when it holds anything else."""
        uid = os.lstat(path).st_uid
        if not self._flat:
            (path / UPPER / WORKSPACE).rmdir()
            (path / UPPER).rmdir()
        path.rmdir()
        self._disown(uid)

    def lose(self, name: str, reason: str) -> None:
        """Delete the files of a workspace for a lack of space, and record why. Blocks."""
        path = self._trajectories / name
        self._lost[name] = reason
        self._delete(path if path.is_dir() else self._alone / name)
        if path.parent.is_dir():
            (self._lost_at / name).write_text(reason)

    def remove(self, path: Path) -> None:
        """Delete a workspace, if it exists. Blocks."""
        self._delete(path)
        if self._lost.pop(path.name, None) is not None:
            (self._lost_at / path.name).unlink(missing_ok=True)

    def _delete(self, path: Path) -> None:
        with self._deleting:
            if not os.path.lexists(path):
                return
            uid = os.lstat(path).st_uid
            if path.is_symlink() or path.is_file():
                path.unlink()
                moved = None
            else:
                if self.disks is not None:
                    self.disks.remove(path)
                moved = _move(path, self._yard)
        if moved is not None and not (os.geteuid() and delete_of_others(moved)):
            remove_tree(moved, self._yard)
        with self._deleting:
            self._disown(uid)

    def without_disk(self, folder: Path) -> None:
        """Move the workspace of a container from the disk of its folder to that of the state directory. Blocks."""
        with self.draft() as draft:
            copy_tree(self.files(folder), draft)
            self.remove(folder)
            draft.rename(folder)

    def become(self, folder: Path, place: Path) -> None:
        """Make the folder of a container that waited, and still has it mounted, that of its trajectory. Blocks.

        Files that were uploaded to the trajectory before move into it. Raises OSError, StorageFull.
        """
        has_disk, files = bool(self.disk_bytes(folder)), self.files(folder)
        if place.exists():
            if has_disk or self.disk_bytes(place):
                mode = stat.S_IMODE(os.lstat(files).st_mode)
                copy_tree(self.files(place), files)
                os.chmod(files, mode)
            else:
                for entry in place.iterdir():
                    entry.rename(files / entry.name)
            self.remove(place)
        if self.disks is not None and has_disk:
            self.disks.move(folder, place)
        else:
            folder.rename(place)

    @contextlib.contextmanager
    def draft(self) -> Iterator[Path]:
        """Make a folder in the yard; what is still there at the end is deleted. Blocks."""
        path = Path(tempfile.mkdtemp(prefix="draft.", dir=self._yard))
        try:
            yield path
        finally:
            if path.exists():
                remove_tree(path, self._yard)

    def uid_of(self, path: Path) -> int:
        """Return the host uid that owns a tree of an environment; -1: that of the worker."""
        return -1 if self.owners is None else os.lstat(path).st_uid

    def new_owner(self) -> int:
        """Return a uid for a new family of environments; -1: that of the worker. Raises Unavailable."""
        return -1 if self.owners is None else self.owners.new()

    def share(self, path: Path) -> None:
        """Count a workspace that was made with the owner of another one, of which it is a fork."""
        if self.owners is not None:
            self.owners.share(os.lstat(path).st_uid)

    def files(self, folder: Path) -> Path:
        """Return the directory of a folder that commands see as ``/workspace``."""
        if not self._flat:
            return workspace_of(folder)
        return folder / WORKSPACE if self.disk_bytes(folder) else folder

    def _disown(self, uid: int) -> None:
        if self.owners is not None:
            self.owners.disown(uid)


def workspace_of(folder: Path) -> Path:
    """Return the workspace in an environment's folder."""
    return folder / UPPER / WORKSPACE


def _convert(earlier: Path, folder: Path) -> None:
    """Move a workspace of an earlier version into a folder with layers, with its owner and mode."""
    facts = os.lstat(earlier)
    folder.mkdir(mode=0o700, exist_ok=True)
    upper = folder / UPPER
    if workspace_of(folder).exists():
        _log.warning("%s is left where it is: %s exists already", earlier, folder)
        return
    upper.mkdir(mode=0o755, exist_ok=True)
    for directory in (folder, upper):
        os.chown(directory, facts.st_uid, facts.st_gid, follow_symlinks=False)
    # A directory without write permission cannot be moved to another by its owner.
    os.chmod(earlier, facts.st_mode | _OWNER_ALL)
    moved = earlier.rename(workspace_of(folder))
    os.chmod(moved, stat.S_IMODE(facts.st_mode))


@functools.lru_cache(maxsize=4096)  # each action asks for that of its trajectory several times
def safe_name(name: str) -> str:
    """Return a readable file name, distinct for each ``name`` and without path separators."""
    digest = hashlib.blake2b(name.encode(errors="surrogatepass"), digest_size=8).hexdigest()
    return f"{_UNSAFE.sub('_', name)[:_READABLE_LENGTH]}.{digest}"


def split_path(path: str) -> list[str]:
    """Split a path of the user into parts below the workspace.

    It is relative, or absolute inside ``/workspace``. Raises InvalidRequest when it leaves it.
    """
    if "\0" in path:
        raise InvalidRequest("a path cannot contain a zero byte", pointer="/path")
    inside = path
    if path.startswith("/"):
        if path != MOUNT and not path.startswith(f"{MOUNT}/"):
            raise InvalidRequest(
                f"{path!r} is outside the workspace: give a relative path, or one below {MOUNT}",
                pointer="/path",
            )
        inside = path.removeprefix(MOUNT)
    parts = [part for part in inside.split("/") if part not in ("", ".")]
    if ".." in parts:
        raise InvalidRequest(
            f"{path!r} climbs with '..': give the path without it", pointer="/path"
        )
    return parts


def working_directory(workspace: Path, cwd: str | None) -> tuple[Path, str]:
    """Return a command's working directory: its real path, and its path below the workspace
    (empty, or with a leading slash).

    Links that stay inside the workspace are followed. Raises InvalidRequest when ``cwd`` leaves the
    workspace, OSError when it is missing or no directory.
    """
    parts = split_path(cwd or "")
    root = os.path.realpath(workspace)
    real = os.path.realpath(os.path.join(root, *parts), strict=True)
    if real != root and not real.startswith(f"{root}/"):
        raise InvalidRequest(f"{cwd!r} is a link that leaves the workspace", pointer="/exec/cwd")
    if not os.path.isdir(real):
        raise NotADirectoryError(20, "Not a directory", cwd)
    return Path(real), real.removeprefix(root)


_OWNER_ALL: Final = 0o700


#: Names in the yard, distinct for parallel removals.
_numbers: Final = itertools.count()


def remove_tree(root: Path, yard: Path) -> None:
    """Delete the directory ``root`` in ``yard``, whatever a command built in it; no process may run there.

    Directories inside are first moved up into the yard (same file system), one after another: no
    depth of nesting exhausts the stack or the length of a path. Links are removed, not followed.
    """
    pending = [root]
    while pending:
        directory = pending.pop()
        with os.scandir(directory) as entries:
            for entry in list(entries):
                if not entry.is_dir(follow_symlinks=False):
                    os.unlink(entry.path)
                elif not _removed_empty(entry.path):
                    pending.append(_move(Path(entry.path), yard))
        directory.rmdir()


def _removed_empty(directory: str) -> bool:
    """Delete a directory if it is empty; moving it first would take several times as long."""
    try:
        os.rmdir(directory)
    except OSError:
        return False
    return True


def _move(directory: Path, yard: Path) -> Path:
    # A directory without write permission can neither be moved nor emptied by its owner.
    os.chmod(directory, _OWNER_ALL)
    while True:
        target = yard / f"{os.getpid()}.{next(_numbers)}"
        if not os.path.lexists(target):
            return directory.rename(target)


_libc: Final = ctypes.CDLL(None, use_errno=True)


@contextlib.contextmanager
def acting_as(uid: int | None) -> Iterator[None]:
    """Access files as ``uid`` and its group in this thread; None changes nothing.

    setfsuid(2) changes one thread, and takes root's capabilities over files from it meanwhile: what a
    link or a race reaches is refused by the kernel as it is to the command. Raises PermissionError.
    """
    if uid is None:
        yield
        return
    gid_before, uid_before = _libc.setfsgid(uid), _libc.setfsuid(uid)
    try:
        # The call does not report a failure; another one with an impossible id returns the present.
        if _libc.setfsuid(-1) != uid or _libc.setfsgid(-1) != uid:
            raise PermissionError(errno.EPERM, f"files cannot be accessed as uid {uid}")
        yield
    finally:
        _libc.setfsuid(uid_before)
        _libc.setfsgid(gid_before)


def take_lock(directory: Path) -> int:
    """Lock a state directory until the returned descriptor is closed. Raises Unavailable."""
    handle = os.open(directory / "lock", os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(handle)
        raise Unavailable(f"another driver works in {directory}") from None
    return handle
