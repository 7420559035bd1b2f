"""Poison messages: search for the event that makes the core raise, its substitute, and the batch after it."""

from __future__ import annotations

import pytest

from domain.action import Action, Kind, Outcome
from domain.codec import encode
from domain.decisions import AssignRollout, Finish, FinishRollout
from domain.events import (
    ActionFinished,
    ActionStarted,
    ActionSubmitted,
    ChunkReport,
    Event,
    FileRequested,
    LeaseReleased,
)
from domain.ids import ActionId
from domain.rollout_events import RolloutFinished, RolloutsSubmitted, RolloutWorkerJoined
from domain.rollouts import Rollout, RolloutId, RolloutOutcome, RolloutResult
from scheduler.runtime.loop.inbox import InboxMessage
from scheduler.runtime.loop.poison_messages import (
    ALL_FROM,
    FIRST_PAUSE_SECONDS,
    LONGEST_PAUSE_SECONDS,
    MOST_IN_A_ROW,
    WELL_SECONDS,
    Caution,
    CoreRaised,
    stand_in,
)
from tests.builders import START, a_machine

A = ActionId("act_1")
SUBMITTED = ActionSubmitted(
    action=Action(id=A, project="default", task="t", kind=Kind.NOOP), lag_seconds=2.0
)
STARTED = ActionStarted(action_id=A, node="n1")
FINISHED = ActionFinished(
    action_id=A, node="n1", outcome=Outcome.COMPLETED, reward=1.0, chunk=ChunkReport(stuck=(1,))
)
RELEASED = LeaseReleased(action_id=A, project="default")
FILE = FileRequested(
    project="default", trajectory="x", request_id="r", verb="get", path="p", reply_to="web"
)


def raised(*messages: Event, over: Event | None = None, alone: bool = False) -> CoreRaised:
    error = CoreRaised(messages, over, alone)
    error.__cause__ = ValueError("poison")
    return error


def lone(message: Event, *, handler: bool = True) -> CoreRaised:
    return raised(message, over=message if handler else None, alone=True)


def test_less_is_taken_until_one_is_left_and_all_again_when_all_is_well() -> None:
    care, taken = Caution(), [SUBMITTED] * 20
    limits = []
    while care.limit != 1:
        care.take_less(raised(*taken[: care.limit]))
        limits.append(care.limit)
    assert limits == [10, 5, 2, 1]
    for _ in range(ALL_FROM.bit_length()):
        care.went_well([], all_taken=False)
    assert care.limit is None


def test_messages_before_a_handler_that_raised_are_taken_next() -> None:
    care, bad = Caution(), ActionStarted(action_id=A, node="n2")
    care.take_less(raised(STARTED, RELEASED, bad, FINISHED, over=bad))
    assert care.limit == 2
    care.take_less(raised(bad, FINISHED, over=bad))
    assert care.limit == 1


def test_the_search_is_over_when_nothing_waits() -> None:
    care = Caution(limit=1)
    care.went_well([], all_taken=True)
    assert care.limit is None


@pytest.mark.parametrize(
    ("error", "blamed"),
    [
        (lone(SUBMITTED), True),
        (lone(FINISHED), True),
        (lone(SUBMITTED, handler=False), True),
        (lone(FINISHED, handler=False), False),
        (lone(RELEASED, handler=False), False),
        (raised(SUBMITTED, over=SUBMITTED), False),
        (raised(SUBMITTED, STARTED, over=SUBMITTED, alone=True), False),
        (raised(alone=True), False),
    ],
    ids=[
        "a submission", "a report", "a submission that cannot be planned",
        "a report before a plan", "a lease before a plan",
        "what was not alone", "one of two", "none",
    ],
)  # fmt: skip
def test_only_what_is_proven_is_blamed(error: CoreRaised, blamed: bool) -> None:
    assert Caution().may_blame(error) is blamed


def test_too_many_of_a_kind_in_a_row_are_not_to_blame() -> None:
    """1. So many were blamed. 2. No more, but one after each pause. 3. One of them goes well."""
    care, handed = Caution(), InboxMessage("1-0", b"0", encode(SUBMITTED))
    for _ in range(MOST_IN_A_ROW):
        assert care.may_blame(lone(SUBMITTED))
        care.condemn(handed, lone(SUBMITTED), 0.0)
        care.went_well([STARTED], all_taken=False)
    assert not care.may_blame(lone(SUBMITTED))
    assert care.may_blame(lone(FINISHED))
    assert care.may_blame(lone(SUBMITTED))
    care.condemn(handed, lone(SUBMITTED), 0.0)
    assert not care.may_blame(lone(SUBMITTED))
    care.went_well([SUBMITTED], all_taken=False)
    assert care.may_blame(lone(SUBMITTED))
    care.condemn(handed, lone(SUBMITTED), 0.0)
    assert care.may_blame(lone(SUBMITTED))


