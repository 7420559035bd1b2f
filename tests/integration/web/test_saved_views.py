"""Saved views by REST: saved, renamed, shared and deleted, by accounts and by tokens."""

from __future__ import annotations

from typing import Any

import pytest
from django.contrib.auth import get_user_model
from django.test import Client

from domain.principals import Scope
from tangram_web.accounts.models import Membership, Role
from tangram_web.explorer.models import SavedView
from tangram_web.explorer.saved_views import save_view
from tangram_web.pools.models import Token


@pytest.fixture
def staff(defaults: None) -> Client:
    client = Client()
    client.force_login(get_user_model().objects.create_user("ops", is_staff=True))
    return client


def test_views_are_saved_renamed_shared_and_deleted_by_the_api(staff: Client) -> None:
    body = {"name": "Slow", "q": "act:>5s  task:swe", "sort": "-act", "columns": ["act", "moon"]}
    made = staff.post("/api/v1/views", body, "application/json")
    again = staff.post("/api/v1/views", body, "application/json")
    other = staff.post(
        "/api/v1/views", {"name": "Lost", "list": "tasks"}, "application/json"
    ).json()

    assert (made.status_code, again.status_code) == (201, 200)
    assert again.json() == made.json() == {
        "id": SavedView.objects.get(name="Slow").pk, "list": "actions", "name": "Slow",
        "q": "act:>5s task:swe", "sort": "-act", "project": None,
    }  # fmt: skip
    assert SavedView.objects.get(name="Slow").columns == ["act"]
    assert ">Slow</a>" in staff.get("/actions/").content.decode()

    change = {"name": "Slow ones", "project": "default", "q": "act:>9s"}
    shared = staff.patch("/api/v1/views/Slow", change, "application/json").json()
    assert (shared["name"], shared["project"], shared["q"]) == ("Slow ones", "default", "act:>9s")
    assert [each["name"] for each in staff.get("/api/v1/views").json()["views"]] == ["Slow ones"]
    mine = staff.get("/api/v1/views?mine=true").json()["views"]
    assert [(each["name"], each["project"]) for each in mine] == [
        ("Lost", None),
        ("Slow ones", "default"),
    ]

    assert staff.delete("/api/v1/views/Slow%20ones").status_code == 204
    assert staff.delete(f"/api/v1/views/{other['id']}").status_code == 204
    assert staff.delete(f"/api/v1/views/{other['id']}").status_code == 404
    assert not SavedView.objects.exists()


@pytest.mark.parametrize(
    ("given", "pointer", "reason"),
    [
        ({"name": "a", "q": "stat:x"}, "/q", "did you mean state:?"),
        ({"name": "a", "sort": "moon"}, "/sort", "no order"),
        ({"name": "\u0007"}, "/name", "1 to 80 printable characters"),
        ({"name": "a", "list": "cats"}, "/list", "cats"),
        ({"q": ""}, "/name", "required"),
    ],
)
def test_the_api_names_the_member_of_a_view_that_is_wrong(
    staff: Client, given: dict[str, Any], pointer: str, reason: str
) -> None:
    refused = staff.post("/api/v1/views", given, "application/json")

    assert refused.status_code == 422
    assert [each["pointer"] for each in refused.json()["errors"]] == [pointer]
    assert reason in refused.json()["detail"]
    assert not SavedView.objects.exists()


def test_a_name_of_another_view_is_a_conflict_and_of_several_needs_an_id(staff: Client) -> None:
    user = get_user_model().objects.get(username="ops")
    for tab, label in (("actions", "a"), ("actions", "b"), ("tasks", "b")):
        save_view(user, tab=tab, name=label, query="")

    taken = staff.patch("/api/v1/views/a", {"name": "b"}, "application/json")
    several = staff.delete("/api/v1/views/b")

    assert (taken.status_code, several.status_code) == (409, 409)
    assert taken.json()["errors"][0]["pointer"] == "/name"
    assert all(each.pk in several.json()["detail"] for each in SavedView.objects.filter(name="b"))
    assert staff.patch("/api/v1/views/x\0", {}, "application/json").status_code == 404


def test_a_token_changes_views_of_its_account_and_with_config_of_its_project(
    caller: Any, token: Any, staff: Client
) -> None:
    users = get_user_model().objects
    ada = users.create_user("ada")
    Membership.objects.create(user=ada, project_id="default", role=Role.VIEWER)
    reads = caller(Scope.READ, project="default")
    Token.objects.update(user=ada)
    bare, reader = caller(Scope.CONFIG, Scope.READ, project="default"), caller(Scope.READ)
    shared, own = {"name": "Shared", "project": "default"}, {"name": "Own"}

    assert bare.post("/api/v1/views", own).json()["errors"][0]["pointer"] == "/project"
    assert bare.post("/api/v1/views", shared).status_code == 201
    assert bare.post("/api/v1/views", {**shared, "project": "other"}).status_code == 404
    assert reader.post("/api/v1/views", shared).status_code == 404
    assert reader.delete("/api/v1/views/Shared").status_code == 404
    assert reads.post("/api/v1/views", own).status_code == 201
    assert reads.post("/api/v1/views", {**own, "project": "default"}).status_code == 404
    assert reads.patch("/api/v1/views/Own", {"project": "default"}).status_code == 404
    assert bare.delete("/api/v1/views/Own").status_code == 404
    assert reads.delete("/api/v1/views/Shared").status_code == 404
    assert SavedView.objects.get(name="Own").owner == ada

    assert reads.patch("/api/v1/views/Own", {"name": "Mine"}).json()["name"] == "Mine"
    assert reads.delete("/api/v1/views/Mine").status_code == 204
    assert bare.patch("/api/v1/views/Shared", {"project": None}).status_code == 422
    assert bare.patch("/api/v1/views/Shared", {"sort": "-act"}).json()["sort"] == "-act"
    assert bare.delete("/api/v1/views/Shared").status_code == 204


def test_a_project_view_is_changed_by_admins_of_the_project(staff: Client) -> None:
    users = get_user_model().objects
    save_view(users.get(username="ops"), tab="actions", name="Slow", query="", project="default")
    other = Client()
    other.force_login(users.create_user("eve", is_staff=True))

    refused = other.patch("/api/v1/views/Slow", {"name": "x"}, "application/json")
    Membership.objects.create(user=users.get(username="eve"), project_id="default", role=Role.ADMIN)
    changed = other.patch("/api/v1/views/Slow", {"name": "x"}, "application/json")

    assert (refused.status_code, changed.status_code) == (404, 200)
    moved = other.patch("/api/v1/views/x", {"project": None}, "application/json")
    assert (moved.status_code, moved.json()["errors"][0]["pointer"]) == (422, "/project")
