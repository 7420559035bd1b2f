"""Ways in which an environment's layers become its ``/``, the best that works on this machine.

1. **Kernel overlay, id-mapped** (`StagedOverlay`): the worker is root and gives each family its own uids; one
   thread mounts, with any bubblewrap (`managers.cpu.tree.stage`).
2. **Kernel overlay, held** (`HeldOverlay`): an unprivileged worker mounts in namespaces around bubblewrap, of which
   it holds the descriptors; needs a kernel that permits overlays in user namespaces (5.11).
3. **Kernel overlay by bubblewrap** (`InnerOverlay`): where bubblewrap alone may make user namespaces; needs 0.11.
4. **Overlay before bubblewrap** (`OuterOverlay`): by the program ``fuse-overlayfs``, for each sandbox.
5. **Copies** (`CopiedTree`): the lowest tree is copied into the layer of each environment. Everything works, at the
   price of a copy for each environment.

`ApptainerOverlay` is no way of bubblewrap: Apptainer mounts, from its own options.

Each is tried once, with a command in a real tree: a file system may refuse to be the upper layer, a container to
mount. `managers.cpu.tree.trees` chooses.
"""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Protocol, TypeVar, runtime_checkable

from managers.cpu.tree import switch
from managers.cpu.tree.copying import copy_tree
from managers.cpu.tree.layers import (
    UPPER,
    VOLATILE_MARK,
    WORK,
    WORKSPACE,
    LayerStack,
    overlay_options,
    upper_layer,
)
from managers.cpu.tree.stage import TREE, MountStage

#: Mount point of an overlay around bubblewrap, in the folder of its environment.
_TOP: Final = "top"
#: Folder that Apptainer takes as an overlay, and the layer in it under the name that it prescribes.
_OVERLAY: Final = "overlay"
_OVERLAY_UPPER: Final = f"{_OVERLAY}/upper"
#: Uids of a family of environments, as `managers.cpu.process.uid_ranges` has them.
RANGE_UIDS: Final = 65536


#: Namespaces in which an unprivileged worker may mount.
_OWN_NAMESPACES: Final = ("unshare", "--user", "--map-root-user", "--mount", "--", "sh", "-c")
#: Program of an overlay ($1) with its options ($2), over a directory ($3).
_KERNEL: Final = "mount -t overlay overlay"
_FUSE: Final = "fuse-overlayfs"
_MOUNT_SCRIPT: Final = '$1 -o "$2" "$3" && echo && read -r _'
#: The same; $4 is `VOLATILE_MARK`.
_HELD_SCRIPT: Final = f'rm -rf "$4"; {_MOUNT_SCRIPT}'
#: The same, then the rest of the command line.
_OUTER_SCRIPT: Final = (
    'said=$($1 -o "$2" "$3" 2>&1) || { echo "$said" >&2; exit 125; }; shift 3; exec "$@"'
)
_TREE: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
_NAMESPACE: Final = os.O_RDONLY | os.O_CLOEXEC
Taken = TypeVar("Taken")


@dataclass
class MountedTree:
    """The tree of an environment for one bubblewrap; close it when that has ended."""

    #: Options of bubblewrap that make ``/``.
    options: tuple[str, ...]
    #: Descriptor of the mount namespace to run bubblewrap in; None: that of all commands.
    namespace: int | None = None
    #: Words before bubblewrap, which mount in namespaces around it, or enter them.
    prefix: tuple[str, ...] = ()
    #: Descriptors that the words name.
    held: list[int] = field(default_factory=list)

    def close(self) -> None:
        """Close the descriptors. Idempotent."""
        if self.namespace is not None:
            os.close(self.namespace)
            self.namespace = None
        while self.held:
            os.close(self.held.pop())


class TreeWay(Protocol):
    """One way; its methods block and may be called from any thread."""

    #: In a few words, for ``doctor``.
    name: str
    #: Whether layers stay apart, so that images are shared and forks are cheap.
    has_layers: bool

    def mount(self, folder: Path, stack: LayerStack, users: int | None) -> MountedTree:
        """Return the tree of the environment in ``folder``.

        ``users``: descriptor of its user namespace, where it has uids of its own. Raises OSError,
        InvalidRequest.
        """

    def open_root(self, folder: Path, stack: LayerStack, users: int | None) -> int:
        """Return a descriptor of the top of a tree that no running environment shows. Raises OSError."""

    def close(self) -> None:
        """End what it holds."""


