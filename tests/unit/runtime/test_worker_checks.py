"""Checks of a worker give a verdict after some in a row, and pause for longer while it stays away."""

from __future__ import annotations

from domain.fleets import FleetWorker, PriorityUse, WorkerFact
from scheduler.runtime.fleets.prober import changed
from scheduler.runtime.fleets.worker_checks import CheckPauses, WorkerChecks
from scheduler.runtime.fleets.worker_questions import WorkerControls

PAUSES = CheckPauses(interval_seconds=5.0, decide_seconds=1.0, most_seconds=8.0)


def failed(checks: WorkerChecks, times: int, at: float = 0.0) -> list[float]:
    """Let checks fail; return the pause after each."""
    pauses = []
    for _ in range(times):
        checks.failed("HTTP 503", at)
        pauses.append(checks.due_at - at)
        at = checks.due_at
    return pauses


def test_three_failed_checks_in_a_row_are_a_verdict_and_one_answer_is_none():
    checks = WorkerChecks(PAUSES)
    failed(checks, 2)
    assert checks.verdict() is None
    checks.answered(2.0)
    failed(checks, 2)
    assert checks.verdict() is None
    failed(checks, 1)
    assert checks.verdict() == "3 health checks failed: HTTP 503"
    checks.answered(9.0)
    assert checks.verdict() is None
    checks.answered(10.0)
    assert checks.verdict() == ""


def test_pauses_grow_while_a_worker_stays_away_up_to_a_bound():
    checks = WorkerChecks(PAUSES)
    assert failed(checks, 8) == [1.0, 1.0, 1.0, 2.0, 4.0, 8.0, 8.0, 8.0]
    checks.answered(0.0)
    assert checks.due_at == 1.0
    checks.answered(0.0)
    assert checks.due_at == 5.0


def test_checks_before_another_processs_verdict_are_void():
    checks = WorkerChecks(PAUSES)
    for _ in range(9):
        checks.answered(0.0)
    checks.follow("refused a connection", 0.5)
    assert (checks.verdict(), checks.due_at) == (None, 1.5)
    checks.answered(1.5)
    checks.follow("refused a connection", 1.6)
    assert checks.verdict() is None
    checks.answered(2.5)
    assert checks.verdict() == ""


def test_a_reason_stays_as_it_is_registered():
    checks = WorkerChecks(PAUSES)
    checks.follow("refused a connection", 0.0)
    failed(checks, 3)
    assert checks.verdict() == "refused a connection"


def test_a_probe_reports_what_differs_from_what_is_registered():
    worker = FleetWorker(number=1, name="w1", url="http://w1:8000", weights_version=3)
    silent = WorkerControls()
    assert changed(worker, None, silent) is None
    assert changed(worker, "", WorkerControls(3)) is None
    assert changed(worker, "away", silent) == WorkerFact("w1", unhealthy="away")
    assert changed(worker, "", WorkerControls(0, PriorityUse.REFUSED)) == WorkerFact(
        "w1", weights_version=0, priorities=PriorityUse.REFUSED
    )
