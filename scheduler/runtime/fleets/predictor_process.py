"""PredictorProcess: a process of one predictor, as the keeper sees it: messages to it, and its answers.

Writing never waits: what a process does not read is kept until it is too much, which counts as an answer that is missing. The
process is killed when the keeper leaves it.
"""

from __future__ import annotations

import asyncio
import socket
import subprocess
import sys
from typing import Final, Self

from domain.errors import TangramError
from scheduler.runtime.fleets.predictor_messages import (
    LENGTH,
    MOST_BYTES,
    FromPredictor,
    MakePredictor,
    ToPredictor,
    decode_answer,
    frame,
)

#: Of what is written and not read.
_MOST_UNREAD_BYTES: Final = MOST_BYTES
_END_SECONDS: Final = 10.0


class PredictorEnded(TangramError):
    """The process of a predictor is over."""


class PredictorProcess:
    """A process with the predictor ``name``; an async context manager."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._process: subprocess.Popen[bytes] | None = None
        self._reader: asyncio.StreamReader
        self._writer: asyncio.StreamWriter

    async def __aenter__(self) -> Self:
        """Start it. Raises OSError."""
        ours, theirs = socket.socketpair()
        try:
            self._start(theirs)
            self._reader, self._writer = await asyncio.open_unix_connection(sock=ours)
        except BaseException:
            ours.close()
            await self._end()
            raise
        self.send(MakePredictor(self._name))
        return self

    def _start(self, connection: socket.socket) -> None:
        # Not by asyncio: its watcher of children would share SIGCHLD with the process that hosts the keeper.
        with connection:
            descriptor = connection.fileno()
            self._process = subprocess.Popen(
                (sys.executable, "-m", f"{__package__}.predictor_child", str(descriptor)),
                stdin=subprocess.DEVNULL,
                pass_fds=(descriptor,),
            )

    async def __aexit__(self, *_: object) -> None:
        """Kill it."""
        # Not closed: that would wait until it has read what is written.
        self._writer.transport.abort()
        await self._end()

    async def _end(self) -> None:
        process = self._process
        if process is None:
            return
        process.kill()
        await asyncio.shield(asyncio.to_thread(process.wait, _END_SECONDS))

    @property
    def clogged(self) -> bool:
        """Whether it has left more unread than is kept."""
        return self._writer.transport.get_write_buffer_size() > _MOST_UNREAD_BYTES

    def send(self, message: ToPredictor) -> None:
        """Write a message; one that cannot arrive is noticed by `read`."""
        if not self._writer.transport.is_closing():
            self._writer.write(frame(message))

    async def read(self) -> FromPredictor:
        """Return its next answer. Raises PredictorEnded."""
        try:
            (length,) = LENGTH.unpack(await self._reader.readexactly(LENGTH.size))
            answer: FromPredictor = decode_answer(await self._reader.readexactly(length))
        except (asyncio.IncompleteReadError, OSError, ValueError) as error:
            raise PredictorEnded(self._why()) from error
        return answer

    def _why(self) -> str:
        status = None if self._process is None else self._process.poll()
        return "its process ended" + ("" if status is None else f" with {status}")
