"""Conditions of an API: its ledger reports each change for the worse once."""

from __future__ import annotations

from domain.apis import Feedback, Verdict
from domain.ids import ResourceId
from domain.inventory import ResourceInventory
from domain.limits import Breaker, Limits, Quota
from domain.resources import MILLI
from managers.quota.ledger import ApiLedger

API = ResourceId("api:search")
QUOTA = Quota(2 * MILLI, window_seconds=10.0)


def an_api(*quotas: Quota) -> ApiLedger:
    limits = Limits(quotas=quotas, breaker=Breaker(failures=2, cooldown_seconds=5.0))
    ledger = ApiLedger(API, ResourceInventory(100 * MILLI, limits=limits))
    ledger.advance(100.0)
    return ledger


def take(ledger: ApiLedger, holder: str) -> None:
    ledger.allocate(holder, MILLI)
    ledger.spend(holder)


def fail(ledger: ApiLedger, at: float, times: int = 1) -> None:
    ledger.advance(at)
    for _ in range(times):
        ledger.apply_feedback(Feedback(API, Verdict.FAILING), at, at)


def test_the_grant_that_uses_a_quota_up_is_reported_once() -> None:
    ledger = an_api(QUOTA, Quota(9 * MILLI, window_seconds=60.0))
    take(ledger, "a")
    assert ledger.degradations() == []
    take(ledger, "b")

    (turn,) = ledger.degradations()
    assert turn.quota is not None
    assert (turn.quota.quota, turn.quota.used, turn.quota.left) == (QUOTA, 2 * MILLI, 0)
    assert ledger.degradations() == []

    ledger.advance(110.0)
    take(ledger, "c")
    assert ledger.degradations() == []
    take(ledger, "d")
    assert len(ledger.degradations()) == 1


def test_a_quota_that_is_lowered_below_what_is_used_ran_out_as_well() -> None:
    ledger = an_api(QUOTA)
    take(ledger, "a")
    lower = Limits(quotas=(Quota(MILLI, window_seconds=10.0),))

    ledger.resize_capacity(ResourceInventory(100 * MILLI, limits=lower))

    assert [turn.quota is not None for turn in ledger.degradations()] == [True]


def test_a_circuit_is_reported_when_it_opens_and_not_while_it_goes_on_failing() -> None:
    ledger = an_api()
    fail(ledger, 100.0)
    assert ledger.degradations() == []
    fail(ledger, 101.0)
    (turn,) = ledger.degradations()
    assert turn.quota is None
    assert turn.detail.startswith("its circuit is open")

    fail(ledger, 107.0)  # the probe failed: open for longer, not again
    assert ledger.degradations() == []
    ledger.advance(120.0)
    ledger.apply_feedback(Feedback(API, Verdict.OK), 120.0, 120.0)
    fail(ledger, 121.0, times=2)
    assert len(ledger.degradations()) == 1
