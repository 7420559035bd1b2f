"""Retention: old finished rows are deleted; live, recent and summed-up ones stay."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from io import StringIO

import pytest
from django.core.management import CommandError, call_command

from domain.errors import Gone
from domain.ids import action_id
from tangram_web.records.models import ActionRecord, TrajectoryRecord
from tangram_web.records.retention import cutoff, forgotten_seq, prune
from tangram_web.records.selectors import completions

pytestmark = pytest.mark.django_db

NOW = datetime.now(UTC)


def action(days_old: float, seq: int, *, finished: bool = True) -> str:
    at = NOW - timedelta(days=days_old)
    record = ActionRecord.objects.create(
        id=action_id(int(at.timestamp() * 1000), seq.to_bytes(8, "big")),
        project="default", task="t", kind="noop", submitted_at=at,
        state="finished" if finished else "running",
        outcome="completed" if finished else None,
        finished_at=at if finished else None,
        finished_seq=seq if finished else None,
    )  # fmt: skip
    return record.id


def left() -> set[str]:
    return set(ActionRecord.objects.values_list("id", flat=True))


def test_only_what_ended_before_the_cutoff_goes() -> None:
    old, live, recent = action(40, 1), action(40, 2, finished=False), action(1, 3)
    assert prune(cutoff(30)) == (1, 0)
    assert left() == {live, recent}
    assert old not in left()


def test_many_rows_go_in_batches_and_between_them_it_can_be_stopped() -> None:
    for seq in range(1, 8):
        action(40, seq)
    asked = iter([True, True, False])
    assert prune(cutoff(30), batch=3, keep_running=lambda: next(asked, False)) == (6, 0)
    assert len(left()) == 1


def test_a_long_action_that_ended_lately_stays() -> None:
    name = action(40, 1)
    ActionRecord.objects.filter(id=name).update(finished_at=NOW)
    assert prune(cutoff(30)) == (0, 0)


def test_a_cursor_before_deleted_rows_is_refused_with_the_reason() -> None:
    for seq, days in ((10, 40), (20, 35), (30, 1)):
        action(days, seq)
    prune(cutoff(30))
    assert forgotten_seq() == 20
    assert [view.id for view in completions(None, 20, 10).items] == list(left())
    assert len(completions(None, 0, 10).items) == 1
    with pytest.raises(Gone, match="start without a cursor"):
        completions(None, 10, 10)


def test_trajectories_go_when_they_are_finished_and_old() -> None:
    for name, state, days in (("a", "finished", 40), ("b", "open", 40), ("c", "finished", 1)):
        at = NOW - timedelta(days=days)
        TrajectoryRecord.objects.create(
            key=f"default/{name}", project="default", name=name, task="t", state=state,
            opened_at=at, finished_at=at if state == "finished" else None,
        )  # fmt: skip
    assert prune(cutoff(30)) == (0, 1)
    assert set(TrajectoryRecord.objects.values_list("name", flat=True)) == {"b", "c"}


def test_the_command_says_what_would_go_and_then_does_it() -> None:
    action(40, 1)
    said = StringIO()
    call_command("prune", "--days", "30", "--dry-run", stdout=said)
    assert "1 actions and 0 trajectories would be deleted" in said.getvalue()
    assert len(left()) == 1
    call_command("prune", "--days", "30", stdout=said)
    assert not left()


@pytest.mark.parametrize("days", ["0", "-1", "nan", "1e9"])
def test_a_senseless_age_is_refused(days: str) -> None:
    with pytest.raises(CommandError, match="--days"):
        call_command("prune", f"--days={days}")
