"""A token opens what its scopes say, and nothing else."""

from __future__ import annotations

import pytest
from django.contrib.auth import get_user_model
from rest_framework.test import APIClient

from domain.principals import Scope

READS = {
    "actions": Scope.READ,
    "trajectories": Scope.READ,
    "tasks": Scope.READ,
    "nodes": Scope.READ,
    "pools": Scope.READ,
    "projects": Scope.READ,
    "resources": Scope.READ,
    "tokens": Scope.CONFIG,
    "node-tokens": Scope.ADMIN,
    "audit": Scope.OPERATE,
}
WRITES = {
    ("pools", "post"): Scope.CONFIG,
    ("pools/default", "patch"): Scope.CONFIG,
    ("projects", "post"): Scope.CONFIG,
    ("resources", "post"): Scope.CONFIG,
    ("resources/api:demo", "put"): Scope.CONFIG,
    ("tokens", "post"): Scope.CONFIG,
    ("node-tokens", "post"): Scope.ADMIN,
    ("nodes/n1/drain", "post"): Scope.OPERATE,
    ("nodes/n1/resume", "post"): Scope.OPERATE,
    ("nodes/n1/forget", "post"): Scope.OPERATE,
    ("nodes/n1/revoke", "post"): Scope.OPERATE,
}


@pytest.mark.parametrize("scope", Scope)
@pytest.mark.parametrize(("name", "needed"), READS.items(), ids=READS)
def test_reading_needs_its_scope(caller, scope, name, needed):
    answer = caller(scope).get(f"/api/v1/{name}")

    assert answer.status_code == (200 if scope in (needed, Scope.ADMIN) else 403)


@pytest.mark.parametrize("scope", Scope)
@pytest.mark.parametrize(("target", "needed"), WRITES.items(), ids=str)
def test_writing_needs_its_scope(caller, redis_bus, monkeypatch, scope, target, needed):
    monkeypatch.setattr("tangram_web.lib.scheduler_client.ANSWER_SECONDS", 0.01)
    name, method = target
    body = {"unknown": 1} if not name.endswith(("resume", "forget", "revoke")) else None

    answer = getattr(caller(scope), method)(f"/api/v1/{name}", body)

    allowed = scope in (needed, Scope.ADMIN)
    assert (answer.status_code != 403) is allowed
    if allowed and body:
        assert answer.status_code == 422


@pytest.mark.parametrize(("target", "needed"), WRITES.items(), ids=str)
def test_token_of_a_project_cannot_change_what_all_share(caller, redis_bus, target, needed):
    name, method = target
    answer = getattr(caller(needed, project="default"), method)(f"/api/v1/{name}", {})

    assert answer.status_code == (422 if name == "tokens" else 403)


@pytest.mark.parametrize("name", READS)
def test_every_route_needs_a_token(db, name):
    answer = APIClient().get(f"/api/v1/{name}")

    assert answer.status_code == 401
    assert answer["WWW-Authenticate"] == "Bearer"
    assert answer.json()["code"] == "unauthorized"


@pytest.mark.parametrize("raw", ["", "tgm_unknown", "x" * 10_000, "ä", "tgm_\0"])
def test_token_that_is_not_one_is_refused(db, raw):
    answer = APIClient().get("/api/v1/nodes", headers={"Authorization": f"Bearer {raw}"})

    assert answer.status_code == 401


def test_staff_in_the_browser_watch_but_do_not_configure(defaults):
    client = APIClient()
    client.force_login(get_user_model().objects.create_user("ops", password="x", is_staff=True))

    assert client.get("/api/v1/pools").status_code == 200
    assert client.post("/api/v1/pools", {"name": "p"}).status_code == 403


def test_a_user_who_is_not_staff_stays_outside(defaults):
    client = APIClient()
    client.force_login(get_user_model().objects.create_user("guest", password="x"))

    assert client.get("/api/v1/pools").status_code == 401


def test_change_from_a_browser_needs_the_csrf_token(defaults):
    client = APIClient(enforce_csrf_checks=True)
    client.force_login(get_user_model().objects.create_superuser("root", password="x"))

    answer = client.post("/api/v1/pools", {"name": "p"})

    assert answer.status_code == 403
    assert "CSRF" in answer.json()["detail"]
