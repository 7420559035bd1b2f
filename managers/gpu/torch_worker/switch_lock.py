"""Access to one model: requests share it, restores and releases have it alone."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager


class SwitchLock:
    """A readers-writer lock with a limit on readers; a waiting writer precedes later readers."""

    def __init__(self, limit: int) -> None:
        """``limit``: requests at once."""
        self._limit = limit
        self._requests = 0
        #: Switches that run or wait.
        self._switches = 0
        self._changed = threading.Condition()
        self._switch = threading.Lock()

    @contextmanager
    def shared(self) -> Iterator[None]:
        """Hold the model together with other requests."""
        with self._changed:
            self._changed.wait_for(lambda: not self._switches and self._requests < self._limit)
            self._requests += 1
        try:
            yield
        finally:
            with self._changed:
                self._requests -= 1
                self._changed.notify_all()

    @contextmanager
    def exclusive(self) -> Iterator[None]:
        """Hold the model alone."""
        with self._changed:
            self._switches += 1
        try:
            with self._switch:
                with self._changed:
                    self._changed.wait_for(lambda: not self._requests)
                yield
        finally:
            with self._changed:
                self._switches -= 1
                self._changed.notify_all()
