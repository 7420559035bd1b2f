"""A hostile program: a short script that a model could have written, and what may become of it.

Rules
1. A program prints ``refused: …`` for each attempt that was refused, ``ESCAPED: …`` for one that was
   not, and ``end`` last. A program that does not survive its own attempt says so (`dies`).
2. Each attempt has a bound of its own beyond what a node allows. So a missing protection fails a test and
   does not take the machine down.
3. An attempt that would damage the machine stops one step before: a setting of the kernel is opened for
   writing and not written, a system call gets an argument that fails after the check of permissions.
4. What a mode does not protect from is named by an `Exposure`, which `docs/security.md` lists.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum, unique
from typing import Final

from tests.hostile.prelude import EPILOGUE, PRELUDE


@unique
class Mode(StrEnum):
    """A way of running commands on a node."""

    BWRAP = "bwrap (root)"
    BWRAP_USER = "bwrap (user)"
    DOCKER = "Docker"
    PROCESS = "plain process"


@unique
class Exposure(StrEnum):
    """A threat that a mode does not protect from; `docs/security.md` lists each with its modes."""

    FILES = "reads and writes all files of the worker's user, other environments and Tangram's data included"
    SIGNALS = "sends signals to all processes of the worker's user, the worker included"
    TRACE = "reads memory, variables and descriptors of other processes of the worker's user"
    INIT = "traces the shell that starts its commands, whose user it has, and so controls its own environment"
    VISIBLE = "sees the processes of the machine and their command lines"
    NETWORK = "uses the node's network: connects to local services and listens on ports"
    IPC = "shares System V IPC, POSIX queues, keyrings and /dev/shm with other processes"
    KERNEL = (
        "uses every system call that the kernel gives to ordinary users, user namespaces included"
    )
    USER_LIMITS = "uses up limits that the kernel counts for each user, shared with the worker"
    DISK = "fills the disk outside its workspace: in /tmp, /var/tmp and /dev/shm"
    WATCHED = "writes more than its disk quota before the watch looks at it"
    HIDDEN_FILES = (
        "hides files from its disk quota in directories that it makes unreadable for the worker"
    )
    ESCAPE = "leaves processes that fork and end faster than the worker finds them"
    MEMORY = "uses memory beyond its declaration until the kernel's out-of-memory killer acts"
    AFFINITY = "moves itself to cores that were not granted to it"
    OOM_SCORE = (
        "lowers its own oom_score_adj again, where the worker or the engine has no CAP_SYS_RESOURCE"
    )
    IO_URING = "makes an io_uring, where the kernel (`kernel.io_uring_disabled`) and an engine before version 25 permit it"
    SETUID = "executes programs of the system that have the setuid bit"


#: Lengths of time and sizes that the campaign's drivers allow; programs try more.
PROCESSES: Final = 64
OPEN_FILES: Final = 256
FILE_BYTES: Final = 32 * 2**20
MEMORY_BYTES: Final = 192 * 2**20
DISK_BYTES: Final = 64 * 2**20
FILES: Final = 5000
OUTPUT_BYTES: Final = 65536


@dataclass(frozen=True)
class Program:
    """One hostile program."""

    family: str
    #: A sentence about the attempt, without its subject: ``sends SIGKILL to all processes``.
    name: str
    command: tuple[str, ...]
    #: Mode → why it is not protected there.
    exposed: Mapping[Mode, Exposure] = field(default_factory=dict)
    #: Modes in which it is not run, as it would end the worker or take what others on the machine use.
    spared: frozenset[Mode] = frozenset()
    #: Part of `./tangram test`.
    quick: bool = False
    #: It ends by a signal or a time-out, and prints no ``end``.
    dies: bool = False
    timeout_seconds: float = 30.0
    #: Files in the workspace that are read and written from outside while and after it runs.
    fetched: tuple[str, ...] = ()
    stdin: str | None = None


def python(family: str, name: str, code: str, **options: object) -> Program:
    """Return a program in Python, after the prelude."""
    text = f"{PRELUDE}\n{code}\n{EPILOGUE}"
    return Program(family, name, ("python3", "-c", text), **options)  # type: ignore[arg-type]


def shell(family: str, name: str, code: str, **options: object) -> Program:
    """Return a program for a POSIX shell."""
    return Program(family, name, ("sh", "-c", f"{code}\necho end\n"), **options)  # type: ignore[arg-type]


def unprotected(exposure: Exposure, *modes: Mode) -> dict[Mode, Exposure]:
    """Return the modes (default: plain processes) that do not protect, with the reason."""
    return dict.fromkeys(modes or (Mode.PROCESS,), exposure)


#: A program that would end the worker of plain processes is listed there and not run.
NOT_AS_PROCESS: Final = frozenset({Mode.PROCESS})