@runtime_checkable
class SharedWay(TreeWay, Protocol):
    """A way in which further sandboxes of a running environment see its mount.

    Two overlays with the same layers do not do: each remembers names that the other has made or deleted since.
    """

    def mount_of(self, folder: Path, pid: int) -> MountedTree:
        """Return the tree that process ``pid`` of the environment in ``folder`` has as its root. Raises OSError."""


class StagedOverlay:
    """Overlays that a root worker mounts beforehand."""

    name = "kernel overlay, id-mapped"
    has_layers = True

    def __init__(self, stage: MountStage) -> None:
        self._stage = stage

    def mount(self, folder: Path, stack: LayerStack, users: int | None) -> MountedTree:
        """Mount it in a namespace of its own."""
        if users is None:
            raise OSError("the worker has no uids for environments")
        namespace = self._stage.prepare(folder, stack, users)
        return MountedTree(("--bind", TREE, "/"), namespace)

    def mount_of(self, folder: Path, pid: int) -> MountedTree:
        """Mount the root of a process in a namespace of its own."""
        return MountedTree(("--bind", TREE, "/"), self._stage.prepare_root_of(pid))

    def open_root(self, folder: Path, stack: LayerStack, users: int | None) -> int:
        """Mount it for as long as the descriptor is open."""
        if users is None:
            raise OSError("the worker has no uids for environments")
        return self._stage.open_root(folder, stack, users)

    def close(self) -> None:
        """End the thread that mounts."""
        self._stage.close()


class InnerOverlay:
    """Overlays that bubblewrap mounts in its user namespace."""

    name = "kernel overlay of bubblewrap"
    has_layers = True

    def __init__(self, state: Path) -> None:
        self._state = state

    def mount(self, folder: Path, stack: LayerStack, users: int | None) -> MountedTree:
        """Return the options; bubblewrap mounts."""
        lowers = [str(each) for each in stack.lowers(self._state)]
        upper, work = str(folder / UPPER), str(folder / WORK)
        if not lowers:
            return MountedTree(("--bind", upper, "/"))
        # bubblewrap puts /oldroot before each path; it finds a page too long only in the kernel.
        overlay_options(
            [f"/oldroot{each}" for each in lowers], f"/oldroot{upper}", f"/oldroot{work}"
        )
        sources = [word for each in reversed(lowers) for word in ("--overlay-src", each)]
        return MountedTree((*sources, "--overlay", upper, work, "/"))

    def open_root(self, folder: Path, stack: LayerStack, users: int | None) -> int:
        """Mount it in namespaces of a short process, for as long as the descriptor is open."""
        options = _outer_options(self._state, folder, stack, _KERNEL)
        return _mounted_apart(_KERNEL, options, folder / WORK)

    def close(self) -> None:
        """Nothing is held."""


class HeldOverlay:
    """Overlays of a worker with one uid, in a user and a mount namespace that it holds for each environment."""

    name = "kernel overlay, held"
    has_layers = True

    def __init__(self, state: Path) -> None:
        self._state = state

    def mount(self, folder: Path, stack: LayerStack, users: int | None) -> MountedTree:
        """Mount it in namespaces of their own, which no process is in afterwards."""
        if not stack.lowers(self._state):
            return MountedTree(("--bind", str(folder / UPPER), "/"))
        top = folder / _TOP
        return _entered(top, _namespaces(self._words(folder, stack, top)))

    def mount_of(self, folder: Path, pid: int) -> MountedTree:
        """Mount the root of a process beside it; both are in the user namespace that was made first."""
        top = folder / _TOP
        top.mkdir(mode=0o700, exist_ok=True)
        words = [sys.executable, "-I", "-S", switch.__file__, switch.HOLD, str(pid), str(top)]
        return _entered(top, _namespaces(words))

    def open_root(self, folder: Path, stack: LayerStack, users: int | None) -> int:
        """Mount it in namespaces of a short process, for as long as the descriptor is open."""
        top = folder / _TOP
        if not stack.lowers(self._state):
            return os.open(folder / UPPER, _TREE)
        return _while_held(self._words(folder, stack, top), lambda pid: _opened(pid, top))

    def _words(self, folder: Path, stack: LayerStack, top: Path) -> list[str]:
        top.mkdir(mode=0o700, exist_ok=True)
        options = _outer_options(self._state, folder, stack, _KERNEL)
        mark = str(folder / WORK / VOLATILE_MARK)
        script = [_HELD_SCRIPT, "sh", _KERNEL, options, str(top), mark]
        return [*_OWN_NAMESPACES, *script]

    def close(self) -> None:
        """Nothing is held but by environments."""


