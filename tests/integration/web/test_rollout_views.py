"""Rows of rollouts as the API shows them: the view of one, and the log of completions by cursor."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from domain.errors import Gone, InvalidRequest
from domain.rollouts import Stage, StageTimes, new_rollout_id
from tangram_web.records.models import Retention, RolloutRecord
from tangram_web.records.rollout_selectors import rollout_completions, rollout_view

pytestmark = pytest.mark.django_db
AT = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)


def stored(number: int, **fields: Any) -> str:
    """Store a rollout; with ``finished_seq`` it is finished."""
    ended = {"state": "finished", "outcome": "completed", "finished_at": AT}
    given = {**(ended if "finished_seq" in fields else {}), **fields}
    row = {"project": "default", "task": "t", "handler": "math", "submitted_at": AT, **given}
    name = new_rollout_id(1_700_000_000_000 + number, number.to_bytes(8, "big"))
    return RolloutRecord.objects.create(id=name, **row).id


def test_a_view_has_what_the_row_has() -> None:
    times = [{"stage": "run", "queued_seconds": 1.0, "active_seconds": 2.0, "attempts": 1}]
    name = stored(
        1,
        finished_seq=5,
        reward=0.5,
        times=times,
        first_version=3,
        last_version=4,
        metadata={"k": 1},
    )
    view = rollout_view(name)
    assert view is not None
    assert (view.outcome, view.reward, view.weights_versions) == ("completed", 0.5, (3, 4))
    assert view.times == [StageTimes(Stage.RUN, 1.0, 2.0, 1)]
    assert (view.metadata, view.finished_at) == ({"k": 1}, "2026-01-02T03:04:05Z")
    assert view.segments is None
    assert rollout_view("rol_missing") is None


def test_completions_go_on_after_their_cursor_and_keep_projects_apart() -> None:
    names = [stored(number, finished_seq=number) for number in (1, 2, 3)]
    stored(4)
    theirs = stored(5, finished_seq=5, project="other")
    first = rollout_completions("default", 0, 2)
    assert ([each.id for each in first.items], first.next, first.more) == (names[:2], "2", True)
    second = rollout_completions("default", int(first.next), 2)
    assert ([each.id for each in second.items], second.next, second.more) == (names[2:], "3", False)
    assert [each.id for each in rollout_completions(None, 3, 9).items] == [theirs]
    assert rollout_completions("default", 3, 9).next == "3"


def test_a_cursor_of_deleted_rows_is_refused() -> None:
    Retention.objects.create(name="rollouts", forgotten_seq=7)
    stored(1, finished_seq=9)
    with pytest.raises(Gone, match="up to 7"):
        rollout_completions(None, 3, 9)
    assert len(rollout_completions(None, 0, 9).items) == 1
    with pytest.raises(InvalidRequest):
        rollout_completions(None, 2**63, 9)
