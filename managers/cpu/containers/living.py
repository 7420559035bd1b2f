"""Living container: a container as a living environment, with an init beside the shell that runs its actions.

    container
      sh -s          first process: takes the commands of actions, one after another, and reaps orphans
        sh -s        the init (`managers.cpu.environment.init`), started by the first process
          programs   of sessions, in a session of their own each
      programs       that actions have left in the background, as orphans of the first process

The init ends with the container, or when a program inside ends it; then all that it had started is ended, and the
next use starts another one. The first process cannot be ended from inside, so the container itself goes on.

Invariants
1. What outlives an action is the init and what carries a recorded tag (`keeps`). A tag is a resource limit, which a
   program can lower but not forge upwards (`managers.cpu.process.process_tag`); all else ends with its action.
2. The record ``init.json`` names init and tags. The next worker keeps what it names, and ends all else (I7).
3. While a reward command runs, all that is kept is frozen (`hold`): it cannot touch what is judged.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import resource
import signal
from collections.abc import Callable, Collection
from functools import partial
from pathlib import Path
from typing import Final

from domain.action import EnvironmentSpec
from domain.errors import Unavailable
from domain.ids import TrajectoryKey
from managers.cpu.containers.cgroups import ControlGroup
from managers.cpu.containers.environment import Environment, to_its_end
from managers.cpu.containers.shell import CONTROL, SHELL, ShellLost
from managers.cpu.environment import init
from managers.cpu.environment.adoption import RECORD, InitRecord, read_record, write_record
from managers.cpu.environment.background import Background, list_processes, seconds_since_boot
from managers.cpu.environment.init import InitClient, StartedProgram
from managers.cpu.environment.kernel import children_of, inner_pid_of, start_time
from managers.cpu.environment.protocol import (
    SESSION_OWNER,
    EnvironmentLost,
    EnvironmentProcess,
    InitCommand,
    RewardRuns,
)
from managers.cpu.process.process_tag import RLIMIT_LOCKS, ProcessTagger

#: Starts the init as a child of the shell that reads this; the answer is its id inside.
_START: Final = (
    f"( exec 0<>{CONTROL}/in 1<>{CONTROL}/status 3<>{CONTROL}/go 2>/dev/null; exec {SHELL} -s ) &"
    " echo {number} $!\n"
)
_PAUSE_SECONDS: Final = 0.0005
#: Longest wait for a freeze: processes that wait for a disk stop late.
_FREEZE_PAUSES: Final = 1000
_HOLD_PAUSES: Final = 40_000

_log = logging.getLogger(__name__)


class LivingContainer:
    """One container with an init (`LivingEnvironment`)."""

    def __init__(
        self,
        environment: Environment,
        tagger: ProcessTagger,
        client: InitClient,
        uid: int | None,
        on_end: Callable[[LivingContainer], None],
    ) -> None:
        self.environment = environment
        self.client = client
        self.uid = uid
        self.tag = tagger.environment_tag(environment.name)
        #: What was left behind, and programs of sessions: tag → its record.
        self.background = Background()
        self.pid, self.pidfd = 0, -1
        #: Why it has ended; empty while it lives.
        self.ended = ""
        self._tagger = tagger
        self._on_end = on_end
        #: A reward command runs in it.
        self.judged = False
        self._option = "-x"
        self._releasing: asyncio.Future[None] | None = None

    @property
    def name(self) -> str:
        """Name of its container."""
        return self.environment.name

    @property
    def trajectory(self) -> TrajectoryKey:
        """The trajectory that it belongs to."""
        return TrajectoryKey(self.environment.trajectory)

    @property
    def spec(self) -> EnvironmentSpec:
        """What was declared for it."""
        return self.environment.spec

    @property
    def directory(self) -> Path:
        """Its folder on the host."""
        return self.environment.directory

    @property
    def control(self) -> Path:
        """Host side of the control folder."""
        return self.environment.control

    @property
    def root(self) -> Path:
        """The tree as its programs see it."""
        return Path(f"/proc/{self.environment.pid}/root")

    def watch(self, pid: int) -> None:
        """Record its init, and notice its end. Raises ProcessLookupError."""
        self.pidfd = os.pidfd_open(pid)
        self.pid = self.client.pid = pid
        self.environment.keeps = self.keeps
        asyncio.get_running_loop().add_reader(self.pidfd, self._on_init_end)

    def keeps(self, pid: int) -> bool:
        """Say whether a process outlives the actions of its environment."""
        return pid == self.pid or self._tagger.read(pid) in {self.tag, *self.background.left}

    def record(self) -> None:
        """Write the record by which the next worker adopts it; on a full disk the one before stays."""
        record = InitRecord(
            self.pid, start_time(self.pid), self.environment.pid, self.trajectory, self.spec, self.uid,
            self.client.trusts_kernel, background=self.background.left,
        )  # fmt: skip
        try:
            write_record(self.directory, record)
        except OSError as error:
            _log.warning("the record of environment %s is old: %s", self.name, error)

    async def start(
        self, command: InitCommand, prepare: Callable[[int], None] | None = None
    ) -> StartedProgram:
        """Start a program of a session. It has the container's cores."""

        def tagged(pid: int) -> None:
            if command.tag:
                resource.prlimit(pid, RLIMIT_LOCKS, (command.tag, command.tag))
            if prepare is not None:
                prepare(pid)

        if self.ended:
            raise EnvironmentLost(self.ended)
        if self.judged:
            raise RewardRuns
        self.background.add(command.tag, command.owner, seconds_since_boot())
        self.record()
        program = await self.client.start(command, tagged)
        # A list of processes that was made meanwhile has dropped a tag without any.
        self.background.add(command.tag, command.owner, seconds_since_boot())
        return program

    async def learn_option(self) -> None:
        """Ask the shell of actions how it calls the limit that is the tag. Raises EnvironmentLost."""
        shell = self.environment.shell
        try:
            if shell is None:
                raise ShellLost("it is closed")
            status = await shell.ask("(ulimit -x) >/dev/null 2>&1")
        except ShellLost as error:
            raise EnvironmentLost(f"the shell of its container: {error}") from error
        self._option = "-w" if status else "-x"

    def tag_actions(self, tag: int) -> None:
        """Give the next action this tag. What a shell cannot tag is ended with its action."""
        self.environment.prefix = f"ulimit {self._option} {tag} 2>/dev/null; "

    def retire(self, tag: int, owner: str) -> int:
        """Keep what a completed action has left; return the number of its processes."""
        try:
            left = [pid for pid in self.environment.others() if self._tagger.read(pid) == tag]
        except OSError:  # the container has ended
            return 0
        if left:
            self.background.add(tag, owner, seconds_since_boot())
            self.record()
        return len(left)

    def drain(self, tag: int, pipes: tuple[str, ...]) -> None:
        """Read and drop what a retired action's processes write to its outputs, until they end."""
        if tag in self.background.left:
            self.background.drain(tag, self.control, pipes)
            self.record()

    def end_background(self, tags: Collection[int] | None = None) -> int:
        """End what actions left behind (with ``tags``), but for programs of sessions; return how many."""
        chosen = {
            tag
            for tag, left in self.background.left.items()
            if (tags is None or tag in tags) and not left.owner.startswith(SESSION_OWNER)
        }
        with contextlib.suppress(OSError):  # the container has ended
            found = [pid for pid in self.environment.others() if self._tagger.read(pid) in chosen]
            for pid in found:
                kill(pid)
            return len(found)
        return 0

    def sweep(self) -> None:
        """Drop the records of what has ended, and end what actions left longer ago than the TTL."""
        self.processes()
        self.end_background(
            self.background.expired(seconds_since_boot(), self.spec.ttl_seconds) or ()
        )

    def processes(self) -> list[EnvironmentProcess]:
        """Return its programs, those of a running action included."""
        found = list_processes(self._tagger, self.environment.pid, self.pid)
        self.background.keep({each.tag for each in found})
        return [each.public(self.background) for each in found]

    def is_occupied(self) -> bool:
        """Say whether programs run in it between actions."""
        with contextlib.suppress(OSError):
            return any(pid != self.pid and self.keeps(pid) for pid in self.environment.others())
        return False

    async def freeze(self) -> None:
        """Freeze its control group, the first process included."""
        group = self.environment.group
        assert group is not None
        group.freeze(True)
        for _ in range(_FREEZE_PAUSES):
            if group.is_frozen():
                break
            await asyncio.sleep(_PAUSE_SECONDS)  # the kernel does not notify

    async def thaw(self) -> None:
        """Continue its control group."""
        assert self.environment.group is not None
        self.environment.group.freeze(False)

    async def hold(self) -> None:
        """Freeze what is kept, all at one instant, so that none can start a process meanwhile.

        By a group of its own: a program could continue itself after SIGSTOP. Raises Unavailable.
        """
        group = self.environment.group
        assert group is not None
        self.judged = True
        with contextlib.suppress(FileNotFoundError):  # the container has ended
            async with self.environment.moving:
                await self.freeze()
                try:
                    await to_its_end(partial(self._hold_kept, group))
                finally:
                    await self.thaw()
            for _ in range(_HOLD_PAUSES):
                if group.held.is_frozen():
                    return
                await asyncio.sleep(_PAUSE_SECONDS)  # the kernel does not notify
            raise Unavailable("programs of the container do not stop")

    def _hold_kept(self, group: ControlGroup) -> None:
        group.held.hold([pid for pid in self.environment.others() if self.keeps(pid)])

    async def release(self) -> None:
        """Continue what `hold` has frozen."""
        self.judged = False
        await self.environment.release_held()

    async def end(self) -> None:
        """End its init, and with it all that it keeps; the container goes on."""
        if not self.ended:
            asyncio.get_running_loop().remove_reader(self.pidfd)
            self._end("it was ended")
        if self._releasing is not None:
            await self._releasing

    def leave(self) -> None:
        """Stop watching it: it lives on, and the next worker adopts it."""
        if not self.ended:
            asyncio.get_running_loop().remove_reader(self.pidfd)
            self.ended = "its worker has left it"
            self._close()

    def _on_init_end(self) -> None:
        asyncio.get_running_loop().remove_reader(self.pidfd)
        self._end("its init has ended")

    def _end(self, reason: str) -> None:
        self.ended = reason
        (self.directory / RECORD).unlink(missing_ok=True)
        with contextlib.suppress(OSError):  # the container has ended, and all its processes
            for pid in self.environment.others():
                if self.keeps(pid):
                    kill(pid)
        self._releasing = asyncio.ensure_future(self.release())
        self.environment.keeps = None
        self.environment.prefix = ""
        self._close()
        self._on_end(self)

    def _close(self) -> None:
        self.client.close()
        self.background.close()
        if self.pidfd >= 0:
            os.close(self.pidfd)
            self.pidfd = -1


