"""Rows say what the journal said."""

from __future__ import annotations

from datetime import UTC, datetime

import msgspec
import pytest
from msgspec.structs import replace

from contract.requests import ActionRequest
from domain.action import EnvironmentSpec, ExecSpec, Kind, LeaseSpec, Outcome
from domain.allocation import Allocation, Placement, UsedResources
from domain.apis import CallResult, CallSpec
from domain.bodies import StoredBody
from domain.codec import encode
from domain.command_text import MASK
from domain.decisions import EndMove, ForkEnvironment, Grant, RemoveEnvironment, Renew, Resize
from domain.events import (
    EnvironmentRemoved,
    EnvironmentsForked,
    TaskOpened,
    TrajectoryFinished,
    TrajectoryOpened,
)
from domain.ids import ResourceId, trajectory_key
from domain.ports import ExecResult
from tangram_web.records.action_rows import BLANK
from tangram_web.records.models import ActionRecord, TaskRecord, TrajectoryRecord
from tangram_web.records.projection import project
from tangram_web.records.selectors import action_request, view_of
from tests.integration.web.journal import (
    OFFSET,
    Journal,
    a_finish,
    a_grant,
    a_report,
    an_action,
    an_id,
)

pytestmark = pytest.mark.django_db


@pytest.fixture
def journal() -> Journal:
    return Journal()


def wall(at: float) -> datetime:
    return datetime.fromtimestamp(OFFSET + at, UTC)


def test_blank_row_has_each_column_of_the_table():
    assert list(BLANK) == [field.column for field in ActionRecord._meta.concrete_fields]


def test_action_is_stored_with_its_whole_life(journal):
    action = an_action(
        kind=Kind.EXEC, trajectory="trj", step=3, group="g", family="f", priority=7,
        metadata={"k": [1]}, cost={"cpu": (1000, 4000)},
    )  # fmt: skip
    journal.run(action, result=ExecResult(3, "out", "err"), reward=0.5)

    project(journal.entries)

    row = ActionRecord.objects.get()
    assert (row.id, row.project, row.task, row.trajectory) == (
        action.id, "default", "task-1", "trj",
    )  # fmt: skip
    assert (row.step, row.group, row.family, row.priority) == (3, "g", "f", 7)
    assert (row.state, row.outcome, row.reward) == ("finished", "completed", 0.5)
    assert (row.cost, row.units, row.metadata) == ({"cpu": [1, 4]}, {"cpu": 1}, {"k": [1]})
    assert (row.node, row.cpus, row.attempt, row.exit_code) == ("n1", [0], 1, 3)
    output = {"exit_code": 3, "stdout": "out", "stderr": "err", "truncated": False}
    assert row.result == {**output, "stdout_bytes": 0, "stderr_bytes": 0, "used": None}
    assert (row.submitted_at, row.granted_at) == (wall(1000.5), wall(1001.0))
    assert (row.started_at, row.finished_at) == (wall(1001.5), wall(1002.0))
    assert (row.queue_seconds, row.overhead_seconds) == (0.5, 0.25)
    assert (row.execution_seconds, row.act_seconds) == (1.0, 1.75)
    assert row.finished_seq == 4 * 65536


def test_a_row_names_the_door_of_its_action(journal):
    through, native = an_action(1, door="e2b"), an_action(2)
    journal.submit(through, native)

    project(journal.entries)

    rows = [ActionRecord.objects.get(pk=each.id) for each in (through, native)]
    assert [row.door for row in rows] == ["e2b", None]
    assert [view_of(row).door for row in rows] == ["e2b", ""]


def test_a_row_names_the_submitter_of_its_action_where_the_journal_has_it(journal):
    named, earlier = an_action(1, by="trainer\0"), an_action(2)
    journal.submit(named, earlier)

    project(journal.entries)

    rows = [ActionRecord.objects.get(pk=each.id) for each in (named, earlier)]
    assert [row.submitted_by for row in rows] == ["trainer\N{REPLACEMENT CHARACTER}", None]
    requests = [action_request(row.pk) for row in rows]
    assert [each and each.submitted_by for each in requests] == [rows[0].submitted_by, None]


