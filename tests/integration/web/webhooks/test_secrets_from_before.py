"""Secrets that lie open in a database from before are sealed when it is brought up to date."""

from __future__ import annotations

from typing import Any

import pytest
from django.db import connection
from django.db.migrations.executor import MigrationExecutor
from django.utils import timezone

from tangram_web.lib.sealing import PREFIX
from tangram_web.webhooks.models import Endpoint
from tangram_web.webhooks.signing import new_secret

BEFORE = [("webhooks", "0001_endpoints_and_outbox")]
AFTER = [("webhooks", "0002_sealed_secrets_and_times_of_turns")]


@pytest.mark.django_db(transaction=True)
def test_a_migration_seals_what_lay_open_and_opens_it_again_on_the_way_back(
    defaults: Any,
) -> None:
    MigrationExecutor(connection).migrate(BEFORE)
    former = MigrationExecutor(connection).loader.project_state(BEFORE).apps
    secret = new_secret()
    made = former.get_model("webhooks", "Endpoint").objects.create(
        id="whk_1", project_id="default", url="https://hooks.example.com/", secret=secret
    )

    MigrationExecutor(connection).migrate(AFTER)

    endpoint = Endpoint.objects.only("secret", "former_secret", "former_until").get()
    assert endpoint.secret.startswith(PREFIX)
    assert endpoint.former_secret == ""
    assert endpoint.secrets_at(timezone.now()) == [secret]

    MigrationExecutor(connection).migrate(BEFORE)
    made.refresh_from_db()
    assert made.secret == secret
    newest = MigrationExecutor(connection).loader.graph.leaf_nodes("webhooks")
    MigrationExecutor(connection).migrate(newest)
