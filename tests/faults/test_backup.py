"""Backups: one taken under load can be restored, and none of its actions runs twice."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from domain.ids import trajectory_key
from managers.cpu.workspaces import safe_name
from tangram_client.client import Client
from tangram_client.errors import NotFoundError, TangramClientError
from tangram_client.payloads import exec_action
from tangram_web.supervisor import stack
from tests.faults.rounds import BACK_WITHIN_SECONDS
from tests.faults.system import System
from tests.postgres_server import PostgresServer, find_program
from tests.tiers import in_ci

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]

UNFINISHED = 28
#: Each action leaves a line when it runs, and ends when its gate is there.
COMMAND = "echo ran >> ran; while [ ! -e gate ]; do sleep 0.05; done"


@pytest.fixture(
    scope="module", params=["sqlite", pytest.param("postgresql", marks=pytest.mark.long)]
)
def system(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[System]:
    postgres = None
    if request.param == "postgresql":
        if find_program("initdb") is None:
            (pytest.fail if in_ci() else pytest.skip)("PostgreSQL is not installed")
        postgres = PostgresServer().create()
    # Few cores, so that some actions run and others wait.
    system = System(tmp_path_factory.mktemp("b"), cpus=4, postgres=postgres)
    try:
        system.start()
        yield system
    finally:
        system.stop()
        if postgres is not None:
            postgres.stop()


def manage(system: System, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "manage.py", *arguments],
        cwd=stack.ROOT, env={**os.environ, **system.environment}, capture_output=True, text=True,
    )  # fmt: skip


def workspace(system: System, number: int) -> Path:
    """Where action ``number`` runs."""
    name = safe_name(trajectory_key("default", f"b-{number}"))
    return system.home.path / "nodes" / "n1" / "cpu" / "environments" / name / "layer" / "workspace"


def runs(system: System, number: int) -> int:
    """How often action ``number`` ran."""
    file = workspace(system, number) / "ran"
    return len(file.read_text().splitlines()) if file.exists() else 0


@contextmanager
def gates_open(system: System) -> Iterator[None]:
    """Let every action end that runs, or begins to run, meanwhile."""
    over = threading.Event()

    def keep_open() -> None:
        # Through the API: a file that is put below a mounted overlay may stay invisible in it.
        with Client(system.address.url, system.token) as client:
            while not over.wait(0.05):
                for number in range(UNFINISHED):
                    if workspace(system, number).exists():
                        with suppress(TangramClientError):
                            client.put_file(f"b-{number}", "gate", b"")

    keeper = threading.Thread(target=keep_open)
    keeper.start()
    try:
        yield
    finally:
        over.set()
        keeper.join()


def restart(system: System, folder: Path) -> str:
    """Go back to a backup, as its document says: stop, restore, start."""
    for name in ("web", "loop-1", "loop-2", "node", "projector"):
        system[name].end()
    restored = manage(system, "restore", str(folder), "--replace")
    assert restored.returncode == 0, restored.stderr
    for name in ("projector", "loop-1", "loop-2", "node", "web"):
        system[name].start()
    system.wait_until_served()
    return restored.stdout


def test_unfinished_actions_are_ended_unless_they_may_run_again(
    system: System, tmp_path: Path
) -> None:
    saved = tmp_path / "saved"
    with Client(system.address.url, system.token) as client:
        done = client.wait(client.submit(exec_action("backup", "true")).id)
        held = [
            client.submit(
                exec_action("backup", COMMAND, trajectory=f"b-{n}",
                            replay_safe=n % 2 == 0, timeout_seconds=1200)
            ).id
            for n in range(UNFINISHED)
        ]  # fmt: skip
        said = manage(system, "backup", str(saved))
        assert said.returncode == 0, said.stderr
        refused = manage(system, "restore", str(saved), "--replace")
        assert (refused.returncode, "stop all loops" in refused.stderr) == (1, True)
        # The world goes on: everything runs, and is forgotten again.
        with gates_open(system):
            ends = [client.wait(name, patience_seconds=600) for name in held]
        assert {str(end.outcome) for end in ends} == {"completed"}
        later = client.submit(exec_action("backup", "true")).id
        client.wait(later)

    reported = restart(system, saved)

    with gates_open(system), Client(system.address.url, system.token) as client:
        assert client.get(done.id).outcome == "completed"
        ends = [client.wait(name, patience_seconds=600) for name in held]
        with pytest.raises(NotFoundError):
            client.get(later)
    ended = [n for n in range(UNFINISHED) if ends[n].outcome in {"cancelled", "unknown"}]
    assert ended == list(range(1, UNFINISHED, 2))
    assert f"{len(ended)} unfinished actions are ended" in reported
    assert all("restored from a backup" in (ends[n].detail or "") for n in ended)
    assert {str(ends[n].outcome) for n in range(0, UNFINISHED, 2)} == {"completed"}
    assert [runs(system, n) for n in range(1, UNFINISHED, 2)] == [1] * (UNFINISHED // 2)


def test_a_damaged_backup_is_refused_and_changes_nothing(system: System, tmp_path: Path) -> None:
    folder = tmp_path / "saved"
    assert manage(system, "backup", str(folder)).returncode == 0
    with (folder / "redis.msgpack").open("ab") as file:
        file.write(b"\0")
    refused = manage(system, "restore", str(folder), "--replace")
    assert refused.returncode == 1
    assert "checksum differs" in refused.stderr
    assert "not a backup" in manage(system, "restore", str(tmp_path), "--replace").stderr
    assert "not empty" in manage(system, "backup", str(folder)).stderr
    assert system.wait_until_served() < BACK_WITHIN_SECONDS