def test_the_request_of_an_action_is_read_from_its_row(journal):
    stored = StoredBody("0" * 64, 70_000)
    command = an_action(1, kind=Kind.EXEC, exec=ExecSpec(("deploy", "--token", "abc")))
    call = an_action(2, kind=Kind.CALL, call=CallSpec("api:search", stored_body=stored))
    journal.submit(command, call)
    project(journal.entries)

    first, second = (action_request(each.id) for each in (command, call))
    assert first is not None
    assert first.body is not None
    assert first.body["exec"] == {"command": ["deploy", "--token", MASK]}
    assert second is not None
    assert second.command == "POST api:search"
    assert "70,000 bytes" in str(second.obstacle)
    assert action_request(an_id(3)) is None


def test_a_resized_action_shows_its_units_and_what_they_were(journal):
    action = an_action(kind=Kind.EXEC, malleable=True, cost={"cpu": (1000, 2000)})
    journal.submit(action)
    journal.write([], [a_grant(action.id, cores=(0, 1))])
    held = Allocation(ResourceId("cpu:n1"), 1000, (1,))
    journal.write([], [Resize(action.id, "n1", 1, held, (held,))])
    project(journal.entries)
    row = ActionRecord.objects.get()
    assert (row.units, row.cpus, row.widths) == ({"cpu": 1}, [1], None)

    finish = replace(a_finish(action), resizes=1, widths=((0.0, 2000), (2.5, 1000)))
    journal.write([a_report(action.id)], [finish])
    project(journal.entries)

    assert ActionRecord.objects.get().widths == [[0.0, 2], [2.5, 1]]


def test_used_resources_are_in_the_row_and_its_view(journal):
    action = an_action(kind=Kind.EXEC, cost={"cpu": (1000,)})
    used = UsedResources(0.75, 0.25, 2**20)
    journal.submit(action)
    journal.write([], [a_grant(action.id)])
    journal.write([a_report(action.id)], [replace(a_finish(action), used=used)])

    project(journal.entries)

    row = ActionRecord.objects.get()
    assert row.used == {
        "cpu_seconds": 0.75, "throttled_seconds": 0.25, "peak_memory_bytes": 2**20,
    }  # fmt: skip
    assert view_of(row).used == used


def test_stored_request_can_be_submitted_again(journal):
    action = an_action(kind=Kind.EXEC, trajectory="t", cost={"cpu": (1000,)}, priority=2)
    journal.submit(action)

    project(journal.entries)

    spec = ActionRecord.objects.get().spec
    assert msgspec.convert(spec, ActionRequest).task == "task-1"
    assert spec == {
        "task": "task-1", "project": "default", "kind": "exec", "trajectory": "t",
        "priority": 2, "cost": {"cpu": [1]}, "exec": {"command": ["true"]},
    }  # fmt: skip


def test_action_that_starts_and_ends_between_reports_has_no_start(journal):
    action = an_action()
    journal.submit(action)
    journal.grant(action)
    journal.finish(action)

    project(journal.entries)

    row = ActionRecord.objects.get()
    assert row.started_at is None
    assert row.finished_at is not None


@pytest.mark.parametrize("outcome", [o for o in Outcome if o is not Outcome.COMPLETED])
def test_only_a_completed_action_has_a_reward(journal, outcome):
    action = an_action()
    journal.submit(action)
    journal.grant(action)
    journal.finish(action, outcome, reward=1.0)

    project(journal.entries)

    row = ActionRecord.objects.get()
    assert (row.outcome, row.reward) == (outcome.value, None)


def test_outcome_is_never_changed(journal):
    action = an_action()
    journal.run(action)
    journal.submit(action)
    journal.grant(action, attempt=2)
    journal.finish(action, Outcome.INFRA_FAILED)

    for entry in journal.entries:
        project([entry])

    row = ActionRecord.objects.get()
    assert (row.outcome, row.attempt, row.finished_seq) == ("completed", 1, 4 * 65536)
    assert TaskRecord.objects.get().finished == 1


def test_requeued_action_is_without_a_place(journal):
    action = an_action(replay_safe=True)
    journal.submit(action)
    journal.grant(action)
    journal.start(action)
    journal.requeue(action)

    project(journal.entries)

    row = ActionRecord.objects.get()
    assert (row.state, row.node, row.placement, row.units) == ("queued", None, None, {})
    assert row.granted_at is row.started_at is None


