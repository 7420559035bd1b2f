"""The life of a service on a chunk, and the lock that keeps it awake."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from domain.errors import Conflict
from domain.services import SERVICE_TRANSITIONS
from domain.services import ServiceEvent as Event
from domain.services import ServiceState as State
from managers.gpu.service_instance import ServiceInstance

UP = (Event.PREPARED, Event.RESTORE_BEGAN, Event.RESTORED)


def an_instance(*happened: Event) -> ServiceInstance:
    instance = ServiceInstance("reward", (0, 1), expected_restore_seconds=5.0)
    for event in happened:
        instance.handle(event, 0.0)
    return instance


def test_a_service_is_prepared_restored_drained_and_restored_again() -> None:
    instance = an_instance()
    seen = [
        instance.handle(event, 0.0)
        for event in (*UP, Event.DRAIN_BEGAN, Event.EVICTED, Event.RESTORE_BEGAN, Event.RESTORED)
    ]
    assert seen == [
        State.HOST_RESIDENT, State.RESTORING, State.RESIDENT, State.DRAINING, State.HOST_RESIDENT,
        State.RESTORING, State.RESIDENT,
    ]  # fmt: skip


@pytest.mark.parametrize("state", State, ids=str)
def test_from_every_state_there_is_a_way_to_an_answer(state: State) -> None:
    seen, todo = set(), [state]
    while todo:
        seen.add(at := todo.pop())
        todo += set(SERVICE_TRANSITIONS[at].values()) - seen
    assert State.RESIDENT in seen


def test_an_impossible_transition_raises_and_changes_nothing() -> None:
    instance = an_instance(*UP)
    with pytest.raises(Conflict, match="is resident, so not restored"):
        instance.handle(Event.RESTORED, 1.0)
    assert (instance.state, instance.restores) == (State.RESIDENT, 1)


def test_a_locked_service_is_not_drained() -> None:
    instance = an_instance(*UP)
    instance.lock("act_1")
    assert not instance.evictable
    with pytest.raises(Conflict, match="locked by act_1"):
        instance.handle(Event.DRAIN_BEGAN, 1.0)
    instance.unlock("act_1")
    assert instance.handle(Event.DRAIN_BEGAN, 1.0) is State.DRAINING


def test_a_service_that_is_leaving_cannot_be_locked() -> None:
    instance = an_instance(*UP, Event.DRAIN_BEGAN)
    with pytest.raises(Conflict, match="is leaving"):
        instance.lock("act_1")


def test_a_cancel_during_a_restore_leaves_it_cached() -> None:
    instance = an_instance(Event.RESTORE_BEGAN)
    instance.lock("act_1")
    instance.unlock("act_1")
    instance.handle(Event.RESTORED, 2.0)
    assert instance.evictable
    assert not instance.serves("act_1")


def test_a_crash_ends_serving_and_keeps_the_lock_for_the_next_life() -> None:
    instance = an_instance(*UP)
    instance.lock("act_1")
    instance.handle(Event.DIED, 1.0)
    assert (instance.state, instance.deaths, instance.serves("act_1")) == (State.COLD, 1, False)
    instance.handle(Event.RESTORE_BEGAN, 1.0)
    instance.handle(Event.RESTORED, 2.0)
    assert instance.serves("act_1")


def test_measured_restores_replace_the_declared_time() -> None:
    instance = an_instance()
    assert instance.seconds_until_served(0.0) == 5.0
    instance.handle(Event.RESTORE_BEGAN, 10.0)
    assert instance.seconds_until_served(11.0) == 4.0
    instance.handle(Event.RESTORED, 12.0)
    assert (instance.restore_seconds, instance.seconds_until_served(12.0)) == (2.0, 0.0)
    instance.handle(Event.DRAIN_BEGAN, 20.0)
    instance.handle(Event.EVICTED, 20.0)
    instance.handle(Event.RESTORE_BEGAN, 20.0)
    instance.handle(Event.RESTORED, 24.0)
    assert instance.restore_seconds == pytest.approx(2.6)


STEPS = st.lists(
    st.one_of(
        st.sampled_from(Event), st.tuples(st.sampled_from(["lock", "unlock"]), st.integers(0, 2))
    ),
    max_size=40,
)


@given(STEPS)
def test_no_request_reaches_a_sleeping_service_and_no_lock_is_passed_over(steps) -> None:
    instance = an_instance()
    locks: set[str] = set()
    for at, step in enumerate(steps):
        before = instance.state
        try:
            if isinstance(step, Event):
                instance.handle(step, float(at))
            else:
                verb, number = step
                getattr(instance, verb)(f"h{number}")
                (locks.add if verb == "lock" else locks.discard)(f"h{number}")
        except Conflict:
            assert instance.state is before
        assert instance.locks == locks
        assert instance.state is not State.DRAINING or not locks
        for number in range(3):
            assert instance.serves(f"h{number}") == (
                instance.state is State.RESIDENT and f"h{number}" in locks
            )
