"""Drivers of isolation ``apptainer``, with the stand-in as their program."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from managers.cpu.process import ProcessDriver
from tests.conformance.isolations import a_driver
from tests.conformance.process.conftest import foreign, without_mounts

__all__ = ["foreign", "without_mounts"]


def containers(directory: Path, **settings: str) -> ProcessDriver:
    """Return a driver with its state, its program and its definitions below ``directory``."""
    definitions = directory / "definitions"
    definitions.mkdir(exist_ok=True)
    given = {"apptainer_definitions": str(definitions), **settings}
    return a_driver(directory, "apptainer", **given)


@pytest.fixture
def isolation() -> str:
    """The isolation of drivers that a test makes itself."""
    return "apptainer"


@pytest.fixture
async def driver(tmp_path: Path) -> AsyncIterator[ProcessDriver]:
    driver = containers(tmp_path)
    await driver.open()
    assert driver.isolation == "apptainer"
    yield driver
    await driver.close()
