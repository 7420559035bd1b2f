"""The isolations that work on this machine, and drivers that use them."""

from __future__ import annotations

import functools
import tempfile
from pathlib import Path

from domain.ids import ActionId
from domain.ports import DriverContext
from managers.cpu.process import ProcessDriver
from managers.cpu.process.sandbox import find_sandbox
from managers.cpu.workspaces import Workspaces
from tests.apptainer_stand_in import install


@functools.cache
def isolations() -> tuple[str, ...]:
    """Return ``process``, and ``bwrap`` where it is installed and permitted."""
    with tempfile.TemporaryDirectory() as directory:
        workspaces = Workspaces(Path(directory))
        workspaces.open()
        usable = find_sandbox(workspaces.alone(ActionId("trial")), (), []) is not None
    return ("process", "bwrap") if usable else ("process",)


def stand_in(directory: Path) -> Path:
    """Return the program that stands in for Apptainer, which records its calls beside it."""
    program = directory / "program" / "apptainer"
    return program if program.exists() else install(program.parent)


def a_driver(directory: Path, isolation: str, **settings: str) -> ProcessDriver:
    """Return a driver with its state below ``directory``; impatient, so that tests are quick."""
    given = {"isolation": isolation, "grace_seconds": "0.1", **settings}
    if isolation == "apptainer":
        given.setdefault("apptainer_program", str(stand_in(directory)))
    return ProcessDriver(DriverContext("n1", directory / "state", {}, given))
