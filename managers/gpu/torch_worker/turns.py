"""Who may do what at once with one model: answers go together, restores and releases alone."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager


class Turns:
    """Up to ``most`` together, or one alone. Whoever waits to be alone goes before later ones."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._together = 0
        #: How many are alone, or wait for it.
        self._lonely = 0
        self._changed = threading.Condition()
        self._one = threading.Lock()

    @contextmanager
    def together(self) -> Iterator[None]:
        """Be one of several."""
        with self._changed:
            self._changed.wait_for(lambda: not self._lonely and self._together < self._most)
            self._together += 1
        try:
            yield
        finally:
            with self._changed:
                self._together -= 1
                self._changed.notify_all()

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Be the only one."""
        with self._changed:
            self._lonely += 1
        try:
            with self._one:
                with self._changed:
                    self._changed.wait_for(lambda: not self._together)
                yield
        finally:
            with self._changed:
                self._lonely -= 1
                self._changed.notify_all()
