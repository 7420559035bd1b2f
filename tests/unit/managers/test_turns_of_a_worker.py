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


def test_what_takes_a_moment_waits_for_no_request_and_holds_switches_off() -> None:
    """A transfer reads a cache while the only place is taken; a restore waits for both."""
    turns, switched = SwitchLock(1), threading.Event()

    def switch() -> None:
        with turns.exclusive():
            switched.set()

    with ThreadPoolExecutor(1) as pool:
        with turns.shared(), turns.beside(), turns.beside():
            work = pool.submit(switch)
            while not turns._switches:
                time.sleep(0.001)
            assert not switched.is_set()
        work.result(LONG)


def test_a_switch_is_announced_once_later_requests_wait_and_before_the_present_ones_end() -> None:
    """So that they can be ended, and none begins in between."""
    turns, seen = SwitchLock(4), []
    ending, over = threading.Event(), threading.Event()

    def announce() -> None:
        seen.append((turns._switches, turns._requests))
        ending.set()

    def switch() -> None:
        with turns.exclusive(announce):
            over.set()

    with ThreadPoolExecutor(1) as pool:
        with turns.shared():
            work = pool.submit(switch)
            assert ending.wait(LONG)
            assert not over.is_set()
        work.result(LONG)
    assert seen == [(1, 1)]
