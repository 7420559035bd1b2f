"""Access to one model: requests share it, restores and releases have it alone."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager


class SwitchLock:
    """A readers-writer lock with a limit on readers; a waiting writer precedes later readers."""

    def __init__(self, limit: int) -> None:
        """``limit``: requests at once."""
        self._limit = limit
        self._requests = 0
        #: Readers beside the requests, without a limit.
        self._others = 0
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
    def beside(self) -> Iterator[None]:
        """Keep the model from switches, however many requests it has: for what takes a moment."""
        with self._changed:
            self._changed.wait_for(lambda: not self._switches)
            self._others += 1
        try:
            yield
        finally:
            with self._changed:
                self._others -= 1
                self._changed.notify_all()

    @contextmanager
    def exclusive(self, announced: Callable[[], None] | None = None) -> Iterator[None]:
        """Hold the model alone; ``announced`` is called once later requests wait, before the present ones have ended."""
        with self._changed:
            self._switches += 1
        try:
            if announced is not None:
                announced()
            with self._switch:
                with self._changed:
                    self._changed.wait_for(lambda: not self._requests and not self._others)
                yield
        finally:
            with self._changed:
                self._switches -= 1
                self._changed.notify_all()
