"""Sandbox of a command by bubblewrap: own process tree, read-only system, own /tmp, no network.

Ways to run it, the strongest that works on this machine first:
1. the worker is root: in a user namespace of 65,536 uids for each family of environments (`families`);
2. bwrap maps the worker's one uid and forbids further user namespaces (``--disable-userns``);
3. as 2, where the limit of namespaces cannot be written: the filter of system calls alone forbids them.

Whether a way works depends on the machine (containers may forbid namespaces), so each is tried once,
with all its options. `Sandbox.protection` says which one it is. In all of them ``/proc/sys`` and the
like are read-only, ``/sys`` is absent, and system calls are filtered (`seccomp`).

Seam: `_network_options` is the one place for network modes.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from domain.confinement import NETWORK_EGRESS, NETWORK_NONE
from domain.errors import Unavailable
from domain.protection import Protection, UidMode
from managers.cpu.command_line import EXECUTE
from managers.cpu.environment.protocol import CONTROL, SHARED, SHARED_NAME
from managers.cpu.process.bubblewrap import Bubblewrap, find_bubblewraps, parse_version
from managers.cpu.process.families import Families
from managers.cpu.process.namespaces import SandboxNamespaces, UserNamespace
from managers.cpu.process.seccomp import own_program
from managers.cpu.process.uid_ranges import UidRanges
from managers.cpu.tree.base import ETC, SYSTEM
from managers.cpu.tree.mounts import (
    CopiedTree,
    HeldOverlay,
    InnerOverlay,
    OuterOverlay,
    StagedOverlay,
    TreeWay,
)
from managers.cpu.tree.stage import MountStage
from managers.cpu.tree.trees import OpenTree
from managers.cpu.workspaces import MOUNT, workspace_of

_PROBE_SECONDS: Final = 30.0
#: Most that a command may write outside its workspace and its tmpfs.
_ROOT_BYTES: Final = 64 * 2**20
#: System paths that programs need; not all of /etc, which holds confidential files.
_READ_ONLY: Final = (*SYSTEM, *ETC)
#: The kernel's knobs. bwrap protects them only where it can tell that they are writable.
_KNOBS: Final = ("/proc/sys", "/proc/sysrq-trigger", "/proc/irq", "/proc/bus", "/proc/fs")
#: What root of an image may do: with files and users of its own namespace, nothing else.
_ROOT_CAPABILITIES: Final = (
    "CAP_CHOWN", "CAP_DAC_OVERRIDE", "CAP_FOWNER", "CAP_FSETID", "CAP_KILL", "CAP_SETGID", "CAP_SETUID",
)  # fmt: skip
#: $1 is the working directory, which only the tree itself can resolve.
_ENTER_SCRIPT: Final = (
    'cd -- "$1" 2>/dev/null || '
    "{ printf 'tangram: cwd: %s cannot be entered\\n' \"$1\" >&2; exit 126; }; "
    f"shift; {EXECUTE}"
)
#: It needs all that an overlay does: a copy of a lower file, a whiteout, and an opaque directory.
_TREE_TRIAL: Final = (
    "echo trial >/tmp/trial && chmod 755 /root && rmdir /srv && mkdir /srv && test -w /workspace"
)
#: The first bubblewrap with ``--overlay``.
_FIRST_WITH_OVERLAYS: Final = (0, 11)
_ONE_UID: Final = ("--unshare-user",)
_ONE_UID_NO_NESTING: Final = ("--unshare-user", "--disable-userns")


@dataclass(frozen=True)
class Sandbox:
    """The bubblewrap of this node, and the way it is run."""

    program: str
    #: Further system paths that commands may read.
    readable: tuple[str, ...] = ()
    #: The workspace as a command inside sees it.
    home: str = MOUNT
    version: str = ""
    #: Options about the user namespace; none where a namespace is entered before.
    users: tuple[str, ...] = _ONE_UID_NO_NESTING
    #: Uids of environments; None: every command has the worker's.
    families: Families | None = None
    #: Mount point of a tmpfs → its size; unsized without an entry.
    tmpfs_bytes: Mapping[str, int] = field(default_factory=dict)

    @property
    def kind(self) -> str:
        """Isolation by its name."""
        return "bwrap"

    @property
    def maps_users(self) -> bool:
        """Whether programs have all users of an image."""
        return self.families is not None

    @property
    def protection(self) -> Protection:
        """What it protects."""
        own = UidMode.ROOT if os.geteuid() == 0 else UidMode.WORKER
        filtered = own_program() is not None
        missing = []
        if self.families is None and own is UidMode.ROOT:
            missing.append("this root cannot make user namespaces of other uids")
        if not filtered:
            missing.append("no filter of system calls for this architecture")
        return Protection(
            isolation="bwrap",
            uids=own if self.families is None else UidMode.OWN,
            seccomp=filtered,
            nested_namespaces_off=filtered or self.users == _ONE_UID_NO_NESTING,
            program=self.program,
            version=self.version,
            missing="; ".join(missing),
        )

    def options(
        self,
        workspace: Path,
        inside: str,
        env: dict[str, str],
        network: str,
        devices: Sequence[str] = (),
        files: Mapping[str, int] | None = None,
        tree: OpenTree | None = None,
        control: Path | None = None,
    ) -> bytes:
        """Return bwrap's options, each ended by a zero byte, as ``--args`` reads them.

        ``devices``: further device files that the command may open; missing ones are left out. ``files``:
        path → descriptor of a content that is mounted there, read-only. ``tree``: what the command sees at
        ``/``; without one, ``workspace`` and little else. ``control``: the control folder of a living
        environment, which outlives this process; None: the sandbox is of one command, and ends with its
        worker. The
        options are passed in a file and not on the command line, where all users could read variables.
        """
        options = [] if control is not None else ["--die-with-parent"]
        options += [*self.users, "--unshare-pid", "--unshare-ipc"]
        options += ["--unshare-uts", "--unshare-cgroup-try", "--cap-drop", "ALL"]
        options += _network_options(network, is_kept=control is not None)
        # The first mounts: those of the whole tree, in which all others are made.
        options += self._bare_root() if tree is None else self._root_of(tree)
        options += ["--proc", "/proc"]
        for path in _KNOBS:
            options += ["--ro-bind-try", path, path]
        options += ["--dev", "/dev", "--perms", "1777", *self._tmpfs("/dev/shm")]
        options += self._tmpfs("/tmp") if tree is None else []
        for path in devices:
            options += ["--dev-bind-try", path, path]
        # bwrap cannot size the tmpfs of /dev; what is mounted below it stays writable.
        options += ["--remount-ro", "/dev"]
        if control is not None:
            options += ["--ro-bind", str(self.shown(control)), CONTROL]
            options += ["--bind", str(self.shown(control / SHARED_NAME)), SHARED]
        if tree is None:
            source = self.shown(workspace_of(workspace))
            options += ["--bind", str(source), MOUNT, "--chdir", f"{MOUNT}{inside}"]
        for path, descriptor in (files or {}).items():
            options += ["--perms", "0444", "--ro-bind-data", str(descriptor), path]
        for name, value in env.items():
            options += ["--setenv", name, value]
        return b"".join(option.encode(errors="surrogateescape") + b"\0" for option in options)

    def given(self, options: bytes) -> Path | None:
        """Return a folder that `options` has made for one command, which is deleted with it; None: none."""
        return None

    def shown(self, path: Path) -> Path:
        """Return a path of the state directory as bubblewrap sees it."""
        return path if self.families is None else self.families.namespaces.path(path)

    def _bare_root(self) -> list[str]:
        """Return the options of a root in memory with system paths of the host."""
        options = self._tmpfs("/") if "/" in self.tmpfs_bytes else []
        for path in (*_READ_ONLY, *self.readable):
            options += ["--ro-bind-try", path, path]
        return options

    def _root_of(self, tree: OpenTree) -> list[str]:
        """Return the options of an environment's own root."""
        options = [*tree.mounted.options]
        if tree.mounted.prefix and tree.image is None:
            # Around it the worker is uid 0.
            options += ["--uid", str(os.geteuid()), "--gid", str(os.getegid())]
        if tree.image is not None:
            if self.families is None:
                options += ["--uid", "0", "--gid", "0"]
            for capability in _ROOT_CAPABILITIES:
                options += ["--cap-add", capability]
        for path in (*(SYSTEM if tree.image is None else ()), *self.readable):
            options += ["--ro-bind-try", path, path]
        return options

    def tree_ways(self, state: Path) -> Iterator[TreeWay]:
        """Return the ways in which it may show trees, the best first."""
        if self.families is not None:
            namespaces = self.families.namespaces
            yield StagedOverlay(MountStage(state, lambda: namespaces.view))
        else:
            yield HeldOverlay(state)
            if self.version_parts >= _FIRST_WITH_OVERLAYS:
                yield InnerOverlay(state)
            if shutil.which("fuse-overlayfs"):
                yield OuterOverlay(state)
        yield CopiedTree(self.shown)

    def command(
        self,
        options: bytes,
        command: list[str],
        namespace: UserNamespace | None,
        tree: OpenTree | None = None,
        cwd: str = MOUNT,
        network: Sequence[str] = (),
        *,
        pinned: bool = False,
        plain: bool = False,
    ) -> tuple[list[str], tuple[int, ...]]:
        """Return the command line, and the descriptors that it inherits; the caller closes them.

        ``cwd``: in the tree, where one is given. ``network``: words that make its network and become the rest,
        in a user namespace of their own unless it is entered already. ``pinned``: what runs in it may not choose its cores.
        ``plain``: the command begins in any directory.

        bwrap reads and closes its copies, so the command has none of them.
        """
        handles = [memory_file(options)]
        filtered: list[str] = []
        if (calls := own_program(pinned=pinned)) is not None:
            handles.append(memory_file(calls))
            filtered = ["--seccomp", str(handles[1])]
        program = self.program
        prefix: tuple[str, ...] = ()
        if namespace is not None and self.families is not None:
            namespaces = self.families.namespaces
            program, prefix = namespaces.program, namespace.prefix
            if tree is not None and tree.mounted.namespace is not None:
                prefix = namespaces.prefix_in(namespace, tree.mounted.namespace)
        elif tree is not None:
            prefix = tree.mounted.prefix
        script = [EXECUTE, "sh"] if tree is None else [_ENTER_SCRIPT, "sh", cwd]
        inner = command if plain else ["/bin/sh", "-c", *script, *command]
        is_held = tree is not None and bool(tree.mounted.held)
        around = (*prefix, *network) if is_held else (*network, *prefix)
        words = [*around, program, "--args", str(handles[0]), *filtered, "--", *inner]
        return words, tuple(handles)

    def trial(self, tree: OpenTree | None) -> list[str]:
        """Return the command by which it is tried."""
        return ["test", "-w", MOUNT] if tree is None else ["sh", "-c", _TREE_TRIAL]

    def works(self, workspace: Path, prefix: list[str]) -> bool:
        """Try a command in it; return whether it ran. Blocks for some milliseconds."""
        return not self.failure(workspace, prefix)

    @property
    def version_parts(self) -> tuple[int, ...]:
        """Version of bubblewrap."""
        return parse_version(self.version) or ()

    def failure(self, workspace: Path, prefix: list[str], tree: OpenTree | None = None) -> str:
        """Try a command in it, and in a tree; return why it failed, or nothing. Blocks."""
        try:
            namespace = None if self.families is None else self.families.enter(workspace)
        except (OSError, Unavailable, subprocess.TimeoutExpired) as error:
            return str(error)
        options = self.options(workspace, "", {}, "none", tree=tree)
        words, handles = self.command(options, self.trial(tree), namespace, tree)
        try:
            finished = subprocess.run(
                [*prefix, *words], stdin=subprocess.DEVNULL, capture_output=True, env={},
                pass_fds=handles, timeout=_PROBE_SECONDS, check=False,
            )  # fmt: skip
        except (OSError, subprocess.TimeoutExpired) as error:
            return str(error)
        finally:
            for handle in handles:
                os.close(handle)
            if namespace is not None and self.families is not None:
                self.families.leave(namespace)
        if finished.returncode == 0:
            return ""
        said = finished.stderr.decode(errors="replace").strip()
        return said[-300:] or f"a trial ended with status {finished.returncode}"

    def sized(self, tmpfs_bytes: int) -> Sandbox:
        """Return the same sandbox, each tmpfs of which holds at most so many bytes."""
        root = min(_ROOT_BYTES, tmpfs_bytes)
        sizes = {"/": root, "/tmp": tmpfs_bytes, "/dev/shm": tmpfs_bytes}
        return replace(self, tmpfs_bytes=sizes)

    def _tmpfs(self, path: str) -> list[str]:
        size = self.tmpfs_bytes.get(path)
        return ["--tmpfs", path] if size is None else ["--size", str(size), "--tmpfs", path]


