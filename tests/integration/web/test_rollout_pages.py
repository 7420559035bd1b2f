"""Pages of rollouts over rows, logs and a scheduler: what they show, what they say about missing parts, and to which readers."""

from __future__ import annotations

from array import array
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from django.contrib.auth import get_user_model
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext

from contract.responses import QueueDetails, QueuesResponse, WaitDetails
from contract.rollout_status import (
    BackendStatus,
    RolloutsStatus,
    RolloutStatus,
    RolloutWorkerStatus,
)
from domain.errors import Unavailable
from domain.rollouts import RolloutState
from rollout.ports import Record
from scheduler.runtime.rollouts.log_store import RolloutLogs
from tangram_web.accounts.models import Membership, Role
from tangram_web.lib import scheduler_client
from tangram_web.pools.models import Project
from tangram_web.records.models import RolloutRecord, TrajectoryRecord
from tests.integration.web.site import NOW, rollout_id

pytestmark = pytest.mark.django_db
MARKUP = "<script>alert(1)</script>"
TESTS = b'{"count": 3, "passed": 2, "tests": {"test_b": "timed out"}}'
PATCH = b"diff --git a/x b/x\n@@ -1 +1 @@\n-old line\n+new line\n"


@pytest.fixture
def answers(monkeypatch: pytest.MonkeyPatch) -> RolloutsStatus:
    """What the scheduler answers about rollouts."""
    status = RolloutsStatus(workers=[RolloutWorkerStatus("w1", 1, 8, 8, "2026-01-01T00:00:00Z")])
    monkeypatch.setattr(scheduler_client, "rollouts", lambda **_: status)
    monkeypatch.setattr(scheduler_client, "live_rollouts", lambda _: {})
    monkeypatch.setattr(scheduler_client, "queues", lambda *_, **__: QueuesResponse([], 0, 0))
    return status


@pytest.fixture
def logs(tmp_path: Path, settings: Any) -> RolloutLogs:
    settings.TANGRAM_BODIES_DIRECTORY = str(tmp_path)
    return RolloutLogs(tmp_path / "rollouts")


@pytest.fixture
def staff(defaults: None, answers: RolloutsStatus) -> Client:
    client = Client()
    client.force_login(get_user_model().objects.create_user("ops", is_staff=True))
    return client


@pytest.fixture
def member(defaults: None, answers: RolloutsStatus) -> Client:
    """A viewer of the project ``default`` alone."""
    Project.objects.create(name="secret", default_pool_id="default")
    user = get_user_model().objects.create_user("member")
    Membership.objects.create(user=user, project_id="default", role=Role.VIEWER)
    client = Client()
    client.force_login(user)
    return client


def stored(number: int, **fields: Any) -> str:
    ended = {"state": "finished", "finished_seq": number, "finished_at": NOW, "total_seconds": 3.0}
    given = {**(ended if fields.get("outcome") else {}), **fields}
    row = {"project": "default", "task": "grpo", "handler": "swe", "submitted_at": NOW, **given}
    return RolloutRecord.objects.create(id=rollout_id(number), **row).id


def text_of(client: Client, address: str, status: int = 200) -> str:
    answer = client.get(address)
    assert answer.status_code == status, address
    return str(answer.content.decode())


def write(logs: RolloutLogs, name: str, *records: Record) -> None:
    logs.create([(name, Record("request", {"instance": {"id": "django-1"}, "options": {"k": 1}}))])
    for number, record in enumerate(records, 1):
        logs.append(name, 1, number, record)


def clock(stage: str) -> list[Any]:
    return [stage, 1, 0.5, 2.0, ""]


def a_turn(text: str = "I look.", follows: int | None = None) -> Record:
    message = {"content": text, "tool_calls": [{"function": {"name": "bash", "arguments": "{}"}}]}
    header = {
        "message": message, "asked": [{"role": "user", "content": "Fix the sign."}], "weights_version": 2, "backend": "b1", "prompt_tokens": 30, "response_tokens": 2,
        "extra": {"finish": "stop", "follows": follows}, "clock": clock("run"),
    }  # fmt: skip
    return Record("turn", header, {"logprobs": array("f", [-0.25, -0.75]).tobytes()})


