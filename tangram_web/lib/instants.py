"""Instants that people write."""

from __future__ import annotations

from datetime import UTC, datetime

from django.core.exceptions import ValidationError
from django.utils.dateparse import parse_datetime


def instant_of(text: str) -> datetime | None:
    """Return the instant that ``text`` is, with its zone; None for what is none."""
    try:
        moment = parse_datetime(text)
    except ValueError:  # the 45th of the 13th month
        return None
    return moment if moment is not None and moment.tzinfo and _in_calendar(moment) else None


def _in_calendar(moment: datetime) -> bool:
    """Say whether ``moment`` has a date in UTC: one at the edge of the calendar may have none."""
    try:
        moment.astimezone(UTC)
    except OverflowError:
        return False
    return True


def check_in_calendar(moment: datetime) -> None:
    """Raise ValidationError for an instant that no row can have."""
    if not _in_calendar(moment):
        raise ValidationError("this lies outside the calendar")
