"""Carrying out calls to declared APIs: the driver of `managers.quota`."""

from __future__ import annotations

from managers.common.api_calls.driver import CallDriver

__all__ = ["CallDriver"]
