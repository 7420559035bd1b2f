"""Tests of rows and pages pass on PostgreSQL, too: those of queries in every run, all with `--long`."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests.architecture.tree import ROOT
from tests.postgres_server import PostgresServer, find_program
from tests.tiers import by_tier, in_ci

WEB = ROOT / "tests" / "integration" / "web"
#: Files whose statements are written for both databases, or sort, count and sum in them.
QUERIES = (
    "comparisons", "explorer", "finder", "history_lists", "past", "pool_counts", "projection_follows_the_journal",
    "projection_is_idempotent", "task_totals",
)  # fmt: skip
PYTEST = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_tests_of_rows_and_pages_pass_on_postgresql() -> None:
    if find_program("initdb") is None:
        (pytest.fail if in_ci() else pytest.skip)("PostgreSQL is not installed")
    files = [str(WEB / f"test_{name}.py") for name in QUERIES]
    server = PostgresServer().create()
    try:
        done = subprocess.run(
            [*PYTEST, "-n", "2", *by_tier(files, files, [str(WEB)])],
            cwd=ROOT, env={**os.environ, "DATABASE_URL": server.url}, capture_output=True, text=True,
            check=False,
        )  # fmt: skip
    finally:
        server.stop()
    assert done.returncode == 0, done.stdout[-6000:]
    assert " passed" in done.stdout
