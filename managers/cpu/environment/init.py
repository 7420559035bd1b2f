"""Init of an environment: a shell that starts programs on request, and its client in the node worker.

The init is ``sh -s``. It reads lines from the named pipe ``in`` and answers ``NUMBER VALUE`` to ``status``; both are
opened for reading and writing at its start, so neither end of file nor SIGPIPE ends it when the worker ends.

    worker                                       init
    START 7 (a line of at most 4,096 bytes)  →   forks a child that waits for ``7`` in the pipe ``go``
                                             ←   7 PID                         id inside the environment
    finds the id on the host, moves it to its
    control groups, then ``7`` in ``go``     →   the child sets tag, directory and variables, and becomes the program
    the pidfd says that it has ended: its
    status is read from ``/proc/PID/stat``
    REAP PID                                 →   waits for the dead child

Invariants
1. The init never waits for a program, so programs may run side by side.
2. A line is written at once or not at all (PIPE_BUF): a worker that is killed leaves no half line. A
   longer script is a file in the control folder, read by the child.
3. Starts are in order: at most one child waits at ``go`` until it has read its number, and a start that fails
   ends its child.
4. The kernel's status is preferred: it cannot be forged. Where the worker may not read it, or the init has reaped the
   child already, the init is asked.

The shell is that of the environment: dash, bash or busybox. A shell without job control ignores SIGINT and
SIGQUIT in what it starts with ``&``; `launch` makes them as usual again and gives the program a session.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import shlex
import signal
import stat
import sys
import termios
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

from managers.cpu.command_line import IDENTIFIER
from managers.cpu.environment import hidden_shell, launch
from managers.cpu.environment.kernel import children_of, inner_pid_of, kernel_status
from managers.cpu.environment.protocol import CONTROL, SIGNAL_BASE, EnvironmentLost, InitCommand

#: Named pipes of the control folder, in the order of the init's descriptors 0, 1 and 3.
PIPES: Final = ("in", "status", "go")
_LINE_BYTES: Final = 4096
_CHUNK_BYTES: Final = 65536
_PAUSE_SECONDS: Final = 0.0005
_PAUSES: Final = 4000
#: Longest wait for an answer of the init, which does nothing but start programs.
ANSWER_SECONDS: Final = 20.0
#: Names that a shell gives a meaning of its own, or protects from changes.
_SHELLS: Final = frozenset(
    "BASHOPTS BASH_VERSINFO EUID IFS LINENO OLDPWD OPTARG OPTIND PPID PWD SHELLOPTS UID _".split()
)
#: Opens the pipes of the folder $1, in a shell that becomes the rest.
ENTERING: Final = 'exec 0<>"$1/in" 1<>"$1/status" 3<>"$1/go" 2>>"$1/log"; shift; '
#: Functions of the init. $1 of `tangram_go` is the number of its start; a smaller number is of an ended one.
PRELUDE: Final = """\
trap : HUP INT QUIT TERM USR1 USR2 ALRM PIPE
cd /
tangram_tag=-w
if (ulimit -x) >/dev/null 2>&1; then tangram_tag=-x; fi
if [ -x CONTROL/launch ]; then
    tangram_own() { exec CONTROL/launch "$@"; }
elif setsid env --default-signal=INT,QUIT true 2>/dev/null; then
    tangram_own() { shift; exec setsid env --default-signal=INT,QUIT "$@"; }
elif setsid true 2>/dev/null; then
    tangram_own() { shift; exec setsid "$@"; }
else
    tangram_own() { shift; exec "$@"; }
