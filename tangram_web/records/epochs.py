"""Epochs of scheduler loops in the database, so that a loss of Redis does not reset them.

A loop cannot lead without the database: both functions raise Unavailable while it is down.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from django.db import DatabaseError, InterfaceError, close_old_connections

from domain.errors import Unavailable
from tangram_web.records.models import LeaderEpoch

_NAME: Final = "scheduler"


def last_epoch() -> int:
    """Return the highest epoch so far; 0 before the first."""
    with _database():
        stored = LeaderEpoch.objects.filter(name=_NAME).first()
        return stored.epoch if stored is not None else 0


def epoch_won(epoch: int) -> None:
    """Store an epoch, unless a higher one is stored already."""
    with _database():
        LeaderEpoch.objects.get_or_create(name=_NAME, defaults={"epoch": epoch})
        LeaderEpoch.objects.filter(name=_NAME, epoch__lt=epoch).update(epoch=epoch)


@contextmanager
def _database() -> Iterator[None]:
    close_old_connections()
    try:
        yield
    except (DatabaseError, InterfaceError) as error:
        raise Unavailable(f"the database does not answer: {error}") from error
