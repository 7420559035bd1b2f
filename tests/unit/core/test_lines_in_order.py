"""A line is read in order as far as somebody asks, whoever has left it and come back."""

from __future__ import annotations

from itertools import islice

import hypothesis.strategies as st
from hypothesis import given, settings

from scheduler.core.needs import Needs
from scheduler.core.queues import QueueKey, WaitQueue
from scheduler.core.state import LiveAction
from tests.builders import an_action

NEEDS = Needs((("cpu", 1000),), (), True, "cpu")


@settings(max_examples=100, deadline=None, derandomize=True)
@given(
    st.lists(st.integers(-1, 1), max_size=40),
    st.lists(st.tuples(st.integers(0, 39), st.booleans()), max_size=60),
    st.integers(0, 40),
)
def test_a_line_is_read_in_order(priorities, moves, count) -> None:
    queue = WaitQueue(QueueKey("default", None, NEEDS))
    lives = [
        LiveAction(an_action(f"a{n}"), "default", NEEDS, (priority, n), 0.0)
        for n, priority in enumerate(priorities)
    ]
    for live in lives:
        queue.push(live)
    for number, comes_back in moves:
        if number < len(lives) and lives[number].queue is not None:
            queue.leave(lives[number])
            if comes_back:
                queue.push(lives[number])

    expected = sorted((live for live in lives if live.queue), key=lambda live: live.order)
    first = [live.id for live in expected[:count]]
    assert [live.id for live in islice(queue.in_order(), count)] == first
    assert [live.id for live in islice(queue.first_ones(), count)] == first
