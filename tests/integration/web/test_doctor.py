"""The checks of an installation: over REST, and by `manage.py doctor`."""

from __future__ import annotations

import json
from collections import namedtuple
from collections.abc import Callable
from io import StringIO
from pathlib import Path
from typing import Any

import msgspec
import pytest
from django.conf import settings
from django.core.management import call_command
from django.db import connection

from domain.confinement import OFF
from domain.events import NodeJoined
from domain.principals import Scope
from domain.protection import Protection, UidMode
from managers.cpu.apptainer import program
from tangram_web.audit.services import SYSTEM
from tangram_web.doctor import checks
from tangram_web.doctor.results import CheckResult, CheckState, run
from tangram_web.lib import oom_scores
from tangram_web.pools import services
from tangram_web.records.projection import project
from tests.integration.web.journal import Journal, a_node

Usage = namedtuple("Usage", "total used free")
BWRAP = Protection("bwrap", UidMode.OWN, seccomp=True, nested_namespaces_off=True, version="0.11.0")


@pytest.fixture(autouse=True)
def site(
    defaults: None, redis_bus: Any, settings: Any, tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings.TANGRAM_HOME = tmp_path
    settings.TANGRAM_TOKENIZERS = [str(tmp_path / "tokenizers")]
    monkeypatch.setattr(services, "wait_until_in_force", lambda _: None)


def join(protection: Protection | None, isolation: str) -> None:
    event = a_node("n1")
    node = msgspec.structs.replace(event.node, protection=protection, isolation=isolation)
    journal = Journal()
    journal.write([NodeJoined(node=node)])
    project(journal.entries)


def doctor() -> tuple[int, dict[str, dict[str, str]]]:
    out, code = StringIO(), 0
    try:
        call_command("doctor", "--json", stdout=out)
    except SystemExit as ended:
        code = int(ended.code or 0)
    return code, {each["check"]: each for each in json.loads(out.getvalue())}


def test_an_installation_in_order_ends_with_0() -> None:
    join(BWRAP, "bwrap")

    code, found = doctor()

    assert code == 0
    assert set(found) == {"database", "redis", "disk", "memory", "pool", "protection", "tokenizers"}
    assert found["protection"]["state"] == "ok"
    assert found["protection"]["detail"] == (
        "n1: bwrap 0.11.0, own uids for each environment, system calls filtered,"
        " nested user namespaces off; networks none"
    )


def test_a_node_that_its_pool_refuses_is_a_failure_with_its_cure() -> None:
    join(Protection("process", missing="user namespaces are forbidden"), "process")

    code, found = doctor()

    assert code == 1
    assert found["protection"]["state"] == "fail"
    assert "user namespaces are forbidden" in found["protection"]["detail"]
    assert "gets no actions, as pool default requires a sandbox" in found["protection"]["detail"]
    assert "set sandbox: off for pool default" in found["protection"]["cure"]


def test_a_pool_without_a_sandbox_is_a_warning_with_its_cure() -> None:
    services.pool_update(actor=SYSTEM, name="default", sandbox=OFF, host_network=True)
    join(None, "process")

    code, found = doctor()

    assert (code, found["pool"]["state"], found["protection"]["state"]) == (0, "warn", "warn")
    assert "networks: none, host" in found["pool"]["detail"]
    assert "set sandbox: required" in found["pool"]["cure"]


@pytest.mark.parametrize(
    ("free", "state", "code"), [(2**40, "ok", 0), (2**30, "warn", 0), (2**20, "fail", 1)]
)
def test_little_space_warns_and_none_fails(
    monkeypatch: pytest.MonkeyPatch, free: int, state: str, code: int
) -> None:
    monkeypatch.setattr("shutil.disk_usage", lambda _: Usage(2**40, 2**40 - free, free))

    ended, found = doctor()

    assert (ended, found["disk"]["state"]) == (code, state)


def test_an_object_store_is_tried_and_left_empty(settings: Any, tmp_path: Path) -> None:
    settings.TANGRAM_OBJECT_STORE = f"file://{tmp_path}/objects"
    _, found = doctor()
    left = [each for each in (tmp_path / "objects").rglob("*") if each.is_file()]
    (tmp_path / "file").touch()
    settings.TANGRAM_OBJECT_STORE = f"file://{tmp_path}/file"
    code, broken = doctor()

    assert found["object_store"]["state"] == "ok"
    assert left == []
    assert (code, broken["object_store"]["state"]) == (1, "fail")
    assert "mount the folder" in broken["object_store"]["cure"]


@pytest.mark.parametrize(("score", "state"), [(-900, "ok"), (0, "warn")])
def test_a_redis_that_the_kernel_does_not_spare_is_a_warning_with_its_cure(
    monkeypatch: pytest.MonkeyPatch, score: int, state: str
) -> None:
    monkeypatch.setattr(oom_scores, "score_of", lambda _: score)

    _, found = doctor()

    assert found["memory"]["state"] == state
    assert ("OOMScoreAdjust" in found["memory"]["cure"]) is (score == 0)


def a_stand_in(folder: Path, version: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the program of the machine be one that says it is Apptainer."""
    program = folder / "apptainer"
    program.write_text(f"#!/bin/sh\necho apptainer version {version}\n")
    program.chmod(0o755)
    monkeypatch.setitem(settings.TANGRAM_APPTAINER, "apptainer_program", str(program))
    monkeypatch.setattr(checks, "forbidden_namespaces", str)


def test_a_machine_that_neither_has_nor_wants_apptainer_is_not_asked_about_it() -> None:
    assert "apptainer" not in doctor()[1]


def test_a_node_that_wants_apptainer_fails_without_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(settings, "TANGRAM_NODE_ISOLATION", "apptainer")
    code, found = doctor()
    assert (code, found["apptainer"]["state"]) == (1, "fail")
    assert found["apptainer"]["detail"] == "apptainer is not installed"
    assert "https://apptainer.org" in found["apptainer"]["cure"]


@pytest.mark.parametrize(
    ("one_user", "state", "said"),
    [
        ("", "ok", "--fakeroot with all users of an image"),
        ("/etc/subuid has no range: add the line tangram:100000:65536", "warn", "has no range"),
    ],
)
def test_apptainer_is_found_with_its_version_and_its_ids(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, one_user: str, state: str, said: str
) -> None:
    a_stand_in(tmp_path, "1.3.1", monkeypatch)
    monkeypatch.setattr(program, "lacking_users", lambda *_: one_user)
    found = doctor()[1]["apptainer"]
    assert found["state"] == state
    assert found["detail"].startswith("apptainer 1.3.1 at")
    assert said in found["detail"]
    assert found["cure"] == (one_user.partition(": ")[2])


def test_a_kernel_without_user_namespaces_is_named_with_its_cure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    a_stand_in(tmp_path, "1.3.1", monkeypatch)
    why = "/proc/sys/user/max_user_namespaces is 0: set user.max_user_namespaces=15000"
    monkeypatch.setattr(checks, "forbidden_namespaces", lambda: why)
    found = doctor()[1]["apptainer"]
    assert "user namespaces are forbidden" in found["detail"]
    assert found["cure"] == "set user.max_user_namespaces=15000"


def test_a_database_without_its_migrations_is_a_failure() -> None:
    with connection.cursor() as cursor:
        cursor.execute("SELECT max(name) FROM django_migrations WHERE app = 'records'")
        newest = cursor.fetchone()[0]
        cursor.execute("DELETE FROM django_migrations WHERE name = %s", [newest])

    code, found = doctor()

    assert (code, found["database"]["cure"]) == (1, "run manage.py setup")


def test_a_check_that_raises_is_a_finding_and_stops_no_other() -> None:
    def broken() -> list[CheckResult]:
        raise OSError("no answer")

    found = run([broken, checks.database])

    assert [each.check for each in found] == ["broken", "database"]
    assert found[0].state is CheckState.FAIL
    assert "no answer" in found[0].detail


def test_the_text_has_one_line_for_each_finding_and_one_for_each_cure() -> None:
    join(None, "process")
    out = StringIO()

    with pytest.raises(SystemExit):
        call_command("doctor", stdout=out)

    lines = out.getvalue().splitlines()
    assert any(line.startswith("fail  protection  n1: process") for line in lines)
    assert any(line.strip().startswith("→ allow user namespaces") for line in lines)


def test_over_rest_only_a_token_of_all_projects_sees_the_checks(caller: Callable[..., Any]) -> None:
    join(BWRAP, "bwrap")

    answer = caller(Scope.READ).get("/api/v1/checks")
    bound = caller(Scope.READ, project="default").get("/api/v1/checks")

    assert answer.status_code == 200
    assert answer.json()["in_order"] is True
    assert {each["check"] for each in answer.json()["findings"]} >= {"redis", "protection"}
    assert bound.status_code == 403


def test_tokenizers_are_listed_and_a_missing_folder_is_a_warning_with_its_cure(
    settings: Any, tmp_path: Path
) -> None:
    join(BWRAP, "bwrap")
    (tmp_path / "tokenizers" / "org" / "model").mkdir(parents=True)
    (tmp_path / "tokenizers" / "org" / "model" / "tokenizer.json").write_text("{}")

    _, found = doctor()
    settings.TANGRAM_TOKENIZERS = [str(tmp_path / "tokenizers"), str(tmp_path / "missing")]
    _, lacking = doctor()

    assert found["tokenizers"]["state"] == "ok"
    assert found["tokenizers"]["detail"].endswith(": org/model")
    assert lacking["tokenizers"]["state"] == "warn"
    assert str(tmp_path / "missing") in lacking["tokenizers"]["detail"]
