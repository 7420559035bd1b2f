"""The sandbox rule of pools: its default, its files, upgrades, and the warning on every page."""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import Any

import pytest
from django.contrib.auth import get_user_model
from django.test import Client

from domain.confinement import OFF, REQUIRED
from tangram_web.accounts.models import Membership, Role
from tangram_web.audit.models import AuditEntry
from tangram_web.audit.services import SYSTEM
from tangram_web.lib import scheduler_client
from tangram_web.management import local_pool
from tangram_web.pools import applying, manifests, services
from tangram_web.pools.models import ConfigRevision, Pool
from tangram_web.pools.selectors import current_config
from tangram_web.pools.upgrading import decide_sandboxes
from tangram_web.records.projection import project
from tests.integration.web.journal import Journal, a_node

BANNER = "run without a sandbox"
OLD_FILE = """
apiVersion: tangram/v1
kind: Pool
metadata: {name: default}
spec: {policy: paper}
"""


@pytest.fixture(autouse=True)
def site(defaults: None, redis_bus: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(services, "wait_until_in_force", lambda _: None)
    monkeypatch.setattr(scheduler_client, "ANSWER_SECONDS", 0.01)


def apply(text: str) -> None:
    applying.apply(manifests.parse(text), actor=SYSTEM)


def a_pool_of_before(name: str) -> None:
    Pool.objects.create(name=name, sandbox="", host_network=True)


def test_a_new_pool_requires_a_sandbox_and_gives_no_host_network() -> None:
    services.pool_create(actor=SYSTEM, name="new")
    apply(OLD_FILE.replace("default", "from-a-file"))

    for name in ("default", "new", "from-a-file"):
        pool = current_config().pools[name]
        assert (pool.sandbox, pool.host_network, pool.networks) == (REQUIRED, False, ("none",))


def test_a_file_without_the_rule_leaves_it_as_it_is() -> None:
    services.pool_update(actor=SYSTEM, name="default", sandbox=OFF, host_network=True)

    apply(OLD_FILE)

    pool = current_config().pools["default"]
    assert (pool.policy, pool.sandbox, pool.host_network) == ("paper", OFF, True)
    assert applying.changes(manifests.parse(OLD_FILE), current_config(), prune=False) == []


def test_a_file_states_both_rules_and_an_export_gives_them_back() -> None:
    text = OLD_FILE.replace("policy: paper", "sandbox: off, host_network: true")
    apply(text.replace("sandbox: off", 'sandbox: "off"'))

    assert current_config().pools["default"].sandbox == OFF
    exported = manifests.to_yaml(manifests.plain(manifests.specs_of(current_config())))
    assert applying.changes(manifests.parse(exported), current_config(), prune=True) == []


def test_a_roll_back_to_a_revision_of_before_the_rule_does_not_weaken_the_pool() -> None:
    row = ConfigRevision.objects.get()
    old = {**row.snapshot, "pools": {"default": {"name": "default", "policy": "paper"}}}
    ConfigRevision.objects.create(number=2, author="tangram", snapshot=old)

    applying.roll_back(2, actor=SYSTEM)

    pool = current_config().pools["default"]
    assert (pool.policy, pool.sandbox, pool.host_network) == ("paper", REQUIRED, False)


def test_an_upgraded_pool_of_plain_processes_goes_on_with_a_warning(
    caplog: pytest.LogCaptureFixture,
) -> None:
    journal = Journal()
    journal.write([a_node("n1")])
    project(journal.entries)
    a_pool_of_before("quiet")
    Pool.objects.filter(name="default").update(sandbox="", host_network=True)
    before = current_config()
    assert not before.pools["default"].needs_sandbox

    with caplog.at_level(logging.WARNING):
        decide_sandboxes()

    after = current_config()
    assert after.revision == before.revision + 1
    assert {name: pool.sandbox for name, pool in after.pools.items()} == {
        "default": OFF, "quiet": REQUIRED,
    }  # fmt: skip
    assert after.pools["quiet"].networks == ("none", "host")
    assert "pool default: commands run without a sandbox on n1" in caplog.text
    entry = AuditEntry.objects.get(target="pool/default", verb="upgrade")
    assert entry.after["sandbox"] == OFF
    assert "set sandbox: required" in entry.after["warnings"][0]

    decide_sandboxes()
    assert current_config().revision == after.revision


def test_an_upgraded_pool_whose_node_is_set_to_run_processes_goes_on(settings: Any) -> None:
    settings.TANGRAM_NODE_ISOLATION, settings.TANGRAM_NODE_POOL = "process", "plain"
    a_pool_of_before("plain")

    decide_sandboxes(local_pool.plain_pools())

    assert current_config().pools["plain"].sandbox == OFF


@pytest.mark.parametrize(
    ("isolation", "backend", "rule"),
    [("process", "process", OFF), ("auto", "docker", REQUIRED), ("auto", "process", OFF)],
)
def test_the_rule_of_the_local_pool_is_what_the_machine_can_do(
    settings: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, isolation: str, backend: str, rule: str
) -> None:  # fmt: skip
    settings.TANGRAM_HOME, settings.TANGRAM_CPU_BACKEND = tmp_path, backend
    settings.TANGRAM_NODE_ISOLATION = isolation
    monkeypatch.setattr("managers.cpu.process.sandbox.find_sandbox", lambda *_: None)

    assert local_pool.local_rule() == rule


@pytest.mark.parametrize(("uid", "rule"), [(1000, REQUIRED), (0, OFF)])
def test_a_machine_of_apptainer_needs_no_bubblewrap_and_no_root(
    settings: Any, monkeypatch: pytest.MonkeyPatch, uid: int, rule: str
) -> None:
    settings.TANGRAM_CPU_BACKEND, settings.TANGRAM_NODE_ISOLATION = "process", "apptainer"
    monkeypatch.setattr(os, "geteuid", lambda: uid)

    assert local_pool.local_rule() == rule


def page_of(name: str, role: Role | None = None) -> str:
    client = Client()
    user = get_user_model().objects.create_user(name, is_staff=role is None)
    if role is not None:
        services.project_create(actor=SYSTEM, name="team")
        Membership.objects.create(user=user, project_id="team", role=role)
    client.force_login(user)
    return client.get("/queues/").content.decode()


@pytest.mark.parametrize("role", [None, Role.VIEWER], ids=["staff", "member"])
def test_every_page_names_pools_without_a_sandbox_to_all_who_see_pools(role: Role | None) -> None:
    journal = Journal()
    journal.write([a_node("n1")])
    project(journal.entries)
    services.pool_update(actor=SYSTEM, name="default", sandbox=OFF)

    text = page_of("ada", role)

    assert f"Commands of pool default {BANNER}</strong> on n1" in text
    assert "<code>sandbox: required</code>" in text


def test_no_page_warns_where_pools_require_a_sandbox() -> None:
    assert BANNER not in page_of("ada")
    assert "does not require a sandbox" not in Client().get("/login/").content.decode()


def test_a_pool_without_the_rule_whose_nodes_have_a_sandbox_is_named_more_gently() -> None:
    services.pool_update(actor=SYSTEM, name="default", sandbox=OFF)

    text = page_of("ada")

    assert BANNER not in text
    assert "Pool default does not require a sandbox" in text
