"""Signals wake the event loop of a Celery worker.

A handler in Python runs while the loop waits in ``epoll``, and sets a flag; the wait then goes on for the rest of its time
(PEP 475). A worker that has nothing to do would notice SIGTERM only after kombu's longest wait for a message. The
interpreter writes the number of each signal to a pipe that the loop reads, so the wait ends at once.
"""

from __future__ import annotations

import os
import signal
from typing import Any, Final

_READ_BYTES: Final = 64
_reader, _writer = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)


def wake_on_signals(hub: Any) -> None:
    """Have signals wake ``hub``, kombu's event loop; called in the main thread, again for each connection."""
    signal.set_wakeup_fd(_writer, warn_on_full_buffer=False)
    hub.add_reader(_reader, _read)


def _read() -> None:
    os.read(_reader, _READ_BYTES)
