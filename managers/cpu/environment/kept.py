"""Kept environments: living environments under bubblewrap, from their start to their end.

    bwrap            outside; has no --die-with-parent, so it outlives the worker
      bwrap          process 1 inside: reaps orphans; its end ends all
        sh -s        the init (`managers.cpu.environment.init`)
          commands   in a session each, on granted cores while they act

Lifetimes. An environment starts with its first use and ends with `end`, or when its process 1 does. The folder
``control`` of the environment holds its pipes, ``init.json`` beside it the record by which the next worker adopts it
(`managers.cpu.environment.adoption`). The record is deleted before the environment's processes are ended.

Invariants
1. At most one init runs for a folder: starts and ends of one environment are in turn.
2. All its processes are below process 1, which cannot be left, and in its control groups: so `processes` misses none.
3. An environment whose init has ended is ended with all that runs in it; its next use starts a new one.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from domain.action import EnvironmentSpec
from domain.errors import Unavailable
from domain.ids import TrajectoryKey
from managers.cpu.apptainer.starts import LOOPBACK
from managers.cpu.environment import init
from managers.cpu.environment.adoption import RECORD, InitRecord, write_record
from managers.cpu.environment.background import (
    Background,
    RunningProcess,
    list_processes,
    seconds_since_boot,
)
from managers.cpu.environment.cpusets import CoreSets, EnvironmentCores
from managers.cpu.environment.freezers import EnvironmentFreezer, Freezers
from managers.cpu.environment.init import InitClient, StartedProgram
from managers.cpu.environment.kernel import children_of, start_time
from managers.cpu.environment.protocol import (
    SESSION_OWNER,
    SHARED_NAME,
    EnvironmentLost,
    EnvironmentProcess,
    InitCommand,
    RewardRuns,
)
from managers.cpu.memory_groups import MemoryGroup
from managers.cpu.process.priority import LIGHT_NICE, lower_one
from managers.cpu.process.process_groups import EnvironmentGroup, ProcessGroup
from managers.cpu.process.process_tag import ProcessTagger
from managers.cpu.tree.layers import TreeRecord
from managers.cpu.tree.trees import OpenTree

_PAUSE_SECONDS: Final = 0.002
_PAUSES: Final = 5000
_PINNING_ROUNDS: Final = 20
#: A program stops when it runs next, which takes a while on busy cores and in calls of the kernel.
_FREEZING_SECONDS: Final = 20.0
#: What is in a call of the kernel for so long has waited since it got the signal: for a child that is stopped
#: before its exec (vfork), which never shows as stopped itself. It stops before it runs again.
_BLOCKED_SECONDS: Final = 0.2
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Confinement:
    """What limits the processes of an environment on this node."""

    tagger: ProcessTagger
    #: Shared cores of the node, and whether they are granted as well.
    background: frozenset[int]
    shares_granted: bool
    #: None: affinity alone.
    cores: CoreSets | None
    #: None: version 2 has none of their own, or this worker may not make any.
    freezers: Freezers | None = None


@dataclass
class EnvironmentGroups:
    """Control groups of one environment; None: the node has none of that kind."""

    memory: MemoryGroup | None = None
    processes: EnvironmentGroup | None = None
    cores: EnvironmentCores | None = None
    freezer: EnvironmentFreezer | None = None


@dataclass
class KeptEnvironment:
    """A living environment under bubblewrap (`LivingEnvironment`)."""

    name: str
    trajectory: TrajectoryKey
    spec: EnvironmentSpec
    directory: Path
    uid: int | None
    tag: int
    client: InitClient
    limits: EnvironmentGroups
    confinement: Confinement
    #: Host ids of process 1 inside and of the init, and descriptors of both.
    first_pid: int = 0
    first_pidfd: int = -1
    pid: int = 0
    pidfd: int = -1
    #: Home directory of its programs, and variables of its image.
    home: str = "/workspace"
    variables: dict[str, str] = field(default_factory=dict)
    #: Its tree, open while it runs; None: it has none, or another worker opened it.
    tree: OpenTree | None = None
    tree_record: TreeRecord | None = None
    #: What was left behind, and programs of sessions: tag → its record.
    background: Background = field(default_factory=Background)
    #: The outer process of its sandbox, where this worker has started it.
    outer: subprocess.Popen[bytes] | None = None
    #: Commands that act: tag → owner.
    acting: dict[int, str] = field(default_factory=dict)
    #: A reward command runs beside it.
    judged: bool = False
    #: Its programs have stopped when they were asked to, the last time.
    stops: bool = True
    _ending: asyncio.Future[None] | None = None
    #: Name of the folder in which it was started in advance; empty: its own.
    started_as: str = ""
    #: Why it has ended; empty while it lives.
    ended: str = ""
    #: Called once when it has ended.
    on_end: Callable[[KeptEnvironment], None] = lambda _: None

    @property
    def control(self) -> Path:
        """Host side of the control folder."""
        return self.directory / "control"

    @property
    def address(self) -> str:
        """Loopback address of its own; empty: it has the usual one."""
        return self.variables.get(LOOPBACK, "")

    @property
    def root(self) -> Path:
        """The tree as its programs see it now."""
        return Path(f"/proc/{self.pid}/root")

    def watch(self, first_pid: int, pid: int) -> None:
        """Record its two first processes, and notice the end of the init. Raises ProcessLookupError."""
        self.first_pid, self.first_pidfd = first_pid, os.pidfd_open(first_pid)
        self.pid, self.pidfd = pid, os.pidfd_open(pid)
        self.client.pid = pid
        asyncio.get_running_loop().add_reader(self.pidfd, self._on_init_end)

    def become(self, folder: Path, trajectory: TrajectoryKey, spec: EnvironmentSpec) -> None:
        """Be the environment of a trajectory from now on; its own folder was renamed to ``folder``."""
        self.started_as = self.started_as or self.name
        self.name, self.directory = folder.name, folder
        self.trajectory, self.spec = trajectory, spec
        self.client.moved(self.control)
        # Paths of its mount are those of the former folder. Another sandbox gets the mount from its process.
        self.replace_tree(None, None)

    def own_pids(self) -> list[int]:
        """Return the host ids of the processes that are neither a program's nor the worker's."""
        outer = [] if self.outer is None else [self.outer.pid]
        return [*outer, self.first_pid, self.pid]

    def record(self) -> None:
        """Write the record by which the next worker adopts it; on a full disk the one before stays."""
        try:
            self._write_record()
        except OSError as error:
            _log.warning("the record of environment %s is old: %s", self.name, error)

    def _write_record(self) -> None:
        write_record(
            self.directory,
            InitRecord(
                self.pid, start_time(self.pid), self.first_pid, self.trajectory, self.spec, self.uid,
                self.client.trusts_kernel, self.home, self.variables, self.background.left,
                self.started_as,
            ),
        )  # fmt: skip

    async def start(
        self,
        command: InitCommand,
        prepare: Callable[[int], None] | None = None,
        ready: Awaitable[None] | None = None,
    ) -> StartedProgram:
        """Start a program on the cores of ``command``, or in the background, once ``ready`` is done."""

        def confine(pid: int) -> None:
            self._confine(pid, command)
            if prepare is not None:
                prepare(pid)

        if self.ended:
            raise EnvironmentLost(self.ended)
        if self.judged:
            raise RewardRuns
        if command.cpus is None and command.tag:
            self.background.add(command.tag, command.owner, seconds_since_boot())
            self.record()
        try:
            return await self.client.start(command, confine, ready)
        except EnvironmentLost as error:
            # An init that answers no more may live: its programs end, and the next use starts another one.
            await self.end(str(error))
            raise

    def _confine(self, pid: int, command: InitCommand) -> None:
        """Move a program that waits for its start to its cores. Raises OSError."""
        cores, cpus = self.limits.cores, command.cpus
        if cpus is None:
            return  # it is where the init is
        self.acting[command.tag] = command.owner
        if cores is not None:
            cores.grant(command.tag, cpus)
            cores.enter(pid, acting=True)
        else:
            os.sched_setaffinity(pid, cpus)

    def retire(self, tag: int, group: ProcessGroup | None, owner: str) -> list[int]:
        """Move what the command ``tag`` has left to the background; return it."""
        processes, cores = self.limits.processes, self.limits.cores
        if processes is not None and group is not None:
            left = processes.retire(group)
        else:
            left = [each.pid for each in self._list() if each.tag == tag]
        self.acting.pop(tag, None)
        if left:
            self._to_background(left)
        if cores is not None:
            cores.leave(tag)
        if left:
            self.background.add(tag, owner, seconds_since_boot())
            self.record()
        return left

    def _to_background(self, pids: Sequence[int]) -> None:
        cores, confinement = self.limits.cores, self.confinement
        if cores is not None:
            cores.retire(pids)
        else:
            _pin(pids, confinement.background)
        if confinement.shares_granted:
            for pid in pids:
                lower_one(pid, LIGHT_NICE)

    def processes(self) -> list[EnvironmentProcess]:
        """Return its programs, without init and sandbox."""
        now = self._list()
        self.background.keep({each.tag for each in now})
        return [each.public(self.background, self.acting) for each in now]

    def _list(self) -> list[RunningProcess]:
        return list_processes(self.confinement.tagger, self.first_pid, self.pid)

    def pids(self) -> list[int]:
        """Return the host ids of its programs; may be called in any thread."""
        return [each.pid for each in self._list()]

    def resize(self, tag: int, cpus: frozenset[int]) -> None:
        """Move a command that acts to other cores. Raises OSError."""
        cores = self.limits.cores
        if cores is not None:
            cores.grant(tag, cpus)
            return
        for _ in range(_PINNING_ROUNDS):
            found = [each.pid for each in self._list() if each.tag == tag]
            if not _pin(found, cpus):
                break

    def act(self, tag: int, pids: Sequence[int], cpus: frozenset[int]) -> None:
        """Move programs that run already to the cores of the command ``tag``. Raises OSError."""
        cores = self.limits.cores
        self.acting.setdefault(tag, "")
        if cores is None:
            _pin(pids, cpus)
            return
        cores.grant(tag, cpus)
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                cores.enter(pid, acting=True)

    def rest(self, tag: int, pids: Sequence[int]) -> None:
        """Move ``pids`` and all else on the cores of the command ``tag`` to the shared cores."""
        cores = self.limits.cores
        self.acting.pop(tag, None)
        if cores is not None:
            cores.leave(tag)
            return
        _pin(pids, self.confinement.background)

    def end_strays(self, tag: int) -> None:
        """End what has the tag of a command that was stopped, or a tag that is not in the record."""
        known = {self.tag, *self.background.left, *self.acting} - {tag}
        self.signal_all(signal.SIGKILL, lambda carried: carried not in known)

    def end_background(self) -> int:
        """End what actions left behind, but for programs of sessions; return how many processes."""
        sessions = {
            tag for tag, left in self.background.left.items()
            if left.owner.startswith(SESSION_OWNER)
        }  # fmt: skip
        tags = self.background.left.keys() - sessions
        return self.signal_all(signal.SIGKILL, lambda carried: carried in tags)

    def kill(self, pid: int, number: signal.Signals = signal.SIGKILL) -> None:
        """Send a signal to one of its programs by its host id; an ended one is ignored."""
        for each in self._list():
            if each.pid == pid:
                each.signal(number)

    def signal_all(self, number: signal.Signals, chosen: Callable[[int], bool]) -> int:
        """Send a signal to the programs with a chosen tag; return how many there were."""
        found = [each for each in self._list() if chosen(each.tag)]
        for each in found:
            each.signal(number)
        return len(found)

    def adopt_programs(self) -> None:
        """Watch the programs that a predecessor's init started; end those that wait for their start."""
        for pid in children_of(self.pid):
            program = self.client.adopt(pid)
            if program is not None and self.confinement.tagger.read(pid) == self.tag:
                program.signal(signal.SIGKILL)

    async def freeze(self, seconds: float = _FREEZING_SECONDS) -> None:
        """Stop all its programs, and what they start meanwhile. Raises Unavailable when they go on."""
        acted = began = time.monotonic()
        while running := [each for each in self._list() if each.state != "T"]:
            now = time.monotonic()
            if any(each.state != "D" for each in running):
                acted = now
            elif now - acted > _BLOCKED_SECONDS:
                return
            if now - began > seconds:
                break
            for each in running:
                each.signal(signal.SIGSTOP)
            await asyncio.sleep(_PAUSE_SECONDS)
        else:
            return
        self.thaw_now()
        names = ", ".join(f"{each.command[:40]} ({each.state})" for each in running[:4])
        raise Unavailable(f"{len(running)} programs of the environment do not stop: {names}")

    async def thaw(self) -> None:
        """Continue its programs."""
        self.thaw_now()

    def thaw_now(self) -> None:
        """Continue its programs, children first: a shell would take a stopped child for a suspended job."""
        for each in reversed(self._list()):
            each.signal(signal.SIGCONT)

    async def end(self, reason: str = "it was ended") -> None:
        """End all its programs, and remove its pipes and control groups; a second call waits for the first."""
        if self._ending is None:
            self.ended = reason
            self._ending = asyncio.ensure_future(self._end(reason))
        await asyncio.shield(self._ending)

    async def _end(self, reason: str) -> None:
        self._release(reason)
        for _ in range(_PAUSES):
            if self._gone():
                break
            await asyncio.sleep(_PAUSE_SECONDS)  # the kernel does not notify of a set's end
        self.background.close()
        self._close_tree()
        await asyncio.to_thread(shutil.rmtree, self.control, ignore_errors=True)
        self.on_end(self)

    def leave(self) -> None:
        """Stop watching it: it lives on, and the next worker adopts it."""
        if not self.ended:
            self.ended = "its worker has left it"
            self._close("its worker has left it")
            self.background.close()
            self._close_tree()
            if self.outer is not None:
                self.outer.returncode = 0  # this worker does not wait for it

    def _release(self, reason: str) -> None:
        (self.directory / RECORD).unlink(missing_ok=True)
        with contextlib.suppress(OSError):
            signal.pidfd_send_signal(self.first_pidfd, signal.SIGKILL)
        if self.limits.freezer is not None:
            with contextlib.suppress(OSError):  # what is frozen ends when it is thawed
                self.limits.freezer.freeze(False)
        self._close(reason)

    def _close(self, reason: str) -> None:
        self.client.lose(reason)
        if self.pidfd >= 0:
            asyncio.get_running_loop().remove_reader(self.pidfd)
        for handle in (self.pidfd, self.first_pidfd):
            if handle >= 0:
                os.close(handle)
        self.pidfd = self.first_pidfd = -1

    def replace_tree(self, tree: OpenTree | None, record: TreeRecord | None) -> None:
        """Hold another mount of its root from now on; no sandbox may start with the one before."""
        self._close_tree()
        self.tree, self.tree_record = tree, record

    def _close_tree(self) -> None:
        if self.tree is not None:
            self.tree.close()
            self.tree = None

    def _gone(self) -> bool:
        """Remove its groups; say whether all its processes have ended."""
        limits = self.limits
        if limits.processes is not None:
            for pid in limits.processes.processes():
                with contextlib.suppress(OSError):
                    os.kill(pid, signal.SIGKILL)
            if not limits.processes.remove():
                return False
        if limits.cores is not None and not limits.cores.remove():
            return False
        if limits.freezer is not None and not limits.freezer.remove():
            return False
        if self.outer is not None and self.outer.poll() is None:
            return False
        if not self.first_pid:
            return True
        if start_time(self.first_pid) is not None:
            return False
        # It became a child of this worker when the outer one ended, so it is waited for after both.
        with contextlib.suppress(ChildProcessError):
            os.waitpid(self.first_pid, os.WNOHANG)
        return True

    def _on_init_end(self) -> None:
        asyncio.get_running_loop().remove_reader(self.pidfd)
        _log.warning("the init of environment %s has ended, so the environment is ended", self.name)
        self.ended = "its first process has ended"
        self._ending = asyncio.ensure_future(self._end(self.ended))


def _pin(pids: Collection[int], cpus: frozenset[int]) -> bool:
    """Pin all threads of processes; return whether any had other CPUs."""
    changed = False
    for pid in pids:
        with contextlib.suppress(OSError):
            for thread in map(int, os.listdir(f"/proc/{pid}/task")):
                if os.sched_getaffinity(thread) != cpus:
                    os.sched_setaffinity(thread, cpus)
                    changed = True
    return changed


def make_control(directory: Path, uid: int | None) -> Path:
    """Make the control folder of an environment: pipes, and the part that programs may write."""
    control = directory / "control"
    shutil.rmtree(control, ignore_errors=True)
    init.make_control(control)
    shared = control / SHARED_NAME
    shared.mkdir(mode=0o700)
    if uid is not None:
        os.chown(shared, uid, uid)
    return control


def spawn(
    argv: Sequence[str], env: dict[str, str], keep: tuple[int, ...]
) -> subprocess.Popen[bytes]:
    """Start the outer process of a sandbox. Blocks for a millisecond."""
    return subprocess.Popen(
        argv, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        env=env, cwd="/", pass_fds=keep, start_new_session=True,
    )  # fmt: skip
