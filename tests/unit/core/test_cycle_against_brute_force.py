"""The cycle admits exactly the actions that a scan over every waiting action would admit.

The cycle looks at the heads of lines alone and asks ledgers; here every action is looked at, and
amounts are plain numbers. One node, counted resources.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import hypothesis.strategies as st
from hypothesis import given, settings

from domain.action import Action
from tests.builders import a_node, a_noop, granted
from tests.scenario import Scenario
from tests.tiers import by_tier

CAPACITY: dict[str, Any] = {"disk": 4, "fpga": 3, "tpu": 2}
COSTS = st.dictionaries(
    st.sampled_from(sorted(CAPACITY)), st.integers(1, 4), min_size=1, max_size=3
).filter(lambda cost: all(cost[name] <= CAPACITY[name] for name in cost))


class Waiting(NamedTuple):
    """An action in the oracle's own list."""

    order: tuple[int, int]
    name: str
    cost: Mapping[str, int]


def admitted(waiting: Sequence[Waiting], free: Mapping[str, int]) -> list[Waiting]:
    """Scan, block, claim, word for word as the design has it."""
    left, claimed, blocked = dict(free), Counter[str](), set[str]()
    refused: list[Mapping[str, int]] = []
    going = []
    for one in sorted(waiting):
        if one.cost in refused:
            continue  # it stands in line behind its equal
        short = {r for r, n in one.cost.items() if r not in blocked and n > left[r] - claimed[r]}
        if not short and not blocked & one.cost.keys():
            going.append(one)
            for resource, amount in one.cost.items():
                left[resource] -= amount
            continue
        refused.append(one.cost)
        blocked |= short
        if short:
            claimed.update({r: n for r, n in one.cost.items() if r not in blocked})
    return going


class Story:
    """The machine and the oracle live through the same."""

    def __init__(self) -> None:
        self.scenario = Scenario(a_node("n1", memory_bytes=0, **CAPACITY))
        self.waiting: list[Waiting] = []
        self.running: list[Waiting] = []
        self.arrivals = 0

    def submit(self, costs: Sequence[tuple[Mapping[str, int], int]]) -> None:
        batch: list[Action] = []
        for cost, priority in costs:
            self.arrivals += 1
            name = f"a{self.arrivals}"
            batch.append(a_noop(name, cost=cost, priority=priority))
            self.waiting.append(Waiting((-priority, self.arrivals), name, cost))
        self.expect(granted(self.scenario.submit(*batch)))

    def finish(self, indices: Sequence[int]) -> None:
        names = {self.running[index % len(self.running)].name for index in indices if self.running}
        self.running = [one for one in self.running if one.name not in names]
        self.expect(granted(self.scenario.finish(*sorted(names))))

    def cancel(self, index: int) -> None:
        if self.waiting:
            gone = self.waiting.pop(index % len(self.waiting))
            self.expect(granted(self.scenario.cancel(gone.name)))

    def expect(self, decided: list[str]) -> None:
        free = Counter(CAPACITY)
        for one in self.running:
            free.subtract(one.cost)
        going = admitted(self.waiting, free)
        assert decided == [one.name for one in going]
        self.waiting = [one for one in self.waiting if one not in going]
        self.running += going
        self.no_action_was_overtaken(going)

    def no_action_was_overtaken(self, going: Sequence[Waiting]) -> None:
        for one in self.waiting:
            waits_for = self.scenario.why(one.name).resource
            assert waits_for is not None
            for other in going:
                assert other.order < one.order or waits_for.split(":")[0] not in other.cost


STEPS = st.lists(
    st.tuples(st.just("submit"), st.lists(st.tuples(COSTS, st.integers(-1, 1)), max_size=6))
    | st.tuples(st.just("finish"), st.lists(st.integers(0, 20), min_size=1, max_size=3))
    | st.tuples(st.just("cancel"), st.integers(0, 20)),
    max_size=25,
)


def live_through(steps: Sequence[tuple[str, object]]) -> None:
    story = Story()
    for verb, argument in steps:
        getattr(story, verb)(argument)
    while story.running:
        story.finish(range(len(story.running)))
    assert not story.waiting, "no action starves"


@settings(max_examples=by_tier(15, 100, 4000), deadline=None, derandomize=True)
@given(STEPS)
def test_the_cycle_admits_the_actions_that_a_scan_of_all_admits(steps):
    live_through(steps)
