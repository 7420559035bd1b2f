"""Counts and nodes of calls are chosen by when they are done, their restores included."""

from __future__ import annotations

from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from domain.action import Action, Outcome
from domain.decisions import Grant
from domain.elasticity import Elasticity
from domain.events import ActionFinished, ActionSubmitted, ChunkReport
from domain.ids import ActionId, ResourceId
from domain.inventory import PoolConfig
from domain.resources import MILLI
from managers.gpu.ledger import ChunkLedger
from scheduler.core.policies.registry import policy_named
from scheduler.core.residency.policy import RestoreTimes
from scheduler.core.residency.restore_costs import done_seconds, restore_seconds, with_restores
from scheduler.core.residency.service_turns import times_of
from scheduler.core.state import snapshot
from scheduler.core.state.durations import choices_of
from scheduler.core.state.invariants import check
from scheduler.core.state.live import LiveAction
from tests.builders import START, a_config, a_machine, an_action, make_ledger, only
from tests.tiers import by_tier
from tests.unit.core.test_services_on_chunks import a_call, a_gpu_node, a_service

COUNTS = (2, 4, 8)
NAMES = ("a", "b", "c", "d")
#: Of a call of 8 s on one GPU.
ELASTICITY = Elasticity(table=((1000, 1.0), (2000, 0.95), (4000, 0.87), (8000, 0.72)))


def a_wide_call(name: str, service: str) -> Action:
    """Return a call of 8 s that may have 2, 4 or 8 GPUs."""
    return replace(a_call(name, service, COUNTS), duration_seconds=8.0, elasticity=ELASTICITY)


class Pool:
    """A machine with some nodes of eight GPUs."""

    def __init__(self, nodes: int = 1, policy: str = "malleable") -> None:
        names = [f"n{number}" for number in range(1, nodes + 1)]
        self.config = a_config(
            pools=[PoolConfig("default", policy)],
            services={name: a_service((2, 40), (4, 20), (8, 10)) for name in NAMES},
        )
        inventories = [replace(a_gpu_node(8), name=name, identity=name) for name in names]
        self.machine = a_machine(inventories, self.config)
        self.at = START

    def submit(self, *actions: Action) -> dict[str, Grant]:
        self.at += 1
        submitted = [ActionSubmitted(action=each, at=self.at) for each in actions]
        decisions = self.machine.handle(*submitted)
        check(self.machine.state)
        return {grant.action_id: grant for grant in only(Grant, decisions)}

    def end(self, name: str, restored_in: float | None = None) -> None:
        self.at += 1
        live = self.machine.state.actions[ActionId(name)]
        ended = ActionFinished(
            action_id=live.id,
            node=live.node or "",
            outcome=Outcome.COMPLETED,
            attempt=live.attempt,
            at=self.at,
            execution_seconds=1.0,
            chunk=None if restored_in is None else ChunkReport(restore_seconds=restored_in),
        )
        self.machine.handle(ended)

    def restores_take(self, service: str, seconds: float) -> None:
        self.machine.state.residency.memory.times[service] = RestoreTimes(seconds, 1.0)

    def ledger(self, node: str = "n1") -> ChunkLedger:
        ledger = self.machine.state.supply.ledgers[ResourceId(f"gpu:{node}")]
        assert isinstance(ledger, ChunkLedger)
        return ledger

    def waiting(self, name: str, service: str) -> LiveAction:
        """Return a call as it stands in line, of which the machine knows nothing."""
        probe = Pool(policy=self.config.pools["default"].policy)
        probe.submit(an_action("all", cost={"gpu": 8}))
        probe.submit(a_wide_call(name, service))
        return probe.machine.state.actions[ActionId(name)]


def gpus_of(grants: dict[str, Grant]) -> dict[str, int]:
    return {name: len(grant.allocations[0].units) for name, grant in grants.items()}


def test_a_burst_is_spread_over_the_nodes_and_every_call_gets_more():
    """Two on each node get four GPUs each; four on one node would get two each."""
    grants = Pool(nodes=2).submit(*(a_wide_call(name, name) for name in NAMES))

    assert gpus_of(grants) == dict.fromkeys(NAMES, 4)
    assert sorted(grant.node or "" for grant in grants.values()) == ["n1", "n1", "n2", "n2"]


