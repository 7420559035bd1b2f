"""Simulations of the page: asked for, played by a process, shared within a project, deleted."""

from __future__ import annotations

import io
import subprocess
from collections.abc import Callable
from datetime import timedelta
from threading import Event
from typing import Any

import msgspec
import pytest
from django.contrib.auth import get_user_model
from django.test import Client
from django.utils import timezone

from domain.codec import encode
from simulator.request import read_request
from tangram_web.accounts.models import Membership, Role
from tangram_web.audit.models import AuditEntry
from tangram_web.pools.models import Project
from tangram_web.simulations import inputs, runner, services
from tangram_web.simulations.models import Simulation, SimulationState
from tests.integration.web.journal import Journal, an_action

ASKED = {
    "project": "default", "workload": "ai-coding", "policies": ["minimum"], "seeds": "0",
    "batch": "2", "steps": "1", "nodes": "1", "cores": "4", "rewards": "light",
}  # fmt: skip
MARKUP = "<script>alert(1)</script>"


@pytest.fixture
def person(defaults: None) -> Callable[..., Client]:
    """Sign in a user with a role in a project."""

    def make(role: Role | None, project: str = "default", name: str = "") -> Client:
        Project.objects.get_or_create(name=project, defaults={"default_pool_id": "default"})
        user, _ = get_user_model().objects.get_or_create(username=name or f"{role}-{project}")
        if role is not None:
            Membership.objects.get_or_create(user=user, project_id=project, role=role)
        client = Client()
        client.force_login(user)
        return client

    return make


@pytest.fixture
def submitter(person: Any) -> Client:
    client: Client = person(Role.SUBMITTER)
    return client


def asked(client: Client, **given: Any) -> Simulation:
    answer = client.post("/simulate/", {**ASKED, **given})
    assert answer.status_code == 302, answer.content.decode()
    return Simulation.objects.latest("created_at")


@pytest.mark.parametrize(
    "trouble", [OSError(28, "No space left on device"), ValueError("what it said is no JSON")]
)
def test_an_error_around_a_simulation_fails_it_alone(submitter, monkeypatch, trouble):
    """Its thread is one of the projector's process: rows and webhooks would end with it."""
    made = asked(submitter)

    def goes_wrong(*_: Any) -> None:
        raise trouble

    monkeypatch.setattr(runner, "_simulate", goes_wrong)
    assert runner.run_next(Event())

    made.refresh_from_db()
    assert made.state == SimulationState.FAILED
    assert str(trouble) in made.problem
    assert made.finished_at is not None


def test_a_simulation_is_played_and_its_comparison_shown(submitter):
    made = asked(submitter, title=MARKUP, policies=["minimum", "kubernetes"])
    page = submitter.get(f"/simulate/{made.pk}/").content.decode()
    assert "It waits for a worker" in page
    assert MARKUP not in page

    assert runner.run_next(Event())

    made.refresh_from_db()
    assert (made.state, made.problem) == (SimulationState.FINISHED, "")
    page = submitter.get(f"/simulate/{made.pk}/").content.decode()
    assert "kubernetes" in page
    assert page.count('<div class="plot"><svg') == 3
    assert MARKUP not in page
    kept = submitter.get(f"/simulate/{made.pk}/result.json").json()
    assert kept["outcome"]["simulated"] is True
    assert [run["policy"] for run in kept["outcome"]["runs"]] == ["minimum", "kubernetes"]
    assert not runner.run_next(Event())


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"trace": io.BytesIO(b'{"steps": []}\n{"steps": [}\n')}, "line 1"),
        ({"pasted": '{"id": "a", "colour": 1, "steps": []}'}, "line 1: unknown member colour"),
        ({"trace": io.BytesIO(b"\xff\xfe")}, "line 1: not UTF-8"),
        ({"workload": "deep-search", "pasted": "a,b\n1,2"}, "line 1: the first columns must be"),
        ({"seeds": "one"}, "whole numbers"),
        ({"batch": "100000"}, "2048"),
        ({"policies": ["best"]}, "not one of the available choices"),
        ({"project": "other"}, "not one of the available choices"),
        ({"workload": "recorded"}, "choose a window"),
    ],
)
def test_an_invalid_value_is_reported_at_its_field(submitter, given, said):
    Project.objects.create(name="other", default_pool_id="default")

    answer = submitter.post("/simulate/", {**ASKED, **given})

    assert answer.status_code == 422
    assert said in answer.content.decode()
    assert not Simulation.objects.exists()


def test_a_trace_beyond_the_limit_is_refused(submitter, monkeypatch):
    monkeypatch.setattr(inputs, "MOST_BYTES", 10)

    answer = submitter.post("/simulate/", {**ASKED, "pasted": "x" * 11})

    assert "at most" in answer.content.decode()


