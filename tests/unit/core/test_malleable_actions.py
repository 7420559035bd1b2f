"""Running actions are resized: squeezed for arrivals, widened when others end."""

from __future__ import annotations

from typing import Any

import pytest

from domain.decisions import Grant, Resize
from domain.elasticity import Elasticity
from domain.inventory import Config, PoolConfig
from domain.limits import Share
from scheduler.core.cycle.resizer import RESIZE_SECONDS
from scheduler.core.state.timers import TimerKind
from tests.builders import a_config, a_node, an_action, granted, only
from tests.scenario import Scenario

PERFECT = Elasticity(amdahl=1.0)


def malleable_pool(**fields: Any) -> Config:
    return a_config(pools=[PoolConfig("default", "malleable")], **fields)


def supple(name: str, widest: int = 8, seconds: float | None = 40.0, **fields: Any) -> Any:
    """Return a malleable action that is as many times faster as it has cores.

    Its duration is unknown when ``seconds`` is None.
    """
    return an_action(
        name,
        cost={"cpu": list(range(1, widest + 1))},
        duration_seconds=seconds,
        elasticity=PERFECT,
        malleable=True,
        **fields,
    )


@pytest.fixture
def pool(core) -> Scenario:
    """Start one node of eight cores."""
    started: Scenario = core(a_node("n1", cpus=8), config=malleable_pool())
    return started


def width(scenario: Scenario, name: str) -> int:
    """Return how many cores an action has now."""
    (allocation,) = scenario.live(name).allocations
    return len(allocation.units)


def test_an_action_alone_has_all_that_it_can_use(pool):
    pool.submit(supple("a", widest=16), supple("b", widest=2, seconds=20.0))

    assert (width(pool, "a"), width(pool, "b")) == (6, 2)


def test_a_shorter_arrival_takes_cores_and_the_node_is_notified_first(pool):
    pool.submit(supple("a"))

    shrunk, grant = pool.submit(supple("b", seconds=20.0))

    assert isinstance(shrunk, Resize)
    assert isinstance(grant, Grant)
    assert (shrunk.action_id, shrunk.node, shrunk.attempt) == ("a", "n1", 1)
    assert shrunk.allocation.units == (0,)
    assert grant.allocations[0].units == (1, 2, 3, 4, 5, 6, 7)


def test_a_longer_arrival_gets_the_smallest_count(pool):
    pool.submit(supple("a"))
    pool.start("a")
    pool.advance(3.0)  # 16 of 40 seconds are left

    pool.submit(supple("b", seconds=17.0))

    assert (width(pool, "a"), width(pool, "b")) == (7, 1)


def test_free_cores_go_to_the_action_with_the_least_left_to_do(pool):
    pool.submit(*(supple(name, seconds=n) for name, n in zip("abcd", (9, 40, 20, 30), strict=True)))
    assert [width(pool, name) for name in "abcd"] == [5, 1, 1, 1]
    pool.advance(1.0)

    finish, *decisions = pool.finish("a")

    (grown,) = only(Resize, decisions)
    assert (grown.action_id, grown.allocation.amount) == ("c", 6000)
    assert finish.allocations[0].amount == 5000


def test_actions_of_unknown_duration_are_equally_wide(pool):
    pool.submit(*(supple(name, seconds=None) for name in "abcd"))

    assert [width(pool, name) for name in "abcd"] == [2, 2, 2, 2]


def test_an_action_that_is_not_malleable_takes_its_smallest_count_from_malleable_ones(pool):
    pool.submit(supple("a"))

    decisions = pool.submit(
        an_action("shell", cost={"cpu": 2}), an_action("light", cost={"cpu": 0.5})
    )

    assert granted(decisions) == ["shell", "light"]
    assert width(pool, "a") == 5


def test_no_action_is_squeezed_for_one_that_would_not_fit_even_then(pool):
    pool.submit(an_action("steady", cost={"cpu": 6}), supple("a"))

    decisions = pool.submit(an_action("wide", cost={"cpu": 2}))

    assert only(Resize, decisions) == []
    assert width(pool, "a") == 2
    assert pool.why("wide").code == "short_of"


def test_a_burst_resizes_each_running_action_once(pool):
    pool.submit(supple("a", seconds=None), supple("b", seconds=None))

    decisions = pool.submit(*(supple(f"c{n}", seconds=None) for n in range(4)))

    resized = [each.action_id for each in only(Resize, decisions)]
    assert sorted(resized) == ["a", "b"]
    assert sorted(width(pool, name) for name in ["a", "b", "c0", "c1", "c2", "c3"]) == [
        1,
        1,
        1,
        1,
        2,
        2,
    ]


def test_growing_is_bounded_in_rate(pool):
    """`a` is squeezed for `b`; when `b` ends at once, `a` grows a moment later, not at once."""
    pool.submit(supple("a"))
    pool.submit(supple("b", seconds=1.0))

    assert only(Resize, pool.finish("b")) == []
    assert only(Resize, pool.advance(0.2)) == []
    (grown,) = only(Resize, pool.advance(0.1))

    assert grown.allocation.units == tuple(range(8))


