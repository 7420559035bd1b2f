"""Turns of a worker: responses of one model run together, restores and releases alone."""

from __future__ import annotations

import contextlib
import threading
import time
from concurrent.futures import ThreadPoolExecutor

from managers.gpu.torch_worker.switch_lock import SwitchLock

LONG = 120.0


def test_so_many_are_together_and_no_more() -> None:
    """Four meet in twos: none could leave if they did not enter together."""
    turns, meeting = SwitchLock(2), threading.Barrier(2)
    inside: list[int] = []

    def answer() -> None:
        with turns.shared():
            meeting.wait(LONG)
            inside.append(turns._requests)
            meeting.wait(LONG)

    with ThreadPoolExecutor(4) as pool:
        for work in [pool.submit(answer) for _ in range(4)]:
            work.result(LONG)
    assert inside == [2, 2, 2, 2]


def test_an_exclusive_turn_waits_for_all_and_goes_before_later_ones() -> None:
    turns, entered, go = SwitchLock(4), threading.Event(), threading.Event()
    said: list[str] = []

    def answer(name: str) -> None:
        with turns.shared():
            entered.set()
            if name == "first":
                go.wait(LONG)
            said.append(name)

    def release() -> None:
        with turns.exclusive():
            said.append("alone")

    with ThreadPoolExecutor(3) as pool:
        works = [pool.submit(answer, "first")]
        entered.wait(LONG)
        works.append(pool.submit(release))
        while not turns._switches:
            time.sleep(0.001)
        works.append(pool.submit(answer, "later"))
        go.set()
        for work in works:
            work.result(LONG)
    assert said == ["first", "alone", "later"]


def test_an_error_leaves_no_call_inside() -> None:
    turns = SwitchLock(1)
    for enter in (turns.shared, turns.exclusive):
        with contextlib.suppress(ValueError), enter():
            raise ValueError
    with turns.shared():
        pass
    with turns.exclusive():
        pass
