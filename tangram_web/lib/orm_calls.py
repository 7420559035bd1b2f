"""Calls of the ORM from coroutines: in a thread, with a connection that is not stale."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from asgiref.sync import sync_to_async

from domain.errors import Unavailable


def in_thread(call: Callable[..., Any]) -> Callable[..., Awaitable[Any]]:
    """Return an ORM call as a coroutine; stale database connections are closed first.

    It raises Unavailable while the database does not answer.
    """
    from django.db import DatabaseError, InterfaceError, close_old_connections

    def guarded(*args: Any) -> Any:
        close_old_connections()
        try:
            return call(*args)
        except (DatabaseError, InterfaceError) as error:
            raise Unavailable(f"the database does not answer: {error}") from error

    return sync_to_async(guarded, thread_sensitive=False)
