"""One-line errors of commands."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager

import redis
from django.core.management.base import CommandError
from django.db import DatabaseError

from domain.errors import TangramError


@contextmanager
def one_line_errors(*, but: type[TangramError] | tuple[()] = ()) -> Iterator[None]:
    """Turn errors of the database, Redis, files and the domain into a CommandError.

    Other exceptions keep their traceback. The command handles ``but`` itself.
    """
    try:
        yield
    except but:
        raise
    except DatabaseError as error:
        raise CommandError(
            f"the database cannot be used ({str(error).strip()}): check TANGRAM_HOME and DATABASE_URL;"
            " manage.py setup prepares a new database"
        ) from error
    except (TangramError, OSError, redis.RedisError, sqlite3.Error) as error:
        raise CommandError(str(error)) from error
