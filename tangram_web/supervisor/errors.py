"""What can go wrong before the stack is up."""

from __future__ import annotations

from domain.errors import TangramError


class StartFailed(TangramError):
    """Tangram could not be started; the message says why, and what to do."""
