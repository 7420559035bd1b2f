"""Worker processes of a simulation. They never outlive the process that started them.

A signal that kills the parent reaches no worker, and a worker may simulate for minutes. So each
worker watches its parent and ends with it. Workers ignore Ctrl-C, which reaches the whole group: the
parent ends them.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from multiprocessing import active_children, get_context, parent_process
from multiprocessing.connection import wait
from threading import Thread
from typing import Any, Final, NoReturn

#: What a shell says of a program that SIGTERM has ended.
TERMINATED: Final = 128 + signal.SIGTERM


@contextmanager
def worker_processes(
    jobs: int, prepare: Callable[..., object] | None = None, *arguments: Any
) -> Iterator[ProcessPoolExecutor]:
    """Give ``jobs`` workers, each of which has called ``prepare`` first. An error ends what they do."""
    with ProcessPoolExecutor(
        jobs, get_context("spawn"), initializer=_begin, initargs=(prepare, arguments)
    ) as workers:
        try:
            yield workers
        except BaseException:  # an interruption too: what runs may take minutes
            for worker in active_children():
                worker.terminate()
            raise
        finally:
            workers.shutdown(cancel_futures=True)


def _begin(prepare: Callable[..., object] | None, arguments: tuple[Any, ...]) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    Thread(target=_end_with_parent, name="end with parent", daemon=True).start()
    if prepare is not None:
        prepare(*arguments)


def _end_with_parent() -> None:
    # The sentinel is one end of a pipe that the parent holds: ready as soon as it is gone, whatever
    # has ended it, and at once if that was before we looked. Other than PR_SET_PDEATHSIG it is not
    # about the thread that started us, and is there on every system.
    parent = parent_process()
    if parent is not None:
        wait([parent.sentinel])
        os._exit(TERMINATED)


def end_on_signal() -> None:
    """Let SIGTERM end this process as Ctrl-C does, cleaning up; a second one ends it at once."""
    signal.signal(signal.SIGTERM, _terminated)


def _terminated(*_: object) -> NoReturn:
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    raise SystemExit(TERMINATED)