def test_late_reports_of_an_earlier_attempt_change_nothing(journal):
    action = an_action(kind=Kind.EXEC, replay_safe=True)
    journal.submit(action)
    journal.grant(action)
    journal.requeue(action)
    journal.grant(action, "n2", attempt=2)
    journal.start(action, "n1", attempt=1)
    journal.write([a_report(action.id, result=ExecResult(9, "", ""))])

    for entry in journal.entries:
        project([entry])

    row = ActionRecord.objects.get()
    assert (row.state, row.node, row.attempt) == ("granted", "n2", 2)
    assert row.result is row.exit_code is None


def test_lease_runs_from_its_grant_and_says_until_when(journal):
    action = an_action(kind=Kind.LEASE, cost={"api:demo": (1000,)}, lease=LeaseSpec(5.0))
    journal.submit(action)
    journal.write([], [Grant(action.id, None, (), expires_at=1006.0)])
    journal.write([], [Renew(action.id, 1008.5)])

    project(journal.entries)

    row = ActionRecord.objects.get()
    assert (row.state, row.node, row.placement) == ("running", None, None)
    assert row.started_at == row.granted_at
    assert row.result == {"expires_at": "2023-11-14T22:30:08.500000Z"}


def test_long_output_is_cut_and_says_so(journal):
    action = an_action(kind=Kind.EXEC)
    journal.run(action, result=ExecResult(0, "x" * 70_000, ""))

    project(journal.entries)

    result = ActionRecord.objects.get().result
    beginning, mark, end = result["stdout"].partition("\n[tangram: 4464 of 70000 characters")
    assert (set(beginning), bool(mark), end[-1]) == ({"x"}, True, "x")
    assert result["stdout"].count("x") == 65536
    assert result["truncated"] is True


def test_text_that_a_database_refuses_is_stored_readable(journal):
    action = an_action(kind=Kind.EXEC, group="a\0b", metadata={"k": "\0"})
    journal.run(action, result=ExecResult(0, "\0", ""))

    project(journal.entries)

    row = ActionRecord.objects.get()
    assert row.group == "a\N{REPLACEMENT CHARACTER}b"
    assert (row.metadata, row.result["stdout"]) == ({"k": "\0"}, "\0")


def test_task_and_trajectory_count_their_actions(journal):
    for number in range(3):
        journal.run(an_action(number, kind=Kind.EXEC, trajectory="trj"))
    journal.submit(an_action(7, kind=Kind.EXEC, trajectory="trj"))

    for entry in journal.entries:
        project([entry])

    for row in (TaskRecord.objects.get(), TrajectoryRecord.objects.get()):
        assert (row.actions, row.finished, row.external_seconds) == (4, 3, 5.25)


def test_trajectory_has_its_environment_node_and_end(journal):
    spec = EnvironmentSpec(image="swe:1", memory_bytes=5)
    journal.write(
        [
            TrajectoryOpened(
                project="default", task="t", trajectory="trj", environment=spec, metadata={"a": 1}
            )
        ]
    )
    journal.run(an_action(kind=Kind.EXEC, task="t", trajectory="trj"))
    journal.write([TrajectoryFinished(project="default", trajectory="trj")])
    journal.write([EnvironmentRemoved(trajectory=trajectory_key("default", "trj"), node="n1")])

    for entry in journal.entries:
        project([entry])

    row = TrajectoryRecord.objects.get()
    assert (row.key, row.name, row.task, row.node) == ("default/trj", "trj", "t", "n1")
    assert (row.environment, row.metadata) == ({"image": "swe:1", "memory_bytes": 5}, {"a": 1})
    assert (row.state, row.finished_at) == ("finished", wall(1003.0))
    assert row.environment_removed_at == wall(1003.5)


def test_a_moved_environment_has_its_new_node_and_is_not_over(journal):
    journal.run(an_action(kind=Kind.EXEC, task="t", trajectory="trj"))
    key = trajectory_key("default", "trj")
    journal.write([], [EndMove(key, "n1", 1, "n2", task="t")])
    journal.write([EnvironmentRemoved(trajectory=key, node="n1", copied=True)])

    for entry in journal.entries:
        project([entry])

    row = TrajectoryRecord.objects.get()
    assert (row.task, row.node, row.state) == ("t", "n2", "open")
    assert row.environment_removed_at is None


