"""Errors of the start."""

from __future__ import annotations

from domain.errors import TangramError


class StartFailed(TangramError):
    """Tangram could not be started; the message gives the reason and the remedy."""
