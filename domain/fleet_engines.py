"""Engines of workers of our own: the process that an action starts on its chunk of GPUs, and how a fleet declares its command.

A worker of our own is an action of kind ``exec`` with the cost ``gpu: degree`` and a `WorkerProcess`: it runs as long as its engine does,
and so does its claim on the chunk. It has no trajectory, no environment and no limit on its time.

Rules
1. Placeholders of a command. Known before the grant: ``{source}``, ``{model}`` (the name of the fleet) and ``{slots}``; filled in by the
   node: ``{host}`` to listen on, ``{port}``, ``{gpus}`` (a count) and, unless it is declared, ``{python}`` (that of the node worker). Other braces stay.
2. Each start has another port, so that a late request for a former engine never reaches its successor.
3. Only Tangram makes such actions; the configuration, which admins alone change, declares their commands.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from domain.errors import InvalidRequest

#: Ports of engines, below those that Linux gives to connections.
PORTS: Final = range(20_000, 30_000)
#: An engine that does not answer for so long is reported; large models take minutes.
START_SECONDS: Final = 600.0
MAX_START_SECONDS: Final = 86_400.0

_MAX_PARTS: Final = 256
_MAX_CHARACTERS: Final = 16_384


class WorkerProcess(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """The worker that an action runs the engine of."""

    fleet: str
    #: Name of the worker in its fleet.
    worker: str
    port: int
    #: Digest of what it was declared with; one that differs is replaced.
    declared: str = ""


def check_command(
    command: Sequence[str], python: str, env: Mapping[str, str], start_seconds: float, *, own: bool
) -> None:
    """Raise InvalidRequest for a command that starts no server; ``own``: the fleet has workers of its own."""
    for pointer, value in {"/command": command, "/python": python, "/env": env}.items():
        if value and not own:
            wrong = "this is for workers of our own: give gpus and degrees, or leave it out"
            raise InvalidRequest(wrong, pointer=pointer)
    if command:
        _check_words(command)
    for name, value in env.items():
        if not name or "=" in name or "\0" in name + value:
            raise InvalidRequest(f"{name[:64]!r} is not a variable name", pointer="/env")
    if sum(len(name) + len(value) for name, value in env.items()) > _MAX_CHARACTERS:
        raise InvalidRequest(f"give up to {_MAX_CHARACTERS} characters", pointer="/env")
    if not 1 <= start_seconds <= MAX_START_SECONDS:
        wrong = f"give 1 to {MAX_START_SECONDS:g} seconds"
        raise InvalidRequest(wrong, pointer="/start_seconds")


def _check_words(command: Sequence[str]) -> None:
    if len(command) > _MAX_PARTS or sum(map(len, command)) > _MAX_CHARACTERS:
        wrong = f"give up to {_MAX_PARTS} arguments of {_MAX_CHARACTERS} characters together"
    elif not command[0]:
        wrong = "give the program to run first"
    elif any("\0" in part for part in command):
        wrong = "NUL cannot be part of an argument"
    elif not any("{port}" in part for part in command):
        wrong = "it needs {port} among its arguments: each start listens on another port"
    else:
        return
    raise InvalidRequest(wrong, pointer="/command")


def filled(command: Sequence[str], values: Mapping[str, str]) -> tuple[str, ...]:
    """Return a command with these placeholders replaced; other braces, as of JSON, stay."""
    done = []
    for part in command:
        for name, value in values.items():
            part = part.replace("{" + name + "}", value)
        done.append(part)
    return tuple(done)
