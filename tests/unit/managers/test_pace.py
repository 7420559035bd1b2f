"""Pacing of an API's callers by its own responses, and recovery."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from domain.apis import Feedback, Verdict
from domain.ids import ResourceId
from domain.inventory import ResourceInventory
from domain.limits import Breaker, Limits, Retries
from domain.resources import MILLI
from managers.quota.ledger import ApiLedger

OK = Feedback("api:search", Verdict.OK)
LIMITED = Feedback("api:search", Verdict.LIMITED)
FAILING = Feedback("api:search", Verdict.FAILING)
UNREACHABLE = Feedback("api:search", Verdict.FAILING, sent=False)


def an_api(capacity: int = 16, **limits) -> ApiLedger:
    have = ResourceInventory(capacity * MILLI, limits=Limits(**limits))
    ledger = ApiLedger(ResourceId("api:search"), have)
    ledger.advance(100.0)
    return ledger


def may_go(ledger: ApiLedger, at: float | None = None) -> bool:
    if at is not None:
        ledger.advance(at)
    return ledger.fits((MILLI,))


def hear(
    ledger: ApiLedger, *feedback: Feedback, at: float, granted_at: float | None = None
) -> None:
    ledger.advance(at)
    for each in feedback:
        ledger.apply_feedback(each, at if granted_at is None else granted_at, at)


def test_an_api_that_names_a_pause_gets_it_from_all_callers() -> None:
    ledger = an_api()
    hear(ledger, Feedback("api:search", Verdict.LIMITED, pause_seconds=7.0), at=100.0)
    assert not may_go(ledger)
    assert ledger.ready_at(MILLI) == 107.0
    assert "pause" in ledger.hindrance(101.0)
    assert may_go(ledger, 107.0)
    assert ledger.hindrance(107.0) == ""


def test_a_good_answer_that_uses_up_a_limit_pauses_as_well() -> None:
    ledger = an_api()
    hear(ledger, Feedback("api:search", Verdict.OK, pause_seconds=3.0), at=100.0)
    assert ledger.ready_at(MILLI) == 103.0


def test_refusals_without_a_word_are_answered_with_longer_and_longer_pauses() -> None:
    ledger, now, pauses = an_api(), 100.0, []
    for _ in range(9):
        hear(ledger, LIMITED, at=now)
        ready = ledger.ready_at(MILLI)
        assert ready is not None
        pauses.append(ready - now)
        now = ready
    assert pauses[:4] == [0.5, 1.0, 2.0, 4.0]
    assert max(pauses) == 30.0
    hear(ledger, OK, LIMITED, at=now)
    assert ledger.ready_at(MILLI) == now + 0.5


def test_refusals_of_one_round_count_once() -> None:
    ledger = an_api(least=2 * MILLI)
    hear(ledger, LIMITED, LIMITED, LIMITED, at=101.0, granted_at=100.5)
    assert (ledger.ceiling, ledger.ready_at(MILLI)) == (8 * MILLI, 101.5)


def test_the_learned_limit_halves_and_grows_by_one_per_round() -> None:
    ledger = an_api(least=2 * MILLI)
    for n in range(8):
        hear(ledger, LIMITED, at=200.0 + 100 * n)
    assert ledger.ceiling == 2 * MILLI
    ledger.advance(2000.0)
    for n in range(2):
        ledger.allocate(f"h{n}", MILLI)
    hear(ledger, OK, OK, at=2000.0)
    assert 2.8 * MILLI < ledger.ceiling <= 3 * MILLI
    for _ in range(2000):
        hear(ledger, OK, at=2000.0)
    assert ledger.ceiling <= 5 * MILLI  # two are open: more was never tried


def test_the_learned_pace_never_leaves_its_bounds() -> None:
    ledger = an_api(least=3 * MILLI)
    for n in range(16):
        ledger.allocate(f"h{n}", MILLI)
    hear(ledger, LIMITED, at=101.0)
    for _ in range(5000):
        hear(ledger, OK, at=200.0)
    assert ledger.ceiling == 16 * MILLI


def test_a_call_wider_than_what_was_learned_goes_alone() -> None:
    ledger = an_api(least=1 * MILLI)
    for n in range(6):
        hear(ledger, LIMITED, at=200.0 + 100 * n)
    ledger.advance(1000.0)
    assert ledger.ceiling == MILLI
    assert ledger.fits((5 * MILLI,))
    assert not ledger.fits((5 * MILLI, MILLI))
    ledger.allocate("wide", 5 * MILLI)
    assert not may_go(ledger)


def test_failures_in_a_row_open_the_circuit() -> None:
    ledger = an_api(breaker=Breaker(failures=3, cooldown_seconds=5.0))
    hear(ledger, FAILING, FAILING, OK, FAILING, FAILING, at=100.0)
    assert may_go(ledger)
    hear(ledger, FAILING, at=100.0)
    assert not may_go(ledger, 104.9)
    assert "circuit is open" in ledger.hindrance(104.9)
    assert ledger.ready_at(MILLI) == 105.0


def opened() -> ApiLedger:
    ledger = an_api(breaker=Breaker(failures=2, cooldown_seconds=5.0, longest_seconds=12.0))
    hear(ledger, FAILING, FAILING, at=100.0)
    ledger.advance(105.0)
    return ledger


def test_one_call_at_a_time_probes_a_half_open_circuit() -> None:
    ledger = opened()
    assert not ledger.fits((MILLI, MILLI))
    ledger.allocate("probe", MILLI)
    assert not may_go(ledger)
    assert ledger.ready_at(MILLI) is None
    assert "one call probes" in ledger.hindrance(105.0)


def test_a_good_probe_closes_the_circuit() -> None:
    ledger = opened()
    ledger.allocate("probe", MILLI)
    hear(ledger, OK, at=106.0, granted_at=105.0)
    assert ledger.fits((MILLI, MILLI, MILLI))


def test_each_failed_probe_doubles_the_rest_up_to_the_longest() -> None:
    ledger, now, rests = opened(), 105.0, []
    for _ in range(3):
        ledger.advance(now)
        ledger.allocate("probe", MILLI)
        hear(ledger, FAILING, at=now)
        ledger.release("probe")
        ready = ledger.ready_at(MILLI)
        assert ready is not None
        rests.append(ready - now)
        now = ready
    assert rests == [10.0, 12.0, 12.0]


def test_a_probe_without_a_report_makes_room_for_another() -> None:
    ledger = opened()
    ledger.allocate("probe", MILLI)
    ledger.release("probe")
    assert may_go(ledger)


def test_calls_under_way_when_the_circuit_opened_decide_nothing() -> None:
    ledger = opened()
    hear(ledger, FAILING, FAILING, at=105.0, granted_at=99.0)
    assert may_go(ledger)
    hear(ledger, OK, at=105.0, granted_at=99.0)
    assert not ledger.fits((MILLI, MILLI))


def test_an_unreachable_api_is_not_tried_again_at_once() -> None:
    ledger = an_api()
    hear(ledger, UNREACHABLE, at=100.0)
    assert ledger.ready_at(MILLI) == pytest.approx(100.1)


def test_one_budget_is_there_for_all() -> None:
    ledger = an_api(retries=Retries(attempts=3, ratio=0.5, burst=2))
    assert [ledger.take_retry(1) for _ in range(2)] == ["", ""]
    assert "budget of api:search is used up" in ledger.take_retry(1)
    hear(ledger, OK, at=100.0)
    assert ledger.take_retry(1)
    hear(ledger, OK, at=100.0)
    assert ledger.take_retry(1) == ""
    assert "3 of 3 attempts" in ledger.take_retry(3)


ANYTHING = st.lists(
    st.tuples(
        st.sampled_from([OK, OK, LIMITED, FAILING, UNREACHABLE]),
        st.sampled_from([0.0, 0.1, 1.0, 40.0]),
        st.booleans(),
    ),
    max_size=60,
)


@given(history=ANYTHING)
def test_a_restored_pace_goes_on_unchanged_and_nothing_is_closed_for_ever(history) -> None:
    limits = Limits(least=2 * MILLI, breaker=Breaker(failures=2))
    ledger, now = an_api(least=2 * MILLI, breaker=Breaker(failures=2)), 100.0
    for feedback, passed, taken in history:
        now += passed
        ledger.advance(now)
        if taken and may_go(ledger):
            ledger.release("h")
            ledger.allocate("h", MILLI)
        hear(ledger, feedback, at=now)
    again = ApiLedger(ResourceId("api:search"), ResourceInventory(16 * MILLI, limits=limits))
    for holder, allocation in ledger.holders().items():
        again.adopt(holder, allocation)
    again.recall(ledger.remember())
    for later in (now, now + 0.2, now + 70.0):
        assert may_go(again, later) == may_go(ledger, later)
        assert again.ready_at(MILLI) == ledger.ready_at(MILLI)
    ledger.release("h")
    assert may_go(ledger, now + 3601.0)
