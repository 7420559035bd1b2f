"""However the journal is cut and however often it comes, the rows are the same."""

from __future__ import annotations

from typing import Any

import pytest
from django.db import connection, models
from django.test.utils import CaptureQueriesContext
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from domain.action import Action, Kind, Outcome
from domain.decisions import Requeue
from domain.events import (
    ActionStarted,
    ActionSubmitted,
    EnvironmentRemoved,
    TaskOpened,
    TrajectoryFinished,
    TrajectoryOpened,
)
from domain.ids import trajectory_key
from domain.ports import ExecResult
from tangram_web.records import projection
from tangram_web.records.models import (
    ActionRecord,
    EndRecord,
    NodeRecord,
    ProjectionPosition,
    StepRecord,
    TaskRecord,
    TrajectoryRecord,
)
from tangram_web.records.open_rows import OpenRows
from tangram_web.records.projection import START, position, project
from tests.integration.web.journal import (
    Entry,
    Journal,
    a_finish,
    a_grant,
    a_node,
    a_report,
    an_action,
)
from tests.tiers import by_tier

pytestmark = pytest.mark.django_db

TABLES = (
    ActionRecord, TaskRecord, TrajectoryRecord, NodeRecord, ProjectionPosition, StepRecord, EndRecord,
)  # fmt: skip
ACTIONS = tuple(
    an_action(number, kind=Kind.EXEC, trajectory=("trj", None)[number % 2], pool=("", "p")[number // 2],
              step=(7, None, 7, 8)[number])
    for number in range(4)
)  # fmt: skip


def rows() -> dict[str, list[Any]]:
    """Return all that is stored."""
    found = {}
    for table in TABLES:
        # Numbers that the database gives say in which order rows came.
        columns = [
            field.name
            for field in table._meta.concrete_fields
            if not isinstance(field, models.BigAutoField)
        ]
        found[table.__name__] = list(table.objects.order_by(*columns).values(*columns))
    return found


def wipe() -> None:
    for table in TABLES:
        table.objects.all().delete()


def events_of(action: Action, attempt: int, node: str) -> st.SearchStrategy[tuple[Any, Any]]:
    """Draw something that happens to ``action``, at its time or not."""
    report = a_report(action.id, node=node, attempt=attempt, result=ExecResult(attempt, "", ""))
    return st.sampled_from(
        [
            (ActionSubmitted(action=action, accepted_at=1.5), None),
            (ActionStarted(action_id=action.id, node=node, attempt=attempt), None),
            (report, None),
            (report, a_finish(action, Outcome.COMPLETED, reward=1.0)),
            (None, a_finish(action, Outcome.CANCELLED)),
            (None, a_grant(action.id, node, attempt=attempt)),
            (None, Requeue(action.id, "lost")),
            (None, None),
        ]
    )


HAPPENINGS = st.one_of(
    st.builds(
        events_of,
        st.sampled_from(ACTIONS),
        st.integers(1, 2),
        st.sampled_from(["n1", "n2"]),
    ).flatmap(lambda strategy: strategy),
    st.sampled_from(
        [
            (TrajectoryOpened(project="default", task="task-1", trajectory="trj", pool="q"), None),
            (TrajectoryFinished(project="default", trajectory="trj"), None),
            (EnvironmentRemoved(trajectory=trajectory_key("default", "trj"), node="n1"), None),
            (TaskOpened(project="default", task="task-1", pool="r"), None),
            (a_node("n1", incarnation=2), None),
        ]
    ),
)


@st.composite
def journals(draw: st.DrawFn) -> list[Entry]:
    """Draw a journal in which much happens too early, too late or twice."""
    journal = Journal()
    journal.write([ActionSubmitted(action=action) for action in ACTIONS[:2]])
    for cycle in draw(st.lists(st.lists(HAPPENINGS, max_size=4), max_size=8)):
        events = [event for event, _ in cycle if event is not None]
        decisions = [decision for _, decision in cycle if decision is not None]
        journal.write(events, decisions)
    return journal.entries


@st.composite
def cuts(draw: st.DrawFn) -> tuple[list[Entry], list[list[Entry]]]:
    """Draw a journal and batches of it that overlap as after crashes."""
    entries = draw(journals())
    batches = []
    done = 0
    while done < len(entries):
        start = draw(st.integers(0, done))
        done = draw(st.integers(done + 1, len(entries)))
        batches.append(entries[start:done])
    return entries, batches


@settings(
    max_examples=by_tier(37, 150, 1500),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(cuts(), st.integers(0, 4))
def test_any_split_of_a_journal_gives_the_same_rows(cut, most):
    entries, batches = cut
    wipe()
    project(entries)
    expected = rows()

    for open_rows in (None, OpenRows(most)):
        wipe()
        for batch in batches:
            project(batch, open_rows=open_rows)

        assert rows() == expected


@settings(
    max_examples=by_tier(12, 50, 500),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(journals())
def test_same_entries_again_change_nothing(entries):
    wipe()
    project(entries)
    expected = rows()

    project(entries)

    assert rows() == expected
    assert position() == entries[-1][0]


@settings(
    max_examples=by_tier(25, 100, 1000),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(cuts())
def test_finished_rows_never_change_and_only_completed_ones_have_a_reward(cut):
    _, batches = cut
    wipe()
    finished: dict[str, Any] = {}
    for batch in batches:
        project(batch)
        ended = ActionRecord.objects.exclude(outcome=None).in_bulk()
        for name, before in finished.items():
            after = ended[name]
            assert (after.outcome, after.reward, after.finished_seq) == before
        finished = {
            name: (row.outcome, row.reward, row.finished_seq) for name, row in ended.items()
        }
        assert all(row.state == "finished" for row in ended.values())
        assert all(row.reward is None or row.outcome == "completed" for row in ended.values())


def test_position_of_a_fresh_database_is_the_beginning_of_the_journal():
    assert position() == START


def test_a_crash_before_the_end_of_a_batch_leaves_neither_rows_nor_position(monkeypatch):
    journal = Journal()
    journal.run(an_action())

    def power_cut(*_: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as broken:
        broken.setattr(projection, "write_workloads", power_cut)
        with pytest.raises(KeyboardInterrupt):
            project(journal.entries)
    assert not ActionRecord.objects.exists()
    assert position() == START

    project(journal.entries)
    assert ActionRecord.objects.get().outcome == "completed"


def test_of_two_projectors_one_writes_a_batch():
    """1. It has read its place, and stands still. 2. Its successor writes the same. 3. It goes on."""
    journal = Journal()
    journal.run(an_action())
    project(journal.entries[:1])

    def meanwhile(_: Any) -> None:
        successors = ProjectionPosition.objects.filter(entry_id=journal.entries[0][0])
        successors.update(entry_id=journal.entries[-1][0])

    with pytest.raises(projection.Overtaken, match="is there a second projector"):
        project(journal.entries, also=meanwhile)
    assert position() == journal.entries[0][0]
    assert ActionRecord.objects.get().state == "queued"


def test_open_rows_are_read_again_after_another_projector_or_a_failure():
    """1. It has read its place. 2. Another one goes on. 3. It is stopped at its next batch."""
    journal, open_rows = Journal(), OpenRows()
    action = an_action()
    journal.write([ActionSubmitted(action=action)])
    journal.write([], [a_grant(action.id, "n1")])
    journal.write([], [Requeue(action.id, "lost")])
    journal.write([], [a_finish(action)])
    project(journal.entries[:1], open_rows=open_rows)
    project(journal.entries[:3])

    def fail(_: Any) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        project(journal.entries[3:], also=fail, open_rows=open_rows)
    project(journal.entries[3:], open_rows=open_rows)

    row = ActionRecord.objects.get()
    assert (row.outcome, row.detail) == ("completed", None)


def test_open_rows_need_no_query():
    journal, open_rows = Journal(), OpenRows()
    for number in range(2):
        journal.write([ActionSubmitted(action=an_action(number))])
    journal.write([], [a_grant(an_action(0).id, "n1"), a_grant(an_action(1).id, "n1")])
    project(journal.entries[:2], open_rows=open_rows)

    with CaptureQueriesContext(connection) as found:
        project(journal.entries[2:], open_rows=open_rows)

    asked = [each["sql"] for each in found if "SELECT" in each["sql"]]
    assert not [sql for sql in asked if "records_actionrecord" in sql]


def test_a_hole_in_the_journal_is_logged(caplog):
    journal = Journal()
    journal.run(an_action())
    project(journal.entries[:1])
    project(journal.entries[2:])
    assert "rows miss journal entries 2 to 2" in caplog.text
