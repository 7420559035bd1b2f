"""Registry of facades: the built-in ones, and those that installed packages bring.

A built-in facade is imported with the first request below one of its prefixes. A package registers a `Facade`, or
a `FacadeEntry`, under the entry-point group ``tangram.facades``. An entry point that cannot be loaded, or whose
prefix is taken, is logged and left out.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable
from functools import partial
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from typing import Final

from scheduler.runtime.gateway.facade import Facade, FacadeEntry

GROUP: Final = "tangram.facades"

log = logging.getLogger(__name__)


def _load(module: str) -> Facade:
    facade: Facade = import_module(f"facades.{module}").FACADE
    return facade


def _built_in(
    module: str,
    *prefixes: str,
    documented: bool = False,
    hosts: str = "",
    resumes: bool = False,
) -> FacadeEntry:
    pattern = re.compile(hosts) if hosts else None
    return FacadeEntry(prefixes, partial(_load, module), documented, pattern, module, resumes)


#: Each with its module, which names its door, the prefix of its facade, and further prefixes that it serves.
BUILT_IN: Final = (
    _built_in("swerex", "/swerex"),
    _built_in("rock", "/apis/envs/sandbox/v1"),
    _built_in("openai", "/v1", documented=True),
    _built_in("mcp", "/mcp"),
    _built_in("sandboxfusion", "/sandboxfusion"),
    _built_in("verltool", "/verltool"),
    _built_in("polar", "/polar", resumes=True),
    _built_in("prorl", "/prorl"),
    _built_in("e2b", "/e2b", "/files", hosts=r"(?P<port>\d{1,5})-(?P<name>i[0-9a-f]{19})\."),
)


def entries(found: Iterable[EntryPoint] | None = None) -> tuple[FacadeEntry, ...]:
    """Return the built-in facades and those of ``found`` (default: all installed packages)."""
    taken: dict[str, FacadeEntry] = {
        prefix: entry for entry in BUILT_IN for prefix in entry.prefixes
    }
    chosen = list(BUILT_IN)
    for point in sorted(entry_points(group=GROUP) if found is None else found):
        entry = _entry_of(point)
        if entry is None:
            continue
        if prefixes := [prefix for prefix in entry.prefixes if prefix in taken]:
            origin = f"{point.name} = {point.value}"
            log.error("facade %s is left out: prefix %s is taken", origin, prefixes[0])
            continue
        taken |= dict.fromkeys(entry.prefixes, entry)
        chosen.append(entry)
    return tuple(chosen)


def _entry_of(point: EntryPoint) -> FacadeEntry | None:
    """Return the facade of an entry point; None, logged, when it cannot be loaded."""
    origin = f"{point.name} = {point.value}"
    try:
        found = point.load()
    except Exception as error:  # any error of a foreign module on import
        log.error("facade %s cannot be loaded: %s: %s", origin, type(error).__name__, error)
        return None
    if isinstance(found, FacadeEntry):
        return found
    if isinstance(found, Facade):
        return FacadeEntry((found.prefix,), lambda: found)
    log.error("facade %s is a %s, not a Facade", origin, type(found).__name__)
    return None
