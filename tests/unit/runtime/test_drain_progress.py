"""A drain says what it has moved and why the rest stays; a node that gets an environment is not empty."""

from __future__ import annotations

from domain.decisions import MoveEnvironment, ReceiveEnvironment
from domain.moves import PROCESS
from scheduler.runtime.loop.node_loads import drain_progress, node_loads
from tests.builders import an_action, only
from tests.scenario import Scenario
from tests.unit.core.test_moves import a_mover, draining


def test_a_drain_counts_what_was_moved_and_says_why_the_rest_stays():
    scenario = Scenario(a_mover("n1"))
    for name in ("t1", "t2", "t3", "t4"):
        scenario.submit(an_action(f"{name}-a", trajectory=name))
        scenario.finish(f"{name}-a")
    scenario.submit(an_action("b", trajectory="t4"))
    scenario.join(a_mover("n2"))
    assert drain_progress(scenario.machine.state) == {}

    orders = only(MoveEnvironment, scenario.configure(draining("n1")))
    (fetched,) = only(ReceiveEnvironment, scenario.packed(orders[0]))
    scenario.received(fetched)
    scenario.packed(orders[1], failed="a program runs", stays=PROCESS)

    found = drain_progress(scenario.machine.state)["n1"]
    assert (found.trajectories, found.moved, found.moving) == (3, 1, 1)
    assert found.stays == {"process": 1, "acting": 1}
    assert found.text == (
        "1 of 4 trajectories was moved, 1 is being moved, 1 runs an action, 1 holds a process"
    )
    loads = node_loads(scenario.machine.state)
    assert (loads["n1"].trajectories, loads["n2"].trajectories) == (3, 2)