def test_a_call_with_a_home_in_a_larger_block_gets_it_when_several_are_granted_at_once():
    """Two free GPUs are the smallest block: for the first call in the queue without a home."""
    pool = Pool()
    pool.submit(an_action("command", cost={"gpu": 2}, duration_seconds=1000.0))
    grants = pool.submit(*(a_call(f"{name}1", name, (2,)) for name in "abc"))
    homes = {grant.allocations[0].units: name[0] for name, grant in grants.items()}
    assert sorted(homes) == [(2, 3), (4, 5), (6, 7)]
    for name in "abc":
        pool.end(f"{name}1")
    pool.ledger().drop(homes[2, 3], (2, 3))
    for name in NAMES:
        pool.restores_take(name, 2.0)

    grants = pool.submit(
        *(a_wide_call(f"{homes[units]}2", homes[units]) for units in ((4, 5), (6, 7))),
        a_wide_call("d2", "d"),
    )

    found = {grant.allocations[0].units: name[0] for name, grant in grants.items()}
    assert found == {(2, 3): "d", (4, 5): homes[4, 5], (6, 7): homes[6, 7]}


@pytest.mark.parametrize(("others", "gpus"), [(2, 4), (4, 2)])
def test_a_long_call_gets_more_while_all_could_be_served_at_once(others, gpus):
    """A fair share of 8 GPUs is 2 already among three; it counts when a fifth finds no place."""
    long = replace(a_wide_call("long", "a"), duration_seconds=80.0)
    short = [
        replace(a_wide_call(f"{n}", NAMES[n % 4]), duration_seconds=1.0) for n in range(others)
    ]

    assert gpus_of(Pool().submit(long, *short))["long"] == gpus


def test_the_paper_fills_one_node_after_the_other():
    grants = Pool(nodes=2, policy="paper").submit(a_wide_call("1", "a"), a_wide_call("2", "b"))

    assert {grant.node for grant in grants.values()} == {"n1"}


@pytest.mark.parametrize(
    ("policy", "seconds", "gpus"),
    [
        ("malleable", 0.1, 8),
        ("malleable", 10.0, 4),
        ("paper", 0.1, 8),
        ("paper", 10.0, 4),
        ("paper(free restores)", 10.0, 8),
    ],
)
def test_a_call_gets_more_gpus_than_its_service_is_cached_on_when_that_is_sooner(
    policy, seconds, gpus
):
    """On four GPUs 2.3 s, on eight 1.4 s: worth a restore of 0.1 s, and not one of 10 s."""
    pool = Pool(policy=policy)
    assert gpus_of(pool.submit(a_wide_call("1", "a"), a_wide_call("2", "b"))) == {"1": 4, "2": 4}
    pool.end("1")
    pool.end("2")
    pool.restores_take("a", seconds)

    assert gpus_of(pool.submit(a_wide_call("3", "a"))) == {"3": gpus}


def test_a_call_stays_at_home_only_as_long_as_it_is_not_sooner_done_elsewhere():
    """At home two GPUs are left for it, and a whole node is free beside."""
    for seconds, node in ((0.1, "n2"), (10.0, "n1")):
        pool = Pool(nodes=2)
        for count in (4, 2, 8):
            pool.submit(an_action(f"own-{count}", cost={"gpu": count}))
        assert pool.submit(a_wide_call("1", "a"))["1"].node == "n1"
        pool.end("1")
        pool.end("own-8")
        pool.restores_take("a", seconds)

        assert pool.submit(a_wide_call("2", "a"))["2"].node == node


def test_restores_are_measured_for_each_count():
    pool = Pool()
    pool.submit(a_wide_call("1", "a"))
    pool.end("1", restored_in=3.0)
    state = pool.machine.state

    assert times_of(state, "a").by_count == ((8 * MILLI, 3.0),)
    pool.restores_take("b", 2.0)
    state.residency.memory.times["b"] = state.residency.memory.times["b"]._replace(
        by_count=((8000, 0.5),)
    )
    assert restore_seconds(state, "b", (2000, 8000)) == [2.0, 0.5]
    restored = snapshot.load(snapshot.dump(pool.machine), make_ledger)
    assert restored.state.residency.memory.times == state.residency.memory.times