def test_a_live_window_is_what_the_journal_has_of_the_project(submitter, redis_bus):
    journal = Journal()
    mine = an_action(1, trajectory="t", project="default")
    theirs = an_action(2, project="other")
    journal.submit(mine, theirs)
    for action in (mine, theirs):
        journal.grant(action)
        journal.finish(action)
    for _, entry in journal.entries:
        redis_bus.xadd("tangram:journal", {"e": encode(entry)})

    made = asked(submitter, workload="recorded", window="300")

    assert "1 actions of default" in made.source
    content = inputs.inflated(bytes(made.input.content))
    assert mine.id.encode() in content
    assert theirs.id.encode() not in content
    runner.run_next(Event())
    made.refresh_from_db()
    assert made.problem == ""
    assert made.outcome["actions"] == 1


def test_an_empty_window_says_so(submitter, redis_bus):
    answer = submitter.post("/simulate/", {**ASKED, "workload": "recorded", "window": "60"})

    assert "no action of default was submitted" in answer.content.decode()


def test_a_project_may_ask_for_so_many_at_once(submitter, monkeypatch):
    monkeypatch.setattr(services, "MOST_OPEN", 1)
    asked(submitter)

    answer = submitter.post("/simulate/", ASKED)

    assert "wait for one to end" in answer.content.decode()
    assert Simulation.objects.count() == 1


def test_one_that_waits_is_cancelled_at_once_and_then_deleted(submitter):
    made = asked(submitter)
    assert submitter.post(f"/simulate/{made.pk}/delete").status_code == 409

    submitter.post(f"/simulate/{made.pk}/cancel")

    made.refresh_from_db()
    assert made.state == SimulationState.CANCELLED
    assert submitter.post(f"/simulate/{made.pk}/delete").status_code == 302
    assert not Simulation.objects.exists()
    verbs = list(AuditEntry.objects.order_by("id").values_list("verb", flat=True))
    assert verbs == ["create", "cancel", "delete"]


def test_one_that_runs_is_cancelled_while_it_runs(submitter, monkeypatch):
    made = asked(submitter, batch="64", cores="1")
    began: list[Any] = []
    popen = subprocess.Popen

    def wished(*given: Any, **also: Any) -> Any:
        submitter.post(f"/simulate/{made.pk}/cancel")
        began.append(popen(*given, **also))
        return began[0]

    monkeypatch.setattr(subprocess, "Popen", wished)
    runner.run_next(Event())

    made.refresh_from_db()
    assert made.state == SimulationState.CANCELLED
    assert began[0].returncode is not None


def test_one_that_takes_too_long_fails_and_says_so(submitter, settings):
    settings.TANGRAM_SIMULATION_SECONDS = 0.01
    made = asked(submitter)

    runner.run_next(Event())

    made.refresh_from_db()
    assert made.state == SimulationState.FAILED
    assert "longer than 0.01 s" in made.problem


def test_one_waits_again_when_its_worker_stops_and_fails_when_that_goes_on(submitter):
    made = asked(submitter)
    stop = Event()
    stop.set()

    runner.run_next(stop)
    made.refresh_from_db()
    assert (made.state, made.attempts) == (SimulationState.QUEUED, 1)

    long_ago = timezone.now() - timedelta(hours=1)
    Simulation.objects.update(state=SimulationState.RUNNING, alive_at=long_ago)
    runner.requeue_abandoned()
    made.refresh_from_db()
    assert made.state == SimulationState.QUEUED
    Simulation.objects.update(state=SimulationState.RUNNING, alive_at=long_ago, attempts=2)
    runner.requeue_abandoned()
    made.refresh_from_db()
    assert made.state == SimulationState.FAILED


@pytest.mark.parametrize(
    ("role", "project", "sees", "asks", "ends"),
    [
        (Role.VIEWER, "default", 200, 422, 403),
        (Role.SUBMITTER, "default", 200, 302, 403),
        (Role.OPERATOR, "default", 200, 302, 302),
        (Role.ADMIN, "default", 200, 302, 302),
        (Role.ADMIN, "other", 404, 422, 404),
        (None, "default", 403, 403, 403),
    ],
)
def test_each_role_may_what_it_may(submitter, person, role, project, sees, asks, ends):
    made = asked(submitter)
    other = person(role, project, name="other")

    assert other.get(f"/simulate/{made.pk}/").status_code == sees
    assert other.get(f"/simulate/{made.pk}/result.json").status_code == sees
    assert other.post("/simulate/", ASKED).status_code == asks
    assert other.post(f"/simulate/{made.pk}/cancel").status_code == ends


def test_strangers_are_asked_to_sign_in_and_forged_forms_are_refused(submitter):
    assert "/login/" in Client().get("/simulate/")["Location"]
    strict = Client(enforce_csrf_checks=True)
    strict.force_login(get_user_model().objects.get())

    assert strict.post("/simulate/", ASKED).status_code == 403
    assert not Simulation.objects.exists()


def test_the_address_prefills_the_form(submitter):
    page = submitter.get("/simulate/?policies=paper&batch=77").content.decode()

    assert 'value="77"' in page
    assert 'value="paper" checked' in page
    assert 'value="minimum" checked' not in page


def test_a_kept_request_is_one_that_is_read_again(submitter):
    made = asked(submitter)
    made.refresh_from_db()

    kept = read_request(made.request)
    assert msgspec.json.decode(msgspec.json.encode(kept)) == made.request
