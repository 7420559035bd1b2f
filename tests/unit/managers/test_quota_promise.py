"""I13: a quota holds in any window of grant times, over restores and changed declarations."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from domain.ids import ResourceId
from domain.inventory import ResourceInventory
from domain.limits import Limits, Quota
from domain.resources import MILLI
from managers.quota.ledger import ApiLedger
from tests.builders import a_quota

QUOTAS = st.lists(
    st.builds(a_quota, st.integers(1, 6), st.sampled_from([1.0, 1.0, 4.0, 10.0])), max_size=3
)
STEP = st.one_of(
    st.tuples(st.just("grant"), st.integers(1, 3)),
    st.tuples(st.just("grant"), st.integers(1, 3)),
    st.tuples(st.just("reserve"), st.integers(1, 3)),
    st.tuples(st.just("release"), st.just(0)),
    st.tuples(st.just("wait"), st.sampled_from([0.0, 0.001, 0.3, 1.0, 2.5, 11.0])),
    st.tuples(st.just("wait until it eases"), st.integers(1, 3)),
    st.tuples(st.just("restore"), st.just(0)),
    st.tuples(st.just("declare"), QUOTAS),
)


class World:
    """A ledger that grants whatever it can, and what it granted."""

    def __init__(self, quotas: list[Quota]) -> None:
        self.now = 1000.0
        self.ledger = ApiLedger(ResourceId("api:search"), inventory(quotas))
        self.ledger.advance(self.now)
        #: Quota → number of grants made before it came into force, to stay so far.
        self.since = dict.fromkeys(quotas, 0)
        self.grants: list[tuple[float, int]] = []
        self.made = 0

    def step(self, verb: str, value: Any) -> None:
        if verb == "grant" and self.ledger.fits((value * MILLI,)):
            self.ledger.allocate(f"h{self.made}", value * MILLI)
            self.ledger.spend(f"h{self.made}")
            self.grants.append((self.now, value * MILLI))
            self.made += 1
        elif verb == "reserve" and self.ledger.fits((value * MILLI,)):
            self.ledger.allocate("reserved", value * MILLI)
            self.ledger.release("reserved")
        elif verb == "release" and self.ledger.holders():
            self.ledger.release(next(iter(self.ledger.holders())))
        elif verb.startswith("wait"):
            eases = self.ledger.ready_at(value * MILLI) if verb != "wait" else self.now + value
            self.now = eases if eases is not None else self.now
            self.ledger.advance(self.now)
            if verb != "wait" and eases is not None:
                assert self.ledger.fits((value * MILLI,)), "it was to fit now"
        elif verb == "restore":
            self.restore()
        elif verb == "declare":
            self.since = {quota: self.since.get(quota, len(self.grants)) for quota in value}
            self.ledger.resize_capacity(inventory(value))

    def restore(self) -> None:
        before = self.ledger
        self.ledger = ApiLedger(ResourceId("api:search"), inventory(list(self.since)))
        for holder, allocation in before.holders().items():
            self.ledger.adopt(holder, allocation)
        self.ledger.recall(before.remember())
        assert self.ledger.remember() == before.remember()

    def judge(self) -> None:
        """Look at every window that begins with a grant made under a quota still in force."""
        for quota, since in self.since.items():
            grants = self.grants[since:]
            for begins, _ in grants:
                ends = begins + quota.window_seconds
                inside = [amount for at, amount in grants if begins <= at < ends]
                assert sum(inside) <= quota.amount, (quota, begins)


def inventory(quotas: list[Quota]) -> ResourceInventory:
    return ResourceInventory(10_000 * MILLI, limits=Limits(tuple(dict.fromkeys(quotas))))


@given(quotas=QUOTAS, steps=st.lists(STEP, max_size=80))
def test_no_window_of_grants_passes_a_quota(quotas, steps) -> None:
    world = World(list(dict.fromkeys(quotas)))
    for verb, value in steps:
        world.step(verb, list(dict.fromkeys(value)) if verb == "declare" else value)
    world.judge()


def test_a_quota_lowered_below_what_is_used_shows_less_than_nothing_left() -> None:
    world = World([a_quota(5, 10.0)])
    for _ in range(5):
        world.step("grant", 1)
    world.step("declare", [a_quota(2, 10.0)])
    (use,) = world.ledger.uses(world.now)
    assert (use.used, use.left) == (5 * MILLI, -3 * MILLI)
    assert len(world.ledger.holders()) == 5
    assert not world.ledger.fits((1,))
    assert world.ledger.ready_at(MILLI) == 1010.0


def test_a_longer_quota_begins_with_what_a_shorter_one_remembers() -> None:
    world = World([a_quota(3, 4.0)])
    for _ in range(3):
        world.step("grant", 1)
    world.step("declare", [a_quota(3, 60.0)])
    world.step("wait", 10.0)
    assert not world.ledger.fits((MILLI,))


def test_several_quotas_all_hold() -> None:
    world = World([a_quota(2, 1.0), a_quota(3)])
    for _ in range(3):
        world.step("grant", 1)
    assert world.made == 2
    world.step("wait", 1.0)
    world.step("grant", 1)
    world.step("wait", 1.0)
    world.step("grant", 1)
    assert world.made == 3
    assert world.ledger.ready_at(MILLI) == 86_400.0  # midnight, UTC


def test_a_weight_counts_as_it_is() -> None:
    world = World([a_quota(1500, 60.0)])
    world.step("grant", 900)
    assert not world.ledger.fits((700 * MILLI,))
    assert world.ledger.fits((600 * MILLI,))
