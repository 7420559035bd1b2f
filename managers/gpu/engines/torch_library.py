"""The package of our own torch worker, for an interpreter that has torch and need not have anything else of ours.

A link in the folder of a server shows the interpreter this one package; variables of its declaration (``PYTHONPATH``) its own modules.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

_PACKAGE: Final = Path(__file__).parents[1] / "torch_worker"
#: The module as commands name it.
TORCH_WORKER: Final = "managers.gpu.torch_worker"


def runs_torch_worker(command: Sequence[str]) -> bool:
    """Return whether a command starts our own worker."""
    return TORCH_WORKER in command


def link_torch_worker(folder: Path) -> None:
    """Make the link in the folder of a server; one that is there is replaced."""
    home = _library(folder) / "managers" / "gpu"
    home.mkdir(parents=True, exist_ok=True)
    with contextlib.suppress(FileNotFoundError):
        (home / _PACKAGE.name).unlink()
    (home / _PACKAGE.name).symlink_to(_PACKAGE)


def with_torch_worker(variables: Mapping[str, str], folder: Path) -> dict[str, str]:
    """Return variables with which an interpreter finds the link."""
    own = variables.get("PYTHONPATH", "")
    return {**variables, "PYTHONPATH": ":".join(filter(None, (str(_library(folder)), own)))}


def _library(folder: Path) -> Path:
    return folder / "library"
