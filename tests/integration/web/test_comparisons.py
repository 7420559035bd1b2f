"""Compare: two sides on the page and over REST, each within what its reader may see."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import quote

import pytest
from django.contrib.auth import get_user_model
from django.test import Client

from domain.action import Timing
from domain.ids import action_id
from domain.principals import Scope
from tangram_web.accounts.models import Membership, Role
from tangram_web.lib import bus
from tangram_web.live.rollups.histogram import PhaseHistogram
from tangram_web.live.rollups.rollup import LEVELS, SIZES, rollup_of_second
from tangram_web.live.rollups.store import RollupStore
from tangram_web.pools.models import ConfigRevision, Project
from tangram_web.records.models import ActionRecord, TaskRecord
from tangram_web.simulations.models import Simulation

NOON = datetime(2026, 11, 20, 12, tzinfo=UTC)
A, B = "task:default/slow", "task:default/fast"


def actions(task: str, seconds: float, *, project: str = "default", after: int = 0) -> None:
    """Add sixty finished actions of ten trajectories, one a second from noon on."""
    TaskRecord.objects.create(key=f"{project}/{task}", project=project, name=task, opened_at=NOON)
    made: list[ActionRecord] = []
    for number in range(60):
        at = NOON + timedelta(seconds=after + number)
        queue = seconds + number % 5 / 10
        key = action_id(
            int(at.timestamp() * 1000), len(made).to_bytes(4, "big") + task.encode()[:4]
        )
        made.append(ActionRecord(
            id=key, project=project, task=task, trajectory=f"{task}-{number % 10}", kind="exec",
            state="finished", outcome="completed", exit_code=number % 2, submitted_at=at,
            finished_at=at + timedelta(seconds=queue + 1), queue_seconds=queue, overhead_seconds=0.1,
            execution_seconds=0.9, act_seconds=queue + 1.0, units={"cpu": 2},
            finished_seq=int(at.timestamp()) * 10 + len(task) + (project != "default"),
        ))  # fmt: skip
    ActionRecord.objects.bulk_create(made)


@pytest.fixture
def site(defaults: None, redis_bus: Any) -> None:
    Project.objects.create(name="secret", default_pool_id="default")
    actions("slow", 2.0)
    actions("fast", 1.0, after=3600)
    actions("hidden", 9.0, project="secret", after=7200)


def signed_in(*, staff: bool = False) -> Client:
    user = get_user_model().objects.create_user("reader", is_staff=staff)
    if not staff:
        Membership.objects.create(user=user, project_id="default", role=Role.VIEWER)
    client = Client()
    client.force_login(user)
    return client


def at(hours: float) -> str:
    return (NOON + timedelta(hours=hours)).strftime("%Y-%m-%dT%H:%M:%SZ")


@pytest.mark.usefixtures("site")
def test_two_tasks_are_compared_with_intervals() -> None:
    page = signed_in().get("/compare/", {"a": A, "b": B})

    text = page.content.decode()
    assert "fast completed actions 31 % sooner (" in page.context["verdict"]
    rows = {row.name: row for row in page.context["measures"]}
    assert (rows["ACT, mean"].a, rows["ACT, mean"].b) == ("3.2 s", "2.2 s")
    assert rows["Queue, mean"].finding == "better"
    assert rows["Exit code not 0"].finding == "no clear difference"
    assert page.context["distribution"] is not None
    assert "✓ better" in text
    assert "style=" not in text.partition("<main")[2].partition("</main>")[0]


@pytest.mark.usefixtures("site")
@pytest.mark.parametrize(
    ("a", "b"),
    [(f"range:{at(0)}..{at(0.5)}", f"range:{at(1)}..{at(1.5)}"), (A, f"range:{at(1)}..{at(1.5)}")],
)
def test_ranges_have_the_actions_that_were_submitted_in_them(a: str, b: str) -> None:
    found = signed_in(staff=True).get("/compare/", {"a": a, "b": b}).context["compared"]

    assert (len(found.a), len(found.b)) == (60, 60)


def moved(rows: Any, at: float) -> None:
    """Let actions be submitted at an instant, as their ids say."""
    for number, row in enumerate(rows):
        key = action_id(int(at * 1000), number.to_bytes(4, "big") + row.task.encode()[:4])
        ActionRecord.objects.filter(pk=row.pk).update(id=key)


@pytest.mark.usefixtures("site")
def test_revisions_have_the_actions_of_their_time() -> None:
    """The first revision is of now; actions are submitted around the second one."""
    first = ConfigRevision.objects.get()
    began = first.created_at.timestamp()
    second = ConfigRevision.objects.create(
        number=first.number + 1, author="ops", snapshot=first.snapshot
    )
    middle = (began + second.created_at.timestamp()) / 2
    moved(ActionRecord.objects.filter(task="slow"), middle)
    moved(ActionRecord.objects.exclude(task="slow"), second.created_at.timestamp() + 0.001)
    query = {"a": f"revision:{first.number}", "b": f"revision:{second.number}"}

    every_project = signed_in(staff=True).get("/compare/", query).context["compared"]
    get_user_model().objects.all().delete()
    own = signed_in().get("/compare/", query).context["compared"]

    assert (len(every_project.a), len(every_project.b)) == (60, 120)
    assert (len(own.a), len(own.b)) == (60, 60)


@pytest.mark.usefixtures("site")
def test_members_see_their_projects_alone() -> None:
    member = signed_in()

    hidden = member.get("/compare/", {"a": A, "b": "task:secret/hidden"})
    range_ = member.get("/compare/", {"a": A, "b": f"range:{at(2)}..{at(3)}"})

    assert hidden.context["problem"] == "There is no task 'secret/hidden'."
    assert len(range_.context["compared"].b) == 0
    assert "secret" not in "".join(value for value, _ in hidden.context["offers"])


@pytest.mark.usefixtures("site")
def test_histograms_are_compared_where_rows_are_gone() -> None:
    durations = PhaseHistogram()
    for number in range(80):
        durations.add(Timing(5.0 + number / 100, 0.0, 1.0, 6.0 + number / 100))
    durations.flush()
    ActionRecord.objects.filter(task="slow").delete()
    levels = dict.fromkeys(LEVELS, 0.0)
    second = rollup_of_second(int(NOON.timestamp()), 80, {"completed": 80}, levels, durations)
    RollupStore(bus.redis_client(), bus.keys()).save({SIZES[-1]: [second]})

    found = signed_in(staff=True).get("/compare/", {"a": f"range:{at(0)}..{at(0.5)}", "b": B})

    assert found.context["compared"].a.binned
    assert "fast completed actions 6" in found.context["verdict"]


def played(**more: Any) -> Simulation:
    rows = {"trajectory": list(range(9)), "overhead": [0.0] * 9, "execution": [1.0] * 9,
            "cores": [2.0] * 9, "queue": [number / 4 for number in range(9)]}  # fmt: skip
    better = {**rows, "queue": [number / 8 for number in range(9)]}
    outcome = {"runs": [{"policy": "paper", "seed": 0, "rows": rows},
                        {"policy": "minimum", "seed": 0, "rows": better}], "measured": rows}  # fmt: skip
    return Simulation.objects.create(
        project_id="default", state="finished", source="the last 5 minutes", outcome=outcome,
        request={"workload": "recorded", "policies": ["paper", "minimum"]}, **more,
    )  # fmt: skip


@pytest.mark.usefixtures("site")
def test_simulated_policies_are_compared_action_by_action() -> None:
    key = played().pk
    client = signed_in()

    runs = client.get(
        "/compare/", {"a": f"simulation:{key}/paper", "b": f"simulation:{key}/minimum"}
    )
    trust = client.get("/compare/", {"a": f"measured:{key}", "b": f"simulation:{key}/paper"})
    unknown = client.get("/compare/", {"a": f"measured:{key}", "b": f"simulation:{key}/none"})

    assert runs.context["compared"].paired
    assert "minimum would complete actions" in runs.context["verdict"]
    assert ">simulated</span>" in runs.content.decode()
    assert "no clear difference" in trust.context["verdict"]
    assert "no run 'none'" in unknown.context["problem"]


@pytest.mark.usefixtures("site")
def test_a_notebook_reads_the_same_comparison(caller: Any) -> None:
    api = caller(Scope.READ)
    answer = api.get(f"/api/v1/compare?a={quote(A)}&b={quote(B)}")

    assert answer.status_code == 200
    found = answer.json()
    act = found["measures"][0]
    assert (act["name"], act["unit"], act["finding"]) == ("ACT, mean", "seconds", "better")
    assert act["low"] < act["difference"] < act["high"] < 0
    assert (found["a"]["actions"], found["a"]["outcomes"]) == (60, {"completed": 60})
    assert found["paired"] is False


@pytest.mark.usefixtures("site")
def test_a_token_of_a_project_compares_what_is_its_own(caller: Any) -> None:
    own = caller(Scope.READ, project="default")

    assert own.get(f"/api/v1/compare?a={quote(A)}&b={quote(B)}").status_code == 200
    assert own.get(f"/api/v1/compare?a={quote(A)}&b=task:secret/hidden").status_code == 404
    nonsense = own.get(f"/api/v1/compare?a={quote(A)}&b=node:n1")
    assert nonsense.status_code == 422
    assert "names no side" in nonsense.content.decode()
    assert caller(Scope.SUBMIT).get(f"/api/v1/compare?a={quote(A)}&b={quote(B)}").status_code == 403
