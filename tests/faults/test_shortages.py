"""Memory, disk, database and clock fail while many actions run (see `rounds.IN_FLIGHT`).

When the system cannot keep what it is given it says so (503 or 429 with Retry-After), and goes on
with everything that it had accepted once the shortage is over.
"""

from __future__ import annotations

import json
import os
import shutil
import sqlite3
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from email.utils import parsedate_to_datetime
from pathlib import Path

import pytest

from tests.faults.audit import Audit
from tests.faults.clock import SteppedClock
from tests.faults.rounds import BACK_WITHIN_SECONDS, play, settle
from tests.faults.system import System
from tests.tiers import in_ci

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]

#: How long each shortage lasts: the fault itself, not a way to wait for something.
SHORTAGE_SECONDS = 4.0
#: Longer than SQLite waits for a lock (20 s).
DATABASE_AWAY_SECONDS = 24.0


def answer_to_a_submission(system: System) -> tuple[int, str | None]:
    """Return status and Retry-After of one submission that does not wait."""
    body = json.dumps({"task": "probe", "kind": "noop"}).encode()
    headers = {"Authorization": f"Bearer {system.token}", "Content-Type": "application/json"}
    asked = urllib.request.Request(f"{system.address.url}/api/v1/actions", body, headers)
    try:
        with urllib.request.urlopen(asked, timeout=120) as answer:
            return answer.status, None
    except urllib.error.HTTPError as refusal:
        return refusal.code, refusal.headers["Retry-After"]


def test_a_redis_without_memory_is_answered_503(system: System, audit: Audit) -> None:
    load = play(system)
    with system.client() as client:
        client.config_set("maxmemory", 1)
        try:
            status, retry_after = answer_to_a_submission(system)
            system["projector"].kill()
            system["projector"].start()  # what begins its life in a shortage survives it too
            time.sleep(SHORTAGE_SECONDS)
        finally:
            client.config_set("maxmemory", 0)
    assert status == 503
    assert retry_after is not None
    settle(system, audit, load)
    assert all(part.alive for part in system.parts.values()), system.tails()


def test_rows_wait_while_the_database_is_away(system: System, audit: Audit) -> None:
    load = play(system)
    database = sqlite3.connect(system.home.path / "tangram.sqlite3", isolation_level=None)
    database.execute("pragma busy_timeout = 30000")
    database.execute("begin exclusive")
    try:
        # No process can write rows; actions are scheduled and executed all the same.
        assert system.wait_until_served() < BACK_WITHIN_SECONDS
        time.sleep(DATABASE_AWAY_SECONDS)
    finally:
        database.execute("rollback")
        database.close()
    settle(system, audit, load)


def test_a_slow_disk_makes_it_slow_and_nothing_worse(
    system: System, audit: Audit, program: Callable[[str], str]
) -> None:
    strace = program("strace")
    load = play(system)
    slowed = subprocess.Popen(
        [strace, "-f", "-q", "-o", os.devnull, "-p", str(system["redis"].pid),
         "-e", "trace=fsync,fdatasync", "-e", "inject=fsync,fdatasync:delay_enter=200000"],
        stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
    )  # fmt: skip
    try:
        time.sleep(SHORTAGE_SECONDS)
        assert slowed.poll() is None, slowed.communicate()[1]
        assert answer_to_a_submission(system)[0] in {202, 429, 503}
    finally:
        slowed.terminate()
        slowed.communicate(timeout=120)
    settle(system, audit, load)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of a few megabytes."""
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=6m", "tmpfs", tmp_path], capture_output=True, text=True
    )
    if mounted.returncode != 0:
        reason = f"a full disk needs the right to mount one: {mounted.stderr.strip()}"
        (pytest.fail if in_ci() else pytest.skip)(reason)
    yield tmp_path
    subprocess.run(["umount", "-l", tmp_path], check=True)


def test_a_full_disk_is_answered_503_until_there_is_room(
    small_disk: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    system = System(tmp_path_factory.mktemp("d"), redis_directory=small_disk)
    system.start()
    try:
        audit, load = Audit(system), play(system)
        ballast = small_disk / "ballast"
        fill(ballast)
        system["redis"].wait()  # it ends itself: it cannot keep its promise to write
        status, retry_after = answer_to_a_submission(system)
        assert (status, retry_after is not None) == (503, True)
        ballast.unlink()
        system["redis"].start()
        settle(system, audit, load)
    finally:
        system.stop()


def fill(path: Path) -> None:
    """Write until the disk is full."""
    with path.open("wb", buffering=0) as file:
        while True:
            try:
                file.write(b"\0" * 65536)
            except OSError:
                return


def wait_until_ahead(system: System, seconds: int) -> None:
    """Return once Redis and the web process believe to be so far ahead of the true clock."""
    with system.client() as client:
        assert client.time()[0] - time.time() == pytest.approx(seconds, abs=60)
    until = time.monotonic() + 240
    while time.monotonic() < until:  # its web server dates answers by the second before
        with urllib.request.urlopen(f"{system.address.url}/livez", timeout=120) as answer:
            reported = parsedate_to_datetime(answer.headers["Date"]).timestamp()
        if abs(reported - time.time() - seconds) < 60:
            return
    raise AssertionError("the clock did not step")


@pytest.mark.skipif(not shutil.which("cc") and not in_ci(), reason="no C compiler is installed")
def test_clocks_that_step_an_hour_change_no_order_and_no_deadline(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    directory = tmp_path_factory.mktemp("c")
    clock = SteppedClock(directory)
    system = System(directory, environment=clock.environment)
    system.start()
    try:
        audit = Audit(system)
        for step in (3600, -3600):
            load = play(system)
            clock.step_to(step)
            wait_until_ahead(system, step)
            settle(system, audit, load)
            assert set(load.outcomes.values()) == {"completed"}
    finally:
        # Redis ends blocked reads by this clock, so those of an hour ahead would last an hour; Celery's
        # workers wait 16 s for theirs when they end. Nothing of ours waits for one without a bound.
        clock.step_to(3600)
        system.stop()
