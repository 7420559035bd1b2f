"""The shell inside a container: the protocol of its commands and answers.

It is the first process of its container, `sh -s`, and reads its commands from the stream that the
engine attached to it; its answers, one line ``<number> <exit status>`` each, use the same stream. A
command gets three descriptors of its own, runs in a child of the shell and replaces that child
(`exec`), so `exit`, `exec` or `trap` in it do not affect the shell.

The stream carries frames: one byte that says which of the two outputs, three unused, four bytes of
length, then the content (Docker Engine API, "Attach to a container", stream format).
"""

from __future__ import annotations

import asyncio
import shlex
import socket
from collections.abc import Mapping, Sequence
from typing import Final

from managers.cpu.command_line import EXECUTE

_HEAD_BYTES: Final = 8
_CHUNK_BYTES: Final = 65536
_STDOUT: Final = 1
#: Limit of the kept standard error of the shell itself.
_COMPLAINT_BYTES: Final = 2000
#: Where the control directory is inside a container, and the shell in it.
CONTROL: Final = "/.tangram"
SHELL: Final = f"{CONTROL}/shell"


class ShellLost(Exception):
    """The stream to a shell has ended."""


class Frames:
    """Splits a stream into frames; keeps an incomplete one."""

    def __init__(self) -> None:
        self._pending = bytearray()

    def feed(self, data: bytes) -> list[tuple[int, bytes]]:
        """Add received bytes; return the frames that are complete now."""
        self._pending += data
        frames = []
        while len(self._pending) >= _HEAD_BYTES:
            length = int.from_bytes(self._pending[4:_HEAD_BYTES])
            end = _HEAD_BYTES + length
            if len(self._pending) < end:
                break
            frames.append((self._pending[0], bytes(self._pending[_HEAD_BYTES:end])))
            del self._pending[:end]
        return frames


class ContainerShell:
    """One shell that takes commands one after another."""

    def __init__(self, stream: socket.socket) -> None:
        self._loop = asyncio.get_running_loop()
        self._stream = stream
        stream.setblocking(False)
        self._frames = Frames()
        self._line = bytearray()
        self._complaint = bytearray()
        # Answers to a dead predecessor must not match ours, so numbers rise with time.
        self._number = int(self._loop.time() * 1000) << 20
        #: By number: scripts of our own may run beside a command that is being ended.
        self._waiting: dict[int, asyncio.Future[int]] = {}
        self.lost = False
        #: It has answered a command.
        self.answered = False
        self._loop.add_reader(stream, self._read)

    def next_number(self) -> int:
        """Return the number of the next command."""
        self._number += 1
        return self._number

    async def begin(self, number: int, script: str) -> asyncio.Future[int]:
        """Send a script that answers with ``number``; return a future of its exit status.

        Raises ShellLost. The future fails with ShellLost when the stream ends first.
        """
        if self.lost:
            raise ShellLost("its stream has ended")
        answer: asyncio.Future[int] = self._loop.create_future()
        self._waiting[number] = answer
        answer.add_done_callback(lambda _: self._waiting.pop(number, None))
        try:
            await self._loop.sock_sendall(self._stream, script.encode(errors="surrogateescape"))
        except OSError as error:
            self._lose()
            answer.exception()
            raise ShellLost(str(error)) from error
        return answer

    async def ask(self, script: str) -> int:
        """Run a script of our own and return its exit status. Raises ShellLost."""
        number = self.next_number()
        return await (await self.begin(number, f"{script}; echo {number} $?\n"))

    @property
    def complaint(self) -> str:
        """Standard error of the shell itself since the last call."""
        text = self._complaint.decode(errors="replace").strip()
        self._complaint.clear()
        return text

    def close(self) -> None:
        """Close the stream; the shell continues to wait for commands."""
        self._lose()

    def _read(self) -> None:
        try:
            data = self._stream.recv(_CHUNK_BYTES)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self._lose()
            return
        for kind, content in self._frames.feed(data):
            if kind == _STDOUT:
                self._line += content
            else:
                room = _COMPLAINT_BYTES - len(self._complaint)
                self._complaint += content[:room]
        while (end := self._line.find(b"\n")) >= 0:
            line = bytes(self._line[:end])
            del self._line[: end + 1]
            self._answer(line)

    def _answer(self, line: bytes) -> None:
        number, _, status = line.partition(b" ")
        if not (number.isdigit() and status.isdigit()):
            return
        answer = self._waiting.pop(int(number), None)
        if answer is not None and not answer.done():
            self.answered = True
            answer.set_result(int(status))

    def _lose(self) -> None:
        if self.lost:
            return
        self.lost = True
        self._loop.remove_reader(self._stream)
        self._stream.close()
        for answer in list(self._waiting.values()):
            if not answer.done():
                answer.set_exception(ShellLost("its stream has ended"))


def action_script(
    number: int,
    command: Sequence[str],
    *,
    cwd: str,
    variables: Mapping[str, str],
    stdin: str,
    stdout: str,
    stderr: str,
    prefix: str = "",
) -> str:
    """Return a script that runs ``command`` and answers with ``number`` when it has ended.

    A directory that cannot be entered ends it with 126, as an impossible command does.
    """
    exports = "".join(f" {shlex.quote(f'{name}={value}')}" for name, value in variables.items())
    words = " ".join(map(shlex.quote, command))
    return (
        f"( {prefix}cd {shlex.quote(cwd)} || exit 126; export{exports}; set -- {words}; {EXECUTE} )"
        f" <{shlex.quote(stdin)} >{shlex.quote(stdout)} 2>{shlex.quote(stderr)};"
        f" echo {number} $?\n"
    )
