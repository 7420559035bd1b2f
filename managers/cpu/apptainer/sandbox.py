"""Sandbox by Apptainer: command lines of ``apptainer exec`` in the place of bubblewrap's.

All options are those of the program's documentation (docs/apptainer.md lists them with the reason of each). Nothing of the
host is mounted but what is named here: ``--containall`` gives a minimal ``/dev``, an empty home and own process and IPC
namespaces; ``--no-mount`` leaves out what the machine's ``apptainer.conf`` would add, ``/sys`` included. ``/tmp`` is a folder
of the environment's own layer: Apptainer's would be in memory, with 64 MiB.

Descriptors are not passed, since Apptainer promises none but the first three. So an init opens the pipes of its control
folder by their names, and variables, which a command line would show to all users, are in a file of a private folder.
"""

from __future__ import annotations

import json
import os
import secrets
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from domain.confinement import APPTAINER, NETWORK_HOST
from domain.errors import InvalidRequest, Unavailable
from domain.protection import Protection, UidMode
from managers.cpu.apptainer.program import Apptainer, forbidden_namespaces
from managers.cpu.command_line import EXECUTE, IDENTIFIER
from managers.cpu.egress.gateway import EgressUnavailable
from managers.cpu.environment.protocol import CONTROL, SHARED, SHARED_NAME
from managers.cpu.process.namespaces import UserNamespace
from managers.cpu.process.sandbox import Sandbox
from managers.cpu.process.seccomp import oci_profile
from managers.cpu.tree.base import SYSTEM, make_base
from managers.cpu.tree.layers import BASES
from managers.cpu.tree.mounts import ApptainerOverlay, TreeWay
from managers.cpu.tree.trees import OpenTree
from managers.cpu.workspaces import MOUNT, workspace_of

#: Options of every container.
OPTIONS: Final = (
    "--fakeroot", "--containall", "--no-home", "--no-eval", "--uts",
    "--no-mount", "sys,home,tmp,cwd,hostfs,bind-paths", "--pwd", "/",
)  # fmt: skip
NO_NETWORK: Final = ("--net", "--network", "none")
#: Refused system calls, below the state directory.
PROFILE: Final = "apptainer/seccomp.json"
#: Files of a command: its variables and what its reward gives it.
_VARIABLES: Final = "variables"
_GIVEN: Final = "given."
#: Opens the pipes of the control folder $1 inside, and becomes the rest.
_ENTER: Final = 'exec 0<>"$1/in" 1<>"$1/status" 3<>"$1/go"; shift; exec "$@"'
#: $1 is the file of variables, $2 the working directory.
_COMMAND: Final = (
    'if [ -r "$1" ]; then . "$1"; fi; cd -- "$2" 2>/dev/null || '
    "{ printf 'tangram: cwd: %s cannot be entered\\n' \"$2\" >&2; exit 126; }; "
    f"shift 2; {EXECUTE}"
)