class OuterOverlay:
    """Overlays that are mounted around bubblewrap, in a user namespace of the worker's one uid."""

    name = _FUSE
    has_layers = True

    def __init__(self, state: Path) -> None:
        self._state = state

    def mount(self, folder: Path, stack: LayerStack, users: int | None) -> MountedTree:
        """Return the words that mount it at a directory of the folder."""
        if not stack.lowers(self._state):
            return MountedTree(("--bind", str(folder / UPPER), "/"))
        top = folder / _TOP
        top.mkdir(mode=0o700, exist_ok=True)
        options = _outer_options(self._state, folder, stack, _FUSE)
        words = (*_OWN_NAMESPACES, _OUTER_SCRIPT, "sh", _FUSE, options, str(top))
        return MountedTree(("--bind", str(top), "/"), prefix=words)

    def open_root(self, folder: Path, stack: LayerStack, users: int | None) -> int:
        """Mount it in namespaces of a short process, for as long as the descriptor is open."""
        top = folder / _TOP
        top.mkdir(mode=0o700, exist_ok=True)
        options = _outer_options(self._state, folder, stack, _FUSE)
        return _mounted_apart(_FUSE, options, top)

    def close(self) -> None:
        """Nothing is held."""


def _outer_options(state: Path, folder: Path, stack: LayerStack, program: str) -> str:
    lowers = [str(each) for each in stack.lowers(state)]
    options = overlay_options(lowers, str(folder / UPPER), str(folder / WORK))
    if program == _FUSE:
        return options.removesuffix(",index=off,volatile")
    return f"{options},userxattr"


def _mounted_apart(program: str, options: str, top: Path) -> int:
    """Return a descriptor of an overlay at ``top`` in namespaces of their own. Raises OSError."""
    options = options.replace(",volatile", "")  # its mark would forbid the next mount
    words = [*_OWN_NAMESPACES, _MOUNT_SCRIPT, "sh", program, options, str(top)]
    return _while_held(words, lambda pid: _opened(pid, top))


def _opened(pid: int, top: Path) -> int:
    return os.open(f"/proc/{pid}/root{top}", _TREE)


def _namespaces(words: Sequence[str]) -> list[int]:
    """Return descriptors of the user and the mount namespace of a program that mounts there. Raises OSError."""

    def opened(pid: int) -> list[int]:
        users = os.open(f"/proc/{pid}/ns/user", _NAMESPACE)
        try:
            return [users, os.open(f"/proc/{pid}/ns/mnt", _NAMESPACE)]
        except OSError:
            os.close(users)
            raise

    return _while_held(words, opened)


def _while_held(words: Sequence[str], take: Callable[[int], Taken]) -> Taken:
    """Start a program that mounts, writes an empty line and waits; return what ``take`` returns for its id.

    Raises OSError with what it says.
    """
    holder = subprocess.Popen(
        words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        env={"PATH": os.defpath},
    )  # fmt: skip
    try:
        if holder.stdout is None or holder.stdout.readline() != b"\n":
            _, said = holder.communicate()
            raise OSError(said.decode(errors="replace").strip() or "the tree cannot be mounted")
        return take(holder.pid)
    finally:
        holder.communicate()


def _entered(top: Path, held: list[int]) -> MountedTree:
    """Return a tree at ``top`` in the user and the mount namespace ``held``, for bubblewrap as their root."""
    own = f"/proc/{os.getpid()}/fd"
    users, mounts = held
    words = (
        "nsenter",
        f"--user={own}/{users}",
        f"--mount={own}/{mounts}",
        "--preserve-credentials",
    )
    return MountedTree(("--bind", str(top), "/"), prefix=(*words, "--"), held=held)


class CopiedTree:
    """Whole trees, copied: the layer of a folder holds everything, so a stack has nothing below it."""

    name = "copies"
    has_layers = False

    def __init__(self, shown: Callable[[Path], Path]) -> None:
        """``shown``: returns the path of a folder where bubblewrap runs."""
        self._shown = shown

    def mount(self, folder: Path, stack: LayerStack, users: int | None) -> MountedTree:
        """Return the option that binds the layer. Raises OSError where layers are below it."""
        if stack.lowest or stack.sealed:
            raise OSError("its layers need an overlay, which does not work here any more")
        return MountedTree(("--bind", str(self._shown(folder) / UPPER), "/"))

    def open_root(self, folder: Path, stack: LayerStack, users: int | None) -> int:
        """Open the layer."""
        return os.open(folder / UPPER, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)

    def close(self) -> None:
        """Nothing is held."""


