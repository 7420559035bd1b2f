"""Epochs of scheduler loops, kept where Redis cannot lose them."""

from __future__ import annotations

from typing import Final

from django.db import close_old_connections

from tangram_web.records.models import LeaderEpoch

_NAME: Final = "scheduler"


def last_epoch() -> int:
    """Return the highest epoch there ever was; 0 before the first."""
    close_old_connections()
    stored = LeaderEpoch.objects.filter(name=_NAME).first()
    return stored.epoch if stored is not None else 0


def epoch_won(epoch: int) -> None:
    """Keep an epoch, unless a higher one is known already."""
    LeaderEpoch.objects.get_or_create(name=_NAME, defaults={"epoch": epoch})
    LeaderEpoch.objects.filter(name=_NAME, epoch__lt=epoch).update(epoch=epoch)
