"""The find field: objects by the beginning of their names, and verbs, for those who may use them."""

from __future__ import annotations

from typing import Any

import pytest
from django.contrib.auth import get_user_model
from django.test import Client

from tangram_web.accounts.models import Membership, Role
from tangram_web.pools.models import Pool, Project
from tangram_web.records.models import ActionRecord, NodeRecord, TaskRecord, TrajectoryRecord
from tests.integration.web.site import NOW

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def rows(defaults: None) -> None:
    Project.objects.create(name="search", default_pool_id="default")
    for project, name in (
        ("default", "holdout"),
        ("default", "hole"),
        ("default", "swe-grpo-7"),
        ("search", "holdout"),
    ):
        given = {"key": f"{project}/{name}", "project": project, "name": name, "opened_at": NOW}
        TaskRecord.objects.create(**given)
    TrajectoryRecord.objects.create(
        key="default/hold-1", project="default", name="hold-1", task="holdout", opened_at=NOW
    )
    ActionRecord.objects.create(
        id="act_0abc", project="search", task="holdout", kind="exec", submitted_at=NOW
    )
    NodeRecord.objects.create(name="cpu-04", pool="default", joined_at=NOW)


def found(client: Client, text: str) -> list[dict[str, str]]:
    answer: list[dict[str, str]] = client.get("/find.json", {"q": text}).json()["found"]
    return answer


def reader(role: Role | None = None, project: str = "default", **rights: Any) -> Client:
    user = get_user_model().objects.create_user(f"reader-{role}-{rights}", **rights)
    if role is not None:
        Membership.objects.create(user=user, project_id=project, role=role)
    client = Client()
    client.force_login(user)
    return client


def test_the_beginning_of_a_name_finds_tasks_and_trajectories_of_all_visible_projects() -> None:
    answers = found(reader(is_staff=True), "hold")

    assert [(each["title"], each["note"]) for each in answers] == [
        ("holdout", "task of default"), ("holdout", "task of search"), ("hold-1", "trajectory of default"),
    ]  # fmt: skip
    assert answers[0]["href"] == "/tasks/default/holdout/"


def test_members_find_objects_of_their_projects_and_the_capacity_that_all_share() -> None:
    member = reader(Role.VIEWER)

    assert {each["note"] for each in found(member, "hold")} == {
        "task of default", "trajectory of default",
    }  # fmt: skip
    assert found(member, "act_0") == []
    assert [each["href"] for each in found(member, "cpu-04")] == ["/cpu/"]
    assert [each["href"] for each in found(reader(is_staff=True), "cpu-04")] == ["/workers/"]


def test_an_id_finds_its_action_and_a_key_its_task() -> None:
    staff = reader(is_staff=True)

    assert [each["href"] for each in found(staff, "act_0a")] == ["/actions/act_0abc/"]
    assert [each["href"] for each in found(staff, "search/hol")] == ["/tasks/search/holdout/"]


@pytest.mark.parametrize(
    ("text", "href"),
    [
        ("pause swe", "/act/task/pause/?target=default%2Fswe-grpo-7"),
        ("drain cpu-04", "/act/node/drain/?target=cpu-04"),
        ("prio search/hold", "/act/task/priority/?target=search%2Fholdout"),
    ],
)
def test_a_verb_and_an_object_lead_to_the_page_of_the_verb(text: str, href: str) -> None:
    client = reader(is_staff=True, is_superuser=True)

    assert [each["href"] for each in found(client, text)] == [href]
    assert client.get(href).status_code == 200


def test_a_verb_alone_is_offered_on_what_is_declared_and_its_title_names_the_object() -> None:
    Pool.objects.create(name="judge")

    titles = [each["title"] for each in found(reader(is_superuser=True, is_staff=True), "pause")]

    assert titles == ["Pause: default…", "Pause: judge…"]


def test_a_verb_is_offered_to_roles_that_its_page_admits() -> None:
    viewer, operator = reader(Role.VIEWER), reader(Role.OPERATOR)

    assert found(viewer, "pause swe") == []
    assert [each["kind"] for each in found(operator, "pause swe")] == ["verb"]
    assert found(operator, "drain cpu-04") == []
    assert found(operator, "pause default") == []


@pytest.mark.parametrize("text", ["", " ", "pause  ", "h\ud7ffld", "hold\0", "%", "_"])
def test_texts_that_no_name_begins_with_find_no_task(text: str) -> None:
    assert all("task" not in each["note"] for each in found(reader(is_staff=True), text))
