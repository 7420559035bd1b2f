"""One action on a small disk: it cannot stop Tangram, and no file has to be removed by hand."""

from __future__ import annotations

import json
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO

import pytest

from tangram_client import Client
from tests.acceptance.up.conftest import Tangram
from tests.tiers import in_ci

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

#: What an action may do to a disk of 120 MB.
HOGS = {
    "one large file": "head -c 1000000000 /dev/zero > big",
    "files until none fits": (
        "n=0; while :; do n=$((n+1)); head -c 20000000 /dev/zero > big$n || sleep 0.01; done"
    ),
    "files, and an end before anything is noticed": (
        "for n in 1 2 3 4 5 6 7 8; do head -c 20000000 /dev/zero > big$n; done; true"
    ),
}
#: Between the fill and the next accepted submission; the promise is seconds, on a machine of its own.
BACK_WITHIN_SECONDS = 60.0


@pytest.fixture(scope="module")
def small_home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A data folder on a file system of 120 MB."""
    disk = tmp_path_factory.mktemp("disk")
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=120m", "tmpfs", disk], capture_output=True, text=True
    )
    if mounted.returncode != 0:
        reason = f"a small disk needs the right to mount one: {mounted.stderr.strip()}"
        (pytest.fail if in_ci() else pytest.skip)(reason)
    yield disk / "home"
    subprocess.run(["umount", "-l", disk], check=True)


@pytest.fixture(scope="module")
def tangram(small_home: Path) -> Iterator[Tangram]:
    """One Tangram on this disk, which every test here fills, one after the other."""
    running = Tangram(small_home, "--no-demo")
    try:
        running.wait_until_ready()
        yield running
        assert running.end() == 0, "".join(running.said)
    finally:
        running.process.kill()
        running.process.wait()
        running.wait_until_alone()


def an_exec(script: str, trajectory: str | None = None, seconds: float = 60) -> dict[str, object]:
    return {
        "task": "swe", "kind": "exec", "trajectory": trajectory, "cost": {"cpu": 0.1},
        "exec": {"command": ["sh", "-c", script]}, "timeout_seconds": seconds,
    }  # fmt: skip


def end_of(tangram: Tangram, action_id: str) -> dict[str, str]:
    """Return an accepted action once it has ended; it is never lost."""
    until = time.monotonic() + 300
    while time.monotonic() < until:
        try:
            action: dict[str, str] = tangram.get(f"/api/v1/actions/{action_id}?wait=20")
        except (urllib.error.URLError, OSError):
            continue  # the web process may be starting again
        if action["state"] == "finished":
            return action
    raise AssertionError(f"{action_id} never ended")


@pytest.mark.parametrize("hog", HOGS)
def test_an_action_that_fills_the_disk_stops_nothing(tangram: Tangram, hog: str) -> None:
    beside, filling = (f"{name}-{[*HOGS].index(hog)}" for name in ("beside", "hog"))
    accepted = [tangram.post("/api/v1/actions", an_exec("true"))["id"] for _ in range(5)]
    waits = "while [ ! -e over ]; do sleep 0.1; done"
    neighbour = tangram.post("/api/v1/actions", an_exec(waits, beside, 600))["id"]
    filled = tangram.post("/api/v1/actions", an_exec(HOGS[hog], filling))["id"]

    began = time.monotonic()
    for _ in range(20):  # while the disk fills, and after
        accepted.append(submit(tangram, an_exec("echo here > file; cat file", None)))
        time.sleep(0.2)
    slow = time.monotonic() - began

    outcomes = {each: end_of(tangram, each)["outcome"] for each in (*accepted, filled)}
    with Client(tangram.access["url"], tangram.access["token"]) as client:
        client.put_file(beside, "over", b"")
        outcomes[neighbour] = end_of(tangram, neighbour)["outcome"]
        client.finish_trajectory(filling)  # its files are removed
    assert slow < BACK_WITHIN_SECONDS
    assert {outcomes[each] for each in (*accepted, neighbour)} == {"completed"}
    assert tangram.post("/api/v1/actions?wait=60", an_exec("true"))["outcome"] == "completed"


def test_after_something_else_filled_the_disk_space_is_all_it_takes(
    tangram: Tangram, small_home: Path
) -> None:
    """1. A file of another program fills the disk, and the reserve's room too. 2. It is deleted."""
    accepted = [tangram.post("/api/v1/actions", an_exec("sleep 1"))["id"] for _ in range(5)]
    reserve = small_home / "reserve.bin"
    wait_until(reserve.exists)
    ballast = small_home.parent / "ballast"
    with ballast.open("wb", buffering=0) as file:
        wait_until(lambda: fill(file) and not reserve.exists())
        fill(file)
        accepted += submitted_once(tangram)
    ballast.unlink()

    accepted.append(submit(tangram, an_exec("true")))
    assert {end_of(tangram, each)["outcome"] for each in accepted} == {"completed"}
    wait_until(reserve.exists)


def fill(file: IO[bytes]) -> bool:
    """Write until the disk is full."""
    try:
        while file.write(b"\0" * 65536):
            pass
    except OSError:
        return True
    return False


def submitted_once(tangram: Tangram) -> list[str]:
    """Submit without a repetition; return the action if it was accepted: the last block has some room."""
    body = json.dumps(an_exec("true")).encode()
    headers = {
        "Authorization": f"Bearer {tangram.access['token']}",
        "Content-Type": "application/json",
    }
    asked = urllib.request.Request(f"{tangram.access['url']}/api/v1/actions", body, headers)
    try:
        with urllib.request.urlopen(asked, timeout=60) as answer:
            return [str(json.load(answer)["id"])]
    except urllib.error.HTTPError as error:
        status = error.code
    except OSError:
        return []
    assert status in {429, 503}
    return []


def wait_until(holds: Callable[[], bool]) -> None:
    until = time.monotonic() + 120
    while not holds():
        assert time.monotonic() < until
        time.sleep(0.05)


def submit(tangram: Tangram, action: dict[str, object]) -> str:
    """Submit until it is accepted."""
    until = time.monotonic() + BACK_WITHIN_SECONDS
    while True:
        try:
            return str(tangram.post("/api/v1/actions", action)["id"])
        except (urllib.error.URLError, OSError):
            if time.monotonic() > until:
                raise