fi
tangram_go() { while read -r tangram_n <&3; do [ "$tangram_n" = "$1" ] && break; done; exec 3<&-; }
tangram_cd() { cd "$1" 2>/dev/null && return; printf 'tangram: cwd: %s cannot be entered\\n' "$1" >&2; exit 126; }
tangram_run() {
    case $1 in
    */*) [ -f "$1" ] && [ -x "$1" ] && tangram_own "$1" "$@"; [ -e "$1" ] && exec "$@" ;;
    ?*) set -f; IFS=:
        for tangram_d in $PATH; do
            tangram_d=${tangram_d:-.}/$1
            [ -f "$tangram_d" ] && [ -x "$tangram_d" ] && tangram_own "$tangram_d" "$@"
        done ;;
    esac
    printf 'tangram: %s: not found\\n' "$1" >&2; exit 127
}
"""


def make_control(folder: Path) -> None:
    """Make the named pipes of an init, which only the worker may open by name, and the launch program."""
    folder.mkdir(mode=0o755, parents=True, exist_ok=True)
    os.chmod(folder, 0o755)
    for name in PIPES:
        (folder / name).unlink(missing_ok=True)
        os.mkfifo(folder / name, 0o600)
    program = launch.launch_program()
    if program is not None:
        place = folder / launch.NAME
        place.write_bytes(program)
        os.chmod(place, 0o755)


def init_command(shell: Sequence[str] = ("/bin/sh",)) -> list[str]:
    """Return the command line of the init, whose descriptors 0, 1 and 3 are its pipes."""
    return [*shell, "-s"]


def entering_command(folder: Path, command: Sequence[str]) -> list[str]:
    """Return a command line on the host that opens the pipes of ``folder`` and becomes ``command``."""
    script = f'{ENTERING}exec "$@"'
    return ["/bin/sh", "-c", script, "sh", str(folder), *command]


def prelude(control: str = CONTROL) -> str:
    """Return the lines that the init reads first."""
    return PRELUDE.replace("CONTROL", control)


def child_script(number: int, command: InitCommand) -> str:
    """Return what the child of a start does: wait for its turn, and become the program."""
    variables = {name: text for name, text in command.env.items() if _is_plain(name)}
    odd = [f"{name}={text}" for name, text in command.env.items() if not _is_plain(name)]
    argv = ["env", *odd, *command.argv] if odd else command.argv
    pipes = shlex.quote(command.stdin), shlex.quote(command.stdout), shlex.quote(command.stderr)
    parts = [f"tangram_go {number}", "exec <{} 1<>{} 2<>{}".format(*pipes)]
    if command.tag:
        parts.append(f"ulimit $tangram_tag {command.tag} 2>/dev/null")
    parts.append(f"tangram_cd {shlex.quote(command.cwd)}")
    if variables:
        parts.append(f"export {_assignments(variables)}")
    parts.append(f"tangram_run {' '.join(map(shlex.quote, argv))}")
    return "; ".join(parts)


def start_line(number: int, script: str) -> str:
    """Return the request to start a child; the answer is its id inside the environment."""
    return f"( {script} ) & echo {number} $!\n"


def status_line(number: int, inner_pid: int) -> str:
    """Return the request for the exit status of a dead child."""
    return f"wait {inner_pid}; echo {number} $?\n"


def reap_line(inner_pid: int) -> str:
    """Return the request to wait for a dead child; there is no answer."""
    return f"wait {inner_pid}\n"


def ping_line(number: int) -> str:
    """Return a request that is answered with 0."""
    return f"echo {number} 0\n"


def parse_answer(line: bytes) -> tuple[int, int] | None:
    """Return number and value of an answer; None for anything else."""
    number, _, value = line.partition(b" ")
    return (int(number), int(value)) if number.isdigit() and value.isdigit() else None


def exit_code(wait_status: int) -> int:
    """Return the exit code of a status as of `waitpid`: `SIGNAL_BASE` plus the signal that ended it, if any."""
    ended_by = wait_status & 0x7F
    return SIGNAL_BASE + ended_by if ended_by else wait_status >> 8 & 0xFF


def _is_plain(name: str) -> bool:
    return IDENTIFIER.fullmatch(name) is not None and name not in _SHELLS


def _assignments(variables: Mapping[str, str]) -> str:
    return " ".join(f"{name}={shlex.quote(text)}" for name, text in variables.items())


class StartedProgram:
    """A child of an init: an `InitProcess`."""

    def __init__(self, client: InitClient, pid: int, inner_pid: int) -> None:
        self._client = client
        self.pid = pid
        self.inner_pid = inner_pid
        self.pidfd = os.pidfd_open(pid)
        self._status: asyncio.Future[int] = client._loop.create_future()
        self._status.add_done_callback(lambda done: done.cancelled() or done.exception())
        self._ended: list[Callable[[], None]] = []
        client._loop.add_reader(self.pidfd, self._on_end)

    def on_end(self, call: Callable[[], None]) -> None:
        """Call ``call`` when it has ended, before its status is known; at once if it has."""
        if self.pidfd < 0:
            call()
        else:
            self._ended.append(call)

    async def wait(self) -> int:
        """Return its exit code. Raises EnvironmentLost when the init ended before it was known."""
        return await asyncio.shield(self._status)

    def signal(self, number: signal.Signals) -> None:
        """Send it a signal, unless it has ended."""
        if self.pidfd >= 0:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self.pidfd, number)

    def close(self) -> None:
        """Stop watching it; its status stays unknown if it is."""
        if self.pidfd >= 0:
            asyncio.get_running_loop().remove_reader(self.pidfd)
            os.close(self.pidfd)
            self.pidfd = -1
        if not self._status.done():
            self._status.set_exception(
                EnvironmentLost("the init was closed before its program ended")
            )

    def _on_end(self) -> None:
        known = kernel_status(self.pid) if self._client.trusts_kernel else None
        asyncio.get_running_loop().remove_reader(self.pidfd)
        os.close(self.pidfd)
        self.pidfd = -1
        if known is not None and not self._status.done():
            self._status.set_result(exit_code(known))
            self._client.reap(self.inner_pid)
        elif not self._status.done():
            self._client.ask_status(self.inner_pid, self._status)
        for call in self._ended:
            call()


class InitClient:
    """The worker's side of one init."""

    def __init__(self, folder: Path, control: str = CONTROL) -> None:
        """Open the pipes of ``folder``, new ones or those of a living init, which sees it at ``control``.

        Raises OSError.
        """
        self._folder, self._control = folder, control
        self._loop = asyncio.get_running_loop()
        self._handles = [_open_pipe(folder / name) for name in PIPES]
        self._in, self._answers, self._go = self._handles
        #: Host id of the init, once it is known.
        self.pid = 0
        #: The worker may read the exit status of what runs in it; `try_kernel` finds out.
        self.trusts_kernel = False
        self._line = bytearray()
        self._waiting: dict[int, asyncio.Future[int]] = {}
        # Answers to a dead predecessor must not match ours, so numbers rise with time.
        self._number = time.time_ns() // 1000
        self._starting = asyncio.Lock()
        self._last: StartedProgram | None = None
        self._programs: dict[int, StartedProgram] = {}
        self.lost = ""
        self._loop.add_reader(self._answers, self._read)

    def moved(self, folder: Path) -> None:
        """Record that its folder has another path now."""
        self._folder = folder

    def next_number(self) -> int:
        """Return the number of the next request."""
        self._number += 1
        return self._number

    async def greet(self) -> None:
        """Send the prelude to a new init, and wait until it has read it. Raises EnvironmentLost."""
        os.write(self._in, prelude(self._control).encode())
        await self.ping()

    async def hide(self) -> bool:
        """Continue a new init in a program that nothing inside may read, so that it cannot be traced.

        Returns whether it is hidden (`managers.cpu.environment.hidden_shell`). Raises EnvironmentLost.
        """
        copied = hidden_shell.may_hide() and await asyncio.to_thread(
            hidden_shell.copy_shell, self.pid, self._folder
        )
        if not copied:
            return False
        number = self.next_number()
        line = hidden_shell.exec_line(number, self._control)
        if await self._ask(number, line, ANSWER_SECONDS):
            return False
        await self.greet()
        return True

    async def ping(self, seconds: float = ANSWER_SECONDS) -> None:
        """Wait for an answer of the init. Raises EnvironmentLost."""
        number = self.next_number()
        await self._ask(number, ping_line(number), seconds)

    async def try_kernel(self) -> None:
        """Start a program that ends with 7, to learn whether the worker may read its status."""
        self.trusts_kernel = True
        program = await self.start(InitCommand(("/bin/sh", "-c", "exit 7"), cwd="/"))
        self.trusts_kernel = await program.wait() == 7

    async def start(
        self,
        command: InitCommand,
        prepare: Callable[[int], None] | None = None,
        ready: Awaitable[None] | None = None,
    ) -> StartedProgram:
        """Start a program; ``prepare`` gets its host id while it waits, and it waits for ``ready``.

        Raises EnvironmentLost, or the error of ``prepare`` or ``ready``; then nothing was started.
        """
        begun = asyncio.ensure_future(self._start(command, prepare, ready))
        try:
            return await asyncio.shield(begun)
        except asyncio.CancelledError:
            # A child that waits for its turn would take that of the next one.
            begun.add_done_callback(_end)
            raise

    def adopt(self, pid: int) -> StartedProgram | None:
        """Watch a child of the init that a predecessor of this worker started; None when it has ended."""
        inner = inner_pid_of(pid)
        if inner is None:
            return None
        try:
            program = self._programs[inner] = StartedProgram(self, pid, inner)
        except ProcessLookupError:
            return None
        program.on_end(lambda: self._forget("", inner))
        return program

    def reap(self, inner_pid: int) -> None:
        """Let the init wait for a dead child."""
        with contextlib.suppress(EnvironmentLost):
            self._send(reap_line(inner_pid))

    def ask_status(self, inner_pid: int, answer: asyncio.Future[int]) -> None:
        """Ask the init for the status of a dead child."""
        number = self.next_number()
        self._waiting[number] = answer
        try:
            self._send(status_line(number, inner_pid))
        except EnvironmentLost as error:
            self._waiting.pop(number, None)
            answer.set_exception(error)

    def lose(self, reason: str) -> None:
        """Record that the init has ended; all that waits for it fails. Idempotent."""
        if self.lost:
            return
        self.lost = reason
        self._loop.remove_reader(self._answers)
        for handle in self._handles:
            os.close(handle)
        for waiting in (
            *self._waiting.values(),
            *(each._status for each in self._programs.values()),
        ):
            if not waiting.done():
                waiting.set_exception(EnvironmentLost(reason))
        self._waiting.clear()

    def close(self) -> None:
        """Close the pipes; the init and its programs stay."""
        self.lose("the worker has closed it")
        for program in list(self._programs.values()):
            program.close()
        self._programs.clear()

    async def _start(
        self,
        command: InitCommand,
        prepare: Callable[[int], None] | None,
        ready: Awaitable[None] | None,
    ) -> StartedProgram:
        async with self._starting:
            await self._until_gone()
            number = self.next_number()
            line, script = self._line_of(number, command)
            inner = await self._ask(number, line, ANSWER_SECONDS)
            try:
                program = self._find(inner)
                program.on_end(lambda: self._forget(script, inner))
            except (OSError, EnvironmentLost) as error:
                self.lose(f"its new child {inner} was not found: {error}")
                raise EnvironmentLost(self.lost) from error
            try:
                if prepare is not None:
                    prepare(program.pid)
                if ready is not None:
                    await ready
                os.write(self._go, b"%d\n" % number)
                self._last = program
            except BaseException:
                program.signal(signal.SIGKILL)
                with contextlib.suppress(EnvironmentLost):
                    await program.wait()
                raise
            return program

    async def _until_gone(self) -> None:
        """Wait until the last child has read its number: two readers would get parts of each other's.

        What nothing reads for long was left by a child that has ended, and is skipped by the next one.
        """
        for _ in range(_PAUSES):
            ended = self._last is not None and self._last.pidfd < 0
            if self.lost or ended or not _unread(self._go):
                break
            await asyncio.sleep(_PAUSE_SECONDS)  # a pipe does not notify its writer
        self._last = None

    def _line_of(self, number: int, command: InitCommand) -> tuple[str, str]:
        """Return the request, and the name of its file, which has what is too long for a line; empty: none."""
        script = child_script(number, command)
        line = start_line(number, script)
        if len(line.encode(errors="surrogateescape")) <= _LINE_BYTES:
            return line, ""
        place = self._folder / f"{number}.sh"
        place.write_bytes(script.encode(errors="surrogateescape"))
        os.chmod(place, 0o644)
        source = f". {shlex.quote(f'{self._control}/{place.name}')}"
        return start_line(number, source), place.name

    def _forget(self, script: str, inner: int) -> None:
        self._programs.pop(inner, None)
        if script:
            (self._folder / script).unlink(missing_ok=True)

    def _find(self, inner: int) -> StartedProgram:
        known = {program.pid for program in self._programs.values()}
        for pid in reversed(children_of(self.pid)):
            if pid not in known and inner_pid_of(pid) == inner:
                program = self._programs[inner] = StartedProgram(self, pid, inner)
                return program
        raise EnvironmentLost("the init has no such child")

    async def _ask(self, number: int, line: str, seconds: float) -> int:
        answer: asyncio.Future[int] = self._loop.create_future()
        self._waiting[number] = answer
        try:
            self._send(line)
            async with asyncio.timeout(seconds):
                return await answer
        except TimeoutError:
            self.lose(f"its init did not answer within {seconds:g} s")
            raise EnvironmentLost(self.lost) from None
        finally:
            self._waiting.pop(number, None)

    def _send(self, line: str) -> None:
        if self.lost:
            raise EnvironmentLost(self.lost)
        try:
            os.write(self._in, line.encode(errors="surrogateescape"))
        except BlockingIOError:
            self.lose("its init does not read its requests")
            raise EnvironmentLost(self.lost) from None

    def _read(self) -> None:
        with contextlib.suppress(BlockingIOError):
            self._line += os.read(self._answers, _CHUNK_BYTES)
        while (end := self._line.find(b"\n")) >= 0:
            answer = parse_answer(bytes(self._line[:end]))
            del self._line[: end + 1]
            waiting = None if answer is None else self._waiting.pop(answer[0], None)
            if waiting is not None and answer is not None and not waiting.done():
                waiting.set_result(answer[1])
        # What is no answer was written by a program inside; it is not kept.
        del self._line[:-_LINE_BYTES]


def _end(begun: asyncio.Future[StartedProgram]) -> None:
    if not begun.cancelled() and begun.exception() is None:
        begun.result().signal(signal.SIGKILL)


def _unread(pipe: int) -> int:
    """Return the bytes that wait in a pipe."""
    answer = fcntl.ioctl(pipe, termios.FIONREAD, b"\0" * 4)
    return int.from_bytes(answer, sys.byteorder)


def _open_pipe(path: Path) -> int:
    handle = os.open(path, os.O_RDWR | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
    if not stat.S_ISFIFO(os.fstat(handle).st_mode):
        os.close(handle)
        raise OSError(f"{path} is no named pipe")
    return handle