def test_one_timer_is_set_however_many_actions_were_resized_a_moment_ago(pool):
    pool.submit(*(supple(name, seconds=None) for name in "abcd"))
    pool.submit(an_action("shell", cost={"cpu": 3}))
    assert [width(pool, name) for name in "abcd"] == [2, 1, 1, 1]

    pool.finish("shell")

    timers = pool.machine.state.timers.pending()
    assert [kind for _, kind, _ in timers].count(TimerKind.RESIZE) == 1
    pool.advance(RESIZE_SECONDS)
    assert sum(width(pool, name) for name in "abcd") == 8


def test_an_action_that_would_wait_is_served_at_any_rate(pool):
    pool.submit(supple("a"))

    for number in range(7):
        assert granted(pool.submit(supple(f"b{number}"))) == [f"b{number}"]

    assert width(pool, "a") == 1


def test_no_action_grows_past_the_width_beyond_which_it_gets_no_faster(pool):
    flat = Elasticity(table=((1000, 1.0), (2000, 1.0), (3000, 0.5), (8000, 0.1)))
    pool.submit(
        an_action(
            "a",
            cost={"cpu": list(range(1, 9))},
            duration_seconds=9.0,
            elasticity=flat,
            malleable=True,
        )
    )

    assert width(pool, "a") == 2


def test_a_malleable_action_without_a_profile_is_resized_all_the_same(pool):
    pool.submit(an_action("a", cost={"cpu": [1, 2, 4, 8]}, malleable=True))
    assert width(pool, "a") == 8

    pool.submit(an_action("b", cost={"cpu": [1, 2, 4, 8]}, malleable=True))

    assert (width(pool, "a"), width(pool, "b")) == (4, 4)


def test_the_end_of_a_resized_action_reports_its_cost(pool):
    """Ten seconds on eight cores, then ten on one: 90 core seconds."""
    pool.submit(supple("a"))
    pool.start("a")
    pool.advance(10.0)
    pool.submit(supple("b", seconds=1.0))
    pool.advance(10.0)

    pool.finish("a", execution_seconds=20.0)

    finish = pool.the_finish("a")
    assert finish.resizes == 1
    assert finish.key_milli_seconds == pytest.approx(90_000)
    assert finish.allocations[0].amount == 1000
    assert finish.widths == ((0.0, 8000), (10.0, 1000))


def test_the_work_done_before_a_resize_counts_in_what_is_learned(pool):
    """20 s on eight cores and 10 s on one are 170 s of work on one, whatever was declared."""
    pool.submit(supple("a", family="tests"))
    pool.start("a")
    pool.advance(20.0)
    pool.submit(supple("b", seconds=1.0))
    pool.advance(10.0)
    pool.finish("a", execution_seconds=30.0)

    learned = pool.machine.state.learned.durations["default/task exec tests"]

    assert learned.mean_seconds == pytest.approx(170.0)


def test_actions_on_a_silent_node_are_left_alone(pool):
    pool.submit(supple("a"))
    pool.lose("n1")
    pool.submit(supple("b"))

    assert width(pool, "a") == 8
    assert only(Resize, pool.bring_back("n1"))[0].action_id == "a"


def test_an_action_that_is_being_ended_is_left_alone(pool):
    pool.submit(supple("a"))
    pool.cancel("a")

    assert granted(pool.submit(supple("b"))) == []
    assert granted(pool.finish("a")) == ["b"]


def test_switching_to_malleable_widens_what_runs_and_switching_back_leaves_it(core):
    scenario = core(a_node("n1", cpus=8), config=a_config())
    scenario.submit(supple("a"))
    assert width(scenario, "a") == 1

    scenario.configure(malleable_pool(revision=1))
    assert width(scenario, "a") == 8
    scenario.configure(a_config(revision=2))

    assert granted(scenario.submit(supple("b"))) == []
    assert width(scenario, "a") == 8


@pytest.mark.parametrize(("again", "expected"), [(True, ["a1", "a2"]), (False, ["a1"])])
def test_units_that_shares_take_from_running_actions_are_granted_in_the_same_cycle(
    core, again, expected
):
    """False is the decision of journals of earlier versions, where ``a2`` waited for the next event."""
    there = PoolConfig(
        "default", "malleable", shares={"cpu": {"b": Share(0)}}, scan_after_shrinking=again
    )
    pool = core(a_node("n1", cpus=4), config=a_config(pools=[there]))
    fields: dict[str, Any] = {"malleable": True}
    pool.submit(an_action("a0", project="c", cost={"cpu": [1, 3]}, **fields))

    decisions = pool.submit(
        an_action("a1", project="a", cost={"cpu": [1, 3]}, **fields),
        an_action("a2", project="a", cost={"cpu": 2}, **fields),
    )

    assert granted(decisions) == expected
