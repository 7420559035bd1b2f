"""Command lines of actions: checks, the count of granted units, flags of test runners.

``exec.rewrite = "pytest-xdist"`` runs `pytest` as ``pytest -n {units}`` where the plugin is installed.
Only the environment knows that, so a few lines of shell check it first; without the plugin the command
runs as written and standard error says so. A command that has ``-n`` already, or is no pytest, is not
changed.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from typing import Final

from domain.action import PYTEST_XDIST, ExecSpec
from domain.ports import RunOrder
from domain.resources import MILLI

#: Exit codes of a command that cannot be executed, as of a shell.
CANNOT_EXECUTE: Final = 126
NOT_FOUND: Final = 127
IDENTIFIER: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_PYTEST: Final = frozenset({"pytest", "py.test"})
_PYTHON: Final = re.compile(r"python(\d+(\.\d+)*)?")
#: $1 is the count, $2 the number of words that start pytest; no output before the command.
_SCRIPT: Final = """\
units=$1 words=$2; shift 2
if [ "$words" = 1 ]; then "$1" -p xdist --version; else "$1" -m pytest -p xdist --version; fi \
    >/dev/null 2>&1 </dev/null || {
    echo 'tangram: pytest-xdist is not in this environment, so one core is used' >&2
    exec "$@"
}
if [ "$words" = 1 ]; then
    program=$1; shift; exec "$program" -n "$units" "$@"
else
    program=$1; shift 3; exec "$program" -m pytest -n "$units" "$@"
fi
"""


#: Becomes the command "$@". A missing program has one text in all ways to run commands, whatever the shell says.
EXECUTE: Final = (
    'case $1 in */*) tangram_f=$1 ;; *) tangram_f=; tangram_p=$PATH:; while [ -n "$tangram_p" ]; do'
    " tangram_d=${tangram_p%%:*}; tangram_d=${tangram_d:-.}/$1; tangram_p=${tangram_p#*:};"
    ' [ -f "$tangram_d" ] && [ -x "$tangram_d" ] && tangram_f=$tangram_d && break; done ;; esac;'
    ' [ -e "$tangram_f" ] || { printf "tangram: %s: not found\\n" "$1" >&2; exit 127; }; exec "$@"'
)


class CannotSpawnError(Exception):
    """The user's command cannot be spawned; the exit code is that of a shell."""

    def __init__(self, message: str, exit_code: int = CANNOT_EXECUTE) -> None:
        super().__init__(message)
        self.exit_code = exit_code


def check_command(spec: ExecSpec) -> None:
    """Raise CannotSpawnError for zero bytes and for invalid names of variables."""
    # Zero bytes end strings in the kernel, and separate the arguments that a sandbox reads.
    texts = (*spec.command, *spec.env, *spec.env.values(), spec.cwd or "")
    if any("\0" in text for text in texts):
        raise CannotSpawnError("a command, variable or path cannot contain a zero byte")
    for name in spec.env:
        if not name or "=" in name:
            raise CannotSpawnError(f"{name!r} cannot be the name of an environment variable")


def granted_units(order: RunOrder) -> int:
    """Return the granted whole count of the action's key resource, else of CPU; at least 1.

    For a malleable action, its largest count: as many workers as it may ever have cores for, which
    share the present ones.
    """
    wanted = order.action.key or "cpu"
    if order.action.malleable and wanted in order.action.cost:
        return max(1, order.action.cost[wanted][-1] // MILLI)
    for allocation in order.allocations:
        if wanted in (allocation.resource, allocation.resource.partition(":")[0]):
            return max(1, allocation.amount // MILLI)
    return 1


def thread_count(order: RunOrder, units: int) -> int:
    """Return the number of threads for libraries: that of granted cores, or of ``units`` if malleable."""
    cores = order.allocation("cpu")
    threads = max(1, cores.amount // MILLI) if cores else 1
    return max(threads, units) if order.action.malleable else threads


def env_command(env: Mapping[str, str]) -> list[str]:
    """Return an ``env`` command for variables that a shell drops: names that are no identifiers."""
    odd = [f"{name}={value}" for name, value in env.items() if not IDENTIFIER.fullmatch(name)]
    return ["env", *odd] if odd else []


def expanded(spec: ExecSpec, units: int) -> list[str]:
    """Return the command with ``{units}`` filled in and rewritten as its rule declares."""
    command = [part.replace("{units}", str(units)) for part in spec.command]
    return rewritten(command, units, spec.rewrite)


def rewritten(command: Sequence[str], units: int, rule: str | None) -> list[str]:
    """Return the command with worker flags for so many units; ``rule`` None changes nothing."""
    words = _words_of_pytest(command)
    if rule != PYTEST_XDIST or not words or any(map(_sets_workers, command[words:])):
        return list(command)
    return ["/bin/sh", "-c", _SCRIPT, "sh", str(units), str(words), *command]


def _words_of_pytest(command: Sequence[str]) -> int:
    """Return the number of words that start pytest: ``pytest`` 1, ``python -m pytest`` 3, anything else 0."""
    program = os.path.basename(command[0])
    if program in _PYTEST:
        return 1
    if _PYTHON.fullmatch(program) and list(command[1:3]) == ["-m", "pytest"]:
        return 3
    return 0


def _sets_workers(word: str) -> bool:
    return re.match(r"-n|--numprocesses|--dist|-pno:xdist|no:xdist", word) is not None
