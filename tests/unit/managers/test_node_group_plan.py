"""The plan of a node group: what to launch, drain and end."""

from __future__ import annotations

from collections.abc import Mapping

from hypothesis import given
from hypothesis import strategies as st

from domain.node_groups import NodeGroupSpec
from managers.launch.launcher import Instance, InstanceState
from managers.launch.plan import NodeWork, plan

SPEC = NodeGroupSpec("processes", count=0, drain_seconds=300)
RUNNING, PENDING, ENDING, FAILED = (
    InstanceState.RUNNING,
    InstanceState.PENDING,
    InstanceState.ENDING,
    InstanceState.FAILED,
)


def an(number: int, state: InstanceState = RUNNING, ends_at: float | None = None) -> Instance:
    return Instance(f"g-{number}", state, f"h{number}", ends_at=ends_at)


def test_missing_nodes_get_the_lowest_free_numbers():
    steps = plan("g", SPEC, 4, [an(2), an(3, ENDING)], {}, 0.0)
    assert (steps.launch, steps.drain, steps.end) == (["g-1", "g-4", "g-5"], {}, {})


def test_a_node_with_a_trajectory_is_drained_and_ends_when_it_is_empty():
    busy = NodeWork(trajectories=1)
    first = plan("g", SPEC, 0, [an(1)], {"g-1": busy}, 0.0)
    drained = plan("g", SPEC, 0, [an(1)], {"g-1": NodeWork(trajectories=1, drained=True)}, 0.0)
    empty = plan("g", SPEC, 0, [an(1)], {"g-1": NodeWork(drained=True)}, 0.0)
    assert (list(first.drain), first.end) == (["g-1"], {})
    assert (drained.drain, drained.end) == ({}, {})
    assert list(empty.end) == ["g-1"]


def test_those_that_wait_for_a_machine_go_before_those_that_work():
    nodes = {"g-1": NodeWork(trajectories=2), "g-2": NodeWork(trajectories=1)}
    instances = [an(1), an(2), an(3, PENDING)]
    assert list(plan("g", SPEC, 2, instances, nodes, 0.0).end) == ["g-3"]
    assert list(plan("g", SPEC, 1, instances, nodes, 0.0).drain) == ["g-2"]


def test_a_node_that_the_engine_ends_soon_is_replaced_and_drained():
    nodes = {"g-1": NodeWork(actions=1)}
    early = plan("g", SPEC, 1, [an(1, ends_at=1000.0)], nodes, 600.0)
    soon = plan("g", SPEC, 1, [an(1, ends_at=1000.0)], nodes, 700.0)
    assert (early.launch, early.drain) == ([], {})
    assert (soon.launch, list(soon.drain)) == (["g-2"], ["g-1"])


def test_a_node_that_an_operator_drained_is_left_as_it_is():
    steps = plan("g", SPEC, 1, [an(1)], {"g-1": NodeWork(drained=True)}, 0.0)
    assert (steps.launch, steps.drain, steps.end) == ([], {}, {})


def test_a_failed_instance_is_cleared_and_replaced():
    steps = plan("g", SPEC, 1, [an(1, FAILED)], {}, 0.0)
    assert (steps.launch, list(steps.end)) == (["g-2"], ["g-1"])


def test_a_node_that_is_given_up_gets_a_successor_and_ends_once_nothing_hangs_on_it():
    def steps_with(work: NodeWork, *instances: Instance):
        steps = plan("g", SPEC, 1, instances, {"g-1": work}, 0.0)
        return steps.launch, list(steps.end), list(steps.drain)

    holding = NodeWork(trajectories=1, lost=True, given_up=True)
    empty = NodeWork(lost=True, given_up=True)
    back = NodeWork(trajectories=1)
    assert steps_with(NodeWork(lost=True), an(1)) == ([], [], [])
    assert steps_with(holding, an(1)) == (["g-2"], [], [])
    assert steps_with(holding, an(1), an(2)) == ([], [], [])
    assert steps_with(empty, an(1), an(2)) == ([], ["g-1"], [])
    assert steps_with(empty, an(1, InstanceState.UNKNOWN), an(2)) == ([], [], [])
    # It has returned: of two, the successor that has not joined goes.
    assert steps_with(back, an(1), an(2)) == ([], ["g-2"], [])


_instances = st.builds(
    lambda states: [an(n, state) for n, state in enumerate(states, start=1)],
    st.lists(st.sampled_from([RUNNING, PENDING, ENDING, FAILED]), max_size=6),
)
_work = st.dictionaries(
    st.sampled_from([f"g-{n}" for n in range(1, 7)]),
    st.builds(NodeWork, st.integers(0, 2), st.integers(0, 2), st.booleans()),
)


@given(_instances, _work, st.integers(0, 6))
def test_repeated_plans_reach_the_wanted_number_and_lose_no_work(
    instances: list[Instance], nodes: Mapping[str, NodeWork], wanted: int
) -> None:
    present = {each.name: each for each in instances}
    works = dict(nodes)
    for _ in range(12):
        steps = plan("g", SPEC, wanted, list(present.values()), works, 0.0)
        assert len(present.keys() & set(steps.launch)) == 0
        for name in steps.end:
            work = works.pop(name, NodeWork(drained=True))
            failed = present[name].state is FAILED
            assert failed or (work.drained and work.is_empty)
            del present[name]
        for name in steps.drain:
            works[name] = NodeWork(drained=True)  # its work ends meanwhile
        for name in [name for name, each in present.items() if each.state is ENDING]:
            del present[name]
        for name, work in works.items():
            if work.drained:
                works[name] = NodeWork(drained=True)
        present |= {name: Instance(name, RUNNING, name) for name in steps.launch}
    assert len(present) == wanted


def test_a_group_that_grew_again_resumes_what_it_drained():
    nodes = {"g-1": NodeWork(drained=True, leaves=True), "g-2": NodeWork(drained=True)}
    assert plan("g", SPEC, 2, [an(1), an(2)], nodes, 0.0).resume == ["g-1"]
    assert plan("g", SPEC, 0, [an(1), an(2)], nodes, 0.0).resume == []
