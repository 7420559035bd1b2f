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
    "audit", "comparisons", "costs", "counts", "every_page", "explorer", "exports", "finder", "history", "jobs", "past",
    "projection", "retention", "rows", "selected", "totals",
)  # fmt: skip
PYTEST = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]


def files_of_queries() -> list[str]:
    """Return the files of tests whose names have a word of `QUERIES`."""
    found = [
        str(file)
        for file in sorted(WEB.glob("test_*.py"))
        if any(word in file.stem for word in QUERIES)
    ]
    assert len(found) >= len(QUERIES)
    return found


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_tests_of_rows_and_pages_pass_on_postgresql() -> None:
    if find_program("initdb") is None:
        (pytest.fail if in_ci() else pytest.skip)("PostgreSQL is not installed")
    files = files_of_queries()
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