def _network_options(network: str, *, is_kept: bool) -> list[str]:
    """Return the options of a network mode. That of egress is made around a sandbox that is not kept."""
    is_alone = network == NETWORK_NONE or (is_kept and network == NETWORK_EGRESS)
    return ["--unshare-net"] if is_alone else []


def memory_file(content: bytes) -> int:
    """Return a descriptor to read ``content`` from, without blocking and without a file on disk."""
    descriptor = os.memfd_create("tangram")
    with os.fdopen(os.dup(descriptor), "wb") as file:
        file.write(content)
    os.lseek(descriptor, 0, os.SEEK_SET)
    return descriptor


def find_sandbox(workspace: Path, readable: tuple[str, ...], prefix: list[str]) -> Sandbox | None:
    """Return the sandbox of this node; None when bubblewrap is missing or does not work.

    ``workspace`` is one of the driver's, in a directory of its state directory: its owner may change.
    ``prefix`` tags the processes of the trial, as those of any command.
    """
    state = workspace.parent.parent
    for sandbox in ways(state, find_bubblewraps(), readable):
        families = sandbox.families
        try:
            if families is not None:
                families.open()
        except OSError:
            continue
        if sandbox.works(workspace, prefix):
            return sandbox
        if families is not None:
            families.close()
            os.chown(workspace, os.geteuid(), os.getegid(), follow_symlinks=False)
    return None


def ways(
    state: Path, programs: Sequence[Bubblewrap], readable: tuple[str, ...]
) -> Iterator[Sandbox]:
    """Return the ways to run a sandbox, the strongest first."""
    if os.geteuid() == 0:
        for each in programs:
            families = Families(UidRanges(state), SandboxNamespaces(state, each.program))
            yield Sandbox(
                each.program, readable, version=each.version_text, users=(), families=families
            )
    for users in (_ONE_UID_NO_NESTING, _ONE_UID):
        for each in programs:
            yield Sandbox(each.program, readable, version=each.version_text, users=users)
