"""The admin site shows rows and changes none."""

from __future__ import annotations

import re
from datetime import UTC, datetime

import pytest
from django.contrib import admin
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.urls import reverse

from domain.action import Kind
from domain.principals import Scope
from tangram_web.lib import admin as lib_admin
from tangram_web.pools.models import Token
from tangram_web.records.models import ActionRecord
from tangram_web.records.projection import project
from tests.integration.web.journal import Journal, a_node, an_action

MODELS = sorted(
    (
        model
        for model in admin.site._registry
        if model._meta.app_label in ("records", "pools", "audit")
    ),
    key=lambda model: model._meta.label,
)

NOW = datetime(2026, 11, 20, tzinfo=UTC)


@pytest.fixture
def rows(defaults, token):
    token(Scope.READ)
    journal = Journal()
    journal.write([a_node()])
    journal.run(an_action(kind=Kind.EXEC, trajectory="t"))
    project(journal.entries)


def address(model, page: str, *args: str) -> str:
    return reverse(f"admin:{model._meta.app_label}_{model._meta.model_name}_{page}", args=args)


@pytest.mark.parametrize("model", MODELS, ids=lambda model: model._meta.label)
def test_rows_are_shown_and_not_changed(rows, admin_client, model):
    assert admin_client.get(address(model, "changelist"), {"q": "x"}).status_code == 200
    assert admin_client.get(address(model, "add")).status_code == 403
    row = model._default_manager.first()
    if row is None:
        return
    page = admin_client.get(address(model, "change", row.pk))
    assert page.status_code == 200
    assert b'name="_save"' not in page.content
    assert admin_client.post(address(model, "change", row.pk), {}).status_code == 403
    assert admin_client.post(address(model, "delete", row.pk), {"post": "yes"}).status_code == 403


def test_hash_of_a_token_is_not_shown(rows, admin_client):
    row = Token.objects.get()

    page = admin_client.get(address(Token, "change", row.pk))

    text = re.sub(r'(?:href|action)="[^"]*"', "", page.content.decode())
    assert row.public_id in text
    assert row.digest not in text


def test_rows_are_counted_up_to_a_bound(rows, admin_client, monkeypatch):
    ActionRecord.objects.bulk_create(
        ActionRecord(id=f"act_{number}", project="default", task="t", kind="noop", submitted_at=NOW)
        for number in range(5)
    )
    monkeypatch.setattr(lib_admin, "MOST_ROWS", 3)
    paginator = lib_admin.BoundedPaginator(ActionRecord.objects.order_by("-pk"), 2)

    with CaptureQueriesContext(connection) as asked:
        pages = paginator.num_pages

    assert "LIMIT 3" in asked.captured_queries[0]["sql"]
    assert pages == 2
