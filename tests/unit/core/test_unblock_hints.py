"""Hints for waiting actions that no end of another action frees."""

from __future__ import annotations

from contract.responses import WaitDetails
from domain import events
from domain.advice import IdleEnvironment, UnblockHint, UnmetSize
from domain.ids import ActionId
from scheduler.runtime.rendering import wait_details
from tests.builders import GIB, START, a_node, a_quota, an_action, an_environment
from tests.unit.core.test_gpus_of_unequal_memory import a_pool_machine
from tests.unit.core.test_quotas import a_scenario, calls
from tests.unit.core.test_services_on_chunks import a_call, a_service


def why(machine, name: str) -> WaitDetails:
    status = machine.explain(ActionId(name))
    assert status is not None
    found = wait_details(status)
    assert found is not None
    return found


def test_the_hint_for_a_quota_has_what_is_left_and_when_it_returns() -> None:
    scenario = a_scenario(a_quota(2, 10.0))
    scenario.submit(*calls(1))
    scenario.advance(3.0)
    scenario.submit(*calls(3, first=1))
    scenario.advance(1.0)

    assert why(scenario.machine, "c2").relief == UnblockHint(
        kind="quota", needed=1, left=0, missing=1, eases_in_seconds=6.0, enough_in_seconds=6.0
    )
    behind = why(scenario.machine, "c3")
    assert behind.relief == UnblockHint(
        kind="quota", needed=1, left=0, missing=2, eases_in_seconds=6.0, enough_in_seconds=9.0
    )
    # Both predictions are one: calls that end bring no quota back.
    assert behind.starts_in_seconds == 9.0


def test_the_hint_for_an_action_that_waits_for_calls_is_not_the_quota() -> None:
    scenario = a_scenario(a_quota(9, 10.0), at_once=1)
    scenario.submit(*calls(2))

    assert why(scenario.machine, "c1").relief is None


def test_the_hint_for_memory_names_idle_environments(core) -> None:
    scenario = core(a_node("n1", cpus=8, memory_bytes=8 * GIB))
    for name, gib, ttl in (("idle", 3, 600.0), ("busy", 2, 60.0), ("small", 1, 900.0)):
        spec = an_environment(gib * GIB, ttl_seconds=ttl)
        scenario.submit(an_action(name, trajectory=f"t-{name}", environment=spec))
    scenario.finish("idle")
    scenario.finish("small")
    scenario.submit(an_action("waits", trajectory="t", memory_bytes=4 * GIB))
    scenario.submit(an_action("behind", trajectory="t2", memory_bytes=1 * GIB))
    scenario.advance(10.0)

    found = why(scenario.machine, "waits")

    assert (found.code, found.resource) == ("short_of", "memory:n1")
    assert found.relief == UnblockHint(
        kind="memory", needed=4 * GIB, left=2 * GIB, missing=2 * GIB, enough_in_seconds=50.0,
        idle=[IdleEnvironment("default", "t-idle", 3 * GIB, 590.0),
              IdleEnvironment("default", "t-small", GIB, 890.0)],
        idle_bytes=4 * GIB,
    )  # fmt: skip
    assert found.one_more is None
    after = why(scenario.machine, "behind").relief
    assert after is not None
    assert (after.missing, after.enough_in_seconds) == (3 * GIB, 590.0)


def test_the_hint_for_an_action_that_is_too_large_has_the_largest_size(core) -> None:
    scenario = core(a_node("n1", cpus=8, memory_bytes=8 * GIB))
    scenario.submit(an_action("runs", cost={"cpu": 8}))
    scenario.submit(an_action("huge", trajectory="t", cost={"cpu": 8}, memory_bytes=6 * GIB))
    scenario.handle(
        events.NodeJoined(node=a_node("n1", cpus=4, memory_bytes=4 * GIB, incarnation=2))
    )

    found = why(scenario.machine, "huge")

    assert (found.code, found.subject) == ("too_large", "default")
    assert found.relief is not None
    assert found.relief.sizes == [UnmetSize("cpu", 8, 4), UnmetSize("memory", 6 * GIB, 4 * GIB)]


def test_the_hint_for_a_service_that_fits_no_gpu_has_the_memory_of_the_largest() -> None:
    machine = a_pool_machine("minimum", {"big": a_service((1, 70))}, (1, 24), (2, 40))
    machine.handle(events.ActionSubmitted(action=a_call("1", "big"), at=START + 1))

    relief = why(machine, "1").relief

    assert relief == UnblockHint(kind="size", sizes=[UnmetSize("gpu_memory", 70 * GIB, 40 * GIB)])


def test_a_closed_resource_is_named(core) -> None:
    scenario = core(a_node("n1", pool="other"))
    scenario.submit(an_action("a"))

    found = why(scenario.machine, "a")

    assert (found.code, found.subject, found.relief) == ("no_node", "default", None)