def test_messages_of_an_ordinary_pass_count_too() -> None:
    care = Caution()
    care.condemn(InboxMessage("1-0", b"0", encode(SUBMITTED)), lone(SUBMITTED), 0.0)
    assert care.in_a_row
    care.went_well([STARTED, SUBMITTED], all_taken=False)
    assert not care.in_a_row
    assert care.limit is None


def test_the_letter_says_what_was_raised_and_whether_it_is_settled() -> None:
    for message, settled in ((SUBMITTED, True), (FILE, True), (RELEASED, False)):
        handed = InboxMessage("5-0", b"3", encode(message))
        condemned = Caution().condemn(handed, lone(message), 7.0)
        letter = condemned.letter
        assert (letter.name, letter.at, letter.settled) == ("inbox|5-0|3", 7.0, settled)
        assert letter.reason == "made the core raise ValueError: poison"
        assert letter.body == handed.body


def test_a_submission_that_is_set_aside_ends_at_once() -> None:
    instead = stand_in(SUBMITTED, "why")
    assert instead is not None
    instead.at = START
    machine = a_machine()
    (end,) = machine.handle(instead)
    assert isinstance(end, Finish)
    assert (end.action_id, end.outcome, end.detail) == (A, Outcome.INFRA_FAILED, "why")
    assert end.timing.act_seconds == 2.0
    assert not machine.state.actions


def test_a_report_that_is_set_aside_keeps_the_news_of_gpu_memory() -> None:
    instead = stand_in(FINISHED, "why")
    assert isinstance(instead, ActionFinished)
    assert (instead.outcome, instead.reward) == (Outcome.UNKNOWN, None)
    assert instead.chunk == FINISHED.chunk


def test_rollouts_whose_messages_are_set_aside_end_as_infra_failed() -> None:
    rollouts = tuple(
        Rollout(id=RolloutId(f"rol_{n:028x}"), project="default", task="t", handler="math")
        for n in range(2)
    )
    machine = a_machine()
    instead = stand_in(RolloutsSubmitted(rollouts=rollouts), "why")
    assert instead is not None
    instead.at = START

    ends = [end for end in machine.handle(instead) if isinstance(end, FinishRollout)]

    assert [end.result.outcome for end in ends] == [RolloutOutcome.INFRA_FAILED] * 2
    assert not machine.state.rollouts.live


def test_the_end_of_a_rollout_that_is_set_aside_has_no_reward() -> None:
    rollout = Rollout(id=RolloutId("rol_" + 28 * "0"), project="default", task="t", handler="m")
    machine = a_machine()
    (assigned,) = machine.handle(
        RolloutWorkerJoined(worker="w1", incarnation=1, slots=1, at=START),
        RolloutsSubmitted(rollouts=(rollout,), at=START),
    )
    assert isinstance(assigned, AssignRollout)
    result = RolloutResult(RolloutOutcome.COMPLETED, reward=1.0)
    instead = stand_in(
        RolloutFinished(rollout_id=rollout.id, worker="w1", attempt=1, result=result), "why"
    )
    assert instead is not None
    instead.at = START

    ends = [end for end in machine.handle(instead) if isinstance(end, FinishRollout)]

    (end,) = ends
    assert (end.result.outcome, end.result.reward, end.result.reason) == (
        RolloutOutcome.INFRA_FAILED, None, "why",
    )  # fmt: skip


def test_pauses_grow_and_are_reset_after_quiet() -> None:
    care, now = Caution(), 1000.0
    pauses = []
    for _ in range(8):
        pauses.append(care.pause_seconds(now))
        now += pauses[-1] + 1.0
    assert pauses[:4] == [FIRST_PAUSE_SECONDS * 2**n for n in range(4)]
    assert pauses[-1] == LONGEST_PAUSE_SECONDS
    assert care.pause_seconds(now + LONGEST_PAUSE_SECONDS + WELL_SECONDS) == FIRST_PAUSE_SECONDS