def test_forks_have_rows_with_their_source_and_failed_ones_end(journal):
    source, good, bad = (trajectory_key("default", name) for name in ("trj", "good", "bad"))
    spec = EnvironmentSpec(image="swe:1")
    for number, child in enumerate((good, bad)):
        order = ForkEnvironment(
            source, "n1", (child,), f"r{number}", "web", environment=spec, project="default",
            task="t", pool="default", metadata={"a": 1},
        )  # fmt: skip
        journal.write([], [order])
    for child, failed in ((good, ""), (bad, "full")):
        journal.write(
            [
                EnvironmentsForked(
                    source=source, node="n1", request_id="r0", children=(child,), failed=failed
                )
            ]
        )

    for entry in journal.entries:
        project([entry])

    rows = {row.name: row for row in TrajectoryRecord.objects.all()}
    row = rows["good"]
    assert (row.task, row.pool, row.node, row.state) == ("t", "default", "n1", "open")
    assert (row.environment, row.metadata) == ({"image": "swe:1"}, {"a": 1, "forked_from": "trj"})
    assert rows["bad"].state == "finished"
    assert rows["bad"].environment_removed_at is not None


def test_end_of_an_unknown_trajectory_makes_no_row(journal):
    journal.write([TrajectoryFinished(project="default", trajectory="unknown")])

    project(journal.entries)

    assert not TrajectoryRecord.objects.exists()


def test_a_declared_task_keeps_its_pool_when_actions_arrive(journal):
    journal.write([TaskOpened(project="default", task="task-1", pool="big", metadata={"x": 1})])
    journal.submit(an_action())

    for entry in journal.entries:
        project([entry])

    row = TaskRecord.objects.get()
    assert (row.pool, row.metadata, row.actions) == ("big", {"x": 1}, 1)


def test_a_call_keeps_its_request_and_an_answer_that_another_one_got(journal):
    call = CallSpec("api:search", "GET", "/q", {"X-A": "b"})
    made, merged = (an_action(n, kind=Kind.CALL, call=call, cost={}) for n in (1, 2))
    answer = msgspec.Raw(encode(CallResult(200, {"a": "b"}, "found")))
    journal.submit(made, merged)
    journal.grant(made)
    report = replace(a_report(made.id), result=answer)
    journal.write([report], [a_finish(made), replace(a_finish(merged), result=answer)])

    project(journal.entries)

    rows = ActionRecord.objects.order_by("id")
    shown = {"status": 200, "headers": {"a": "b"}, "body": "found", "encoding": "utf-8",
             "truncated": False}  # fmt: skip
    assert [row.result for row in rows] == [shown, shown]
    assert rows[0].spec["call"] == {
        "target": "api:search", "method": "GET", "path": "/q", "headers": {"X-A": "b"},
    }  # fmt: skip


def test_a_trajectory_whose_environment_is_to_go_is_over(journal):
    action = an_action(kind=Kind.EXEC, trajectory="t")
    key = trajectory_key("default", "t")
    journal.submit(action)
    journal.write([], [a_grant(action.id)])
    journal.write([], [RemoveEnvironment(key, "n1", "its environment was lost: node n1 is dead")])

    project(journal.entries)

    row = TrajectoryRecord.objects.get()
    assert (row.state, row.environment_removed_at) == ("finished", None)
    assert row.finished_at == wall(1001.5)


def test_a_lease_of_a_seat_is_stored_with_its_backend(journal):
    action = an_action(kind=Kind.LEASE, cost={"llm:policy": (1000,)}, lease=LeaseSpec(5.0))
    journal.submit(action)
    seat = Allocation(ResourceId("llm:policy"), 1000, (3,), shared=True)
    journal.write([], [Grant(action.id, None, (seat,), expires_at=1005.0)])

    project(journal.entries)

    shown = view_of(ActionRecord.objects.get())
    assert (shown.units, shown.placement) == (
        {"llm:policy": 1},
        Placement(None, units={"llm:policy": (3,)}),
    )
