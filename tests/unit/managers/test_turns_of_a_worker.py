"""Turns of a worker: responses of one model run together, restores and releases alone."""

from __future__ import annotations

import contextlib
import threading
import time
from concurrent.futures import ThreadPoolExecutor

from managers.gpu.torch_worker.turns import Turns

LONG = 120.0


def test_so_many_are_together_and_no_more() -> None:
    """Four meet in twos: none could leave if they did not enter together."""
    turns, meeting = Turns(2), threading.Barrier(2)
    inside: list[int] = []

    def answer() -> None:
        with turns.together():
            meeting.wait(LONG)
            inside.append(turns._together)
            meeting.wait(LONG)

    with ThreadPoolExecutor(4) as pool:
        for work in [pool.submit(answer) for _ in range(4)]:
            work.result(LONG)
    assert inside == [2, 2, 2, 2]


def test_an_exclusive_turn_waits_for_all_and_goes_before_later_ones() -> None:
    turns, entered, go = Turns(4), threading.Event(), threading.Event()
    said: list[str] = []

    def answer(name: str) -> None:
        with turns.together():
            entered.set()
            if name == "first":
                go.wait(LONG)
            said.append(name)

    def release() -> None:
        with turns.alone():
            said.append("alone")

    with ThreadPoolExecutor(3) as pool:
        works = [pool.submit(answer, "first")]
        entered.wait(LONG)
        works.append(pool.submit(release))
        while not turns._lonely:
            time.sleep(0.001)
        works.append(pool.submit(answer, "later"))
        go.set()
        for work in works:
            work.result(LONG)
    assert said == ["first", "alone", "later"]


def test_an_error_leaves_no_call_inside() -> None:
    turns = Turns(1)
    for enter in (turns.together, turns.alone):
        with contextlib.suppress(ValueError), enter():
            raise ValueError
    with turns.together():
        pass
    with turns.alone():
        pass
