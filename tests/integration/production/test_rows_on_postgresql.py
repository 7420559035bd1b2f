"""All tests of rows and pages pass on PostgreSQL, too."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests.architecture.tree import ROOT
from tests.postgres_server import PostgresServer, find_program
from tests.tiers import in_ci

PYTEST = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_tests_of_rows_and_pages_pass_on_postgresql() -> None:
    if find_program("initdb") is None:
        (pytest.fail if in_ci() else pytest.skip)("PostgreSQL is not installed")
    server = PostgresServer().create()
    try:
        done = subprocess.run(
            [*PYTEST, "-n", "2", "tests/integration/web"],
            cwd=ROOT, env={**os.environ, "DATABASE_URL": server.url}, capture_output=True, text=True,
            check=False,
        )  # fmt: skip
    finally:
        server.stop()
    assert done.returncode == 0, done.stdout[-6000:]
    assert " passed" in done.stdout
