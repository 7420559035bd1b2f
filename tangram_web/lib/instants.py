"""Parsing of times with a zone."""

from __future__ import annotations

from datetime import UTC, datetime

from django.core.exceptions import ValidationError
from django.utils.dateparse import parse_datetime


def instant_of(text: str) -> datetime | None:
    """Return the time in ``text``, which must have a zone; None for any other text."""
    try:
        moment = parse_datetime(text)
    except ValueError:  # the 45th of the 13th month
        return None
    return moment if moment is not None and moment.tzinfo and _in_calendar(moment) else None


def _in_calendar(moment: datetime) -> bool:
    """Return whether ``moment`` has a date in UTC; times at the edge of the calendar have none."""
    try:
        moment.astimezone(UTC)
    except OverflowError:
        return False
    return True


def check_in_calendar(moment: datetime) -> None:
    """Raise ValidationError for a time that the database cannot store."""
    if not _in_calendar(moment):
        raise ValidationError("this time is outside the calendar")
