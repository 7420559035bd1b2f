"""Random groups for the policies, and the same groups for the oracles."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import hypothesis.strategies as st

from domain.operators import UnitsOperator
from domain.resources import MILLI
from scheduler.core.policies.choices import Choices
from scheduler.core.policies.group import Group
from tests.oracles import literal

#: Quarters make ties common, the odd ones make rounding visible.
SECONDS = st.integers(1, 40).map(lambda quarters: quarters / 4) | st.floats(0.001, 100.0)


@st.composite
def actions(draw: st.DrawFn, most: int = 5) -> literal.Action:
    """Draw an action: discrete or contiguous counts, durations of any shape."""
    if draw(st.booleans()):
        low = draw(st.integers(1, 3))
        units = list(range(low, low + draw(st.integers(1, most))))
    else:
        units = sorted(draw(st.sets(st.integers(1, 2 * most), min_size=1, max_size=most)))
    if draw(st.booleans()):  # more units never hurt, and each helps less: convex when contiguous
        base, share = draw(SECONDS), draw(st.floats(0.0, 1.0))
        return literal.Action(units, [base * ((1 - share) + share / m) for m in units])
    return literal.Action(units, draw(st.lists(SECONDS, min_size=len(units), max_size=len(units))))


@st.composite
def convex_actions(draw: st.DrawFn, most: int = 6) -> literal.Action:
    """Draw an action with contiguous counts whose every unit saves at most what the last did."""
    count = draw(st.integers(1, most))
    savings = sorted(
        draw(st.lists(st.integers(-4, 20), min_size=count - 1, max_size=count - 1)), reverse=True
    )
    seconds = [sum(s for s in savings if s > 0) / 4 + draw(SECONDS)]
    for saved in savings:
        seconds.append(seconds[-1] - saved / 4)
    return literal.Action(list(range(1, count + 1)), seconds)


@st.composite
def groups(
    draw: st.DrawFn,
    action: Callable[[], st.SearchStrategy[literal.Action]] = actions,
    candidates: int = 6,
    behind: int = 8,
) -> Group:
    """Draw a group whose candidates fit at their smallest counts."""
    chosen = draw(st.lists(action(), min_size=1, max_size=candidates))
    least = sum(each.units[0] for each in chosen)
    free = least + draw(st.integers(0, 16))
    return a_group(
        chosen,
        draw(st.lists(action(), max_size=behind)),
        draw(st.lists(SECONDS, max_size=5)),
        free,
    )


def a_group(
    candidates: Sequence[literal.Action],
    behind: Sequence[literal.Action] = (),
    running: Sequence[float] = (),
    free: int = 8,
) -> Group:
    """Return a group on a resource of like units."""
    return Group(
        "cpu:n1",
        UnitsOperator(free * MILLI),
        [choices(each) for each in candidates],
        [choices(each) for each in behind],
        running,
    )


def choices(action: literal.Action) -> Choices:
    """Return an oracle's action as the policies see it."""
    return Choices(tuple(count * MILLI for count in action.units), action.seconds)


def plain(each: Choices) -> literal.Action:
    """Return a policy's action as the oracles see it: with the durations it decides by."""
    return literal.Action([count // MILLI for count in each.units], each.seconds)


def by_hand(group: Group, depth: int) -> literal.Decision:
    """Return what the literal twin decides about ``group``."""
    free = group.operator.total
    assert free is not None
    return literal.decide(
        [plain(each) for each in group.candidates],
        [plain(each) for each in group.behind],
        group.running,
        free // MILLI,
        depth,
    )
