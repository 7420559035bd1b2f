"""Outdated instances of a node group are replaced a few at a time, and no trajectory is interrupted."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from msgspec import structs

from domain.node_groups import NodeGroupSpec
from managers.launch.launcher import Instance, InstanceState, fingerprint_of
from managers.launch.plan import NodeWork, Steps, is_outdated, plan
from tests.tiers import by_tier

SPEC = NodeGroupSpec("fake", count=0)
RUNNING, PENDING, UNKNOWN = InstanceState.RUNNING, InstanceState.PENDING, InstanceState.UNKNOWN
TAKES = NodeWork()
BUSY = NodeWork(trajectories=1)


def an(number: int, shape: str = "old", state: InstanceState = RUNNING) -> Instance:
    return Instance(f"g-{number}", state, "h", fingerprint=shape)


def steps(
    wanted: int,
    instances: list[Instance],
    nodes: Mapping[str, NodeWork],
    spec: NodeGroupSpec = SPEC,
) -> Steps:
    return plan("g", spec, wanted, instances, nodes, 0.0, "new")


def spec_with(surge: int, unavailable: int) -> NodeGroupSpec:
    return NodeGroupSpec("fake", count=0, max_surge=surge, max_unavailable=unavailable)


def test_a_successor_is_launched_first_and_nothing_is_drained_before_it_takes_actions() -> None:
    nodes = {"g-1": BUSY, "g-2": TAKES}
    first = steps(2, [an(1), an(2)], nodes)
    assert (first.launch, first.drain, first.end) == (["g-3"], {}, {})
    waits = steps(2, [an(1), an(2), an(3, "new", PENDING)], nodes)
    assert (waits.launch, waits.drain, waits.end) == ([], {}, {})
    assert waits.rollout == (
        "1 of 3 instances have the new shape; g-2 waits for its successor g-3, which is pending and has not joined;"
        " if the engine has no room for one more, set max_surge to 0 and max_unavailable to 1"
    )
    ready = steps(2, [an(1), an(2), an(3, "new")], {**nodes, "g-3": TAKES})
    assert ready.drain == {"g-2": "it has a former shape"}, "the least work hangs on it"


def test_the_old_node_ends_when_its_trajectories_have_and_only_then_the_next_is_replaced() -> None:
    there = [an(1), an(2), an(3, "new")]
    leaves = NodeWork(trajectories=1, drained=True, leaves=True)
    waits = steps(2, there, {"g-1": TAKES, "g-2": leaves, "g-3": TAKES})
    assert (waits.launch, waits.drain, waits.end) == ([], {}, {})
    assert waits.rollout.endswith("; g-2 lets its trajectories finish")
    empty = steps(2, there, {"g-1": TAKES, "g-2": replace(leaves, trajectories=0), "g-3": TAKES})
    assert list(empty.end) == ["g-2"]
    following = steps(2, [an(1), an(3, "new")], {"g-1": TAKES, "g-3": TAKES})
    assert (following.launch, following.drain) == (["g-2"], {})


def test_an_engine_without_room_replaces_in_place_where_the_spec_allows_it() -> None:
    there, nodes, in_place = [an(1), an(2)], {"g-1": TAKES, "g-2": TAKES}, spec_with(0, 1)
    first = steps(2, there, nodes, in_place)
    assert (first.launch, list(first.drain)) == ([], ["g-2"])
    after = steps(2, [an(1)], {"g-1": TAKES}, in_place)
    assert (after.launch, after.drain) == (["g-2"], {})


def test_an_instance_of_an_earlier_version_has_no_fingerprint_and_stays() -> None:
    done = steps(2, [an(1, ""), an(2, "new")], {"g-1": TAKES, "g-2": TAKES})
    assert done == Steps()


def test_a_shrinking_group_gives_up_its_outdated_nodes_first() -> None:
    nodes = {"g-1": NodeWork(trajectories=9), "g-2": TAKES, "g-3": TAKES}
    shrunk = steps(2, [an(1), an(2, "new"), an(3, "new")], nodes)
    assert list(shrunk.drain) == ["g-1"]


def test_a_growing_group_gets_the_new_shape_and_keeps_the_outdated_nodes_meanwhile() -> None:
    leaves = NodeWork(trajectories=1, drained=True, leaves=True)
    grown = steps(4, [an(1), an(2, "new")], {"g-1": leaves, "g-2": TAKES})
    assert (grown.launch, grown.resume) == (["g-3", "g-4", "g-5"], ["g-1"])


def test_an_outdated_node_goes_on_while_a_successor_that_was_ready_is_lost() -> None:
    leaves = NodeWork(trajectories=1, drained=True, leaves=True)
    there = [an(1), an(2, "new")]
    lost = steps(1, there, {"g-1": leaves, "g-2": NodeWork(lost=True)})
    assert (lost.resume, lost.launch, lost.end) == (["g-1"], [], {})


def test_an_outdated_node_that_an_operator_drained_stays_and_does_not_stop_the_others() -> None:
    there = [an(1), an(2), an(3, "new")]
    nodes = {"g-1": NodeWork(drained=True), "g-2": TAKES, "g-3": TAKES}
    found = steps(2, there, nodes)
    assert (list(found.drain), found.end, found.resume) == (["g-2"], {}, [])
    assert "g-1: drained by an operator, and replaced once resumed" in found.rollout


def test_a_silent_machine_does_not_stop_the_others_and_its_instances_are_not_ended() -> None:
    gone = {"g-1": NodeWork(drained=True, leaves=True, lost=True)}
    found = steps(0, [an(1, "old", UNKNOWN), an(2, "old", UNKNOWN)], gone)
    assert found.end == {}


def test_the_fingerprint_has_what_an_instance_has_of_its_group() -> None:
    spec = NodeGroupSpec("ssh", count=2, cpus=4, options={"hosts": "a", "prefix": "nice"})
    first = fingerprint_of(spec, ("hosts",))

    def changed(**fields: object) -> bool:
        return fingerprint_of(structs.replace(spec, **fields), ("hosts",)) != first

    assert changed(cpus=5)
    assert changed(image="v2")
    assert changed(labels={"disk": "ssd"})
    assert changed(options={"hosts": "a", "prefix": ""})
    assert not changed(options={"prefix": "nice", "hosts": "a,b"})
    assert not changed(count=None, max_count=3, drain_seconds=1.0, max_surge=2)
    # It is stored by engines: another digest of the same spec would replace all instances at an upgrade.
    assert first == "57bd04027245"


class Replacement(RuleBasedStateMachine):
    """A group whose shape, size and nodes change while it is replaced."""

    def __init__(self) -> None:
        super().__init__()
        self.shape, self.number, self.wanted = "s0", 0, 3
        self.starts = True
        self.spec = spec_with(1, 0)
        self.instances: dict[str, Instance] = {}
        self.works: dict[str, NodeWork] = {}
        self.asides: set[str] = set()
        self.settle()

    def look(self) -> Steps:
        """Do what is planned, and check it against what was."""
        before = dict(self.works)
        able = sum(work.takes for work in before.values())
        found = plan(
            "g", self.spec, self.wanted, list(self.instances.values()), self.works, 0.0, self.shape
        )
        outdated = any(is_outdated(each, self.shape) for each in self.instances.values())
        for name in found.end:
            work = self.works.pop(name, None)
            assert work is None or (work.drained and work.is_empty), "a trajectory is interrupted"
            del self.instances[name]
        for name in found.drain:
            self.works[name] = replace(self.works[name], drained=True, leaves=True)
        for name in found.resume:
            assert name not in self.asides, "a drain of an operator is ended"
            self.works[name] = replace(self.works[name], drained=False, leaves=False)
        assert not self.instances.keys() & set(found.launch)
        self.instances |= {
            name: Instance(name, PENDING, "h", fingerprint=self.shape) for name in found.launch
        }
        floor = self.wanted - len(self.asides) - (self.spec.max_unavailable if outdated else 0)
        after = sum(work.takes for work in self.works.values())
        assert after >= min(able, floor), "fewer nodes than wanted take actions"
        if found.launch:
            surge = self.spec.max_surge if outdated else 0
            assert len(self.instances) <= self.wanted + surge
        return found

    def joins(self, name: str) -> bool:
        return self.instances[name].fingerprint != self.shape or self.starts

    def settle(self) -> None:
        """Let all trajectories finish, all successors start and silent nodes return, until nothing is left to do."""
        self.starts = True
        for _ in range(60):
            self.works = {
                name: replace(work, actions=0, trajectories=0, lost=False)
                for name, work in self.works.items()
            }
            self.join()
            found = self.look()
            if not (found.launch or found.drain or found.end or found.resume):
                break
        self.asides &= self.instances.keys()
        assert len(self.instances) == self.wanted
        left = {n for n, each in self.instances.items() if is_outdated(each, self.shape)}
        assert left <= self.asides, "it ends when all are current"

    @rule()
    def pass_over(self) -> None:
        self.look()
        self.asides &= self.instances.keys()

    @rule()
    def join(self) -> None:
        for name in self.instances:
            if self.joins(name):
                self.works.setdefault(name, TAKES)

    @rule(starts=st.booleans())
    def change_shape(self, starts: bool) -> None:
        self.number += 1
        self.shape, self.starts = f"s{self.number}", starts

    @rule(wanted=st.integers(0, 5))
    def resize(self, wanted: int) -> None:
        self.wanted = wanted

    @rule(bounds=st.sampled_from([(1, 0), (0, 1), (2, 1), (3, 0)]))
    def change_bounds(self, bounds: tuple[int, int]) -> None:
        self.spec = spec_with(*bounds)

    @precondition(lambda self: self.works)
    @rule(data=st.data(), change=st.sampled_from(["work", "finish", "lose", "return", "drain", "resume"]))  # fmt: skip
    def change_node(self, data: st.DataObject, change: str) -> None:
        name = data.draw(st.sampled_from(sorted(self.works)))
        work = self.works[name]
        if change == "work" and work.takes:
            work = replace(work, trajectories=2)
        elif change == "finish":
            work = replace(work, trajectories=0)
        elif change in {"lose", "return"}:
            work = replace(work, lost=change == "lose")
        elif change == "drain" and not work.drained:
            self.asides.add(name)
            work = replace(work, drained=True)
        elif change == "resume" and name in self.asides:
            self.asides.discard(name)
            work = replace(work, drained=False)
        self.works[name] = work

    @rule()
    def settles(self) -> None:
        self.settle()

    @invariant()
    def names_of_nodes_are_instances(self) -> None:
        assert self.works.keys() <= self.instances.keys()


TestReplacement = Replacement.TestCase
TestReplacement.settings = settings(
    max_examples=by_tier(10, 40, 600), stateful_step_count=20, deadline=None
)


@pytest.mark.parametrize("surge", [1, 2])
def test_successors_that_never_join_stop_the_replacement(surge: int) -> None:
    there = {f"g-{n}": an(n) for n in (1, 2, 3)}
    nodes = dict.fromkeys(there, BUSY)
    for _ in range(5):
        found = steps(3, list(there.values()), nodes, spec_with(surge, 0))
        assert (found.drain, found.end) == ({}, {})
        there |= {name: Instance(name, RUNNING, "h", fingerprint="new") for name in found.launch}
    assert len(there) == 3 + surge
    assert "g-3 waits for its successor" in found.rollout
