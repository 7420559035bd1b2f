"""Epochs of scheduler loops, kept where Redis cannot lose them.

Whoever cannot ask here cannot lead: both functions raise Unavailable while the database is away.
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
    """Return the highest epoch there ever was; 0 before the first."""
    with _answering():
        stored = LeaderEpoch.objects.filter(name=_NAME).first()
        return stored.epoch if stored is not None else 0


def epoch_won(epoch: int) -> None:
    """Keep an epoch, unless a higher one is known already."""
    with _answering():
        LeaderEpoch.objects.get_or_create(name=_NAME, defaults={"epoch": epoch})
        LeaderEpoch.objects.filter(name=_NAME, epoch__lt=epoch).update(epoch=epoch)


@contextmanager
def _answering() -> Iterator[None]:
    close_old_connections()
    try:
        yield
    except (DatabaseError, InterfaceError) as error:
        raise Unavailable(f"the database does not answer: {error}") from error
