"""Rows of rollouts say what the journal said, however it is cut and however often it comes."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from domain.backends import LlmBackend
from domain.decisions import (
    AssignRollout,
    FinishRollout,
    ParkRollout,
    ResumeRollout,
    WithdrawRollout,
)
from domain.event_base import RequestOrigin
from domain.rollout_events import (
    BackendsChanged,
    ProgressReport,
    RolloutCancelRequested,
    RolloutParkRequested,
    RolloutResumeRequested,
    RolloutsProgressed,
    RolloutsSubmitted,
)
from domain.rollouts import (
    Rollout,
    RolloutId,
    RolloutOutcome,
    RolloutProgress,
    RolloutResult,
    Stage,
    StageTimes,
    new_rollout_id,
)
from tangram_web.audit.models import AuditEntry
from tangram_web.records.models import ProjectionPosition, RolloutRecord
from tangram_web.records.projection import project
from tangram_web.records.retention import cutoff, forgotten_seq, prune
from tangram_web.records.rollout_rows import BLANK_ROLLOUT, KEPT_ATTEMPTS
from tests.integration.web.journal import OFFSET, Journal
from tests.tiers import by_tier

pytestmark = pytest.mark.django_db


@pytest.fixture
def journal() -> Journal:
    return Journal()


def an_id(number: int) -> RolloutId:
    return new_rollout_id(1_700_000_000_000 + number, number.to_bytes(8, "big"))


def a_rollout(number: int = 1, **fields: Any) -> Rollout:
    return Rollout(id=an_id(number), project="default", task="grpo", handler="math", **fields)


def assigned(rollout: Rollout, attempt: int = 1, worker: str = "w1") -> AssignRollout:
    return AssignRollout(rollout, worker, 1, attempt)


def progressed(rollout: Rollout, attempt: int = 1, **fields: Any) -> RolloutsProgressed:
    report = ProgressReport(rollout.id, attempt, RolloutProgress(**fields))
    return RolloutsProgressed(worker="w1", reports=(report,))


def finished(
    rollout: Rollout, outcome: RolloutOutcome = RolloutOutcome.COMPLETED, **fields: Any
) -> FinishRollout:
    return FinishRollout(
        rollout_id=rollout.id, project="default", task="grpo", attempts=2, worker="w2",
        result=RolloutResult(outcome, **fields), queue_seconds=0.5, total_seconds=3.0,
    )  # fmt: skip


def wall(at: float) -> datetime:
    return datetime.fromtimestamp(OFFSET + at, UTC)


def the_row() -> RolloutRecord:
    return RolloutRecord.objects.get()


def test_a_blank_row_has_each_column_of_the_table():
    columns = [field.column for field in RolloutRecord._meta.concrete_fields]
    assert list(BLANK_ROLLOUT) == columns


def test_a_rollout_is_stored_with_its_whole_life(journal):
    rollout = a_rollout(
        group="g", sample=3, llm="policy", priority=2, instance="astropy-1", door="prorl",
        metadata={"k": [1]},
    )  # fmt: skip
    journal.write([RolloutsSubmitted(rollouts=(rollout,))], [assigned(rollout)])
    journal.write([progressed(rollout, stage=Stage.RUN, turns=4, tokens=99, awaited="act_1")])
    journal.write([], [finished(
        rollout, reward=0.5, times=(StageTimes(Stage.RUN, 1.0, 2.0, 1),), turns=5, prompt_tokens=70,
        response_tokens=40, weights_versions=(3, 4),
    )])  # fmt: skip

    project(journal.entries[:2])
    row = the_row()
    assert (row.state, row.worker, row.attempt, row.stage) == ("assigned", "w1", 1, "run")
    assert (row.turns, row.tokens, row.awaited) == (4, 99, "act_1")
    project(journal.entries)

    row = the_row()
    assert (row.group, row.sample, row.llm, row.priority) == ("g", 3, "policy", 2)
    assert (row.instance, row.door, row.metadata) == ("astropy-1", "prorl", {"k": [1]})
    assert (row.state, row.outcome, row.reward, row.stage) == ("finished", "completed", 0.5, None)
    assert (row.worker, row.attempt, row.turns, row.tokens) == ("w2", 2, 5, 110)
    assert (row.submitted_at, row.began_at) == (wall(1000.5), wall(1000.5))
    assert (row.finished_at, row.queue_seconds, row.total_seconds) == (wall(1001.5), 0.5, 3.0)
    assert row.times == [
        {"stage": "run", "queued_seconds": 1.0, "active_seconds": 2.0, "attempts": 1}
    ]
    assert (row.first_version, row.last_version) == (3, 4)
    assert row.finished_seq == 3 * 65536


def test_a_rollout_that_lost_its_worker_waits_with_the_reason(journal):
    rollout = a_rollout()
    journal.write([RolloutsSubmitted(rollouts=(rollout,))], [assigned(rollout)])
    journal.write([], [
        WithdrawRollout(rollout.id, "w1", 1, 1, "its worker is silent"),
        ResumeRollout(rollout.id, "its worker is silent"),
    ])  # fmt: skip

    project(journal.entries)

    row = the_row()
    assert (row.state, row.worker, row.reason) == ("waiting", "", "its worker is silent")


def test_a_row_names_the_worker_of_each_attempt_with_its_times_and_why_it_ended(journal):
    rollout = a_rollout()
    silent, later = "its worker is silent", "parked by request"
    journal.write([RolloutsSubmitted(rollouts=(rollout,))], [assigned(rollout)])
    journal.write([], [
        WithdrawRollout(rollout.id, "w1", 1, 1, silent), ResumeRollout(rollout.id, silent),
        assigned(rollout, 2, "w2"),
    ])  # fmt: skip
    journal.write([], [
        WithdrawRollout(rollout.id, "w2", 1, 2, later, parked=True), ParkRollout(rollout.id, later),
    ])  # fmt: skip
    project(journal.entries)
    journal.write([], [ResumeRollout(rollout.id), assigned(rollout, 3, "w1")])
    journal.write([], [finished(rollout, reward=1.0)])
    project(journal.entries)

    began = the_row().began_at
    assert began is not None
    base = began.timestamp()
    found = [
        (each["attempt"], each["worker"], each["at"] - base, each["until"] - base, each["reason"])
        for each in the_row().attempts
    ]
    assert found == [
        (1, "w1", 0.0, 0.5, silent), (2, "w2", 0.5, 1.0, later), (3, "w1", 1.5, 2.0, "completed"),
    ]  # fmt: skip


def test_a_row_keeps_the_latest_attempts_alone(journal):
    rollout = a_rollout()
    journal.write([RolloutsSubmitted(rollouts=(rollout,))])
    for attempt in range(1, KEPT_ATTEMPTS + 3):
        journal.write([], [assigned(rollout, attempt), ParkRollout(rollout.id, "x" * 5000)])
    project(journal.entries)

    kept = the_row().attempts
    assert [each["attempt"] for each in kept] == list(range(3, KEPT_ATTEMPTS + 3))
    assert max(len(each["reason"]) for each in kept) == 300


def test_a_row_counts_how_often_its_rollout_was_parked(journal):
    rollout = a_rollout()
    journal.write([RolloutsSubmitted(rollouts=(rollout,))], [ParkRollout(rollout.id, "later")])
    project(journal.entries)
    assert (the_row().state, the_row().parked_times) == ("parked", 1)
    journal.write([], [ResumeRollout(rollout.id, ""), ParkRollout(rollout.id, "later")])
    journal.write(
        [], [ResumeRollout(rollout.id, ""), assigned(rollout), finished(rollout, reward=1.0)]
    )
    project(journal.entries)

    assert (the_row().state, the_row().parked_times) == ("finished", 2)


def test_progress_of_an_earlier_attempt_changes_nothing(journal):
    rollout = a_rollout()
    journal.write([RolloutsSubmitted(rollouts=(rollout,))], [assigned(rollout)])
    journal.write([], [assigned(rollout, 2, "w2")])
    journal.write([progressed(rollout, attempt=1, turns=9)])

    project(journal.entries)

    assert (the_row().turns, the_row().worker) == (0, "w2")


def test_a_finished_rollout_never_changes_and_only_a_completed_one_has_a_reward(journal):
    rollout = a_rollout()
    journal.write([RolloutsSubmitted(rollouts=(rollout,))])
    journal.write([], [finished(rollout, RolloutOutcome.TIMEOUT, reward=1.0)])
    journal.write([RolloutsSubmitted(rollouts=(rollout,))], [assigned(rollout, 9)])
    journal.write([], [finished(rollout, reward=1.0)])

    project(journal.entries)

    row = the_row()
    assert (row.outcome, row.reward, row.attempt) == ("timeout", None, 2)


def test_a_text_that_postgresql_refuses_is_stored_without_the_null(journal):
    rollout = a_rollout(instance="a\0b")
    journal.write([RolloutsSubmitted(rollouts=(rollout,))])
    journal.write([], [finished(rollout, RolloutOutcome.FAILED, reason="boom\0")])

    project(journal.entries)

    assert (the_row().instance, the_row().reason) == (
        "a\N{REPLACEMENT CHARACTER}b",
        "boom\N{REPLACEMENT CHARACTER}",
    )


ROLLOUTS = tuple(a_rollout(number) for number in range(3))
HAPPENINGS = st.one_of(
    st.builds(
        lambda rollout, attempt, kind: {
            "submit": (RolloutsSubmitted(rollouts=(rollout,)), None),
            "assign": (None, assigned(rollout, attempt)),
            "progress": (progressed(rollout, attempt, turns=attempt), None),
            "withdraw": (None, WithdrawRollout(rollout.id, "w1", 1, attempt, "lost")),
            "resume": (None, ResumeRollout(rollout.id, "lost")),
            "park": (None, ParkRollout(rollout.id, "parked by request")),
            "finish": (None, finished(rollout, reward=1.0)),
            "fail": (None, finished(rollout, RolloutOutcome.FAILED, reason="boom")),
        }[kind],
        st.sampled_from(ROLLOUTS),
        st.integers(1, 2),
        st.sampled_from("submit assign progress withdraw resume park finish fail".split()),
    )
)


def rows() -> list[Any]:
    return list(RolloutRecord.objects.order_by("id").values())


@settings(
    max_examples=by_tier(25, 60, 600),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(cycles=st.lists(st.lists(HAPPENINGS, max_size=4), max_size=8), data=st.data())
def test_any_split_of_the_journal_leads_to_the_same_rows(db, cycles, data):
    journal = Journal()
    for cycle in cycles:
        journal.write(
            [event for event, _ in cycle if event is not None],
            [decision for _, decision in cycle if decision is not None],
        )
    found = []
    for at_once in (True, False):
        RolloutRecord.objects.all().delete()
        ProjectionPosition.objects.all().delete()
        rest = journal.entries
        while rest:
            size = len(rest) if at_once else data.draw(st.integers(1, len(rest)))
            project(rest[:size])
            if not at_once and data.draw(st.booleans()):
                project(rest[:size])
            rest = rest[size:]
        found.append(rows())

    assert found[0] == found[1]


def test_requests_through_the_gateway_are_audited(journal):
    asked = RequestOrigin(by="trainer", request_id="r1")
    rollout = an_id(1)
    backend = LlmBackend(name="b1", address="http://b1:8000", seats=4)
    journal.write([
        RolloutCancelRequested(rollout_id=rollout, project="default", reason="why", asked=asked),
        RolloutParkRequested(rollout_id=rollout, project="default", asked=asked),
        RolloutResumeRequested(rollout_id=rollout, project="default", asked=asked),
        BackendsChanged(pool="policy", clear=True, put=(backend,), asked=asked),
        RolloutCancelRequested(rollout_id=rollout, project="default"),
    ])  # fmt: skip

    project(journal.entries)

    entries = AuditEntry.objects.order_by("pk").values_list("verb", "target", "project", "after")
    target = f"rollout/{rollout}"
    assert list(entries) == [
        ("cancel", target, "default", {"reason": "why"}),
        ("park", target, "default", {"reason": "parked by request"}),
        ("resume", target, "default", {}),
        ("change", "backends/policy", "", {
            "clear": True, "put": [{"name": "b1", "address": "http://b1:8000", "seats": 4}],
        }),
    ]  # fmt: skip


def test_old_rollouts_are_deleted_and_their_completions_are_marked_as_gone():
    now = datetime.now(UTC)

    def stored(days: float, seq: int | None) -> str:
        at = now - timedelta(days=days)
        name = new_rollout_id(int(at.timestamp() * 1000), (seq or 9).to_bytes(8, "big"))
        RolloutRecord.objects.create(
            id=name, project="default", task="t", submitted_at=at,
            finished_at=None if seq is None else at, finished_seq=seq,
        )  # fmt: skip
        return name

    stored(40, 7)
    live, recent = stored(40, None), stored(1, 8)

    prune(cutoff(30))

    assert set(RolloutRecord.objects.values_list("id", flat=True)) == {live, recent}
    assert (forgotten_seq(rollouts=True), forgotten_seq()) == (7, 0)
