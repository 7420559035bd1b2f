"""One live session: its descriptors, its state, its output, and the command that runs in it.

Rules
1. Output is read whether or not anything waits for it, at a bounded rate: a program never waits for a reader
   for longer than `_REST_SECONDS`, and endless output costs a bounded part of a core.
2. A command is complete when the shell answers with its number; then all output that was written before the
   answer is read (`drain`). The status never comes from the output.
3. Each output byte belongs to one reply: a command's reply begins where the reply before it ended.
4. A new worker takes a session over from its record; what the shell answered meanwhile is in its pipes.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from domain.errors import Conflict
from domain.ports.sessions import WindowSize
from managers.cpu.environment.protocol import SIGNAL_BASE
from managers.cpu.sessions import process_looks
from managers.cpu.sessions.shells import (
    ANSWER,
    GO,
    LACKS,
    NEXT,
    PROMPT,
    STREAMS,
    Answer,
    AnswerLines,
    SessionShell,
    write_command,
)
from managers.cpu.sessions.state import SessionPhase, SessionState
from managers.cpu.sessions.terminal import Pipes, SessionChannel, Terminal
from managers.cpu.sessions.transcript import Transcript

#: Output that is read at once, before other work of the event loop; and the rest after it.
_BURST_BYTES: Final = 128 * 1024
_REST_SECONDS: Final = 0.004
#: More than terminals and pipes hold.
_DRAIN_BYTES: Final = 2 * 1024 * 1024
_INPUT_BYTES: Final = 1024 * 1024
_CHUNK_BYTES: Final = 4096
_AGAIN_SECONDS: Final = 0.1
#: Character of a terminal that discards what was typed of a line, so that it is not executed.
_KILL_LINE: Final = b"\x15"


@dataclass(frozen=True)
class Identity:
    """A process, so that a reused pid is noticed."""

    pid: int
    started: int

    @classmethod
    def of(cls, pid: int) -> Identity:
        """Return the identity of a process. Raises ProcessLookupError."""
        facts = process_looks.facts_of(pid)
        if facts is None or facts.zombie:
            raise ProcessLookupError(pid)
        return cls(pid, facts.started)

    @property
    def alive(self) -> bool:
        """Whether it runs."""
        facts = process_looks.facts_of(self.pid)
        return facts is not None and facts.started == self.started and not facts.zombie


class LiveSession:
    """A session of one environment, as the present worker sees it."""

    def __init__(
        self, name: str, shell: SessionShell, folder: Path, *, pty: bool, size: WindowSize
    ) -> None:
        """``folder``: its pipes and scripts, on the host. Raises OSError."""
        self.state = SessionState(name, shell)
        self.folder, self.pty, self.size = folder, pty, size
        self.output = Transcript()
        #: Standard error of a session without a terminal.
        self.errors = Transcript()
        #: Offsets of what no reply has returned yet.
        self.replied = self.replied_errors = 0
        self.shell: Identity | None = None
        self._image = b""
        self._command_ticks = 0
        self._lines = AnswerLines()
        self._loop = asyncio.get_running_loop()
        self._channel: SessionChannel | None = None
        self._changed: list[asyncio.Event] = []
        #: Called with each piece of output: 0 standard output, 1 standard error.
        self.sinks: list[Callable[[int, bytes], None]] = []
        self._resting: dict[int, asyncio.TimerHandle] = {}
        self._input = bytearray()
        #: Attached terminals that want a prompt.
        self._prompts = 0
        #: All attached terminals.
        self.attached = 0
        #: The terminal does not echo, until the shell is in its loop again.
        self._hushed = False
        self._closed = False
        #: Called once when the program has ended.
        self.on_end: Callable[[LiveSession], None] | None = None
        flags = os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOFOLLOW
        self._pipes = {each: os.open(folder / each, flags) for each in (ANSWER, NEXT, GO)}
        self._loop.add_reader(self._pipes[ANSWER], self._hear)
        self._heard: asyncio.Queue[Answer] = asyncio.Queue()
        self._keeper = -1

    # Start and adoption

    async def keeper_says(self) -> Answer:
        """Return the next answer that the keeper gives while it starts the program."""
        return await self._heard.get()

    def watch_keeper(self, pid: int) -> None:
        """Notice the end of the keeper. Raises ProcessLookupError."""
        self._keeper = os.pidfd_open(pid)
        self._loop.add_reader(self._keeper, self._keeper_ended)

    def connect(self) -> None:
        """Take the terminal from the keeper, or open the pipes, and begin to read. Raises OSError."""
        self._channel = Terminal(self._keeper) if self.pty else Pipes(self.folder)
        for index, descriptor in enumerate(self._channel.readable):
            self._loop.add_reader(descriptor, self._read, index)

    def go(self) -> None:
        """Let the keeper start the program in the terminal, which gets its size."""
        channel, terminal = self._channel, "go"
        if isinstance(channel, Terminal):
            terminal = channel.unlock()
            channel.resize(self.size)
        os.write(self._pipes[GO], f"{terminal}\n".encode())

    def recognise(self, pid: int) -> None:
        """Note the process of the shell. Raises ProcessLookupError."""
        self.shell = Identity.of(pid)
        if isinstance(self._channel, Pipes):
            self._channel.group = pid

    def begin(self) -> None:
        """Drop what was printed so far: the shell is ready."""
        self.keep_image()
        self.drain()
        self.replied, self.replied_errors = self.output.end, self.errors.end

    def keep_image(self) -> None:
        """Note the program that the shell executes, to notice another one."""
        if self.shell is not None:
            self._image = process_looks.image_of(self.shell.pid)

    def ask(self) -> None:
        """Ask the shell to answer once it waits for a command."""
        self.state.asked = True
        self._send_next("?")

    async def refresh_directory(self) -> None:
        """Let an idle shell enter its directory again, after the tree below it was replaced."""
        if self.state.phase is not SessionPhase.IDLE:
            return
        self.state.unsettled = self.state.asked = True
        self._send_next("=")
        with self.watched() as changed:
            while self.state.unsettled and self.state.phase is SessionPhase.IDLE:
                await changed.wait()
                changed.clear()

    # Commands

    def run(self, words: tuple[str, ...]) -> int:
        """Send a command to the shell; return its number. Raises NotFound, Conflict."""
        if any("\0" in word for word in words):
            raise Conflict("a command cannot contain a zero byte")
        number = self.state.begin()
        self._command_ticks = process_looks.ticks_now()
        text = self.state.shell.text(words).encode(errors="surrogateescape")
        write_command(self._command_file(number), text)
        self._send_next(str(number))
        return number

    def send(self, data: bytes) -> None:
        """Write input, now or when there is room. Raises NotFound, Conflict when too much waits."""
        self.state.check_alive()
        if len(self._input) + len(data) > _INPUT_BYTES:
            raise Conflict(
                f"session {self.state.name!r} does not read its input", code="session_full"
            )
        self._input += data
        self._flush()

    def interrupt(self, number: signal.Signals = signal.SIGINT) -> bool:
        """Signal the foreground group; return whether there was anything to signal."""
        if self._channel is None or self.state.phase in {SessionPhase.IDLE, SessionPhase.ENDED}:
            return False
        self.state.unsettled = self.state.phase is SessionPhase.BUSY
        self._channel.interrupt(number)
        if number is signal.SIGINT:
            self._repeat_interrupt(self.state.number, _AGAIN_SECONDS / 10)
        return True

    def _repeat_interrupt(self, command: int, seconds: float) -> None:
        """Interrupt again what was not a program yet: between fork and exec a shell discards a signal."""

        def again() -> None:
            same = self.state.busy and self.state.number == command
            if same and self._channel is not None and self._runs_itself():
                self._channel.interrupt()
                if seconds < _AGAIN_SECONDS:
                    self._repeat_interrupt(command, 3 * seconds)

        self._loop.call_later(seconds, again)

    def _runs_itself(self) -> bool:
        """Whether the shell, or a copy of it, is in the foreground."""
        others = self.foreground()
        return not others or any(process_looks.image_of(each) == self._image for each in others)

    def hang_up(self, number: signal.Signals) -> None:
        """End the program and what it runs in the foreground, or the keeper that has not begun it."""
        if self.shell is None:
            if self._keeper >= 0:
                signal.pidfd_send_signal(self._keeper, signal.SIGKILL)
            return
        for pid in [*self.foreground(), self.shell.pid]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)
                os.kill(pid, signal.SIGCONT)

    @property
    def over(self) -> bool:
        """Whether its program has ended, or its descriptors are closed."""
        return self._closed or self.state.phase is SessionPhase.ENDED

    def resize(self, size: WindowSize) -> None:
        """Change the size of the terminal. Raises NotFound, Conflict."""
        self.state.check_alive()
        if not self.pty or self._channel is None:
            raise Conflict(f"session {self.state.name!r} has no terminal", code="no_terminal")
        self._channel.resize(size)
        self.size = size

    def want_prompt(self, wanted: bool) -> None:
        """Show a prompt while at least one attached terminal wants it."""
        self._prompts += 1 if wanted else -1
        if wanted and self._prompts == 1:
            (self.folder / PROMPT).touch()
            if self.state.phase is SessionPhase.IDLE:
                self._send_next("-")
        elif not self._prompts:
            self._hide_prompt()

    # Looks

    def foreground(self) -> list[int]:
        """Return the processes in the foreground, without the shell itself."""
        if self.shell is None or self._channel is None:
            return []
        group = self._channel.foreground()
        if self.pty and group == self.shell.pid:
            return []  # a shell at its prompt, or a part of it
        found = process_looks.descendants(self.shell.pid)
        return [each for each in found if (facts := process_looks.facts_of(each)) is not None
                and facts.group == group and not facts.zombie]  # fmt: skip

    def since_command(self) -> list[int]:
        """Return the descendants of the shell that are younger than its present command."""
        if self.shell is None:
            return []
        return [
            each
            for each in process_looks.descendants(self.shell.pid)
            if (facts := process_looks.facts_of(each)) is not None
            and facts.started >= self._command_ticks
        ]

    def processes(self, *, shell_only: bool = False) -> list[int]:
        """Return the shell and all its descendants."""
        if self.shell is None:
            return []
        if shell_only:
            return [self.shell.pid]
        return [self.shell.pid, *process_looks.descendants(self.shell.pid)]

    def waits_for_input(self) -> bool:
        """Whether a program in the foreground, or the program of the session, waits for input."""
        if self.shell is None or self.state.phase not in {
            SessionPhase.BUSY,
            SessionPhase.RUNNING,
            SessionPhase.REPLACED,
        }:
            return False
        candidates = self.foreground() or [self.shell.pid]
        given = None if self.pty else self.folder / STREAMS[0]
        return any(process_looks.waits_for_input(each, given) for each in candidates)

    def look(self) -> None:
        """Notice that the shell was replaced by another program."""
        if self.shell is None or self.state.phase is not SessionPhase.BUSY:
            return
        image = process_looks.image_of(self.shell.pid)
        if image and self._image and image != self._image:
            self.state.replace()
            self._notify()

    # Output

    def drain(self) -> None:
        """Read all output that was written before this call."""
        channel = self._channel
        if channel is None:
            return
        for index in range(len(channel.readable)):
            done = 0
            while done < _DRAIN_BYTES and (taken := self._take(index)):
                done += taken

    @contextlib.contextmanager
    def watched(self) -> Iterator[asyncio.Event]:
        """Yield an event that is set by each change of output or state."""
        changed = asyncio.Event()
        self._changed.append(changed)
        try:
            yield changed
        finally:
            self._changed.remove(changed)

    def close(self) -> None:
        """Close our descriptors; the session lives on."""
        if self._closed:
            return
        self._closed = True
        for timer in self._resting.values():
            timer.cancel()
        self._stop_reading()
        self._leave_keeper()
        self._loop.remove_reader(self._pipes[ANSWER])
        for each in self._pipes.values():
            os.close(each)
        self._pipes.clear()
        self._notify()

    def dismiss(self) -> None:
        """Let the keeper end, after the program has ended."""
        if not self._closed:
            os.write(self._pipes[GO], b"go\n")

    def _keeper_ended(self) -> None:
        """The keeper was killed, or has been dismissed."""
        self._leave_keeper()
        self._hear()
        if self.state.phase is not SessionPhase.ENDED:
            self._apply(Answer("ended", 0, SIGNAL_BASE + signal.SIGKILL))

    def _leave_keeper(self) -> None:
        if self._keeper >= 0:
            self._loop.remove_reader(self._keeper)
            os.close(self._keeper)
            self._keeper = -1

    def _stop_reading(self) -> None:
        channel, self._channel = self._channel, None
        if channel is not None:
            for each in channel.readable:
                self._loop.remove_reader(each)
            self._loop.remove_writer(channel.writable)
            channel.close()

    def _read(self, index: int) -> None:
        """Read a burst, and rest after it while there may be more."""
        channel = self._channel
        if channel is None:
            return
        done = 0
        while done < _BURST_BYTES and (taken := self._take(index)):
            done += taken
        if done >= _BURST_BYTES and self._channel is channel:
            self._loop.remove_reader(channel.readable[index])
            self._resting[index] = self._loop.call_later(_REST_SECONDS, self._resume, index)
        if done:
            self._notify()

    def _resume(self, index: int) -> None:
        if self._channel is not None:
            self._loop.add_reader(self._channel.readable[index], self._read, index)

    def _take(self, index: int) -> int:
        """Read once; return the number of bytes."""
        assert self._channel is not None
        try:
            content = self._channel.read(index)
        except OSError:  # the other end of the terminal is closed: the program has ended
            self._loop.remove_reader(self._channel.readable[index])
            return 0
        if content:
            (self.errors if index else self.output).add(content)
            for sink in self.sinks:
                sink(index, content)
        return len(content)

    def _hear(self) -> None:
        try:
            data = os.read(self._pipes[ANSWER], _CHUNK_BYTES)
        except BlockingIOError:
            return
        for answer in self._lines.feed(data):
            self._apply(answer)

    def _apply(self, answer: Answer) -> None:
        if answer.word in {"keeping", "begun", *LACKS}:
            self._heard.put_nowait(answer)
            return
        if answer.word == "ended":
            self.drain()
            self.state.end(answer.status)
            self._heard.put_nowait(answer)
            if self.on_end is not None:
                self._loop.call_soon(self.on_end, self)
        else:
            before = self.state.number
            if self.state.hear(answer):
                self._reenter()
                return
            self._show_echo()
            if self.state.phase is not SessionPhase.BUSY:
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(self._command_file(before))
            if self.state.phase is SessionPhase.PROMPT and not self._prompts:
                self._hide_prompt()
        self._notify()

    def _hide_prompt(self) -> None:
        """Return the shell from its prompt to the loop: it discards the line that it reads."""
        (self.folder / PROMPT).unlink(missing_ok=True)
        self.state.hide_prompt(runs=bool(self.foreground()))
        self._interrupt_prompt()

    def _interrupt_prompt(self) -> None:
        """Interrupt a shell at its prompt, again if it was just executing what was typed."""
        if self.state.phase is SessionPhase.STARTING and self._channel is not None:
            self._channel.interrupt()
            self._loop.call_later(_AGAIN_SECONDS, self._interrupt_prompt)

    def _reenter(self) -> None:
        """Type the line that makes the shell enter its loop, without an echo."""
        line = self.state.shell.reentry
        if isinstance(self._channel, Terminal):
            self._channel.echo(False)
            self._hushed = True
            line = _KILL_LINE + line
        if self._channel is not None:
            self._channel.write(line)

    def _show_echo(self) -> None:
        if self._hushed and isinstance(self._channel, Terminal):
            self._channel.echo(True)
        self._hushed = False

    def _send_next(self, line: str) -> None:
        os.write(self._pipes[NEXT], f"{line}\n".encode())

    def _command_file(self, number: int) -> str:
        return f"{self.folder}/c.{number}"

    def _flush(self) -> None:
        channel = self._channel
        if channel is None:
            return
        try:
            while self._input:
                taken = channel.write(bytes(self._input[:_CHUNK_BYTES]))
                del self._input[:taken]
        except BlockingIOError:
            self._loop.add_writer(channel.writable, self._flush)
            return
        except OSError:
            self._input.clear()
        self._loop.remove_writer(channel.writable)

    def _notify(self) -> None:
        for each in self._changed:
            each.set()
