"""What goes wrong in a command, in one line for whoever runs it."""

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
    """End the command with what the world refused; a defect of ours keeps its traceback.

    The command has words of its own for ``but``.
    """
    try:
        yield
    except but:
        raise
    except DatabaseError as error:
        raise CommandError(
            f"the database does not have what it should ({str(error).strip()}): are TANGRAM_HOME and "
            "DATABASE_URL right? manage.py setup prepares a new one"
        ) from error
    except (TangramError, OSError, redis.RedisError, sqlite3.Error) as error:
        raise CommandError(str(error)) from error
