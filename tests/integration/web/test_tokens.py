"""Tokens: shown once, kept as a hash, ended by time, by revocation, and with their owner."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.contrib.auth import get_user_model
from django.utils import timezone

from domain.principals import Principal, Scope
from tangram_web.audit.models import AuditEntry
from tangram_web.audit.services import SYSTEM
from tangram_web.pools.models import Token
from tangram_web.pools.selectors import principal_of
from tangram_web.pools.services import token_create, token_revoke


def test_token_is_found_by_its_hash_alone(token):
    raw = token(Scope.READ, project="default", name="verl on n1")

    stored = Token.objects.values().get()
    assert raw.startswith("tgm_")
    assert raw not in str(stored)
    assert principal_of(raw) == Principal("verl on n1", "default", frozenset({Scope.READ}))


@pytest.mark.parametrize("other", ["", "tgm_", "Bearer", "\0", "\udcff", "x" * 300])
def test_other_text_is_no_principal(token, other):
    token(Scope.READ)

    assert principal_of(other) is None


def test_token_ends_with_its_time(token):
    raw = token(Scope.READ, expires_at=timezone.now() + timedelta(hours=1))
    assert principal_of(raw) is not None

    Token.objects.update(expiry=timezone.now() - timedelta(seconds=1))

    assert principal_of(raw) is None


def test_token_ends_when_it_is_revoked(token):
    raw = token(Scope.READ)
    public_id = Token.objects.get().public_id

    token_revoke(actor=SYSTEM, public_id=public_id)
    token_revoke(actor=SYSTEM, public_id=public_id)

    assert principal_of(raw) is None
    assert AuditEntry.objects.filter(verb="revoke").count() == 1


def test_token_of_a_person_ends_with_the_account(defaults):
    user = get_user_model().objects.create_user("ada", password="x")
    _, raw = token_create(actor=SYSTEM, name="ada", scopes=[Scope.READ], user=user)
    assert principal_of(raw) is not None

    user.is_active = False
    user.save()

    assert principal_of(raw) is None


def test_use_of_a_token_is_noted_once_a_minute(token, django_assert_num_queries):
    raw = token(Scope.READ)
    principal_of(raw)
    first = Token.objects.get().last_used_at
    assert first is not None

    with django_assert_num_queries(1):
        principal_of(raw)
    assert Token.objects.get().last_used_at == first

    Token.objects.update(last_used_at=first - timedelta(minutes=2))
    principal_of(raw)
    assert Token.objects.get().last_used_at >= first


def test_new_token_is_shown_once(caller):
    client = caller(Scope.ADMIN)

    made = client.post("/api/v1/tokens", {"name": "verl", "scopes": ["submit", "read"]})

    assert made.status_code == 201
    raw = made.json()["token"]
    assert principal_of(raw) == Principal("verl", None, frozenset({Scope.SUBMIT, Scope.READ}))
    shown = client.get(f"/api/v1/tokens/{made.json()['id']}")
    assert shown.json()["scopes"] == ["read", "submit"]
    assert raw not in shown.content.decode()


def test_revoked_token_opens_nothing(caller):
    client = caller(Scope.ADMIN)
    made = client.post("/api/v1/tokens", {"name": "verl", "scopes": ["read"]}).json()

    assert client.delete(f"/api/v1/tokens/{made['id']}").status_code == 204

    assert principal_of(made["token"]) is None
    assert client.get(f"/api/v1/tokens/{made['id']}").json()["revoked_at"] is not None


@pytest.mark.parametrize(
    ("project", "body"),
    [
        (None, {"scopes": ["admin"]}),
        ("default", {"scopes": ["config"], "project": "other"}),
    ],
    ids=["a scope it lacks", "another project"],
)
def test_no_token_creates_one_with_more_rights(caller, project, body):
    caller(Scope.READ, project="other")
    client = caller(Scope.CONFIG, project=project)

    answer = client.post("/api/v1/tokens", {"name": "wide", **body})

    assert answer.status_code == 403
    assert not Token.objects.filter(name="wide").exists()


def test_token_made_by_a_projects_token_belongs_to_that_project(caller):
    client = caller(Scope.CONFIG, project="default")

    made = client.post("/api/v1/tokens", {"name": "child", "scopes": ["config"]})

    assert made.json()["project"] == "default"


def test_tokens_of_other_projects_are_not_found(caller):
    stranger = caller(Scope.CONFIG, project="other")
    own = caller(Scope.CONFIG, project="default")
    public_id = Token.objects.get(project="default").public_id

    assert stranger.get(f"/api/v1/tokens/{public_id}").status_code == 404
    assert stranger.delete(f"/api/v1/tokens/{public_id}").status_code == 404
    assert own.get(f"/api/v1/tokens/{public_id}").status_code == 200