class ApptainerOverlay:
    """Overlays that Apptainer mounts: ``--overlay`` options, and the image behind them.

    One container at a time: what a second mount with the same upper layer shows is not defined. A sealed layer with a
    directory ``upper`` at its top is refused, since Apptainer would show that directory in its place.
    """

    name = "overlay of Apptainer"
    has_layers = True

    def __init__(self, state: Path) -> None:
        self._state = state

    def mount(self, folder: Path, stack: LayerStack, users: int | None) -> MountedTree:
        """Return options and image; Apptainer mounts."""
        *sealed, image = stack.lowers(self._state)
        if not stack.lowest:
            raise OSError(
                "an environment of an earlier version has no image that Apptainer could run"
            )
        _place_for_apptainer(folder)
        words: list[str] = []
        for layer in reversed(sealed):  # each is shown above the ones before
            if (layer / "upper").is_dir():
                raise OSError(
                    "the files of a fork have a directory /upper, which Apptainer cannot show: rename it"
                )
            words += ["--overlay", f"{layer}:ro"]
        return MountedTree((*words, "--overlay", str(folder / _OVERLAY), str(image)))

    def open_root(self, folder: Path, stack: LayerStack, users: int | None) -> int:
        """Mount it in namespaces of a short process; the files of a SIF image are not in it."""
        folders = [str(each) for each in stack.lowers(self._state) if each.is_dir()]
        if not folders:
            return os.open(upper_layer(folder), _TREE)
        upper, work = upper_layer(folder), folder / WORK
        options = overlay_options(folders, str(upper), str(work))
        return _mounted_apart(_KERNEL, f"{options},userxattr", work)

    def close(self) -> None:
        """Nothing is held."""


def _place_for_apptainer(folder: Path) -> None:
    """Move the upper layer of a folder to where Apptainer looks for it, with a link in its place."""
    place, upper = folder / UPPER, folder / _OVERLAY_UPPER
    if place.is_symlink():
        return
    if upper.exists():
        # After a crash before the link: what is in its place was made since, and is empty.
        (place / WORKSPACE).rmdir()
        place.rmdir()
    else:
        upper.parent.mkdir(mode=0o700, exist_ok=True)
        place.rename(upper)
    place.symlink_to(_OVERLAY_UPPER)


def copy_lowest(tree: Path, folder: Path, first_uid: int | None) -> None:
    """Copy a lowest tree into the layer of a folder; its owners become those from ``first_uid`` on. Blocks.

    Raises OSError.
    """
    copy_tree(tree, folder / UPPER)
    if first_uid is not None:
        _shift_owners(str(folder / UPPER), first_uid)


def _shift_owners(tree: str, first_uid: int) -> None:
    for directory, names, files in os.walk(tree):
        for path in (directory, *(os.path.join(directory, name) for name in files)):
            _shift_owner(path, first_uid)
        for name in names:
            path = os.path.join(directory, name)
            if os.path.islink(path):
                _shift_owner(path, first_uid)


def _shift_owner(path: str, first_uid: int) -> None:
    facts = os.lstat(path)
    if facts.st_uid < RANGE_UIDS and facts.st_gid < RANGE_UIDS:
        os.chown(path, first_uid + facts.st_uid, first_uid + facts.st_gid, follow_symlinks=False)
        if not stat.S_ISLNK(facts.st_mode):
            os.chmod(path, stat.S_IMODE(facts.st_mode))  # chown clears the bits of set-user-id


def pin_mount_points(layers: Sequence[Path], points: Iterable[str], owner: int | None) -> None:
    """Make real directories of the mount points that commands replaced by something else. Blocks.

    Bubblewrap makes missing mount points and follows links on the way: a link in the place of one would
    lead it out of the tree. ``layers``: the upper layer, then the sealed ones. No process of the environment
    may run. ``owner``: of the directories that are made.
    """
    upper = layers[0]
    for point in points:
        parts = [part for part in point.split("/") if part]
        for depth in range(1, len(parts) + 1):
            inside = "/".join(parts[:depth])
            modes = [_mode(layer / inside) for layer in layers]
            if all(mode is None or stat.S_ISDIR(mode) for mode in modes):
                continue
            place = upper / inside
            if modes[0] is not None and not stat.S_ISDIR(modes[0]):
                place.unlink()
                modes[0] = None
            if modes[0] is None:
                place.mkdir(mode=0o755)
                if owner is not None:
                    os.chown(place, owner, owner, follow_symlinks=False)


def _mode(path: Path) -> int | None:
    try:
        return os.lstat(path).st_mode
    except (FileNotFoundError, NotADirectoryError):
        return None