async def begin_living(
    environment: Environment, tagger: ProcessTagger, on_end: Callable[[LivingContainer], None]
) -> LivingContainer:
    """Start an init in a container whose shell is idle. Raises EnvironmentLost, OSError."""
    shell, uid = environment.shell, user_of(environment.pid)
    if shell is None:
        raise EnvironmentLost("its container has no shell that takes commands")
    await asyncio.to_thread(_make_pipes, environment.control, uid)
    client = InitClient(environment.control)
    living = LivingContainer(environment, tagger, client, uid, on_end)
    try:
        number = shell.next_number()
        inner = await (await shell.begin(number, _START.format(number=number)))
        pid = _child(environment.pid, inner)
        # Programs that it starts may lower theirs to that of a session.
        resource.prlimit(pid, RLIMIT_LOCKS, (living.tag, living.tag))
        living.watch(pid)
        await client.greet()
        await client.try_kernel()
        await living.learn_option()
        living.record()
    except BaseException as error:
        if living.pid:
            await living.end()
        else:
            client.close()
        if isinstance(error, ShellLost):
            raise EnvironmentLost(f"the shell of its container: {error}") from error
        raise
    return living


def recognised(environment: Environment, tagger: ProcessTagger) -> InitRecord | None:
    """Return the record of an init that lives in a found container; None without one."""
    record = read_record(environment.directory)
    if record is None or record.started is None or start_time(record.pid) != record.started:
        return None
    its_own = tagger.read(record.pid) == tagger.environment_tag(environment.name)
    return record if its_own and record.pid in children_of(environment.pid) else None