def test_a_cached_chunk_serves_one_call_at_a_time():
    pool = Pool()
    pool.submit(a_wide_call("1", "a"), a_wide_call("2", "b"))
    pool.end("1", restored_in=5.0)
    pool.end("2")
    state = pool.machine.state
    live = pool.waiting("x", "a")
    plain = choices_of(state, live)

    first, second = with_restores(state, ResourceId("gpu:n1"), [live, live], [plain, plain])

    assert [after - before for before, after in zip(plain.seconds, first.seconds, strict=True)] == (
        pytest.approx([5.0, 0.0, 5.0])
    )
    assert second.seconds == pytest.approx([each + 5.0 for each in plain.seconds])


@st.composite
def histories(draw: st.DrawFn) -> list[tuple[str, int]]:
    """Draw who is called, and how many of those that run end before."""
    return draw(st.lists(st.tuples(st.sampled_from(NAMES), st.integers(0, 3)), max_size=12))


@given(history=histories())
@settings(max_examples=by_tier(10, 40, 400), deadline=None)
def test_the_paper_decides_as_with_free_restores_where_restores_take_no_time(
    history: list[tuple[str, int]],
) -> None:
    charged, free = Pool(policy="paper"), Pool(policy="paper(free restores)")
    running: list[str] = []
    for pool in (charged, free):
        for name in NAMES:
            pool.restores_take(name, 0.0)
    for number, (name, ends) in enumerate(history):
        for _ in range(min(ends, len(running))):
            first = running.pop(0)
            charged.end(first)
            free.end(first)
        call = a_wide_call(f"h{number}", name)
        granted = charged.submit(call)
        assert granted == free.submit(call)
        running += granted


def test_the_paper_charges_restores_except_where_a_free_chunk_caches_the_service():
    pool = Pool(policy="paper")
    pool.submit(a_wide_call("1", "a"))
    pool.end("1", restored_in=5.0)
    state, live = pool.machine.state, pool.waiting("x", "a")
    plain = choices_of(state, live)

    for policy, added in (("paper", [5.0, 5.0, 0.0]), ("paper(free restores)", [0.0, 0.0, 0.0])):
        state.pools.policies["default"] = policy_named(policy)
        (call,) = with_restores(state, ResourceId("gpu:n1"), [live], [plain])
        assert call.seconds == pytest.approx(
            [before + more for before, more in zip(plain.seconds, added, strict=True)]
        )


@given(
    history=histories(),
    service=st.sampled_from(NAMES),
    restores=st.tuples(*(st.floats(0.0, 20.0) for _ in COUNTS)),
    policy=st.sampled_from(["malleable", "balanced", "minimum"]),
)
@settings(max_examples=by_tier(15, 60, 600), deadline=None)
def test_when_a_call_would_be_done_is_the_best_of_all_free_chunks(
    history: list[tuple[str, int]], service: str, restores: tuple[float, ...], policy: str
) -> None:
    """Against brute force: every aligned chunk whose GPUs are all free, one after the other."""
    pool = Pool(policy=policy)
    running: list[str] = []
    for number, (name, ends) in enumerate(history):
        for _ in range(min(ends, len(running))):
            pool.end(running.pop(0))
        running += pool.submit(a_wide_call(f"h{number}", name))
    live, state, ledger = pool.waiting("x", service), pool.machine.state, pool.ledger()
    milli = [count * MILLI for count in COUNTS]
    by_count = tuple(zip(milli, restores, strict=True))
    state.residency.memory.times[service] = RestoreTimes(1.0, 1.0, by_count)

    held = {unit for each in ledger.holders().values() for unit in each.units}
    mine = [each for each in ledger.residents() if each.service == service]
    there = {each.units for each in mine if not each.arriving}
    plain = dict(zip(milli, choices_of(state, live).seconds, strict=True))
    best = float("inf")
    for count, first in product(COUNTS if policy != "minimum" else COUNTS[:1], range(0, 8, 2)):
        units = tuple(range(first, first + count))
        if first % count == 0 and not held & set(units) and units[-1] < 8:
            restore = 0.0 if units in there else dict(by_count)[count * MILLI]
            best = min(best, plain[count * MILLI] + restore)

    assert done_seconds(state, "n1", live) == pytest.approx(best)
