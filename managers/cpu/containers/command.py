"""What exactly is executed for an order inside a container."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from domain.errors import InvalidRequest
from domain.ports import RunOrder
from domain.resources import MILLI
from managers.common.visible_gpus import granted_gpus
from managers.cpu.process.command import NOT_FOUND, CannotSpawnError, granted_units
from managers.cpu.process.workspace import MOUNT, split_path
from managers.cpu.worker_flags import rewritten

_IDENTIFIER: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


@dataclass(frozen=True)
class Invocation:
    """A command, where it starts, and what it finds."""

    command: list[str]
    cwd: str
    #: On top of the image's own.
    variables: dict[str, str]
    stdin: bytes | None
    output_limit_bytes: int


def build(order: RunOrder) -> Invocation:
    """Prepare an order. Raises CannotSpawnError when the user's command is impossible."""
    spec = order.action.exec
    if spec is None or not spec.command or not spec.command[0]:
        raise CannotSpawnError("the command is empty", NOT_FOUND)
    texts = (*spec.command, *spec.env, *spec.env.values(), spec.cwd or "")
    if any("\0" in text for text in texts):
        raise CannotSpawnError("a command, variable or path cannot contain a zero byte")
    for name in spec.env:
        if not name or "=" in name:
            raise CannotSpawnError(f"{name!r} cannot be the name of an environment variable")
    try:
        parts = split_path(spec.cwd or "")
    except InvalidRequest as error:
        raise CannotSpawnError(f"cwd: {error}") from error
    units = granted_units(order)
    command = [part.replace("{units}", str(units)) for part in spec.command]
    command = rewritten(command, units, spec.rewrite)
    if command[0].startswith("-"):
        # `exec` would take it for one of its own options.
        raise CannotSpawnError(f"{command[0]}: not found", NOT_FOUND)
    variables = {**_base(order, units), **spec.env, **granted_gpus(order), **_own(order, units)}
    odd = [f"{k}={v}" for k, v in variables.items() if not _IDENTIFIER.fullmatch(k)]
    return Invocation(
        ["env", *odd, *command] if odd else command,
        "/".join((MOUNT, *parts)),
        {k: v for k, v in variables.items() if _IDENTIFIER.fullmatch(k)},
        None if spec.stdin is None else spec.stdin.encode(errors="replace"),
        spec.output_limit_bytes,
    )


def _base(order: RunOrder, units: int) -> dict[str, str]:
    cores = order.allocation("cpu")
    threads = max(1, cores.amount // MILLI) if cores else 1
    return {"OMP_NUM_THREADS": str(max(threads, units) if order.action.malleable else threads)}


def _own(order: RunOrder, units: int) -> dict[str, str]:
    # Last, so that a declared variable does not hide whose process it is.
    return {"TANGRAM_ACTION_ID": order.id, "TANGRAM_UNITS": str(units)}