async def adopt_living(
    environment: Environment,
    tagger: ProcessTagger,
    record: InitRecord,
    on_end: Callable[[LivingContainer], None],
) -> LivingContainer:
    """Take over an init of a predecessor. Raises EnvironmentLost, OSError."""
    client = InitClient(environment.control)
    client.trusts_kernel = record.trusts_kernel
    living = LivingContainer(environment, tagger, client, record.uid, on_end)
    try:
        living.background.left.update(record.background)
        living.watch(record.pid)
        await client.ping()
        await living.learn_option()
    except BaseException:
        await living.end()
        raise
    for tag, left in record.background.items():
        living.background.drain(tag, environment.control, left.pipes)
    for pid in children_of(living.pid):
        client.adopt(pid)
    return living


def _make_pipes(folder: Path, uid: int | None) -> None:
    init.make_control(folder)
    if uid is not None:
        for name in init.PIPES:
            os.chown(folder / name, uid, uid, follow_symlinks=False)


def _child(pid: int, inner: int) -> int:
    for child in reversed(children_of(pid)):
        if inner_pid_of(child) == inner:
            return child
    raise EnvironmentLost("its init was not found")


def user_of(pid: int) -> int | None:
    """Return the host uid of a process; None: that of this worker. Raises OSError."""
    for line in Path(f"/proc/{pid}/status").read_text(errors="replace").splitlines():
        if line.startswith("Uid:"):
            uid = int(line.split()[2])
            return None if uid == os.geteuid() else uid
    return None


def kill(pid: int, number: signal.Signals = signal.SIGKILL) -> None:
    """Send a signal to a process, by default the one that ends it at once; one that has ended is ignored."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)
