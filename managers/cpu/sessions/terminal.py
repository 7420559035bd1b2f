"""Descriptors of a session: the master of its terminal, or three pipes.

The keeper inside the environment holds all of them; a node worker has copies. A new worker takes the master
from the keeper (``pidfd_getfd``), and opens pipes by name. Closing a copy ends nothing.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import signal
import struct
import termios
from contextlib import suppress
from pathlib import Path
from typing import Final, Protocol

from domain.ports.sessions import WindowSize
from managers.cpu.sessions.shells import MASTER, STREAMS

#: Same number on all architectures.
_SYS_PIDFD_GETFD: Final = 438
_TIOCSIG: Final = 0x40045436
_TIOCGPTN: Final = 0x80045430
_TIOCSPTLCK: Final = 0x40045431
_CHUNK_BYTES: Final = 65536

_libc = ctypes.CDLL(None, use_errno=True)


class SessionChannel(Protocol):
    """Input and output of a session."""

    #: Descriptors to read, standard output first.
    readable: tuple[int, ...]
    #: Descriptor to write input to.
    writable: int

    def read(self, index: int) -> bytes:
        """Return output of one descriptor; empty when there is none now. Raises OSError after a hangup."""

    def write(self, data: bytes) -> int:
        """Write input; return the bytes that were taken. Raises BlockingIOError."""

    def foreground(self) -> int:
        """Return the process group in the foreground; 0 where there is none."""

    def interrupt(self, number: signal.Signals = signal.SIGINT) -> None:
        """Signal the process group in the foreground."""

    def resize(self, size: WindowSize) -> None:
        """Change the size. Raises OSError where there is no terminal."""

    def close(self) -> None:
        """Close our copies; idempotent."""


def take_descriptor(pidfd: int, number: int) -> int:
    """Return a copy of a descriptor of another process. Raises OSError."""
    copy = _libc.syscall(_SYS_PIDFD_GETFD, pidfd, number, 0)
    if copy < 0:
        code = ctypes.get_errno()
        raise OSError(code, f"its descriptor {number} cannot be taken: {os.strerror(code)}")
    os.set_inheritable(copy, False)
    return int(copy)


class Terminal:
    """The master of a terminal. It does no I/O of its own until it is read."""

    def __init__(self, keeper: int) -> None:
        """``keeper``: pidfd of the process that holds the master. Raises OSError."""
        self._master = take_descriptor(keeper, MASTER)
        os.set_blocking(self._master, False)
        self.readable: tuple[int, ...] = (self._master,)
        self.writable = self._master

    def unlock(self) -> str:
        """Let the other end be opened; return its path inside the environment."""
        fcntl.ioctl(self._master, _TIOCSPTLCK, struct.pack("i", 0))
        found = fcntl.ioctl(self._master, _TIOCGPTN, struct.pack("I", 0))
        return f"/dev/pts/{struct.unpack('I', found)[0]}"

    def read(self, index: int) -> bytes:
        """Return output, after all that was written before this call."""
        try:
            return os.read(self._master, _CHUNK_BYTES)
        except BlockingIOError:
            return b""

    def write(self, data: bytes) -> int:
        """Write input, which the terminal echoes."""
        return os.write(self._master, data)

    def foreground(self) -> int:
        """Return the foreground group as this process numbers it."""
        with suppress(OSError):
            return os.tcgetpgrp(self._master)
        return 0

    def interrupt(self, number: signal.Signals = signal.SIGINT) -> None:
        """Signal the foreground group, also where the terminal is in raw mode."""
        with suppress(OSError):
            fcntl.ioctl(self._master, _TIOCSIG, int(number))

    def resize(self, size: WindowSize) -> None:
        """Change the size; the kernel sends SIGWINCH."""
        packed = struct.pack("HHHH", size.rows, size.columns, 0, 0)
        fcntl.ioctl(self._master, termios.TIOCSWINSZ, packed)

    def echo(self, on: bool) -> None:
        """Let the terminal echo its input, or not."""
        with suppress(OSError, termios.error):
            modes = termios.tcgetattr(self._master)
            modes[3] = modes[3] | termios.ECHO if on else modes[3] & ~termios.ECHO
            termios.tcsetattr(self._master, termios.TCSANOW, modes)

    def close(self) -> None:
        """Close our copy."""
        if self._master >= 0:
            os.close(self._master)
            self._master, self.readable, self.writable = -1, (), -1


class Pipes:
    """The three pipes of a session without a terminal."""

    def __init__(self, folder: Path, group: int = 0) -> None:
        """``group``: process group of the shell, once it is known. Raises OSError."""
        self.group = group
        opened: list[int] = []
        try:
            for name in STREAMS:
                flags = os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOFOLLOW
                opened.append(os.open(folder / name, flags))
        except OSError:
            for each in opened:
                os.close(each)
            raise
        self.writable, *outputs = opened
        self.readable: tuple[int, ...] = tuple(outputs)

    def read(self, index: int) -> bytes:
        """Return output of the stream ``index``: 0 standard output, 1 standard error."""
        try:
            return os.read(self.readable[index], _CHUNK_BYTES)
        except BlockingIOError:
            return b""

    def write(self, data: bytes) -> int:
        """Write input."""
        return os.write(self.writable, data)

    def foreground(self) -> int:
        """Return the group of the shell: without a terminal all its programs are in it."""
        return self.group

    def interrupt(self, number: signal.Signals = signal.SIGINT) -> None:
        """Signal the shell's group; an interactive shell survives SIGINT."""
        if self.group > 1:
            with suppress(ProcessLookupError):
                os.killpg(self.group, number)

    def resize(self, size: WindowSize) -> None:
        """Refuse."""
        raise OSError(errno.ENOTTY, "it has no terminal")

    def close(self) -> None:
        """Close our copies."""
        for each in (self.writable, *self.readable):
            if each >= 0:
                os.close(each)
        self.writable, self.readable = -1, ()
