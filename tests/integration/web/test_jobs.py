"""Jobs: enqueued when due, retried after errors, recorded, and shown on the Workers page."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from threading import Event, Thread
from time import time
from typing import Any

import pytest
from celery import Task, signals
from django.contrib.auth import get_user_model
from django.db import DatabaseError, connection, connections
from django.test import Client

from tangram_web import celery, job_schedule
from tangram_web.job_schedule import DatabaseWrites, JobScheduler, stand_in
from tangram_web.lib import bus, jobs
from tangram_web.lib.job_runs import JobRuns
from tangram_web.simulations import runner
from tangram_web.webhooks import delivery


@pytest.fixture
def schedules(monkeypatch: pytest.MonkeyPatch) -> dict[str, jobs.Schedule]:
    """An empty schedule for the jobs of one test."""
    empty: dict[str, jobs.Schedule] = {}
    monkeypatch.setattr(jobs, "SCHEDULES", empty)
    monkeypatch.setattr(job_schedule, "SCHEDULES", empty)
    return empty


@pytest.fixture
def ended() -> Callable[[Task, str], None]:
    """Report the end of a run, as a worker does."""
    return lambda task, state: signals.task_postrun.send(sender=task, task=task, state=state)


def nothing() -> None:
    """Do nothing, as a job."""


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


def test_frequent_checks_are_rarer_while_nothing_is_written(
    schedules: dict[str, jobs.Schedule], clock: Clock
) -> None:
    checks: list[float] = []

    def is_due() -> bool:
        checks.append(clock.now)
        return False

    jobs.job("test.calm", every_seconds=1.0, is_due=is_due)(nothing)
    scheduler = JobScheduler(lambda _: None, clock)
    for calm in (False, True, True, True, True, True, False):
        scheduler.tick(calm=calm)
        clock.now += 1.0
    assert checks == [1000.0, 1005.0, 1006.0]


@pytest.mark.django_db(transaction=True)
def test_a_write_of_another_connection_is_noticed() -> None:
    writes = DatabaseWrites()
    assert not writes.none_since()
    quiet = writes.none_since()
    write = Thread(target=_add_a_user)
    write.start()
    write.join()
    assert not writes.none_since()
    # Only SQLite tells; elsewhere every check is made.
    assert quiet is (connection.vendor == "sqlite")


def _add_a_user() -> None:
    try:
        get_user_model().objects.create_user("another")
    finally:
        connections.close_all()


def test_every_slow_job_has_a_schedule() -> None:
    celery.app.loader.import_default_modules()

    assert set(jobs.SCHEDULES) == {
        "configuration.reseal",
        "records.prune",
        "webhooks.deliver",
        "webhooks.maintain",
        "webhooks.watch_views",
        "simulations.run",
    }


def test_a_job_is_acknowledged_after_its_run_and_redelivered_only_after_the_longest_one(
    settings: Any,
) -> None:
    celery.app.loader.import_default_modules()
    assert all(each.task.acks_late for each in jobs.SCHEDULES.values())
    for seconds in (1.0, 10_000.0):
        settings.TANGRAM_SIMULATION_SECONDS = seconds
        assert jobs.visibility_seconds() > seconds


def test_a_job_is_enqueued_when_it_is_due_and_once_until_it_has_ended(
    schedules: dict[str, jobs.Schedule], clock: Clock, ended: Callable[[Task, str], None]
) -> None:
    due = [True]
    task = jobs.job("test.due", every_seconds=5.0, is_due=lambda: due[0])(nothing)
    sent: list[str] = []
    scheduler = JobScheduler(lambda each: sent.append(each.name), clock)

    scheduler.tick()
    clock.now += 60.0
    scheduler.tick()
    assert sent == ["test.due"]

    ended(task, "RETRY")  # the retry is a message of its own
    clock.now += 60.0
    scheduler.tick()
    assert sent == ["test.due"]

    ended(task, "SUCCESS")
    scheduler.tick()
    assert sent == ["test.due"] * 2

    ended(task, "FAILURE")
    due[0] = False
    clock.now += 60.0
    scheduler.tick()
    assert sent == ["test.due"] * 2


def test_a_job_is_checked_no_more_often_than_its_schedule_says(
    schedules: dict[str, jobs.Schedule], clock: Clock
) -> None:
    checks: list[float] = []

    def is_due() -> bool:
        checks.append(clock.now)
        return False

    jobs.job("test.seldom", every_seconds=10.0, is_due=is_due)(nothing)
    scheduler = JobScheduler(lambda _: None, clock)
    for _ in range(25):
        scheduler.tick()
        clock.now += 1.0

    assert [at - checks[0] for at in checks] == [0.0, 10.0, 20.0]


def test_a_message_that_was_lost_is_enqueued_again(
    schedules: dict[str, jobs.Schedule], clock: Clock
) -> None:
    jobs.job("test.lost", every_seconds=1.0)(nothing)
    sent: list[str] = []
    scheduler = JobScheduler(lambda each: sent.append(each.name), clock)
    scheduler.tick()
    clock.now += jobs.visibility_seconds() + 1.0
    scheduler.tick()

    assert sent == ["test.lost"] * 2


@pytest.mark.parametrize("where", ["the database", "the broker"])
def test_an_error_while_enqueuing_is_tried_again(
    schedules: dict[str, jobs.Schedule], clock: Clock, where: str
) -> None:
    errors: list[Exception] = [DatabaseError("away") if where == "the database" else OSError()]
    sent: list[str] = []

    def may_fail() -> bool:
        if errors:
            raise errors.pop()
        return True

    def dispatch(task: Task) -> None:
        may_fail()
        sent.append(task.name)

    due = may_fail if where == "the database" else lambda: True
    jobs.job("test.away", every_seconds=1.0, is_due=due)(nothing)
    scheduler = JobScheduler(dispatch, clock)
    scheduler.tick()
    assert sent == []
    clock.now += 1.0
    scheduler.tick()

    assert sent == ["test.away"]


def test_a_run_is_retried_after_an_error_of_the_database_and_recorded(
    schedules: dict[str, jobs.Schedule], redis_bus: Any
) -> None:
    errors: list[Exception] = [DatabaseError("database is locked")]

    def work() -> None:
        if errors:
            raise errors.pop()

    jobs.job("test.retried", every_seconds=1.0)(work).apply()

    [run] = JobRuns(redis_bus, bus.keys()).all()
    assert not errors
    assert run.name == "test.retried"
    assert run.error == "DatabaseError: database is locked"
    assert run.error_at is not None
    assert run.seconds is not None


def test_a_run_that_keeps_failing_is_given_up_and_recorded(
    schedules: dict[str, jobs.Schedule], redis_bus: Any
) -> None:
    attempts: list[int] = []

    def work() -> None:
        attempts.append(1)
        raise DatabaseError("gone")

    result = jobs.job("test.failing", every_seconds=1.0)(work).apply()

    [run] = JobRuns(redis_bus, bus.keys()).all()
    assert result.failed()
    assert len(attempts) == 6
    assert (run.state, run.error) == ("failed", "DatabaseError: gone")


def test_a_defect_is_not_retried(schedules: dict[str, jobs.Schedule], redis_bus: Any) -> None:
    attempts: list[int] = []

    def work() -> None:
        attempts.append(1)
        raise KeyError("member")

    jobs.job("test.defect", every_seconds=1.0)(work).apply()

    [run] = JobRuns(redis_bus, bus.keys()).all()
    assert (len(attempts), run.state, run.retries) == (1, "failed", 0)


def test_a_record_that_cannot_be_written_does_not_fail_the_job(
    schedules: dict[str, jobs.Schedule], settings: Any
) -> None:
    settings.TANGRAM_REDIS_URL = "unix:///nowhere/redis.sock"
    done: list[int] = []

    def work() -> None:
        done.append(1)

    jobs.job("test.unrecorded", every_seconds=1.0)(work).apply()

    assert done == [1]


def test_the_workers_page_shows_the_last_run_of_each_job(defaults: None, redis_bus: Any) -> None:
    runs = JobRuns(redis_bus, bus.keys())
    runs.started("webhooks.deliver", "jobs@host", 2)
    runs.failed("webhooks.deliver", DatabaseError("<b>locked</b>"), retried=True)
    client = Client()
    client.force_login(get_user_model().objects.create_user("ops", is_staff=True))

    page = client.get("/workers/").content.decode()

    assert "webhooks.deliver" in page
    assert "retrying" in page
    assert "jobs@host" in page
    assert "DatabaseError: &lt;b&gt;locked&lt;/b&gt;" in page


def test_the_checks_of_idle_jobs_find_nothing_due(db: None) -> None:
    assert not delivery.is_due()
    assert not runner.is_due()


@pytest.fixture
def standing_in(
    schedules: dict[str, jobs.Schedule], redis_bus: Any, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Event]:
    """A projector that has waited long enough; the event is set by its first job."""
    monkeypatch.setattr(job_schedule, "STAND_IN_SECONDS", 0.0)
    monkeypatch.setattr(job_schedule, "TICK_SECONDS", 0.01)
    monkeypatch.setattr(job_schedule, "close_old_connections", lambda: None)
    ran, stop = Event(), Event()

    def work() -> None:
        ran.set()

    jobs.job("test.stand-in", every_seconds=0.0)(work)
    thread = Thread(target=stand_in, args=(stop,))
    thread.start()
    yield ran
    stop.set()
    thread.join(60.0)
    jobs.stopping.clear()
    assert not thread.is_alive()


def test_a_projector_runs_the_jobs_while_there_is_no_jobs_worker(standing_in: Event) -> None:
    assert standing_in.wait(60.0)


@pytest.mark.parametrize(("age", "found"), [(1.0, True), (60.0, False)])
def test_a_jobs_worker_counts_while_it_shows_life(redis_bus: Any, age: float, found: bool) -> None:
    row = json.dumps({"role": "jobs", "pid": 1, "at": time() - age})
    redis_bus.hset(bus.keys().workers, "jobs@host:1", row)

    assert job_schedule.has_jobs_worker(redis_bus, bus.keys()) is found


def test_the_worker_of_the_projector_replaces_missing_workers_of_other_roles(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("TANGRAM_ROLE", "projector")
    alone = ["projector", "frames", "bodies", "problems"]
    missing = ["jobs", "fleets", "groups"]
    assert [name for name, _ in celery.ROLES["projector"]()] == [*alone, *missing]
    monkeypatch.setenv("TANGRAM_ROLE", "projector,jobs,fleets,groups")
    assert [name for name, _ in celery.ROLES["projector"]()] == alone
    assert [name for name, _ in celery.ROLES["jobs"]()] == ["jobs"]
