"""Fixtures for tests of managers."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from tests.unit.managers.keeping import Rig


@pytest.fixture
async def rig() -> AsyncIterator[Rig]:
    """Return a runner that holds nothing when the test is over."""
    rig = Rig()
    yield rig
    await rig.close()
