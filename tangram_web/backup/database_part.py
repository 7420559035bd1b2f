"""The database as one file: a copy of SQLite, or a custom dump of PostgreSQL."""

from __future__ import annotations

import os
import shutil
import sqlite3
import subprocess
from contextlib import closing
from pathlib import Path
from typing import Any

from django.db import connection

from domain.errors import InvalidRequest


def save(path: Path) -> str:
    """Write a consistent copy of the database to ``path``; return ``sqlite`` or ``postgresql``."""
    if connection.vendor == "sqlite":
        with (
            closing(sqlite3.connect(connection.settings_dict["NAME"], timeout=60)) as source,
            closing(sqlite3.connect(path)) as copy,
        ):
            source.backup(copy)
    else:
        _run("pg_dump", "--format=custom", "--no-owner", f"--file={path}")
    return connection.vendor


def check(path: Path, kind: str) -> None:
    """Raise InvalidRequest when the copy cannot be restored into this database."""
    if kind != connection.vendor:
        raise InvalidRequest(f"the backup is of {kind}, this database is {connection.vendor}")
    if kind == "sqlite":
        _check_sqlite(path)
    else:
        _find("pg_restore")


def load(path: Path) -> None:
    """Replace the content of the database by a checked copy."""
    connection.close()
    if connection.vendor == "sqlite":
        with (
            closing(sqlite3.connect(path)) as saved,
            closing(sqlite3.connect(connection.settings_dict["NAME"], timeout=60)) as database,
        ):
            saved.backup(database)
    else:
        _run(
            "pg_restore", "--clean", "--if-exists", "--no-owner", "--single-transaction", str(path)
        )


def _check_sqlite(path: Path) -> None:
    try:
        with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as saved:
            found = saved.execute("pragma integrity_check").fetchone()[0]
    except sqlite3.DatabaseError as error:
        raise InvalidRequest(f"{path} is not a database: {error}") from error
    if found != "ok":
        raise InvalidRequest(f"{path} is damaged: {found}")


def _find(program: str) -> str:
    found = shutil.which(program)
    if found is None:
        raise InvalidRequest(f"{program} is needed for PostgreSQL: install postgresql-client")
    return found


def _run(program: str, *arguments: str) -> None:
    """Run a PostgreSQL program on our database; the environment passes the password."""
    at: dict[str, Any] = connection.settings_dict
    named = {"PGHOST": "HOST", "PGPORT": "PORT", "PGUSER": "USER", "PGPASSWORD": "PASSWORD"}
    given = {variable: str(at[field]) for variable, field in named.items() if at[field]}
    done = subprocess.run(
        [_find(program), f"--dbname={at['NAME']}", *arguments],
        env={**os.environ, **given},
        capture_output=True,
        text=True,
    )
    if done.returncode != 0:
        raise InvalidRequest(f"{program} failed: {done.stderr.strip()}")
