"""A queue is read in order as far as needed, whichever actions have left it and returned."""

from __future__ import annotations

import hypothesis.strategies as st
from hypothesis import given, settings

from scheduler.core.state.demand import Needs, QueueKey
from scheduler.core.state.live import LiveAction
from scheduler.core.state.queues import WaitQueue
from tests.builders import an_action
from tests.tiers import by_tier

NEEDS = Needs((("cpu", 1000),), (), True, "cpu")


@settings(max_examples=by_tier(25, 100, 1000), deadline=None, derandomize=True)
@given(
    st.lists(st.integers(-1, 1), max_size=40),
    st.lists(st.tuples(st.integers(0, 39), st.booleans(), st.integers(-1, 1)), max_size=60),
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
    for number, comes_back, priority in moves:
        if number < len(lives) and lives[number].queue is not None:
            queue.remove(lives[number])
            if comes_back:
                lives[number].order = (priority, number)
                queue.push(lives[number])

    expected = sorted((live for live in lives if live.queue), key=lambda live: live.order)
    head = queue.head()
    assert (None if head is None else head.id) == (expected[0].id if expected else None)
    assert [queue.ahead_of(live.order) for live in expected] == list(range(len(expected)))
    assert queue.in_order() == expected
    assert queue.in_order(first=1, most=count, every=2) == expected[1::2][:count]


def test_an_action_that_returns_to_its_place_is_next_again() -> None:
    queue = WaitQueue(QueueKey("default", None, NEEDS))
    lives = [LiveAction(an_action(f"a{n}"), "default", NEEDS, (0, n), 0.0) for n in range(3)]
    for live in lives:
        queue.push(live)
    queue.remove(lives[0])
    assert queue.head() is lives[1]

    queue.push(lives[0])

    assert queue.head() is lives[0]
    assert queue.in_order() == lives