def a_call(name: str, key: str, stdout: str = "", stage: str = "run") -> tuple[Record, Record]:
    whole = f"{name}/0/{stage}/{key}"
    members = {"kind": "exec", "exec": {"command": ["pytest", "-q"]}}
    end = {
        "id": "act_77", "outcome": "completed", "result": {"exit_code": 1, "stdout": stdout}, "reward": None,
        "detail": "", "queue_seconds": 0.1, "execution_seconds": 1.0,
    }  # fmt: skip
    return (
        Record(
            "call", {"key": whole, "trajectory": name, "members": members, "clock": clock(stage)}
        ),
        Record("observation", {"key": whole, "end": end, "clock": clock(stage)}),
    )


def lanes_of(client: Client, query: str = "") -> dict[str, Any]:
    return {
        lane.name: lane for lane in client.get(f"/rollouts/{query}", follow=True).context["lanes"]
    }


def test_each_rollout_is_in_the_lane_of_what_it_waits_for_or_does(staff: Client) -> None:
    stored(1)
    stored(2, state="assigned")
    stored(3, state="assigned", stage="init", queued=True)
    stored(4, state="assigned", stage="run", turns=3, worker="w1")
    stored(5, state="assigned", stage="eval")
    stored(6, state="parked")
    stored(7, outcome="completed", reward=1.0)
    stored(8, outcome="timeout")

    found = lanes_of(staff)

    assert {name: lane.count for name, lane in found.items()} == {
        "waiting": 1, "init": 2, "run": 1, "eval": 1, "parked": 1, "finished": 2
    }  # fmt: skip
    assert (found["init"].queued, found["init"].working) == (1, 1)
    assert [row.id for row in found["run"].rows] == [rollout_id(4)]
    assert found["finished"].outcomes == {"completed": 1, "timeout": 1}
    for lane, number in (("waiting", 1), ("run", 4), ("parked", 6)):
        rows = staff.get(f"/rollouts/?lane={lane}", follow=True).context["found"].rows
        assert [row.id for row in rows] == [rollout_id(number)], lane


def test_filters_select_rows_and_lanes_alike(staff: Client) -> None:
    stored(1, task="a", group="g", handler="math", worker="w1", instance="i")
    stored(2, task="a", handler="swe", worker="w2", outcome="failed")
    stored(3, task="b", handler="swe", outcome="completed", reward=1.0)

    for query, numbers in (
        ("task=a", [2, 1]), ("handler=swe", [3, 2]), ("worker=w1", [1]), ("group=g", [1]),
        ("instance=i", [1]), ("outcome=failed", [2]), ("task=a&handler=swe", [2]), ("task=none", []),
    ):  # fmt: skip
        rows = staff.get(f"/rollouts/?{query}", follow=True).context["found"].rows
        assert [row.id for row in rows] == [rollout_id(n) for n in numbers], query
    assert lanes_of(staff, "?handler=swe")["finished"].outcomes == {"completed": 1, "failed": 1}
    assert lanes_of(staff, "?task=a")["waiting"].count == 1
    assert "No rollout matches" in text_of(staff, "/rollouts/?q=task:none")
    assert "lane is never" in text_of(staff, "/rollouts/?q=lane:nowhere")


def test_the_list_goes_on_after_its_cursor(staff: Client) -> None:
    for number in range(60):
        stored(number)
    first = staff.get("/rollouts/?q=task:grpo").context["found"]
    second = staff.get(f"/rollouts/?{first.older}").context["found"]

    assert [len(first.rows), len(second.rows)] == [50, 10]
    assert first.rows[-1].id > second.rows[0].id
    assert (second.older, second.newest) == ("", "q=task%3Agrpo")


def test_the_page_says_why_rollouts_wait(
    staff: Client, answers: RolloutsStatus, monkeypatch: pytest.MonkeyPatch
) -> None:
    stored(1)
    stored(2, state="assigned", stage="run", queued=True)
    why = WaitDetails("no_backend", "llm:policy has no usable backend")
    line = QueueDetails("default", None, {"stage:run": 1, "llm:policy": 1}, 0, 4, "act_1", "default",
                        "grpo", None, 3.0, why)  # fmt: skip
    monkeypatch.setattr(scheduler_client, "queues", lambda *_, **__: QueuesResponse([line], 1, 4))
    said = ["all 8 slots of 1 rollout workers are taken"]

    def live(ids: list[str]) -> dict[str, RolloutStatus]:
        at = "2026-01-01T00:00:00Z"
        waits = RolloutState.WAITING
        return {
            each: RolloutStatus(each, "default", "t", waits, "swe", at, waiting=said[0])
            for each in ids
        }

    monkeypatch.setattr(scheduler_client, "live_rollouts", live)

    page = text_of(staff, "/rollouts/")
    assert page.count("all 8 slots of 1 rollout workers are taken") == 1
    assert "4 wait: llm:policy has no usable backend" in page
    said[0] = "no rollout worker has joined"
    assert "no rollout worker has joined: start one with ./tangram up" in text_of(
        staff, "/rollouts/"
    )


