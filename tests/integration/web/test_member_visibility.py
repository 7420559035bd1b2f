"""Members of one project see its objects and nothing of others: rows, files, traces, lines, maps."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from html import unescape
from typing import Any
from urllib.parse import quote

import msgspec
import pytest
from django.contrib.auth import get_user_model
from django.test import Client

from contract.responses import ActionResponse, QueueDetails, QueuesResponse, WaitDetails
from domain.advice import IdleEnvironment, UnblockHint
from tangram_web.accounts.models import Membership, Role
from tangram_web.lib import bus, scheduler_client
from tangram_web.live.access import Sight, sight_of
from tangram_web.live.frames import FrameFold
from tangram_web.live.gpu_history import GpuHistoryStore, GpuSnapshot
from tangram_web.live.topic_store import snapshot_key
from tangram_web.pools.models import Project
from tangram_web.records.models import ActionRecord, TaskRecord, TrajectoryRecord
from tests.unit.live.journal import Journal

NOW = datetime(2026, 11, 20, 12, tzinfo=UTC)
OURS, THEIRS = "act_00001", "act_00002"
WATCHERS_ALONE = ("/decisions/", "/workers/", "/operate/", "/history.json?project=secret",
                  "/export/decisions.csv", "/export/workers.csv")  # fmt: skip
SHARE = {"pool": None, "resource": "api:search", "nominal": 3, "borrow": None, "lend": 1,
         "used": 5, "borrowed": 2, "left": 0, "waiting": 4}  # fmt: skip
EVERY_ROLE = pytest.mark.parametrize("member", list(Role), ids=str, indirect=True)


@pytest.fixture
def rows(defaults: None) -> None:
    """One action, trajectory and task of each of two projects; both actions wait."""
    Project.objects.create(name="secret", default_pool_id="default")
    for id_, project, name in ((OURS, "default", "ours"), (THEIRS, "secret", "hidden")):
        ActionRecord.objects.create(
            id=id_, project=project, task=name, trajectory=f"{name}-t", kind="exec",
            state="queued", submitted_at=NOW,
        )  # fmt: skip
        TrajectoryRecord.objects.create(
            key=f"{project}/{name}-t", project=project, name=f"{name}-t", task=name, opened_at=NOW
        )
        TaskRecord.objects.create(
            key=f"{project}/{name}", project=project, name=name, opened_at=NOW
        )


@pytest.fixture
def member(
    request: pytest.FixtureRequest, rows: None, redis_bus: Any, monkeypatch: pytest.MonkeyPatch
) -> Client:
    """A user of one project, a viewer unless a test names another role."""
    monkeypatch.setattr(scheduler_client, "ANSWER_SECONDS", 0.01)
    user = get_user_model().objects.create_user("ada")
    Membership.objects.create(
        user=user, project_id="default", role=getattr(request, "param", Role.VIEWER)
    )
    client = Client()
    client.force_login(user)
    return client


@pytest.mark.parametrize(
    "page",
    ["/", "/queues/", "/actions/?q=", "/actions/?project=secret", "/actions/?task=hidden",
     "/trajectories/?q=", "/trajectories/?project=secret", "/tasks/", "/tasks/?project=secret",
     "/explorer/actions/counts?q=", "/explorer/actions/ids.json?q=", "/explorer/actions/complete.json?typed=task:",
     "/explorer/actions/complete.json?typed=trajectory:", f"/explorer/reasons.json?ids={THEIRS}",
     "/cpu/", "/gpu/", "/apis/", "/export/actions.csv", "/export/actions.ndjson?project=secret",
     "/export/trajectories.json", "/export/tasks.csv", "/trace/window.json?range=1209600&to=1763640060"],
)  # fmt: skip
def test_pages_open_and_say_nothing_of_other_projects(member: Client, page: str) -> None:
    answer = member.get(page, follow=True)

    assert answer.status_code == 200
    text = answer.getvalue().decode()
    assert THEIRS not in text
    assert "hidden-t" not in text


def test_ones_own_objects_are_listed_and_open(member: Client) -> None:
    assert OURS in member.get("/actions/?q=").content.decode()
    assert "ours-t" in member.get("/trajectories/?q=").content.decode()
    for page in (f"/actions/{OURS}/", "/trajectories/default/ours-t/", "/tasks/default/ours/",
                 f"/trace/?action={OURS}", f"/trace/actions/{OURS}.json"):  # fmt: skip
        assert member.get(page).status_code == 200, page


@EVERY_ROLE
@pytest.mark.parametrize(
    "page",
    [f"/actions/{THEIRS}/", "/trajectories/secret/hidden-t/", "/tasks/secret/hidden/",
     f"/trace/?action={THEIRS}", "/trace/?trajectory=secret/hidden-t",
     f"/trace/actions/{THEIRS}.json", "/trace/trajectories/secret/hidden-t.json"],
)  # fmt: skip
def test_others_objects_are_answered_as_those_that_do_not_exist(member: Client, page: str) -> None:
    answer, nothing = (
        member.get(page),
        member.get(page.replace("00002", "9").replace("hidden", "no")),
    )

    assert answer.status_code == nothing.status_code == 404


@EVERY_ROLE
@pytest.mark.parametrize("page", WATCHERS_ALONE)
def test_pages_of_all_projects_are_refused_and_not_linked(member: Client, page: str) -> None:
    assert member.get(page).status_code in (403, 404)
    assert f'href="{page}"' not in member.get("/queues/").content.decode()


@EVERY_ROLE
@pytest.mark.parametrize("page", [f"/actions/{OURS}/", "/tasks/default/ours/"])
def test_buttons_are_offered_to_those_who_may_press_them(
    request: pytest.FixtureRequest, member: Client, page: str
) -> None:
    role: Role = request.node.callspec.params["member"]
    text = member.get(page).content.decode()
    ways = [unescape(way) for way in re.findall(r'class="button" href="(/act/[^"]+)', text)]

    assert {member.get(way).status_code for way in ways} <= {200}
    least = Role.SUBMITTER if page.startswith("/actions/") else Role.OPERATOR
    assert bool(ways) is (list(Role).index(role) >= list(Role).index(least))


def test_strangers_see_nothing_but_what_to_do(rows: None, redis_bus: Any) -> None:
    client = Client()
    client.force_login(get_user_model().objects.create_user("stranger"))
    for page in ("/", "/actions/", "/cpu/", f"/actions/{OURS}/", "/export/actions.csv"):
        answer = client.get(page)
        assert answer.status_code == 403
        assert "member of no project" in answer.content.decode()


def test_the_scheduler_is_asked_for_ones_own_lines_and_their_blockers_have_no_names(
    member: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Any] = []
    why = WaitDetails(
        "behind", f"{THEIRS} came before it and waits for cpu:n1", "cpu:n1", 1, THEIRS
    )
    line = QueueDetails("default", None, {"cpu": 1}, 0, 1, OURS, "default", "ours", None, 3.0, why)

    def queues(limit: int = 200, projects: Any = None) -> QueuesResponse:
        asked.append(projects)
        return QueuesResponse([msgspec.structs.replace(line)], 1, 1)

    shares = [{**SHARE, "project": "secret"}, {**SHARE, "project": "default"}]
    monkeypatch.setattr(scheduler_client, "queues", queues)
    monkeypatch.setattr(scheduler_client, "status", lambda: {"resources": {}, "shares": shares})
    view = ActionResponse(id=OURS, state="queued", waiting=why)  # type: ignore[arg-type]
    monkeypatch.setattr(scheduler_client, "live_action", lambda _: view)

    pages = [member.get(page).getvalue().decode()
             for page in ("/queues/", f"/actions/{OURS}/", "/export/queues.json")]  # fmt: skip

    assert set(asked) == {("default",)}
    for text in pages:
        assert "an action of another project came before it" in text
        assert THEIRS not in text
    assert "secret" not in pages[0]


def test_idle_environments_of_others_have_no_names(
    member: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    idle = [
        IdleEnvironment("secret", "hidden-t", 2**30, 60.0),
        IdleEnvironment("default", "ours-t", 2**30, 60.0),
    ]
    why = WaitDetails("short_of", "waits", "memory:n1", relief=UnblockHint("memory", idle=idle))
    view = ActionResponse(id=OURS, state="queued", waiting=why)  # type: ignore[arg-type]
    monkeypatch.setattr(scheduler_client, "live_action", lambda _: view)

    text = member.get(f"/actions/{OURS}/").content.decode()

    assert "of another project 1 GiB, <a" in text
    assert "hidden-t" not in text


def test_maps_name_ones_own_holders_alone(member: Client, redis_bus: Any) -> None:
    journal, fold = Journal(), FrameFold()
    journal.join("n1")
    for id_, project, cores in ((OURS, "default", (0,)), (THEIRS, "secret", (1, 2))):
        journal.submit(id_, project=project)
        journal.grant(id_, cores)
    for entry in journal.entries:
        fold.fold(entry)
    for topic, frame in fold.frames(journal.at).items():
        redis_bus.set(snapshot_key("tangram", topic), frame.encode_snapshot())

    for page in ("/cpu/", "/export/cores.csv"):
        text = member.get(page).getvalue().decode()
        assert OURS in text
        assert THEIRS not in text


def test_gpus_that_others_held_are_units_without_a_name(member: Client, redis_bus: Any) -> None:
    holder = {"kind": "gpu", "amount": 1, "shared": False, "since": 0.0, "trajectory": None}
    ours = holder | {"id": OURS, "project": "default", "task": "ours", "units": "0"}
    theirs = holder | {"id": THEIRS, "project": "secret", "task": "hidden", "units": "2-3"}
    node = {"name": "n1", "pool": "default", "state": "ready", "gpus": {"groups": ["0-3"]},
            "holders": [ours, theirs]}  # fmt: skip
    at = int(datetime.now(UTC).timestamp())
    GpuHistoryStore(redis_bus, bus.keys()).save([GpuSnapshot(at, [node], [], [])])

    (said,) = member.get(f"/gpu/past.json?at={at}").json()["nodes"]

    assert said["holders"] == [ours]
    assert said["gpus"] == {"groups": ["0-3"], "others": "2-3"}


def test_sight_follows_memberships(rows: None) -> None:
    user = get_user_model().objects.create_user("ada")
    assert sight_of(user) is None
    Membership.objects.create(user=user, project_id="secret", role=Role.VIEWER)
    assert sight_of(user) == Sight(("secret",))
    Membership.objects.create(user=user, project_id="default", role=Role.VIEWER)
    assert sight_of(user) == Sight()
    Project.objects.create(name="new", default_pool_id="default")
    assert sight_of(user) == Sight(("default", "secret"))
    user.is_active = False
    assert sight_of(user) is None


@pytest.mark.parametrize("name", ["sec\0ret", "<script>", "a/b", "s" * 10_000])
def test_nonsense_for_a_project_is_answered(member: Client, name: str) -> None:
    for page in ("/", "/cpu/", "/gpu/", "/actions/"):
        answer = member.get(f"{page}?project={quote(name)}", follow=True)
        assert answer.status_code in (200, 404)
