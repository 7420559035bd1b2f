"""The state as bytes: a restored machine goes on exactly as the original would."""

from __future__ import annotations

import subprocess
import sys

import pytest

from domain.ids import ActionId
from scheduler.core.advice.facts import ActionStatus
from scheduler.core.machine import Machine
from scheduler.core.state import invariants, snapshot
from scheduler.runtime.rendering import wait_details
from tests.builders import GIB, a_config, a_lease, a_node, an_action, granted, make_ledger
from tests.scenario import Scenario


def a_busy_scenario() -> Scenario:
    """A little of everything: grants, lines, claims, orphans, tombstones, timers."""
    scenario = Scenario(
        a_node("n1", cpus=2, memory_bytes=4 * GIB),
        a_node("n2", cpus=2, memory_bytes=4 * GIB),
        config=a_config(apis={"search": 1}),
    )
    for n in range(6):
        scenario.submit(an_action(f"step-{n}", trajectory=f"t{n % 4}", memory_bytes=GIB))
    scenario.submit(
        a_lease("lease", cost={"api:search": 1}),
        an_action("both", cost={"cpu": 2, "api:search": 1}, queue_timeout_seconds=900.0),
        an_action("light", cost={"cpu": 0.5}, replay_safe=True, metadata={"b": 1, "a": [2]}),
    )
    scenario.cancel("not-yet-there")
    scenario.lose_for_good("n2")
    scenario.finish_trajectory("t0")
    return scenario


def restored(scenario: Scenario) -> Machine:
    return snapshot.load(snapshot.dump(scenario.machine), make_ledger)


def test_a_restored_state_is_consistent():
    invariants.check(restored(a_busy_scenario()).state)


def test_a_restored_machine_dumps_the_same_bytes():
    scenario = a_busy_scenario()

    assert snapshot.dump(restored(scenario)) == snapshot.dump(scenario.machine)


def test_a_restored_machine_knows_why_actions_wait():
    scenario = a_busy_scenario()
    machine = restored(scenario)

    for name in ("step-5", "both", "light"):
        status = machine.explain(ActionId(name))
        assert status is not None
        assert wait_details(ActionStatus(status.live, status.waiting)) == scenario.why(name)


def test_a_restored_machine_decides_what_the_original_does():
    scenario = a_busy_scenario()
    machine = restored(scenario)
    original = scenario.machine

    for step in (
        lambda s: s.bring_back("n2"),
        lambda s: s.release("lease"),
        lambda s: s.submit(an_action("later")),
        lambda s: s.advance(10_000),
    ):
        before = scenario.now
        decisions = step(scenario)
        scenario.machine, scenario.now = machine, before
        assert step(scenario) == decisions
        scenario.machine = original


def test_a_restored_machine_keeps_the_node_on_which_a_wide_action_saves_up():
    scenario = Scenario(a_node("n1", cpus=2), a_node("n2", cpus=2))
    scenario.submit(*(an_action(f"r{n}") for n in range(4)))
    scenario.submit(an_action("wide", cost={"cpu": 2}))
    saving_on = scenario.why("wide").resource
    scenario.machine = restored(scenario)

    assert scenario.why("wide").resource == saving_on
    assert granted(scenario.submit(an_action("small"))) == []


def test_holdings_of_a_removed_resource_survive():
    scenario = Scenario(config=a_config(apis={"search": 1}))
    scenario.submit(a_lease("lease", cost={"api:search": 1}))
    scenario.configure(a_config(revision=1))
    scenario.machine = restored(scenario)
    assert scenario.free("api:search") == -1

    scenario.release("lease")
    assert scenario.free("api:search") == 0


@pytest.mark.slow
def test_equal_states_give_equal_bytes_in_every_process(pytestconfig):
    """Sets of names have another order in another process, unless they are sorted."""
    script = (
        "import hashlib; from tests.unit.core.test_snapshot import a_busy_scenario, snapshot;"
        "print(hashlib.sha256(snapshot.dump(a_busy_scenario().machine)).hexdigest())"
    )
    digests = {
        subprocess.run(
            [sys.executable, "-c", script],
            env={"PYTHONHASHSEED": seed, "PYTHONPATH": "."},
            cwd=pytestconfig.rootpath,
            check=True,
            capture_output=True,
            text=True,
        ).stdout
        for seed in ("1", "2")
    }

    assert len(digests) == 1