def test_without_rollouts_the_page_says_how_to_begin(staff: Client) -> None:
    assert "tangram rollout submit noop --samples 8 --wait" in text_of(staff, "/rollouts/")
    assert "--samples 8" in text_of(staff, "/rollouts/groups/")
    assert "tangram backend add" in text_of(staff, "/rollouts/backends/")


def test_without_a_scheduler_rows_are_shown_with_the_reason(
    staff: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(**_: Any) -> None:
        raise Unavailable("the scheduler does not answer; is a loop running?")

    name = stored(1)
    monkeypatch.setattr(scheduler_client, "rollouts", refuse)

    for address in ("/rollouts/", "/rollouts/backends/", f"/rollouts/{name}/"):
        assert "the scheduler does not answer" in text_of(staff, address), address
    assert name[-8:] in text_of(staff, "/rollouts/")


def test_one_rollout_has_turns_tools_tests_and_its_patch(staff: Client, logs: RolloutLogs) -> None:
    name = stored(1, outcome="completed", reward=0.0, turns=1, group="g", times=[
        {"stage": "run", "queued_seconds": 1.0, "active_seconds": 2.0, "attempts": 1}])  # fmt: skip
    TrajectoryRecord.objects.create(
        key=f"default/{name}-run", project="default", name=f"{name}-run", task="grpo", opened_at=NOW
    )
    result = {"outcome": "completed", "reward": 0.0}
    write(
        logs, name,
        a_turn(), *a_call(name, "0", "two files"),
        Record("artefact", {"name": "change.patch"}, {"content": PATCH}),
        Record("artefact", {"name": "program.py"}, {"content": b"print(7)"}),
        Record("artefact", {"name": "tests"}, {"content": TESTS}),
        Record("stage", {"stage": "run", "value": {"answer": 7}, "clock": clock("run")}),
        *a_call(name, "t", "1 failed, 2 passed", "eval"),
        Record("result", {"result": result, "detail": {"tests": {"failed": ["test_a"]}}}),
    )  # fmt: skip

    page = text_of(staff, f"/rollouts/{name}/")

    for part in (
        "I look.", "Asked with user", "Fix the sign.", "bash", "two files", "/actions/act_77/", "1 failed, 2 passed", "weights version 2 at b1",
        "log-probability mean -0.50, least -0.75", "2 sampled, 30 of prompts and observations",
        '<span class="del">-old line', '<span class="add">+new line', "1 line added, 1 removed",
        f"/trajectories/default/{name}-run/", "test_a", "2 of 3 tests passed", "test_b", "timed out", "print(7)", 'class="sampled shade-', "exit 1",
    ):  # fmt: skip
        assert part in page, part
    assert "What to do" not in page
    assert staff.get(f"/rollouts/{name}/artefacts/change.patch").content == PATCH
    record = staff.get(f"/rollouts/{name}/records/1")
    assert record.json()["header"]["message"]["content"] == "I look."
    assert "attachment" in record["Content-Disposition"]
    assert text_of(staff, f"/rollouts/{name}/records/99", 404)
    assert text_of(staff, f"/rollouts/{name}/artefacts/other", 404)


@pytest.mark.parametrize("named", ["a\nb", "", "a\n"])
def test_an_artefact_whose_name_cannot_be_in_an_address_has_a_page_and_a_file(
    staff: Client, logs: RolloutLogs, named: str
) -> None:
    name = stored(1, outcome="completed", reward=1.0)
    write(logs, name, Record("artefact", {"name": named}, {"content": b"its bytes"}), a_turn())

    page = text_of(staff, f"/rollouts/{name}/")

    assert f'href="/rollouts/{name}/records/1?content"' in page
    assert staff.get(f"/rollouts/{name}/records/1?content").content == b"its bytes"
    assert text_of(staff, f"/rollouts/{name}/records/2?content", 404)


def test_an_observation_of_ten_megabytes_does_not_break_the_page(
    staff: Client, logs: RolloutLogs
) -> None:
    name = stored(1, state="assigned", stage="run", turns=45)
    records: list[Record] = []
    for number in range(45):
        records.append(a_turn(f"turn number {number}.", number - 1 if number else None))
        records += a_call(name, str(number), "x" * (10_000_000 if number == 44 else 100_000))
    write(logs, name, *records)

    last = text_of(staff, f"/rollouts/{name}/")
    first = text_of(staff, f"/rollouts/{name}/?turn=0")

    assert "turn number 44." in last
    assert "turn number 39." not in last
    assert "turn number 0." in first
    assert "turn number 20." not in first
    assert "9998000 characters are left out" in last
    assert len(last) < 200_000
    assert len(first) < 400_000
    assert "There is no turn 1000" in text_of(staff, f"/rollouts/{name}/?turn=1000")
    assert len(staff.get(f"/rollouts/{name}/records/135").content) > 10_000_000


def test_a_failed_rollout_says_what_to_do_and_shows_its_error(
    staff: Client, logs: RolloutLogs
) -> None:
    name = stored(1, outcome="failed", reason="RUN raised ValueError: no", instance="django-1")
    error = {
        "stage": "run",
        "type": "ValueError",
        "message": "no",
        "traceback": "Traceback: line 7",
    }
    write(logs, name, Record("result", {"result": {}, "detail": {}, "error": error}))

    page = text_of(staff, f"/rollouts/{name}/")

    assert "RUN raised ValueError: no" in page
    assert "tangram rollout submit swe --task grpo --instance django-1" in page
    assert "Traceback: line 7" in page


def test_a_rollout_on_a_fleet_names_its_fleet_and_the_workers_of_its_turns(
    staff: Client, logs: RolloutLogs
) -> None:
    name = stored(1, llm="fleet:qwen")
    write(logs, name, a_turn())

    page = text_of(staff, f"/rollouts/{name}/")

    assert 'href="/fleets/qwen/">qwen' in page
    assert "weights version 2 at b1" in page
    assert "/rollouts/backends/#" not in page


def test_a_rollout_whose_log_is_deleted_or_damaged_keeps_its_row(
    staff: Client, logs: RolloutLogs, tmp_path: Path
) -> None:
    deleted, damaged = stored(1, outcome="completed", reward=1.0), stored(2, outcome="failed")
    write(logs, damaged, a_turn("kept text"), a_turn("lost text", 0), a_turn("more", 1))
    file = tmp_path / "rollouts" / damaged / "log"
    content = file.read_bytes()
    at = content.index(b"lost text")
    file.write_bytes(content[:at] + b"LOST" + content[at + 4 :])

    assert "acknowledged this rollout" in text_of(staff, f"/rollouts/{deleted}/")
    page = text_of(staff, f"/rollouts/{damaged}/")
    assert "fails its checksum" in page
    assert "kept text" in page
    assert "LOST text" not in page
    assert text_of(staff, f"/rollouts/{damaged}/records/3", 503)


def test_a_waiting_rollout_says_why_and_how_many_are_before_it(
    staff: Client, answers: RolloutsStatus
) -> None:
    name = stored(1)
    answers.rollouts.append(RolloutStatus(
        name, "default", "grpo", RolloutState.WAITING, "swe", "2026-01-01T00:00:00Z",
        waiting="all 8 slots of 1 rollout workers are taken", position=3,
    ))  # fmt: skip
    parked = stored(2, state="parked", reason="parked by request", parked_times=1)

    page = text_of(staff, f"/rollouts/{name}/")
    assert "all 8 slots of 1 rollout workers are taken; 3 are assigned before it" in page
    assert f"/act/rollout/park/?target={name}" in page
    other = text_of(staff, f"/rollouts/{parked}/")
    assert "It is parked (parked by request) until it is resumed." in other
    assert f"/act/rollout/resume/?target={parked}" in other


def test_a_page_names_the_workers_that_had_the_rollout_and_why_it_left_them(staff: Client) -> None:
    began = NOW.timestamp()
    attempts: list[dict[str, Any]] = [
        {"attempt": 1, "worker": "w-silent", "at": began, "until": began + 9, "reason": "its worker is silent"},
        {"attempt": 2, "worker": "w-next", "at": began + 10},
    ]  # fmt: skip

    page = text_of(staff, f"/rollouts/{stored(1, state='assigned', attempts=attempts)}/")

    first, last = page.index("w-silent"), page.index("w-next")
    assert last < first < page.index("its worker is silent")
    assert 'id="attempts"' not in text_of(staff, f"/rollouts/{stored(2)}/")


def test_a_member_sees_no_addresses_no_verbs_and_no_rollouts_of_other_projects(
    member: Client, answers: RolloutsStatus, logs: RolloutLogs
) -> None:
    answers.pools["policy"] = 1
    address = "http://10.0.0.9:8000"
    answers.backends.append(BackendStatus("policy", "10.0.0.9:8000", 9, address, seats=4))
    mine, theirs = stored(1, group="g"), stored(2, project="secret", group="g")
    write(logs, theirs, a_turn(), Record("artefact", {"name": "p"}, {"content": PATCH}))
    write(logs, mine, a_turn())

    pool = text_of(member, "/rollouts/backends/")
    assert "10.0.0.9" not in pool
    assert "/act/" not in pool
    assert theirs[-8:] not in text_of(member, "/rollouts/")
    assert theirs not in text_of(member, "/rollouts/groups/")
    shown = text_of(member, f"/rollouts/{mine}/")
    assert "Cancel…" not in shown
    assert "weights version 2 at b1" not in shown  # names of backends are often their addresses
    assert "backend" not in member.get(f"/rollouts/{mine}/records/1").json()["header"]
    for path in ("", "records/1", "artefacts/p"):
        assert text_of(member, f"/rollouts/{theirs}/{path}", 404)
    assert theirs not in member.get("/export/rollouts.csv").getvalue().decode()


def test_what_a_model_or_a_tool_says_is_text_and_no_markup(
    staff: Client, logs: RolloutLogs
) -> None:
    name = stored(1, outcome="failed", reason=MARKUP, task=MARKUP, instance=MARKUP, handler=MARKUP,
                  group=MARKUP, worker=MARKUP, llm=MARKUP, metadata={"step": MARKUP})  # fmt: skip
    write(
        logs, name, a_turn(MARKUP), *a_call(name, "0", MARKUP),
        Record("artefact", {"name": f"{MARKUP}.patch"}, {"content": b"+" + MARKUP.encode()}),
        Record("result", {"result": {}, "detail": {MARKUP: MARKUP}, "error": {"traceback": MARKUP}}),
    )  # fmt: skip

    for address in ("/rollouts/", "/rollouts/groups/", f"/rollouts/{name}/"):
        assert MARKUP not in text_of(staff, address), address


@pytest.fixture
def counted(django_assert_max_num_queries: Callable[..., Any]) -> Callable[..., Any]:
    return django_assert_max_num_queries


def test_a_thousand_rollouts_are_read_by_a_fixed_number_of_queries(
    staff: Client, counted: Callable[..., Any]
) -> None:
    RolloutRecord.objects.bulk_create(
        RolloutRecord(
            id=rollout_id(number), project="default", task="grpo", submitted_at=NOW,
            state="assigned", stage="run", group=f"g{number // 8}",
        )
        for number in range(1000)
    )  # fmt: skip

    with counted(12):
        assert len(lanes_of(staff)["run"].rows) == 5
    with counted(12):
        assert len(staff.get("/rollouts/groups/").context["found"].groups) == 50


def test_the_lanes_of_a_project_do_not_read_its_finished_rollouts(member: Client) -> None:
    if connection.vendor != "sqlite":
        pytest.skip("only SQLite chooses the index of the project for a query of its live rollouts")
    stored(1, state="assigned", stage="run")
    with CaptureQueriesContext(connection) as queries:
        assert lanes_of(member)["run"].count == 1
    live = [each["sql"] for each in queries if '"finished_seq" IS NULL' in each["sql"]]

    assert live
    for sql in live:
        with connection.cursor() as cursor:
            cursor.execute(f"EXPLAIN QUERY PLAN {sql}")
            plan = " ".join(str(row[3]) for row in cursor.fetchall())
        assert "rollout_live_state" in plan, plan