@dataclass(frozen=True)
class ApptainerSandbox(Sandbox):
    """The Apptainer of this node, in the place of a bubblewrap."""

    #: Folder that is the image of commands without one: directories over which the host's programs are bound.
    base: Path = Path("/")
    #: Why programs have root of an image alone; empty where they have all its users.
    one_user: str = ""

    #: Profile of the calls that are refused; None: Apptainer cannot filter them here.
    profile: Path | None = None

    @property
    def kind(self) -> str:
        """Isolation by its name."""
        return APPTAINER

    @property
    def maps_users(self) -> bool:
        """Whether programs have all users of an image."""
        return not self.one_user

    @property
    def protection(self) -> Protection:
        """What it protects."""
        uids = UidMode.ROOT if os.geteuid() == 0 else UidMode.WORKER
        missing = [self.one_user] if self.one_user else []
        if self.profile is None:
            missing.append("this Apptainer does not filter system calls")
        return Protection(
            isolation=APPTAINER, uids=uids, seccomp=self.profile is not None, program=self.program, version=self.version,
            missing="; ".join(missing),
        )  # fmt: skip

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
        """Return options and image, each ended by a zero byte, for `command`.

        Variables and files are written to a new folder in that of the environment, which `given` names.
        """
        words = [*OPTIONS, *(() if network == NETWORK_HOST else NO_NETWORK)]
        if self.profile is not None:
            words += ["--security", f"seccomp:{self.profile}"]
        if devices:
            words.append("--nv")
        if tree is None:
            image = str(self.base)
            words += ["--writable-tmpfs", *_bind(workspace_of(workspace), MOUNT)]
        else:
            *overlays, image = tree.mounted.options
            words += overlays
        own_system = tree is not None and tree.image is not None
        for path in (*(() if own_system else SYSTEM), *self.readable):
            if os.path.exists(path):
                words += _bind(Path(path), path, "ro")
        if control is not None:
            words += _bind(control, CONTROL, "ro")
            words += _bind(control / SHARED_NAME, SHARED)
        elif env or files:
            words += _give(workspace, env, files or {})
        return b"".join(os.fsencode(word) + b"\0" for word in (*words, image))

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
        """Return the command line, as that of bubblewrap; no descriptors. Raises EgressUnavailable for ``network``."""
        if network:
            raise EgressUnavailable(
                "Apptainer makes its own namespaces, so a command in a sandbox of its own (a reward, a GPU, no"
                " trajectory) has no egress here"
            )
        words = [os.fsdecode(each) for each in options.split(b"\0")[:-1]]
        if plain:
            inner = ["/bin/sh", "-c", _ENTER, "sh", CONTROL, *command]
        else:
            inner = ["/bin/sh", "-c", _COMMAND, "sh", f"{CONTROL}/{_VARIABLES}", cwd, *command]
        return [self.program, "exec", *words, *inner], ()

    def given(self, options: bytes) -> Path | None:
        """Return the folder that `options` has made for one command, which is deleted with it."""
        for word in options.split(b"\0"):
            source, _, target = os.fsdecode(word).partition(":")
            if target.startswith(f"{CONTROL}:") and Path(source).name.startswith(_GIVEN):
                return Path(source)
        return None

    def image_words(self, image: Path) -> list[str]:
        """Return the command line that runs the rest in an image, without a network and without files of the host."""
        return [self.program, "exec", *OPTIONS, *NO_NETWORK, str(image)]

    def trial(self, tree: OpenTree | None) -> list[str]:
        """Return the command by which it is tried: the calls must be filtered as they should."""
        if tree is not None or self.profile is None:
            return super().trial(tree)
        return ["sh", "-c", f"test -w {MOUNT} && grep -q '^Seccomp:.*2' /proc/self/status"]

    def tree_ways(self, state: Path) -> Iterator[TreeWay]:
        """Return the way in which it shows trees."""
        yield ApptainerOverlay(state)


def apptainer_sandbox(
    state: Path, apptainer: Apptainer, readable: tuple[str, ...]
) -> ApptainerSandbox:
    """Return the sandbox of a node, which was not tried. Raises Unavailable, InvalidRequest. Blocks."""
    for path in (str(state), *readable):
        if ":" in path or "," in path:
            raise InvalidRequest(
                f"{path} has ':' or ',', which Apptainer takes for the end of a path: use another folder"
            )
    if os.geteuid() and (why := forbidden_namespaces()):
        raise Unavailable(f"Apptainer cannot make user namespaces here: {why}")
    (state / BASES).mkdir(mode=0o700, exist_ok=True)
    base = state / BASES / make_base(state) / "tree"
    profile = state / PROFILE
    profile.parent.mkdir(mode=0o700, exist_ok=True)
    profile.write_text(json.dumps(oci_profile()))
    return ApptainerSandbox(
        apptainer.program, readable, version=apptainer.version_text, users=(),
        base=base, one_user=apptainer.one_user, profile=profile,
    )  # fmt: skip


def _bind(source: Path, target: str, mode: str = "") -> list[str]:
    return ["--bind", ":".join(filter(None, (str(source), target, mode)))]


def _give(workspace: Path, env: Mapping[str, str], files: Mapping[str, int]) -> list[str]:
    """Write variables and files of one command to a private folder; return the options that show them."""
    folder = workspace / f"{_GIVEN}{secrets.token_hex(8)}"
    folder.mkdir(mode=0o700)
    lines = [
        f"export {name}={shlex.quote(value)}\n"
        for name, value in env.items()
        if IDENTIFIER.fullmatch(name)
    ]
    _write(folder / _VARIABLES, "".join(lines).encode(errors="surrogateescape"))
    words = _bind(folder, CONTROL, "ro")
    for number, (target, handle) in enumerate(files.items()):
        place = folder / str(number)
        with open(f"/proc/self/fd/{handle}", "rb") as content:
            _write(place, content.read())
        words += _bind(place, target, "ro")
    return words


def _write(path: Path, content: bytes) -> None:
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o400)
    with os.fdopen(handle, "wb") as file:
        file.write(content)
